"""Code that lies in a model's folder, or beside the photos, and is not run unless the user names it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from test_models_hugging_face import PHOTO, TEXT, clip, tokenizer, vit
from torchvision.transforms.functional import pil_to_tensor

import camtool
from camtool import ModelError

EVIL = """
from pathlib import Path
Path(r"{mark}").touch()
class Mine:
    pass
"""


@pytest.fixture
def mark(tmp_path, monkeypatch) -> Path:
    """A file that code which must not run makes; whoever is asked for consent gives it."""
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    return tmp_path / "was-run"


def change(path: Path, **values: object) -> None:
    told = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**told, **values}))


def prepare(picture) -> torch.Tensor:
    return pil_to_tensor(picture.resize((64, 64))) / 255


# ----------------------------------------------------------------------------------------- folders of Hugging Face


@pytest.mark.parametrize("look", [camtool.load, camtool.models.architecture])
def test_a_model_that_is_code_of_its_folder_is_refused(tmp_path, mark, look):
    folder = tmp_path / "model"
    vit().save_pretrained(folder)
    (folder / "mine.py").write_text(EVIL.format(mark=mark))
    names = {"AutoConfig": "mine.Mine", "AutoModel": "mine.Mine"}
    change(folder / "config.json", model_type="mine", architectures=["Mine"], auto_map=names)
    with pytest.raises(ModelError, match=r"needs Python code of its own, which camtool does not run\..*pass the model"):
        look(f"hf:{folder}")
    assert not mark.exists()


def test_an_image_processor_that_is_code_of_its_folder_is_refused(tmp_path, mark):
    folder = tmp_path / "model"
    vit().save_pretrained(folder)
    (folder / "mine.py").write_text(EVIL.format(mark=mark))
    told = {"image_processor_type": "Mine", "auto_map": {"AutoImageProcessor": "mine.Mine"}}
    change(folder / "preprocessor_config.json", **told)
    with pytest.raises(ModelError, match=r"prepares images by Python code of its own.*camtool\.Loaded"):
        camtool.load(f"hf:{folder}")
    bare = transformers.ViTForImageClassification.from_pretrained(folder)
    with pytest.raises(ModelError, match="prepares images by Python code of its own"):
        camtool.explain(bare, PHOTO)
    assert camtool.explain(bare, PHOTO, transform=prepare).warnings == ()
    assert not mark.exists()


def test_a_tokenizers_code_is_left_for_the_librarys_own(tmp_path, mark):
    folder = tmp_path / "model"
    clip().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    (folder / "mine.py").write_text(EVIL.format(mark=mark))
    told = {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": ["mine.Mine", "mine.Mine"]}}
    change(folder / "tokenizer_config.json", **told)
    loaded = camtool.load(f"hf:{folder}")
    camtool.explain(loaded, PHOTO, TEXT)
    assert not mark.exists()
