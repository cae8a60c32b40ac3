"""The architecture: homes of heavy libraries and hooks, the cost of an import, public names, and docstrings.

The direction of imports is held by the contract in ``pyproject.toml`` (``lint-imports``).
"""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path
from types import FrameType, ModuleType
from typing import get_origin

import pytest
import torch
from torch import nn

import camtool

PACKAGE = Path(camtool.__file__).parent
ROOT = PACKAGE.parent
FILES = sorted(PACKAGE.rglob("*.py"))
HEAVY = {"cv2", "skimage", "matplotlib", "torchvision", "ray", "pyarrow"}

# A reader scans the names of a package; more than a dozen are too many.
MOST_FILES = 12


def name_module(file: Path) -> str:
    """Return a file's module below camtool, e.g. ``"hooks.tracing"``; ``""`` is camtool itself."""
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def add_package(module: str) -> str:
    return f"camtool.{module}" if module else "camtool"


MODULES = {add_package(name_module(file)) for file in FILES}


@cache  # parsing all files takes seconds
def parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def list_imports(file: Path) -> tuple[str, ...]:
    """Return the dotted names that a file imports anywhere: modules, and names in packages that are modules."""
    names = []
    for node in ast.walk(parse(file)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file.name}: imports are absolute"
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            names += [name for name in inside if name in MODULES] or [str(node.module)]
        elif isinstance(node, ast.Call):
            function = getattr(node.func, "attr", getattr(node.func, "id", ""))
            given = [name.value for name in node.args[:1] if isinstance(name, ast.Constant)]
            names += given if function in ("import_library", "import_module") else []
    return tuple(names)


@cache
def list_calls(file: Path) -> tuple[str, ...]:
    """Return the names of the functions and methods that a file calls, without what precedes the last dot."""
    calls = [node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    return tuple(getattr(node.func, "attr", getattr(node.func, "id", "")) for node in calls)


def list_loaded(code: str) -> set[str]:
    """Return the top-level modules of a fresh process after it ran the code."""
    program = f"import sys\n{code}\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    finished = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return {*finished.stdout.split()}


def list_modules() -> list[ModuleType]:
    return [import_module(add_package(name_module(file))) for file in FILES]


# --------------------------------------------------------------------------------------------------- direction


def read_layers() -> list[list[str]]:
    """Return the packages of each line of the import contract, highest first."""
    contract = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    lines = re.search(r"^layers = \[\n(.*?)^\]", contract, re.MULTILINE | re.DOTALL)
    assert lines
    return [sorted(re.findall(r"\w+", line)) for line in lines[1].splitlines()]


def test_the_architecture_page_shows_the_import_contract() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[^|]+) \|", page, re.MULTILINE)
    assert [sorted(re.findall(r"`(\w+)`", row)) for row in rows] == read_layers()


def read_path_of_a_call() -> list[tuple[str, str]]:
    """Return the files and functions that the page lists as the path of a call, in order."""
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    steps = re.findall(r"^\d+\. `([\w/]+\.py)`: (.*)$", page, re.MULTILINE)
    return [(file, name) for file, text in steps for name in re.findall(r"`([\w.]+)`", text) if name != "Explainer"]


def find_first_line(file: str, name: str) -> int:
    """Return the line at which the code of a function begins; of several overloads the last is the function."""
    body = ast.parse((PACKAGE / file).read_text(encoding="utf-8")).body
    found: ast.AST | None = None
    for part in name.split("."):
        found = [node for node in body if getattr(node, "name", "") == part][-1]
        body = found.body  # type: ignore[attr-defined]
    assert isinstance(found, ast.FunctionDef)
    return min(node.lineno for node in (found, *found.decorator_list))


def test_the_architecture_page_shows_the_path_of_a_call() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)).eval()
    images = torch.rand(1, 3, 16, 16)
    camtool.explain(model, images, 0)  # the first call also examines the model
    entered: dict[tuple[str, int], None] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            entered[frame.f_code.co_filename, frame.f_code.co_firstlineno] = None

    previous = sys.getprofile()
    sys.setprofile(note)
    try:
        camtool.explain(model, images, 1)
    finally:
        sys.setprofile(previous)
    listed = [(str(PACKAGE / file), find_first_line(file, name)) for file, name in read_path_of_a_call()]
    assert len(listed) > 10
    assert [place for place in entered if place in listed] == listed


def test_the_top_of_the_package_shows_the_architecture() -> None:
    """At most 31 entries besides ``__init__`` and the like, on at most 14 floors of imports."""
    layers = read_layers()
    assert sum(map(len, layers)) <= 31  # the next test compares them with the packages
    assert len(layers) <= 14


def test_imports_go_downwards() -> None:
    place = {name: line for line, names in enumerate(read_layers()) for name in names}
    packages = {name: name.partition(".")[0] for name in map(name_module, FILES) if name not in ("", "__main__")}
    assert {*packages.values()} == {*place}
    wrong = []
    for file in FILES:
        source = packages.get(name_module(file))
        for name in list_imports(file):
            target = name.removeprefix("camtool.").partition(".")[0]
            if source and name.startswith("camtool.") and target != source and place[target] <= place[source]:
                wrong.append(f"{name_module(file)} imports {name}")
    assert wrong == []


def test_no_imports_form_a_circle() -> None:
    imports = {add_package(name_module(file)): MODULES.intersection(list_imports(file)) for file in FILES}
    # A package that imports its own modules is no circle: they do not import it, but one another.
    TopologicalSorter({module: names - {module} for module, names in imports.items()}).prepare()


# ------------------------------------------------------------------------------------------------------ homes


def test_no_package_has_more_than_a_dozen_files() -> None:
    folders = {file.parent for file in FILES}
    counts = {str(folder.relative_to(PACKAGE)): len([*folder.glob("[!_]*.py")]) for folder in folders}
    assert {folder: count for folder, count in counts.items() if count > MOST_FILES} == {}


def test_no_module_imports_a_private_name_of_another() -> None:
    taken = [
        f"{name_module(file)}: {node.module}.{alias.name}"
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("camtool")
        for alias in node.names
        if alias.name.startswith("_") and not alias.name.startswith("__")
    ]
    assert taken == []


@pytest.mark.parametrize(
    ("library", "homes"),
    [
        ("torchvision", {"models.sources.torchvision", "demo.camnet"}),
        ("timm", {"models.sources.timm"}),
        ("transformers", {"models.sources.hugging_face", "demo.captioner", "evaluation.watch.watching"}),
        ("open_clip", {"models.sources.open_clip"}),
        ("captum", {"evidence.deeplift"}),
        ("ultralytics", {"models.sources.ultralytics"}),
        ("cv2", {"rendering", "models.sources.ultralytics"}),
        ("openslide", {"slides.readers"}),
        ("av", {"videos.reading"}),
        ("scipy", {"evaluation.audit"}),
        ("skimage", {"rendering", "demo", "evaluation.audit", "evaluation.watch.probe"}),
        ("matplotlib", {"rendering.colormaps", "figures"}),
        ("safetensors", {"models"}),
        ("pydicom", {"inputs.formats"}),
        ("tifffile", {"inputs.formats", "slides.readers", "slides.slide_explanation"}),
        ("pickle", {"models.weights", "models.sources.hugging_face", "models.sources.ultralytics"}),
        ("jinja2", {"runs.report.page", "rendering.notebook.cards"}),
        ("gradio", {"app"}),
        ("mcp", {"app.assistant.server"}),
        ("pydantic", {"app.assistant"}),
        ("pyarrow", {"runs"}),
        ("typer", {"cli"}),
        ("rich", {"cli"}),
    ],
)
def test_a_library_is_imported_in_its_home_only(library: str, homes: set[str]) -> None:
    importing = {name_module(file) for file in FILES if library in {n.partition(".")[0] for n in list_imports(file)}}
    assert importing
    outside = {name for name in importing if not any(name == home or name.startswith(f"{home}.") for home in homes)}
    assert outside == set()


def test_one_module_opens_connections() -> None:
    clients = {"urllib.request", "http.client", "ftplib", "requests", "httpx", "aiohttp"}
    opening = {name_module(file) for file in FILES if clients & {*list_imports(file)}}
    assert opening == {"inputs.downloads"}


def test_only_hooks_registers_hooks() -> None:
    registering = {
        name_module(file).partition(".")[0]
        for file in FILES
        if any(re.fullmatch(r"register_\w*hook\w*", call) for call in list_calls(file))
    }
    assert registering == {"hooks"}


def test_only_the_command_line_prints_and_progress_alone_writes_elsewhere() -> None:
    printing = {name_module(f).partition(".")[0] for f in FILES if {"print", "print_json"} & {*list_calls(f)}}
    writing = {
        name_module(f).partition(".")[0] for f in FILES if re.search(r"\bsys\.std(out|err)\b", f.read_text("utf-8"))
    }
    assert printing == {"cli"}
    assert writing == {"cli", "progress"}


# ---------------------------------------------------------------------------------------- the cost of an import


def test_importing_camtool_loads_nothing_heavy():
    assert not list_loaded("import camtool") & {*HEAVY, "torch", "numpy", "PIL", "typer", "rich"}


def test_explain_loads_torch_but_no_library_that_it_may_not_need():
    loaded = list_loaded("import camtool; camtool.explain, camtool.Explainer, camtool.load, camtool.METHODS")
    assert "torch" in loaded
    assert not loaded & {*HEAVY, "typer", "rich", "safetensors"}


def test_the_command_line_shows_its_help_without_torch():
    assert not list_loaded("import camtool.cli.app, camtool.__main__") & {*HEAVY, "torch", "numpy"}


# ------------------------------------------------------------------------------------------------ public names


def read_stub() -> dict[str, str]:
    """Return the module of each name that the stub imports."""
    tree = ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    # Type checkers take a name of a stub for public if it is imported as itself.
    assert all(alias.asname == alias.name for node in imports for alias in node.names)
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def test_the_stub_alone_lists_the_public_names() -> None:
    stub = read_stub()
    assert camtool.__all__ == sorted(camtool.__all__, key=lambda name: (not name.isupper(), name))
    assert {*camtool.__all__} == {name for name, home in stub.items() if home != "camtool"}
    assert dir(camtool) == sorted(stub)
    source = (PACKAGE / "__init__.py").read_text(encoding="utf-8")
    assert [name for name in camtool.__all__ if re.search(rf"[\"']{name}[\"']", source)] == []


def test_public_names_are_defined_in_their_homes() -> None:
    elsewhere = [
        name
        for name, home in read_stub().items()
        if getattr(camtool, name) is not getattr(import_module(home), name)
        or (home != "camtool" and name not in list_public_names(import_module(home)))
    ]
    assert elsewhere == []


def test_all_public_names_can_be_imported_at_once() -> None:
    names: dict[str, object] = {}
    exec("from camtool import *", names)  # the statement is not allowed in a function
    assert {*camtool.__all__} <= {*names}


def test_packages_export_their_own_names_alone() -> None:
    foreign = set()
    for package in [add_package(name_module(file)) for file in FILES if file.name == "__init__.py"]:
        names: dict[str, object] = {}
        exec(f"from {package} import *", names)
        own = {"__builtins__", "annotations", *list_public_names(import_module(package))}
        others = {name: value for name, value in names.items() if name not in own}
        parts = {name for name, value in others.items() if getattr(value, "__name__", "") == f"{package}.{name}"}
        foreign |= {f"{package}.{name}" for name in others.keys() - parts}
    assert foreign == set()


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'explian'"):
        camtool.explian  # noqa: B018


def test_modules_have_docstrings() -> None:
    assert [module.__name__ for module in list_modules() if not module.__doc__] == []


def test_a_comment_above_a_constant_explains_it() -> None:
    # Not a string below it: that is a statement, and a reader meets the value first.
    for file in FILES:
        body = parse(file).body
        strings = [node for node in body[1:] if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
        assert [node.lineno for node in strings] == [], file


def list_public_names(module: ModuleType) -> list[str]:
    """Return ``__all__``, or all names without an underscore that a module binds itself, or imports as themselves."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    bound: list[str] = []
    for node in ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bound.append(node.name)
        if isinstance(node, ast.ImportFrom):
            bound += [alias.name for alias in node.names if alias.asname == alias.name]
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        bound += [name.id for target in targets if target for name in ast.walk(target) if isinstance(name, ast.Name)]
    return [name for name in bound if not name.startswith("_")]


def test_only_packages_that_gather_names_list_them() -> None:
    for module in list_modules():
        names = getattr(module, "__all__", None)
        if names is not None:
            assert Path(str(module.__file__)).name == "__init__.py", module  # elsewhere an underscore says it
            assert sorted({*names}) == sorted(names), module
            assert [name for name in names if not hasattr(module, name) or re.match("_[^_]", name)] == [], module


def test_public_functions_classes_and_methods_have_docstrings() -> None:
    assert [name for module in list_modules() for name in list_undocumented(module)] == []


def list_undocumented(module: ModuleType) -> list[str]:
    """Return what a module makes public without a docstring."""
    public = [getattr(module, name) for name in list_public_names(module)]
    written = [thing for thing in public if get_origin(thing) is None]  # Python 3.10 takes Callable[...] for a class
    own = [thing for thing in written if getattr(thing, "__module__", "").startswith("camtool")]
    things = [thing for thing in own if inspect.isclass(thing) or inspect.isfunction(thing)]
    methods = [
        member
        for thing in things
        if inspect.isclass(thing)
        for name, member in vars(thing).items()
        if inspect.isfunction(member) and not name.startswith("_")
    ]
    return [each.__qualname__ for each in [*things, *methods] if not (each.__doc__ or "").strip()]


def test_no_module_hides_a_name_that_its_package_exports() -> None:
    for package in [add_package(name_module(file)) for file in FILES if file.name == "__init__.py"]:
        stems = {module.rpartition(".")[2] for module in MODULES if module.rpartition(".")[0] == package}
        exported = import_module(package)
        names = list_public_names(exported)
        assert not stems & {name for name in names if not inspect.ismodule(getattr(exported, name))}, package


def test_the_package_has_a_py_typed_file():
    assert (PACKAGE / "py.typed").is_file()


def test_the_version_is_that_of_the_distribution():
    from importlib.metadata import version

    assert camtool.__version__ == version("camtool")


def test_the_citation_is_of_this_version_and_dated_if_it_was_released() -> None:
    import yaml

    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation.keys() >= {"cff-version", "message", "title", "authors"}, "what the format requires"
    assert citation["version"] == camtool.__version__
    assert f'license = "{citation["license"]}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    heading = rf"^## \[{re.escape(camtool.__version__)}\] - ([\d-]+)$"
    released = re.search(heading, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert str(citation.get("date-released")) == str(released and released[1])


def test_a_folder_named_camtool_in_the_working_directory_does_not_hide_the_package(tmp_path):
    (tmp_path / "camtool").mkdir()  # e.g. a checkout
    script = "import importlib.util; print(importlib.util.find_spec('camtool').origin)"
    found = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert Path(found.stdout.strip()) == Path(camtool.__file__)


def test_the_wheel_holds_the_package_and_nothing_else() -> None:
    from setuptools import find_packages

    root = PACKAGE.parent
    assert {name.partition(".")[0] for name in find_packages(str(root), include=["camtool*"])} == {"camtool"}
    assert {add_package(name_module(file.parent / "__init__.py")) for file in FILES} <= {
        *find_packages(str(root), include=["camtool*"])
    }
