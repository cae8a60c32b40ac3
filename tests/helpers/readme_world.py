"""The world in which README's blocks run: photos, weights where libraries look first, and what README takes as given.

Weights are random. They lie where torchvision, timm and Hugging Face look before they fetch anything, so that what
loads them is the code that loads published ones, and the network is not needed: :func:`sealed` takes it away.

``python readme_world.py`` runs the Python blocks of all pages in the working directory. With commands as arguments it
runs these instead, in one process, as ``python -m camtool`` takes seconds to start.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
import warnings
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

README = Path(__file__).resolve().parents[2] / "README.md"
SKILL = README.parent / "camtool" / ".agents" / "skills" / "camtool" / "SKILL.md"
PAGES = [README, *sorted((README.parent / "docs").rglob("*.md")), SKILL]
"""The README, the pages of ``docs`` and the skill, in the order in which their blocks run."""

PHOTOS = (
    *("photo.jpg", "a.jpg", "b.jpg", "c.jpg", "cat.jpg", "dog.jpg", "street.jpg"),
    *("photos/first.jpg", "photos/deeper/second.jpg", "more/third.jpg"),
)
CLASSES = 4
NO_NETWORK = """
import socket

def _refuse(*args, **kwargs):
    raise OSError("the network is closed")

socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = _refuse
"""
FACTORY = f"""
from torchvision.models import squeezenet1_1

def make():
    return squeezenet1_1(num_classes={CLASSES})
"""

PREPARE = """
import torch
from torchvision.transforms import v2

prepare = v2.Compose([v2.Resize((64, 64)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
"""

VOLUME_NET = """
from torch import nn

def volume_net():
    trunk = nn.Sequential(nn.Conv3d(1, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool3d(1))
    return nn.Sequential(trunk, nn.Flatten(), nn.Linear(4, 3))
"""

NOT_RUN = {
    "https://": "needs the network; tests/inputs/test_downloads.py",
    "s3://": "needs the network; tests/runs/cluster",
    "camtool cluster": "starts processes that talk over sockets; tests/runs/cluster",
    "report shards/": "needs shards of a cluster run; tests/runs/report/test_shards.py",
    "slide.svs": "needs a slide and a model of its classes; tests/slides",
    "result.tiles": "is about the result of a slide; tests/slides",
    "export_page": "gets its runtime by npm; tests/app/web_page",
    "pipeline.unet": "needs a pipeline of diffusers; tests/attention_maps/test_words.py",
    "fasterrcnn_mobilenet": "needs weights that find something; tests/targets",
    "lraspp_mobilenet": "needs weights that find something; tests/targets",
    "r3d_18": "needs weights of a large model of clips; tests/videos",
}
"""Text in a block or a command that does not run here → why, and the tests that run such code."""


def is_run(text: str) -> bool:
    """Return True if a block or a command runs here."""
    return not any(each in text for each in NOT_RUN)


def list_blocks(language: str) -> list[tuple[Path, int, str]]:
    """Return the code blocks of all pages in a language: the page, the line before the block, and its text."""
    fence = re.compile(rf"^```{language}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES}
    return [
        (page, text[: match.start(1)].count("\n"), match[1])
        for page, text in texts.items()
        for match in fence.finditer(text)
    ]


# ------------------------------------------------------------------------------------------------------ the folder


def furnish(folder: Path) -> None:
    """Fill a working directory with the photos, the folders and the files that README's blocks name."""
    from camtool.demo.scenes import draw_scene
    from tests.helpers.medical_files import write_examples

    write_examples(folder)
    for number, name in enumerate(PHOTOS):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw_scene(number, objects=2).image).resize((160, 140)).save(path)
    (folder / "mypackage").mkdir()
    (folder / "mypackage" / "models.py").write_text(FACTORY)
    (folder / "mynets.py").write_text(FACTORY + PREPARE + VOLUME_NET)
    (folder / "labels.csv").write_text("image,label\nfirst.jpg,281\ndeeper/second.jpg,tabby\n")
    _save_clip_of_frames(folder / "clip.mp4")
    (folder / "classes.txt").write_text("\n".join(f"kind {number}" for number in range(CLASSES)))
    _save_factorys_weights(folder / "mine.safetensors")
    _save_yolo(folder / "yolo11n.pt")
    _save_keras_model(folder / "classifier.keras")
    (folder / "labels.txt").write_text("\n".join(f"kind {number}" for number in range(CLASSES)))
    _save_vit(folder / "google" / "vit-base-patch16-224")
    _save_clip(folder / "openai" / "clip-vit-base-patch32")


def _save_clip_of_frames(path: Path) -> None:
    import av

    from camtool.demo.scenes import draw_scene

    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=5)
        stream.width, stream.height, stream.pix_fmt = 128, 128, "yuv420p"
        for number in range(4):
            frame = av.VideoFrame.from_ndarray(draw_scene(number, objects=2).image, format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def _save_factorys_weights(path: Path) -> None:
    from safetensors.torch import save_file
    from torchvision.models import squeezenet1_1

    torch.manual_seed(0)
    save_file(squeezenet1_1(num_classes=CLASSES).state_dict(), path)


def _save_yolo(path: Path) -> None:
    """Store a detector that finds a few cars in every photo: its coarsest level is sure of that class everywhere.

    It takes pictures of 160 pixels instead of 640, which is sixteen times less work.
    """
    from ultralytics import YOLO

    torch.manual_seed(0)
    whole = YOLO("yolo11n.yaml")
    whole.model.model[-1].cv3[-1][-1].bias.data[2] = 1.0
    whole.model.names = {number: ["person", "dog", "car"][number % 3] + " " * (number // 3) for number in range(80)}
    whole.ckpt = {"train_args": {"imgsz": 160}}
    whole.save(path)


def _save_keras_model(path: Path) -> None:
    from tests.helpers.keras_models import keras

    keras.utils.set_random_seed(0)
    layers = keras.layers
    steps = [layers.Rescaling(1 / 255), layers.Conv2D(8, 3, activation="relu", name="block5_conv3")]
    head = [layers.GlobalAveragePooling2D(), layers.Dense(CLASSES, activation="softmax")]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "__array__", DeprecationWarning)  # Keras reads weights so
        keras.Sequential([keras.Input((64, 64, 3)), *steps, *head]).save(path)


_TINY = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
_SIGHT = {**_TINY, "image_size": 64, "patch_size": 16}
_SIDES = {"height": 64, "width": 64}


def _save_vit(folder: Path) -> None:
    import transformers

    torch.manual_seed(0)
    transformers.ViTForImageClassification(transformers.ViTConfig(**_SIGHT)).save_pretrained(folder)
    transformers.ViTImageProcessor(size=_SIDES).save_pretrained(folder)


def _save_clip(folder: Path) -> None:
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = {
        word: number for number, word in enumerate(["<pad>", "<bos>", "<eos>", "<unk>", "a", "photo", "of", "dog"])
    }
    speech = {**_TINY, "vocab_size": len(words), "max_position_embeddings": 16, "eos_token_id": 2, "bos_token_id": 1}
    torch.manual_seed(0)
    config = transformers.CLIPConfig(text_config=speech, vision_config=_SIGHT, projection_dim=24)
    transformers.CLIPModel(config).save_pretrained(folder)
    transformers.CLIPImageProcessor(size={"shortest_edge": 64}, crop_size=_SIDES).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 1), ("<eos>", 2)]
    )
    special = {f"{name}_token": f"<{name}>" for name in ("pad", "bos", "eos", "unk")}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=16, **special).save_pretrained(
        folder
    )


# -------------------------------------------------------------------------------------------- the libraries' caches


_BLOCKS = [1, 1, 1, 1]
_WIDTH = {"width_per_group": 8}


def shorten_resnet50() -> None:
    """Let torchvision build a short and narrow ``resnet50``: all calls are the same, and take less time."""
    from torchvision.models import resnet

    build = resnet._resnet
    resnet._resnet = lambda block, layers, *args, **options: build(block, _BLOCKS, *args, **options, **_WIDTH)


def shorten_vit_b_16() -> None:
    """Let torchvision build ``vit_b_16`` with two blocks instead of twelve."""
    from torchvision.models import vision_transformer

    build = vision_transformer._vision_transformer
    vision_transformer._vision_transformer = lambda **options: build(**options | {"num_layers": 2})


def shorten_convnext() -> None:
    """Let timm build its networks of this kind with one block in each stage."""
    from timm.models import convnext

    build = convnext._create_convnext
    convnext._create_convnext = lambda *args, **options: build(*args, **options | {"depths": _BLOCKS})


def fill_caches(cache: Path) -> None:
    """Save random weights as short ``resnet50`` and ``convnext_tiny`` where torchvision and timm look for theirs."""
    import timm
    from safetensors.torch import save_file
    from torchvision.models import ResNet50_Weights
    from torchvision.models.resnet import Bottleneck, ResNet

    checkpoints = cache / "torch" / "hub" / "checkpoints"
    checkpoints.mkdir(parents=True)
    torch.manual_seed(0)
    resnet50 = ResNet(Bottleneck, _BLOCKS, **_WIDTH)
    torch.save(resnet50.state_dict(), checkpoints / ResNet50_Weights.DEFAULT.url.rpartition("/")[2])
    repository = timm.get_pretrained_cfg("convnext_tiny").hf_hub_id.rstrip("/")
    commit = "0" * 40
    held = cache / "hf" / "hub" / f"models--{repository.replace('/', '--')}"
    for name in ("refs", f"snapshots/{commit}"):
        (held / name).mkdir(parents=True)
    (held / "refs" / "main").write_text(commit)
    save_file(
        timm.create_model("convnext_tiny", depths=_BLOCKS).state_dict(),
        held / "snapshots" / commit / "model.safetensors",
    )
    (cache / "site").mkdir()
    (cache / "site" / "sitecustomize.py").write_text(NO_NETWORK)


def sealed(cache: Path) -> dict[str, str]:
    """Return an environment in which Python finds these caches and this tree's camtool, and no network."""
    return {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(cache / "site"), str(README.parent)]),
        "TORCH_HOME": str(cache / "torch"),
        "HF_HOME": str(cache / "hf"),
        "HF_HUB_OFFLINE": "1",
        "MPLBACKEND": "agg",
        "KERAS_BACKEND": "torch",
    }


# -------------------------------------------------------------------------------------- what README takes as given


class Masked(nn.Module):
    """A classifier of pictures of which a mask says what counts."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head = _small_trunk(), nn.Linear(8, CLASSES)

    def forward(self, pixel_values: Tensor, mask: Tensor) -> Tensor:
        return self.head(self.trunk(pixel_values * mask).mean((2, 3)))


class Siamese(nn.Module):
    """A classifier of what changed between two pictures, which runs its trunk on both."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head = _small_trunk(), nn.Linear(8, CLASSES)

    def forward(self, before: Tensor, after: Tensor) -> Tensor:
        return self.head((self.trunk(after) - self.trunk(before)).mean((2, 3)))


class Faces(nn.Module):
    """A model that returns several things by name."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head = _small_trunk(), nn.Linear(8, 3)

    def forward(self, picture: Tensor) -> dict[str, Tensor]:
        scores = self.head(self.trunk(picture).mean((2, 3)))
        return {"age": scores[:, 0], "sex": scores[:, 1:]}


def _small_trunk() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 8, 5, stride=4), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())


class TilePooling(nn.Module):
    """Attention over tiles, one logit for each class."""

    def __init__(self) -> None:
        super().__init__()
        self.score, self.head = nn.Linear(3, 1), nn.Linear(3, CLASSES)

    def forward(self, bag: Tensor) -> Tensor:
        features = bag.mean((2, 3))
        return self.head((self.score(features).softmax(0) * features).sum(0))


def given() -> dict[str, Any]:
    """Return what README's blocks name and do not make: the user's own models and tensors."""
    torch.manual_seed(0)
    heart = nn.Sequential(
        nn.Conv1d(2, 8, 7, padding=3), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, CLASSES)
    )
    images = torch.rand(2, 3, 64, 64)
    import timm
    from torchvision.models import squeezenet1_1

    from tests.helpers.band_nets import BandNet
    from tests.helpers.keras_models import keras
    from tests.helpers.text_processors import make_llava_processor
    from tests.zoo.hugging_face import DETECTORS
    from tests.zoo.vision_language import WITH_GRID

    return {
        "vit": timm.create_model("vit_tiny_patch16_224").eval(),
        "detr": DETECTORS["detr"].build(),
        "vlm": WITH_GRID["llava"].build(),
        "processor": make_llava_processor(),
        "photo": Image.open("street.jpg").convert("RGB"),
        "segmenter": _segmenter(),
        "detector": _detector(),
        "masked": Masked().eval(),
        "siamese": Siamese().eval(),
        "heart": heart.eval(),
        "volume_model": BandNet(1, axes=3).eval(),
        "keras_model": keras.models.load_model("classifier.keras"),
        "satellite": BandNet(13).eval(),
        "faces": Faces().eval(),
        "pose": nn.Sequential(
            nn.Conv2d(3, 8, 5, 4, 2), nn.ReLU(), nn.Conv2d(8, 8, 3, 1, 1), nn.ReLU(), nn.Conv2d(8, 5, 1)
        ),
        "other": squeezenet1_1(weights=None).eval(),
        "mil": TilePooling().eval(),
        "tiles": torch.rand(3, 3, 16, 16),
        "images": images,
        "mask": (images[:, :1] > 0.3).float(),
        "before": torch.rand(3, 64, 64),
        "after": torch.rand(3, 64, 64),
        "ecg": torch.rand(2, 2, 120),
        "loader": [(torch.rand(2, 3, 64, 64), torch.tensor([281, 282])) for _ in range(2)],
    }


def _segmenter() -> Any:
    """A segmenter of torchvision with its labels; "car" is among the classes that it sees."""
    from torchvision.models.segmentation import LRASPP_MobileNet_V3_Large_Weights as Weights
    from torchvision.models.segmentation import lraspp_mobilenet_v3_large

    import camtool

    model = lraspp_mobilenet_v3_large(weights=None, weights_backbone=None).eval()
    labels = Weights.DEFAULT.meta["categories"]
    model.classifier.high_classifier.bias.data[labels.index("car")] += 1
    return camtool.Loaded(model, Weights.DEFAULT.transforms(), labels)


def _detector() -> nn.Module:
    """A detector of torchvision that finds five things at least, as random as its weights."""
    from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn as build

    return build(weights=None, weights_backbone=None, box_score_thresh=0.0, box_detections_per_img=5).eval()


def main() -> None:
    """Run the Python blocks of all pages in one namespace; a failure names the page and the line.

    What a page takes as given is given anew, so it does not depend on what pages before it called by the same name.
    Of README only the first block runs, which makes the model: a test of its own runs all of them without extras.
    """
    namespace, start, pages = {}, given(), set()
    for page, line, block in list_blocks("python"):
        if not is_run(block) or pages == {page} == {README}:
            continue
        if page not in pages:
            namespace |= start
            pages.add(page)
        exec(compile("\n" * line + block, str(page), "exec"), namespace)
        if page == README:
            start["model"] = namespace["model"]
    names = [name for name in namespace if not name.startswith("_")]
    sys.stdout.write(json.dumps(names))


def run_commands(commands: list[str]) -> None:
    """Run commands of ``python -m camtool``, and print for each the exit code and what it printed, as JSON."""
    from camtool.cli import app

    results = {}
    for command in commands:
        shutil.rmtree("out", ignore_errors=True)  # it holds the run of another command
        for arguments in [["photos/", "--model", "demo"]] * (" report out" in command) + [shlex.split(command)[3:]]:
            sys.argv = ["camtool", *arguments]
            code: Any = "no exit"
            with redirect_stdout(StringIO()) as printed:
                try:
                    app.main()
                except SystemExit as end:
                    code = end.code
        results[command] = code, printed.getvalue()
    sys.stdout.write(json.dumps(results))


if __name__ == "__main__":
    shorten_resnet50()
    shorten_vit_b_16()
    shorten_convnext()
    run_commands(sys.argv[1:]) if sys.argv[1:] else main()
