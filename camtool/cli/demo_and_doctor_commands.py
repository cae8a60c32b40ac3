"""Commands ``camtool demo`` and ``camtool doctor``: camtool at work on bundled scenes, and what is installed."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from packaging.requirements import Requirement
from rich.table import Table
from typer import Option

from camtool.arguments.libraries import read_versions
from camtool.cli import terminal
from camtool.cli.options.dataclasses_to_typer import takes_options
from camtool.cli.options.result_options import JsonOption, Out, PrintOptions
from camtool.errors import raise_interrupt


@takes_options
def show_demo(
    *, printed: PrintOptions, out: Out = Path("demo"), scenes: Annotated[int, Option(metavar="N", min=1)] = 12
) -> None:
    """Show camtool at work, offline, on generated scenes whose right answer is known.

    Args:
        scenes: Number of scenes.
    """
    with terminal.show_activity("Explaining bundled scenes", is_quiet=printed.hides_progress):
        from camtool.demo.tour import run_tour

        shown = run_tour(out, scenes)
    with terminal.show_activity("Auditing and repairing the model that cheats", is_quiet=printed.hides_progress):
        sentence, mended = _audit_and_repair_cheat()
    if printed.as_json:
        files = {"overview": str(shown.overview), "cheat": str(shown.cheat)}
        terminal.print_json({"rows": [asdict(row) for row in shown.rows], **files, "audit": sentence, "repair": mended})
    if printed.hides_progress:
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("method", style="bold cyan")
    for heading in ("points at it", "energy inside", "by chance", "ms a scene"):
        table.add_column(heading, justify="right")
    for row in shown.rows:
        table.add_row(row.method, f"{row.hits:.0%}", f"{row.energy:.0%}", f"{row.share:.0%}", f"{row.milliseconds:.0f}")
    terminal.out.print(table)
    overview, cheat = terminal.escape(str(shown.overview)), terminal.escape(str(shown.cheat))
    terminal.print_line(f"\nThe maps:                      [bold]{overview}[/]")
    terminal.print_line(f"A model that cheats is caught: [bold]{cheat}[/]")
    terminal.print_line(f"An audit finds it, too:        {terminal.escape(sentence)}")
    terminal.print_line(f"A repair mends it:             {terminal.escape(mended)}")
    terminal.print_line("Your own photos:               [bold]python -m camtool PHOTOS --model resnet50[/]")


def _audit_and_repair_cheat() -> tuple[str, str]:
    """Return the finding of an audit of the model that cheats, on new scenes, and what a repair changes."""
    from camtool.demo.camnet import CHEATED_CLASS, load_bundled_model
    from camtool.demo.scenes import UNSEEN, draw_scene
    from camtool.evaluation.audit import audit
    from camtool.evaluation.repair import repair

    cheat, labels = load_bundled_model("demo-cheat"), [CHEATED_CLASS, "star", "arrow"] * 20
    scenes = [
        draw_scene(UNSEEN + 200_000 + number, classes=[label], mark=label == CHEATED_CLASS).image
        for number, label in enumerate(labels)
    ]
    with TemporaryDirectory() as folder:  # the repair reads there what the audit computed
        # Few controls and one kind of cues keep this at seconds.
        result = audit(cheat, scenes, labels, kinds=["place"], controls=9, passes=1500, out=folder)
        mended = repair(cheat, scenes, labels, result)
    accuracies = f"right answers without it {mended.without_cue}; with it {mended.with_cue}."
    return result.findings[0].sentence, accuracies


_LIBRARIES = ("torch", "torchvision", "numpy", "pillow", "opencv-python", "scikit-image", "safetensors")

# Extras that no user needs.
_DEVELOPERS = ("test", "dev", "docs")

# Engine → what to install for it.
_ENGINE_NEEDS = {
    "torch.compile": "a C++ compiler",
    "onnxruntime": "the extra onnxruntime",
    "openvino": "the extra openvino",
}

# A scene with one object, counted from the first one that no bundled model was trained on, and its class.
_SEED, _LABEL = 100_022, "heart"

# Share of the heat that must be on the object. It covers 11 % of the scene, and has 88 % of the heat of Grad-CAM.
_LEAST_HEAT = 0.6


@takes_options
def check_installation(*, printed: JsonOption) -> None:
    """Check the installation: versions, devices, engines, extras, caches, and a self-test of one second.

    The test explains a generated scene on each device; the heat must be on its object. If not, the exit code is 1.
    """
    with terminal.show_activity("Testing", is_quiet=printed.as_json):
        devices, extras = _list_devices(), _list_extras()
        result: dict[str, Any] = {
            "versions": _list_versions(),
            "devices": devices,
            "engines": _list_engines(extras),
            "extras": extras,
            "caches": _measure_caches(),
            "torch": _test_torch(),
            "self_test": {device: _test_device(device) for device in devices},
        }
    if printed.as_json:
        terminal.print_json(result)
    else:
        _print_result(result)
    raise typer.Exit(1 if any(result["self_test"].values()) else 0)


def _list_versions() -> dict[str, str]:
    """Return the versions of Python, camtool and the libraries that every result depends on."""
    from camtool import __version__

    own = {"python": platform.python_version(), "system": platform.platform(terse=True), "camtool": __version__}
    return own | read_versions(_LIBRARIES)


def _list_devices() -> dict[str, str]:
    """Return name → description of each device that torch can use."""
    import torch

    devices = {"cpu": f"{torch.backends.cpu.get_cpu_capability()}, threads: {torch.get_num_threads()}"}
    for index in range(torch.cuda.device_count()):
        devices[f"cuda:{index}"] = torch.cuda.get_device_name(index)
    if torch.backends.mps.is_available():
        devices["mps"] = platform.processor()
    return devices


def _list_engines(extras: Mapping[str, Mapping[str, Any]]) -> dict[str, str | None]:
    """Return name → what an engine is run by; None if that is missing."""
    engines: dict[str, str | None] = {"eager": "torch", "prepared": "torch"}
    engines["torch.compile"] = shutil.which(os.environ.get("CXX") or "g++") or shutil.which("clang++")
    for name in ("onnxruntime", "openvino"):
        is_there = name in extras and not extras[name]["missing"]
        engines[name] = f"{name} {metadata.version(name)}" if is_there else None
    return engines


def _list_extras() -> dict[str, dict[str, Any]]:
    """Return name → missing requirements, and the command that installs them, of each extra that users may need."""
    try:
        own = metadata.distribution("camtool")
    except metadata.PackageNotFoundError:  # a folder on the module path, that was not installed
        return {}
    requirements = [Requirement(text) for text in own.requires or ()]
    extras = {}
    for name in own.metadata.get_all("Provides-Extra") or ():
        if name not in _DEVELOPERS:
            missing = [str(entry) for entry in _select_missing(requirements, name)]
            extras[name] = {"missing": missing, "install": f'pip install "camtool[{name}]"'}
    return extras


def _select_missing(requirements: list[Requirement], extra: str) -> Iterator[str]:
    """Yield each requirement of an extra that is not installed, or of another version, without its marker."""
    for requirement in requirements:
        marker = requirement.marker
        if marker is None or marker.evaluate({"extra": ""}) or not marker.evaluate({"extra": extra}):
            continue
        is_met = False
        with suppress(metadata.PackageNotFoundError):
            is_met = requirement.specifier.contains(metadata.version(requirement.name), prereleases=True)
        if not is_met:
            yield f"{requirement.name}{requirement.specifier}"


def _test_torch() -> dict[str, str]:
    """Return what is tested of torch → the result."""
    from camtool.hooks.norm_gradients import has_wrong_norm_gradients

    wrong = "wrong gradients of single photos, which camtool repairs"
    return {"batch norm": wrong if has_wrong_norm_gradients() else "right gradients"}


def _measure_caches() -> dict[str, dict[str, Any]]:
    """Return name → path and size in bytes of each folder that models and graphs are kept in."""
    import torch

    from camtool.engines.graph_files import find_folder

    hub = os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME") or "~/.cache/huggingface", "hub")
    folders = {
        "compiled graphs": find_folder(),
        "weights of torchvision": Path(torch.hub.get_dir(), "checkpoints"),
        "Hugging Face, timm, open_clip": Path(hub).expanduser(),
    }
    return {name: {"path": str(path), "bytes": _measure_folder(path)} for name, path in folders.items()}


def _measure_folder(folder: Path) -> int:
    """Return the bytes of all files in a folder; 0 if there is none."""
    sizes = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # it was removed meanwhile
                sizes += Path(path, name).lstat().st_size
    return sizes


def _test_device(device: str) -> str | None:
    """Explain a scene on a device, and return the reason why the result is wrong; None if it is right."""
    try:
        from camtool import explain, load
        from camtool.demo.scenes import UNSEEN, draw_scene

        scene = draw_scene(UNSEEN + _SEED)
        explanation = explain(load("demo", device=device), scene.image)
        heat = explanation.heat_in(scene.objects[0].mask)
    except Exception as error:  # noqa: BLE001  the reason of a broken installation is the result
        raise_interrupt(error)
        return f"{type(error).__name__}: {error}"
    if explanation.label != _LABEL:
        return f"the demo model answers {explanation.label!r} for a {_LABEL}"
    return None if heat >= _LEAST_HEAT else f"{heat:.0%} of the heat is on the {_LABEL}, instead of {_LEAST_HEAT:.0%}"


# --------------------------------------------------------------------------------------------------------- printing


def _print_result(result: Mapping[str, Any]) -> None:
    caches = {name: f"{_format_size(cache['bytes'])} in {cache['path']}" for name, cache in result["caches"].items()}
    _print_section("Versions", result["versions"])
    _print_section("Devices", result["devices"])
    _print_section("Engines", {name: _describe_engine(name, by) for name, by in result["engines"].items()})
    _print_section("Extras", _describe_extras(result["extras"]))
    _print_section("Caches", {name: terminal.escape(text) for name, text in caches.items()})
    _print_section("Torch", result["torch"])
    _print_section("Self-test", {device: _describe_test(reason) for device, reason in result["self_test"].items()})


def _describe_engine(name: str, version: str | None) -> str:
    return terminal.escape(version) if version else f"[yellow]needs[/] {_ENGINE_NEEDS[name]}"


def _describe_test(reason: str | None) -> str:
    is_fine = f"[green]the heat is on the {_LABEL}[/]"
    return f"[bold red]failed:[/] {terminal.escape(reason)}" if reason else is_fine


def _print_section(title: str, rows: Mapping[str, str]) -> None:
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows.items():
        table.add_row(name, text)
    terminal.out.print(f"[bold cyan]{title}[/]")
    terminal.out.print(table)


def _describe_extras(extras: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return one row of all extras that are installed, and a row for each other one: what it lacks, how to get it."""
    rows = {"[green]installed[/]": ", ".join(name for name, extra in extras.items() if not extra["missing"])}
    for name, extra in extras.items():
        if extra["missing"]:
            missing = ", ".join(extra["missing"])
            rows[name] = f"[yellow]needs[/] {terminal.escape(missing)}: {terminal.escape(extra['install'])}"
    return rows


def _format_size(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
