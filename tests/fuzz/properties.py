"""Properties that hold for any input: what a user can cause is an error of camtool, or a result.

Each is a function of Hypothesis' ``data``. ``tests/fuzz/test_fuzz.py`` tries a bounded number of examples, the same
ones in each run; ``python -m benchmarks fuzz --minutes 5`` tries new ones for as long as it is told.
"""

from __future__ import annotations

import gzip
import io
import json
import string
import struct
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import numpy as np
import tifffile
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image
from safetensors.torch import save as encode_safetensors
from torch import nn

import camtool
from camtool.cli import app, list_and_figure_commands
from camtool.cli.options import model_options, result_options
from camtool.errors import CamtoolError, ImageError, ModelError
from camtool.inputs.image_files import read_image
from camtool.models import Preprocessing, read_state
from camtool.models.preprocessing import StatedPreprocessing, read_transform_beside
from camtool.slides.readers import open_slide
from camtool.videos.reading import VideoReader
from tests.helpers.medical_files import build_dicom, encode_dicom, encode_nifti
from tests.slides.slide_files import write_ome_slide, write_slide
from tests.videos.video_files import number_frame, write_video

Draw = Any
PROPERTIES: dict[str, Callable[[Draw], None]] = {}


def prop(function: Callable[[Draw], None]) -> Callable[[Draw], None]:
    PROPERTIES[function.__name__] = function
    return function


# ---------------------------------------------------------------------------------------------------------- images

PIXELS = np.random.default_rng(0).integers(0, 256, (9, 11, 3), np.uint8)


@cache
def encode_all() -> list[bytes]:
    """Return small valid files of all formats, with metadata and several frames."""
    photo, exif = Image.fromarray(PIXELS), Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "words"
    more = {"save_all": True, "append_images": [photo.rotate(180)]}
    kinds: list[tuple[str, Image.Image, dict[str, Any]]] = [
        *((kind, photo, {}) for kind in ("PNG", "BMP", "PPM", "GIF", "TIFF", "WEBP", "AVIF")),
        ("JPEG", photo, {"exif": exif, "icc_profile": b"profile", "comment": b"words"}),
        ("JPEG", photo, {"progressive": True}),
        ("JPEG", photo.convert("CMYK"), {}),
        ("PNG", photo.quantize(8), {"exif": exif}),
        ("PNG", Image.fromarray(PIXELS[..., 0].astype(np.uint16) * 257), {}),
        ("PNG", photo, more),
        ("GIF", photo, more),
        ("WEBP", photo, {**more, "exif": exif}),
        ("TIFF", photo, {**more, "compression": "tiff_lzw"}),
        ("TIFF", photo, {"compression": "jpeg"}),
        ("TIFF", Image.fromarray(PIXELS[..., 0].astype(np.float32)), {}),
        ("MPO", photo, more),
    ]
    files = []
    for kind, image, options in kinds:
        buffer = io.BytesIO()
        image.save(buffer, kind, **options)
        files.append(buffer.getvalue())
    return files


def mutate(data: Draw, content: bytes) -> bytes:
    """Return bytes with a few random changes: other values, other lengths, repeated and missing parts."""
    changed = bytearray(content)
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, max(0, len(changed) - 1)))
        length = data.draw(st.sampled_from([1, 1, 2, 4, 16, 400]))
        kind = data.draw(st.sampled_from(["set", "set", "flip", "cut", "remove", "repeat", "extreme"]))
        if kind == "set":
            changed[place : place + length] = data.draw(st.binary(min_size=length, max_size=length))
        elif kind == "flip" and changed:
            changed[place] ^= 1 << data.draw(st.integers(0, 7))
        elif kind == "cut":
            del changed[place:]
        elif kind == "remove":
            del changed[place : place + length]
        elif kind == "repeat":
            changed[place:place] = changed[place : place + length]
        else:
            number = data.draw(st.sampled_from([0, 1, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF]))
            changed[place : place + 4] = struct.pack(data.draw(st.sampled_from(["<I", ">I"])), number)
    return bytes(changed)


def fix_checksums(content: bytes) -> bytes:
    """Return a PNG with right checksums, as its reader stops at a wrong one."""
    fixed, place = bytearray(content[:8]), 8
    while place + 12 <= len(content):
        length = min(struct.unpack(">I", content[place : place + 4])[0], len(content) - place - 12)
        body = content[place + 4 : place + 8 + length]
        fixed += content[place : place + 4] + body + struct.pack(">I", zlib.crc32(body))
        place += 12 + length
    return bytes(fixed)


def read_or_refuse(source: Any) -> None:
    try:
        image = read_image(source, max_pixels=10**6)
    except ImageError as error:
        assert str(error)  # noqa: PT017
    else:
        assert image.mode == "RGB"
        assert min(image.size) > 0


@prop
def image_files_that_were_changed(data: Draw) -> None:
    content = mutate(data, data.draw(st.sampled_from(encode_all())))
    read_or_refuse(fix_checksums(content) if content[:4] == b"\x89PNG" else content)


@prop
def random_bytes_behind_the_start_of_an_image(data: Draw) -> None:
    start = data.draw(st.sampled_from([b"", *(content[:40] for content in encode_all()), b"\0\0\0\x1cftypavif"]))
    read_or_refuse(start[: data.draw(st.integers(0, 40))] + data.draw(st.binary(max_size=200)))


@cache
def encode_science() -> list[bytes]:
    """Return small valid files of DICOM, NIfTI, and TIFF with several bands or pages."""
    gray = np.arange(99, dtype=np.uint16).reshape(9, 11)
    volume = np.stack([gray, gray.T.reshape(9, 11), gray], -1)
    stack = io.BytesIO()
    tifffile.imwrite(
        stack, np.moveaxis(volume, -1, 0), compression="zlib", photometric="minisblack", metadata={"axes": "ZYX"}
    )
    nifti = encode_nifti(volume.astype(np.int16), np.eye(4))
    return [encode_dicom(build_dicom(gray)), nifti, gzip.compress(nifti), stack.getvalue()]


@prop
def files_of_science_that_were_changed(data: Draw) -> None:
    content = mutate(data, data.draw(st.sampled_from(encode_science())))
    option = data.draw(st.sampled_from([{}, {"percentiles": (2, 98)}, {"slice": "middle"}]))
    try:
        camtool.open_image(content, **option, max_memory=10**7).draw()
    except ImageError as error:
        assert str(error)  # noqa: PT017


@cache
def encode_slides_and_videos() -> list[tuple[str, bytes]]:
    pixels = np.random.default_rng(1).integers(0, 256, (260, 300, 3), np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, name) for name in ("a.tif", "a.ome.tif", "a.mp4", "a.mkv", "a.avi")]
        write_slide(paths[0], pixels, compression="jpeg")
        write_ome_slide(paths[1], pixels)
        for path in paths[2:]:
            write_video(path, [number_frame(number) for number in range(4)])
        return [(path.suffix, path.read_bytes()) for path in paths]


def read_slide(path: Path) -> None:
    with open_slide(path) as reader:
        for index, level in enumerate(reader.levels[:3]):
            assert reader.read(index, 0, 0, min(level.width, 300), min(level.height, 300)).shape[2] == 3


def read_frames(path: Path) -> None:
    for frame in islice(VideoReader(path), 10):
        assert frame.pixels.shape[2] == 3


@contextmanager
def write_changed(data: Draw, files: Sequence[tuple[str, bytes]]) -> Iterator[Path]:
    """Write one of some files, by their suffixes, with random changes, and yield its path."""
    suffix, content = data.draw(st.sampled_from(files))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"mine{suffix}")
        path.write_bytes(mutate(data, content))
        yield path


@prop
def slides_and_videos_that_were_changed(data: Draw) -> None:
    with write_changed(data, encode_slides_and_videos()) as path:
        try:
            (read_slide if path.suffix == ".tif" else read_frames)(path)
        except ImageError as error:
            assert str(error)  # noqa: PT017


@prop
def arrays_of_any_shape_and_type(data: Draw) -> None:
    dtypes = st.one_of(arrays.scalar_dtypes(), arrays.unicode_string_dtypes())
    shape = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
    read_or_refuse(data.draw(arrays.arrays(data.draw(dtypes), data.draw(shape))))


# ------------------------------------------------------------------------------------------------- weights and files


@cache
def encode_weights() -> list[tuple[str, bytes]]:
    state, buffer = net().state_dict(), io.BytesIO()
    torch.save(state, buffer)
    return [(".safetensors", encode_safetensors(state)), (".pt", buffer.getvalue())]


@prop
def weights_that_were_changed(data: Draw) -> None:
    with write_changed(data, encode_weights()) as path:
        try:
            state = read_state(path)
        except ModelError:
            return
        assert all(isinstance(each, torch.Tensor) for each in state.values())


NUMBERS = st.one_of(st.integers(-3, 300), st.floats(), st.just(10**400))
WORDS = st.one_of(st.sampled_from(["bilinear", "squash", "center", "ViTImageProcessor"]), st.text(max_size=5))
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, WORDS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(WORDS, inner, max_size=3)),
    max_leaves=6,
)
TIMM_NAMES = ["input_size", "mean", "std", "crop_pct", "interpolation", "crop_mode", "fixed_input_size", "num_classes"]
PROCESSOR_NAMES = [
    "size",
    "crop_size",
    "image_mean",
    "image_std",
    "do_resize",
    "do_normalize",
    "resample",
    "do_rescale",
]


@prop
def preprocessing_beside_weights(data: Draw) -> None:
    if data.draw(st.booleans()):
        name, content = "config.json", {"pretrained_cfg": data.draw(st.dictionaries(st.sampled_from(TIMM_NAMES), JSON))}
    else:
        name = "preprocessor_config.json"
        content = data.draw(st.dictionaries(st.sampled_from(PROCESSOR_NAMES), JSON))
        content["image_processor_type"] = data.draw(st.sampled_from(["ViTImageProcessor", "CLIPImageProcessor", "No"]))
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, name).write_text(json.dumps(content), encoding="utf-8")
        try:
            found = read_transform_beside(Path(folder, "mine.safetensors"))
        except ModelError:
            return
        assert found is not None


# -------------------------------------------------------------------------------------------------------- arguments

SHORT = st.text(st.sampled_from(string.digits + "x,.:-+=[]{} eE\n\x1b\u0663"), max_size=8)
TEXTS = st.one_of(SHORT, st.text(max_size=12))


@prop
def texts_of_options(data: Draw) -> None:
    options = model_options.PreprocessingOptions
    calls: list[Callable[[], Any]] = [
        lambda: model_options.parse_image_size(data.draw(TEXTS)),
        lambda: result_options.parse_targets([data.draw(TEXTS)]),
        lambda: result_options.parse_method_options([data.draw(TEXTS), "a=" + data.draw(TEXTS)], ("layer",)),
        lambda: list_and_figure_commands.parse_width(data.draw(TEXTS)),
        lambda: result_options.split_names([data.draw(TEXTS)]),
        lambda: options(None, "9", data.draw(TEXTS), data.draw(TEXTS), data.draw(ORDERS)).parse().build_alone(),
        lambda: camtool.models.user_code.load_transform(data.draw(TEXTS)),
        lambda: camtool.models.loading.is_model_name(data.draw(TEXTS)),
        lambda: camtool.models.loading.may_run_code(data.draw(TEXTS)),
    ]
    try:
        data.draw(st.sampled_from(calls))()
    except CamtoolError as error:
        assert str(error)  # noqa: PT017


ORDERS = st.sampled_from([None, *get_args(model_options.ChannelOrder)])


@prop
def numbers_of_the_preprocessing(data: Draw) -> None:
    some = st.lists(NUMBERS, min_size=1, max_size=4)
    size = st.one_of(st.none(), st.tuples(st.integers(-1, 40), st.integers(-1, 40)))
    base = data.draw(st.sampled_from([None, Preprocessing((8, 8)), Preprocessing((8, 8), (0.5,), (0.5,), "gray")]))
    order = data.draw(st.sampled_from([None, "rgb", "bgr", "gray", "cmyk"]))
    try:
        stated = StatedPreprocessing(size=data.draw(size), mean=data.draw(some), std=data.draw(some), channels=order)
        transform = stated.build(base)
    except CamtoolError:
        return
    assert transform(Image.fromarray(PIXELS)).ndim == 3


def net() -> nn.Module:
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 4, 3, 1, 1), nn.ReLU()]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)).eval()


@cache
def fuzzed_net() -> nn.Module:
    return net()


ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.floats(), TEXTS, st.lists(st.integers(-2, 4), max_size=3)
)
NAMES = ["gradcam", "layercam", "eigencam", "scorecam", "rise", "tta:gradcam", "faithcam", "guided-backprop"]


@prop
def arguments_of_explain(data: Draw) -> None:
    shape = data.draw(
        st.one_of(st.just((3, 8, 8)), arrays.array_shapes(min_dims=1, max_dims=5, min_side=0, max_side=6))
    )
    images = {
        "tensor": torch.rand(shape),
        "array": PIXELS,
        "PIL": Image.fromarray(PIXELS),
        "None": None,
        "path": "nowhere",
    }
    image = images[data.draw(st.sampled_from([*images]))]
    settings: dict[str, Any] = {
        "method": data.draw(st.one_of(st.sampled_from(NAMES), TEXTS)),
        "target_class": data.draw(ANYTHING),
    }
    names = ["layer", "merge", "labels", "batch_size", "device", "call_index", "kind", "placement", "engine", "image"]
    for name in data.draw(st.lists(st.sampled_from([*names, "samples", "nonsense"]), max_size=2)):
        settings[name] = data.draw(ANYTHING)
    try:
        camtool.explain(fuzzed_net(), image, **settings)
    except CamtoolError as error:
        assert str(error)  # noqa: PT017


BATCH = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
FUNCTIONS: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "compare": (
        lambda **given: camtool.compare(fuzzed_net(), BATCH[0], **{"target_class": 1, "methods": ["gradcam"], **given}),
        ["target_class", "methods", "layer", "merge", "labels"],
    ),
    "concepts": (
        lambda **given: camtool.concepts(fuzzed_net(), BATCH, **{"n": 2, **given}),
        ["n", "layer", "transform", "labels", "device", "batch_size", "placement"],
    ),
    "candidate_layers": (
        lambda **given: camtool.candidate_layers(fuzzed_net(), BATCH, **given),
        ["transform", "device", "image", "call_index", "kind"],
    ),
    "load": (
        lambda **given: camtool.load(**{"name": "demo", **given}),
        ["name", "weights", "labels", "device", "transform"],
    ),
    "read_image": (lambda **given: read_image(**{"source": PIXELS, **given}), ["source", "max_side", "max_pixels"]),
}


@prop
def arguments_of_other_functions(data: Draw) -> None:
    function, names = FUNCTIONS[data.draw(st.sampled_from([*FUNCTIONS]))]
    try:
        function(**{data.draw(st.sampled_from(names)): data.draw(ANYTHING)})
    except CamtoolError as error:
        assert str(error)  # noqa: PT017


@prop
def arguments_of_the_command(data: Draw) -> None:
    options = ["--size", "--mean", "--std", "--channels", "--method", "--target", "--layer", "--option", "--save"]
    options += [
        "--merge",
        "--alpha",
        "--colormap",
        "--max-side",
        "--max-pixels",
        "--batch-size",
        "--format",
        "--labels",
    ]
    drawn = data.draw(st.lists(st.tuples(st.sampled_from(options), TEXTS), max_size=3))
    arguments = [word for option, text in drawn for word in (option, text.replace("\0", ""))]
    with tempfile.TemporaryDirectory() as folder:
        Image.fromarray(PIXELS).save(Path(folder, "a.png"))
        command = ["camtool", "run", str(Path(folder, "a.png")), "--out", str(Path(folder, "out")), "--workers", "0"]
        before, sys.argv = sys.argv, [*command, "--model", f"{__name__}:net", *arguments]
        try:
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                app.main()
        except SystemExit as end:
            assert end.code in (0, 1, 2)  # noqa: PT017
        finally:
            sys.argv = before
