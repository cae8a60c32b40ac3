"""Code in a model's folder, or in the working directory, that must not run unless the user names it."""

# ruff: noqa: F401, F811  fixtures of the other file are used by name

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from torchvision.transforms.functional import pil_to_tensor

import camtool
from camtool import ModelError
from tests.cli.test_commands import camtool_, drop_progress, photos, split_notes, start_process
from tests.helpers.tiny_models import TINY
from tests.models.sources.test_hugging_face import PHOTO, TEXT, build_tokenizer, clip, vit

MALICIOUS = """
from pathlib import Path
Path(r"{mark}").touch()
class Mine:
    pass
"""


class Malicious:
    """An object whose pickle creates a file when it is read."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self):
        return (Path.touch, (Path(self.mark),))


@pytest.fixture
def mark(tmp_path, monkeypatch) -> Path:
    """Path of a file that the malicious code creates. Each request for consent is answered with yes."""
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    return tmp_path / "was-run"


def update_json(path: Path, **values: object) -> None:
    values_before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**values_before, **values}))


def prepare(image) -> torch.Tensor:
    return pil_to_tensor(image.resize((64, 64))) / 255


# -------------------------------------------------------------------------------------- folders of Hugging Face models


@pytest.mark.parametrize("function", [camtool.load, camtool.models.build_untrained])
def test_a_model_with_code_in_its_folder_is_refused(tmp_path, mark, function):
    folder = tmp_path / "model"
    vit().save_pretrained(folder)
    (folder / "mine.py").write_text(MALICIOUS.format(mark=mark))
    names = {"AutoConfig": "mine.Mine", "AutoModel": "mine.Mine"}
    update_json(folder / "config.json", model_type="mine", architectures=["Mine"], auto_map=names)
    with pytest.raises(ModelError, match=r"needs Python code of its own, which camtool does not run\..*pass the model"):
        function(f"hf:{folder}")
    assert not mark.exists()


def test_an_image_processor_with_code_in_its_folder_is_refused(tmp_path, mark):
    folder = tmp_path / "model"
    vit().save_pretrained(folder)
    (folder / "mine.py").write_text(MALICIOUS.format(mark=mark))
    config = {"image_processor_type": "Mine", "auto_map": {"AutoImageProcessor": "mine.Mine"}}
    update_json(folder / "preprocessor_config.json", **config)
    with pytest.raises(ModelError, match=r"preprocesses images with Python code of its own.*camtool\.Loaded"):
        camtool.load(f"hf:{folder}")
    bare = transformers.ViTForImageClassification.from_pretrained(folder)
    with pytest.raises(ModelError, match="preprocesses images with Python code of its own"):
        camtool.explain(bare, PHOTO)
    assert camtool.explain(bare, PHOTO, transform=prepare).warnings == ()
    assert not mark.exists()


def test_code_beside_a_model_that_nothing_names_is_not_run(tmp_path, mark, monkeypatch):
    folder = tmp_path / "model"
    vit().save_pretrained(folder)
    (folder / "custom_generate").mkdir()
    names = ("hubconf", "__init__", "conftest", "sitecustomize", "modeling_vit", "custom_generate/generate", "handler")
    for name in names:
        (folder / f"{name}.py").write_text(MALICIOUS.format(mark=mark))
    (folder / "tokenizer.pkl").write_bytes(pickle.dumps(Malicious(str(mark))))
    monkeypatch.chdir(folder)
    for name in ("hf:.", f"hf:{folder}"):
        assert isinstance(camtool.load(name).model, transformers.ViTForImageClassification)
    assert not mark.exists()


@pytest.mark.parametrize("part", ["config", "vision_config"])
@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_a_kernel_that_a_file_names_is_not_downloaded(tmp_path, monkeypatch, key, part):
    clip().save_pretrained(tmp_path)
    kernel = {key: "kernels-community/flash-attn2"}
    values = kernel if part == "config" else json.loads((tmp_path / "config.json").read_text())[part] | kernel
    update_json(tmp_path / "config.json", **(values if part == "config" else {part: values}))
    monkeypatch.setattr(
        "transformers.modeling_utils.lazy_import_flash_attention", lambda *_, **__: pytest.fail("it was loaded")
    )
    assert camtool.load(f"hf:{tmp_path}").text is not None


@pytest.mark.parametrize("name", ["AutoModel", "pipeline", "Trainer", "logging", "__dict__"])
def test_what_is_no_model_of_transformers_is_not_called_as_one(tmp_path, name):
    vit().save_pretrained(tmp_path)
    update_json(tmp_path / "config.json", architectures=[name])
    with pytest.raises(ModelError, match=rf"is of no class of transformers .* \(it is an? {name}\); load it yourself"):
        camtool.load(f"hf:{tmp_path}")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "timm"])
def test_a_pickle_of_weights_with_code_is_refused(tmp_path, mark, name):
    folder = tmp_path / "model"
    vit().save_pretrained(folder)
    (folder / "model.safetensors").unlink()
    torch.save({"weights": Malicious(str(mark))}, folder / "pytorch_model.bin")
    if name == "timm":
        pytest.importorskip("timm")
        (folder / "config.json").write_text(json.dumps({"architecture": "resnet18", "pretrained_cfg": {}}))
    with pytest.raises(ModelError, match=r"Reading it could run any code|weights_only"):
        camtool.load(f"hf:{folder}" if name == "pytorch_model.bin" else f"timm:local-dir:{folder}")
    assert not mark.exists()


def test_libraries_and_modules_beside_an_onnx_file_are_not_loaded_and_none_outside_is_read(tmp_path, mark):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from tests.helpers import onnx_files

    path = onnx_files.write_by_hand(tmp_path / "net.onnx")
    for name in ("net.py", "custom_ops.py", "onnxruntime_extensions.py"):
        (path.parent / name).write_text(MALICIOUS.format(mark=mark))
    for name in ("net.so", "libcustom_ops.so", "net.dll"):
        (path.parent / name).write_bytes(b"no library")
    assert camtool.load(path, output="scores").model(torch.ones(1, 1, 4, 4)).shape == (1, 2)
    graph = onnx.load(path)
    graph.opset_import.add(domain="mine", version=1)
    graph.graph.node[1].domain = "mine"
    onnx.save(graph, path)
    with pytest.raises(ModelError, match=r"net\.onnx cannot be read: .*is not a registered function"):
        camtool.load(path, output="scores")
    assert not mark.exists()


def test_a_tokenizer_with_code_in_its_folder_is_replaced_by_the_librarys(tmp_path, mark):
    folder = tmp_path / "model"
    clip().save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    (folder / "mine.py").write_text(MALICIOUS.format(mark=mark))
    config = {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": ["mine.Mine", "mine.Mine"]}}
    update_json(folder / "tokenizer_config.json", **config)
    loaded = camtool.load(f"hf:{folder}")
    camtool.explain(loaded, PHOTO, TEXT)
    assert not mark.exists()


# -------------------------------------------------------------------------------------------- the working directory

LIBRARIES = ["numpy", "torch", "typer", "rich", "PIL", "cv2", "torchvision", "accimage"]
STANDARD = ["__future__", "typing", "json", "dataclasses", "enum", "random", "signal", "hashlib", "socket"]


def write_malicious_modules(folder: Path, *names: str) -> Path:
    """Write modules with these names to a folder. Each creates a file in the returned folder when it is imported."""
    ran = folder / "ran"
    ran.mkdir()
    for name in names:
        (folder / f"{name}.py").write_text(f"open({str(ran / name)!r}, 'w').close()\nraise ImportError('evil')\n")
    return ran


@pytest.mark.parametrize(("model", "safe"), [(TINY, False), ("demo", True)])
def test_a_module_in_the_photo_folder_does_not_replace_a_library(photos, tmp_path, monkeypatch, model, safe):
    if safe:
        monkeypatch.setenv("PYTHONSAFEPATH", "1")
    ran = write_malicious_modules(tmp_path, *LIBRARIES, *STANDARD)
    process = start_process("photos", "--model", model, cwd=tmp_path, is_fresh=True)
    assert (split_notes(drop_progress(process.communicate(timeout=300)[1]))[0], process.returncode) == ("", 0)
    assert [*ran.iterdir()] == []


def test_the_installed_command_does_not_import_from_the_working_directory(photos, tmp_path):
    ran = write_malicious_modules(tmp_path, *LIBRARIES, *STANDARD)
    script = (
        "import sys; del sys.path[0]; from camtool.cli.app import main; main()"  # as an installed script: not from here
    )
    command = [sys.executable, "-c", script, "photos", "--model", "demo", "--quiet"]
    environment = {**os.environ, "PYTHONPATH": str(Path(camtool.__file__).parents[1])}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr, [*ran.iterdir()]) == (0, "", [])


def test_a_factory_in_the_working_directory_is_imported_with_its_siblings_only(photos, tmp_path):
    ran = write_malicious_modules(tmp_path, "numpy", "json")
    (tmp_path / "layers_of_mine.py").write_text("from tests.helpers.tiny_models import tiny\n")
    (tmp_path / "nets_of_mine.py").write_text(
        "import layers_of_mine, sys\ndef make():\n    import numpy, layers_of_mine\n    return layers_of_mine.tiny()\n"
    )
    process = start_process("photos", "--model", "nets_of_mine:make", cwd=tmp_path, is_fresh=True)
    assert (split_notes(drop_progress(process.communicate(timeout=300)[1]))[0], process.returncode) == ("", 0)
    assert [*ran.iterdir()] == []


def test_the_working_directory_is_on_the_path_only_during_the_import(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", before := [place for place in sys.path if place not in ("", str(tmp_path))])
    (tmp_path / "seen_path.py").write_text(
        "import sys, torch\nseen = [*sys.path]\ndef make():\n    return torch.nn.Linear(2, 2)\n"
        "def fail():\n    raise KeyError(1)\n"
    )
    expected = [*before]
    camtool.load("seen_path:make")
    assert sys.modules.pop("seen_path").seen == [*expected, str(tmp_path)]
    with pytest.raises(KeyError):
        camtool.load("seen_path:fail")
    assert sys.path == expected
    camtool.load("demo")
    assert sys.path == expected


def test_the_error_for_a_missing_function_names_the_file_of_the_module(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("def make(): ...")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=r"torch \(.*__init__\.py\) has no function 'make_mine'"):
        camtool.load("torch:make_mine")
