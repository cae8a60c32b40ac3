"""The walls between the rooms: who may import whom, what an import costs, and which names are public."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path
from typing import get_origin

import pytest

import camtool

PACKAGE = Path(camtool.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
HEAVY = {"cv2", "skimage", "matplotlib", "torchvision"}

ROOMS = {
    "tags": set(),
    "colormaps": {"errors"},
    "manifest": {"errors", "escapes", "images", "locking"},
    "escapes": set(),
    "locking": set(),
    "filenames": set(),
    "arguments": {"errors"},
    "input_checks": {"errors", "inputs"},
    "input_warnings": {"geometry"},
    "tiff": set(),
    "heads": {"errors", "hooks", "maps", "structures"},
    "model_cache": set(),
    "cleanup": set(),
    "lazy": set(),
    "errors": set(),
    "rng": {"cleanup"},
    "structures": set(),
    "tables": set(),
    "modules": {"errors"},
    "guards": {"cleanup", "errors", "modules", "rng", "structures"},
    "hooks": {"arguments", "cleanup", "errors", "guards", "modules", "structures"},
    "recorder.backward": {"hooks"},
    "recorder.edits": {"errors"},
    "recorder.editing": {"errors", "recorder.edits", "recorder.selecting", "structures"},
    "recorder.selecting": {"arguments", "errors", "modules"},
    "recorder.reducers": {"errors"},
    "recorder.records": {"errors", "recorder.reducers", "structures"},
    "recorder.recording": {
        "arguments",
        "cleanup",
        "errors",
        "hooks",
        "modules",
        "recorder.backward",
        "recorder.editing",
        "recorder.edits",
        "recorder.records",
        "recorder.selecting",
        "structures",
    },
    "recorder": {
        *("recorder.edits", "recorder.recording", "recorder.records", "recorder.reducers"),
        *("recorder.selecting",),
    },
    "layers": {"errors", "guards", "hooks", "layouts", "model_cache", "modules", "outputs", "sealed", "structures"},
    "channel_axes": {"hooks"},
    "layouts": {"channel_axes", "hooks"},
    "inputs": {"errors", "hooks", "images", "layers", "model_cache", "modules", "structures"},
    "outputs": {"errors", "structures"},
    "targets": {
        *("targets.about", "targets.base", "targets.choosing", "targets.classes", "targets.contrasts"),
        *("targets.detections", "targets.places", "targets.values", "targets.wrappers"),
    },
    "targets.about": {
        *("targets.base", "targets.classes", "targets.detections", "targets.places", "targets.wrappers"),
    },
    "targets.base": {"outputs"},
    "targets.checks": {"errors", "outputs"},
    "targets.choosing": {
        *("errors", "geometry", "outputs", "targets.about", "targets.base", "targets.checks", "targets.classes"),
        *("targets.contrasts", "targets.detections", "targets.places", "targets.values", "targets.wrappers"),
    },
    "targets.classes": {"outputs", "targets.base", "targets.checks"},
    "targets.contrasts": {"errors", "outputs", "targets.base", "targets.checks", "targets.classes"},
    "targets.detections": {"errors", "geometry", "outputs", "targets.base", "targets.checks"},
    "targets.places": {"errors", "geometry", "outputs", "targets.base", "targets.checks"},
    "targets.values": {"errors", "outputs", "targets.base", "targets.checks"},
    "targets.wrappers": {"errors", "outputs", "targets.base"},
    "evidence": {
        "attended",
        "attention",
        "errors",
        "guards",
        "heads",
        "hooks",
        "layers",
        "lazy",
        "maps",
        "outputs",
        "streaming",
        "structures",
        "targets",
    },
    "attention": {"guards", "hooks", "maps", "structures"},
    "attended": {"attention", "errors", "guards", "layouts", "lazy", "maps"},
    "streaming": {"errors", "guards", "hooks", "sealed", "structures"},
    "maps": {"errors"},
    "methods.registry": {"arguments", "errors", "evidence", "lazy", "sealed"},
    "methods.options": {"errors", "evidence", "targets"},
    "methods.ablation": {"evidence", "maps", "methods.options", "methods.registry"},
    "methods.listing": {"methods.registry", "tables"},
    "methods.optimised": {
        "evidence",
        "guards",
        "maps",
        "methods.masking",
        "methods.options",
        "methods.registry",
        "streaming",
    },
    "methods.activation": {"errors", "evidence", "maps", "methods.options", "methods.registry"},
    "methods.attention": {"attended", "evidence", "maps", "methods.options", "methods.registry"},
    "methods.gradient": {"errors", "evidence", "methods.options", "methods.registry"},
    "methods.linear": {"evidence", "methods.registry"},
    "methods.pixels": {
        "errors",
        "evidence",
        "guards",
        "maps",
        "methods.gradient",
        "methods.options",
        "methods.registry",
        "rng",
        "streaming",
    },
    "methods.fullgrad": {"evidence", "maps", "methods.pixels", "methods.registry"},
    "methods.masking": {
        *("errors", "evidence", "maps", "methods.gradient", "methods.options", "methods.registry", "outputs"),
        "targets",
    },
    "methods.rival": {"errors", "evidence", "methods.options", "methods.registry", "streaming", "targets"},
    "methods.paths": {
        *("errors", "evidence", "maps", "methods.gradient", "methods.options", "methods.registry", "rng"),
        "streaming",
    },
    "methods.wrappers": {
        *("errors", "evidence", "maps", "methods.activation", "methods.masking", "methods.options"),
        *("methods.registry", "rng", "streaming", "targets"),
    },
    "methods": {
        *("methods.ablation", "methods.activation", "methods.attention", "methods.fullgrad", "methods.gradient"),
        "methods.linear",
        *("methods.masking", "methods.optimised", "methods.paths", "methods.pixels", "methods.registry"),
        *("methods.rival", "methods.wrappers"),
    },
    "geometry": {"cleanup", "errors", "lazy", "rng"},
    "images": {"errors", "tiff"},
    "overlay": {"colormaps", "errors", "tags"},
    "sealed": {"modules"},
    "models.base": set(),
    "models.wrappers": set(),
    "models.weights": {"errors"},
    "models.towers": {"errors", "guards", "model_cache", "structures"},
    "models.factory": {"errors", "models.base", "models.weights"},
    "models.torchvision_zoo": {"errors", "models.base", "models.weights"},
    "models.timm_zoo": {"errors", "models.base", "models.torchvision_zoo", "models.weights"},
    "models.hugging_face": {"errors", "lazy", "models.base", "models.towers", "models.weights"},
    "models.open_clip_zoo": {"errors", "models.base", "models.towers", "models.weights"},
    "models.usual": {
        *("errors", "models.base", "models.hugging_face", "models.open_clip_zoo", "models.timm_zoo"),
        *("models.torchvision_zoo", "modules"),
    },
    "models.registry": {
        "arguments",
        "errors",
        "images",
        "models.base",
        "models.factory",
        "models.hugging_face",
        "models.open_clip_zoo",
        "models.timm_zoo",
        "models.torchvision_zoo",
        "models.towers",
        "models.wrappers",
        "sealed",
    },
    "models": {
        *("models.base", "models.registry", "models.torchvision_zoo", "models.towers", "models.usual"),
        *("models.weights", "models.wrappers"),
    },
    "plots": {"overlay"},
    "views": {"errors", "geometry", "maps", "overlay", "plots"},
    "pictures": {
        "errors",
        "geometry",
        "images",
        "input_checks",
        "input_warnings",
        "inputs",
        "lazy",
        "models",
        "modules",
        "overlay",
        "structures",
        "views",
    },
    "trust": {"evidence", "maps", "targets"},
    "explanation": {
        "arguments",
        "cleanup",
        "errors",
        "evidence",
        "geometry",
        "guards",
        "images",
        "inputs",
        "layers",
        "lazy",
        "maps",
        "methods",
        "model_cache",
        "models",
        "modules",
        "outputs",
        "overlay",
        "pictures",
        "structures",
        "targets",
        "trust",
        "views",
    },
    "concept_page": set(),
    "factorisation": {
        "arguments",
        "concept_page",
        "errors",
        "hooks",
        "images",
        "layers",
        "maps",
        "models",
        "modules",
        "outputs",
        "overlay",
        "pictures",
        "targets",
    },
    "candidates": {"arguments", "errors", "inputs", "layers", "models", "pictures", "structures", "tables"},
    "folder": {"errors", "explanation", "filenames", "images", "manifest", "overlay"},
    "figures": {"figures.activity", "figures.explained", "figures.filters", "figures.paper"},
    "figures.activity": {
        "arguments",
        "errors",
        "evidence",
        "figures.canvas",
        "figures.panels",
        "figures.paper",
        "figures.signs",
        "hooks",
        "inputs",
        "layers",
        "models",
        "modules",
        "pictures",
        "recorder",
        "structures",
        "targets",
    },
    "figures.canvas": {"figures.signs"},
    "figures.explained": {
        "arguments",
        "errors",
        "explanation",
        "figures.canvas",
        "figures.grids",
        "figures.paper",
        "figures.signs",
        "methods",
        "models",
        "overlay",
        "pictures",
        "recorder",
        "targets",
    },
    "figures.filters": {
        "arguments",
        "errors",
        "figures.activity",
        "figures.canvas",
        "figures.panels",
        "figures.paper",
        "figures.signs",
        "models",
        "modules",
        "recorder",
    },
    "figures.grids": {"figures.canvas", "figures.paper"},
    "figures.panels": {"figures.canvas", "figures.paper", "figures.signs"},
    "figures.paper": {"errors", "figures.canvas", "images"},
    "figures.signs": set(),
    "comparing": {
        "arguments",
        "errors",
        "explanation",
        "figures",
        "figures.canvas",
        "figures.explained",
        "figures.paper",
        "images",
        "methods",
        "models",
    },
    "demo": set(),
    "demo.dice": set(),
    "demo.sheet": set(),
    "demo.shapes": {"demo.dice"},
    "demo.backdrops": {"demo.dice"},
    "demo.bodies": {"demo.backdrops", "demo.dice", "demo.shapes"},
    "demo.scenes": {"demo.backdrops", "demo.bodies", "demo.dice", "demo.shapes", "errors"},
    "demo.camnet": {"demo.shapes", "models"},
    "demo.measure": {"demo.camnet", "demo.scenes", "explanation"},
    "demo.train": {"demo.camnet", "demo.dice", "demo.measure", "demo.scenes"},
    "demo.bundled": {"demo.camnet", "errors", "models"},
    "demo.tour": {
        *("demo.bundled", "demo.measure", "demo.scenes", "demo.sheet", "demo.train"),
        *("errors", "explanation", "images", "models", "overlay"),
    },
    "cli": {
        "",
        "candidates",
        "demo.tour",
        "errors",
        "escapes",
        "explanation",
        "figures",
        "figures.paper",
        "folder",
        "images",
        "inputs",
        "maps",
        "methods",
        "methods.listing",
        "models",
        "overlay",
        "streaming",
        "targets",
    },
    "__main__": {"cli"},
    "": {
        "candidates",
        "comparing",
        "errors",
        "evidence",
        "explanation",
        "factorisation",
        "inputs",
        "methods",
        "models",
        "recorder",
    },
}
"""Room → the rooms it may import, wherever in the file it does so; "" is ``camtool`` itself."""


def room_of(file: Path) -> str:
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def dotted(room: str) -> str:
    return f"camtool.{room}" if room else "camtool"


def imports(file: Path) -> Iterator[str]:
    """The dotted names that a file imports anywhere: modules, and what is taken from packages if it is a module."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file.name}: imports are absolute"
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            submodules = [name for name in inside if name in {dotted(room_of(each)) for each in FILES}]
            yield from submodules or [str(node.module)]


def calls(file: Path) -> Iterator[str]:
    """The names of the functions and methods that a file calls, without what stands before the last dot."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield getattr(node.func, "attr", getattr(node.func, "id", ""))


def loaded_after(code: str) -> set[str]:
    """The top-level modules in a fresh process after it ran the code."""
    program = f"import sys\n{code}\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    finished = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return {*finished.stdout.split()}


# ------------------------------------------------------------------------------------------------------- rooms


@pytest.mark.parametrize("file", FILES, ids=room_of)
def test_a_room_imports_the_rooms_it_may_and_no_others(file):
    used = {name.removeprefix("camtool").lstrip(".") for name in imports(file) if re.match(r"camtool\b", name)}
    assert used == ROOMS[room_of(file)]


def test_the_table_of_rooms_has_no_room_that_is_gone():
    assert {*ROOMS} == {room_of(file) for file in FILES}


def test_no_room_reaches_for_what_another_keeps_private():
    taken = [
        f"{room_of(file)}: {node.module}.{alias.name}"
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("camtool")
        for alias in node.names
        if alias.name.startswith("_") and not alias.name.startswith("__")
    ]
    assert taken == []


def test_the_arrows_point_one_way():
    inside = {room: needs - {""} for room, needs in ROOMS.items() if room}
    list(TopologicalSorter(inside).static_order())  # raises CycleError


@pytest.mark.parametrize(
    ("module", "homes"),
    [
        ("torchvision", {"models.torchvision_zoo", "demo.camnet"}),
        ("timm", {"models.timm_zoo"}),
        ("transformers", {"models.hugging_face"}),
        ("open_clip", {"models.open_clip_zoo"}),
        ("cv2", {"colormaps", "overlay", "plots"}),
        ("skimage", {"overlay", "demo.backdrops"}),
        ("matplotlib", {"colormaps", "figures.canvas"}),
        ("safetensors", {"models.hugging_face", "models.weights", "demo.train"}),
        ("pickle", {"models.weights"}),
        ("typer", {"cli"}),
        ("rich", {"cli"}),
    ],
)
def test_a_library_is_imported_in_its_home_only(module, homes):
    assert {room_of(file) for file in FILES if module in {name.partition(".")[0] for name in imports(file)}} == homes


def test_hooks_are_registered_in_hooks_only():
    assert {room_of(f) for f in FILES if any(re.fullmatch(r"register_\w*hook\w*", c) for c in calls(f))} == {"hooks"}


def test_only_the_command_line_prints():
    assert {room_of(file) for file in FILES if {"print", "print_json"} & {*calls(file)}} == {"cli"}
    # The training is a script of its own, run by those who make the demo.
    speak = {room_of(file) for file in FILES if re.search(r"\bsys\.std(out|err)\b", file.read_text("utf-8"))}
    assert speak == {"cli", "demo.train"}


# ---------------------------------------------------------------------------------------- what an import costs


def test_importing_camtool_loads_nothing_heavy():
    assert not loaded_after("import camtool") & {*HEAVY, "torch", "numpy", "PIL", "typer", "rich"}


def test_explain_loads_torch_but_no_library_that_it_may_not_need():
    loaded = loaded_after("import camtool; camtool.explain, camtool.Explainer, camtool.load, camtool.METHODS")
    assert "torch" in loaded
    assert not loaded & {*HEAVY, "typer", "rich", "safetensors"}


def test_the_command_line_answers_help_without_torch():
    assert not loaded_after("import camtool.cli, camtool.__main__") & {*HEAVY, "torch", "numpy"}


# ------------------------------------------------------------------------------------------------ public names


def modules():
    return [import_module(dotted(room_of(file))) for file in FILES]


def test_the_public_names_are_sorted_and_have_a_home_each():
    assert camtool.__all__ == sorted(camtool.__all__, key=lambda name: (not name.isupper(), name))
    assert {*camtool.__all__} == {*camtool._HOMES}
    assert {*camtool.__all__} <= {*dir(camtool)}


@pytest.mark.parametrize("name", camtool.__all__)
def test_a_public_name_is_that_of_its_home(name):
    home = import_module(f"camtool.{camtool._HOMES[name]}")
    assert name in home.__all__
    assert getattr(camtool, name) is getattr(home, name)


def test_type_checkers_see_the_same_names_as_people():
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    shown = {
        alias.name: str(node.module).removeprefix("camtool.")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("camtool.")
        for alias in node.names
    }
    assert shown == camtool._HOMES


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'explian'"):
        camtool.explian  # noqa: B018


@pytest.mark.parametrize("module", [m for m in modules() if m.__name__ != "camtool.__main__"], ids=lambda m: m.__name__)
def test_a_module_says_what_it_owns_and_what_is_public(module):
    assert module.__doc__
    assert len({*module.__all__}) == len(module.__all__)
    assert [name for name in module.__all__ if not hasattr(module, name)] == []
    assert [name for name in module.__all__ if name.startswith("_")] == []


@pytest.mark.parametrize("module", [m for m in modules() if hasattr(m, "__all__")], ids=lambda m: m.__name__)
def test_every_public_function_class_and_method_has_a_docstring(module):
    public = [getattr(module, name) for name in module.__all__]
    written = [thing for thing in public if get_origin(thing) is None]  # Python 3.10 takes Callable[...] for a class
    things = [thing for thing in written if inspect.isclass(thing) or inspect.isfunction(thing)]
    methods = [
        member
        for thing in things
        if inspect.isclass(thing)
        for name, member in vars(thing).items()
        if inspect.isfunction(member) and not name.startswith("_")
    ]
    assert [each.__qualname__ for each in [*things, *methods] if not (each.__doc__ or "").strip()] == []


@pytest.mark.parametrize("package", [dotted(room_of(file)) for file in FILES if file.name == "__init__.py"])
def test_no_module_hides_a_name_that_its_package_exports(package):
    stems = {room.rpartition(".")[2] for room in ROOMS if room and dotted(room).rpartition(".")[0] == package}
    exported = import_module(package)
    assert not stems & {name for name in exported.__all__ if not inspect.ismodule(getattr(exported, name))}


def test_the_package_tells_type_checkers_that_it_is_typed():
    assert (PACKAGE / "py.typed").is_file()


def test_the_version_is_that_of_the_distribution():
    from importlib.metadata import version

    assert camtool.__version__ == version("camtool")


def test_a_folder_of_that_name_where_python_starts_does_not_hide_the_package(tmp_path):
    (tmp_path / "camtool").mkdir()  # a checkout, seen from the folder in which it was made
    script = "import importlib.util; print(importlib.util.find_spec('camtool').origin)"
    found = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert Path(found.stdout.strip()) == Path(camtool.__file__)
