"""Draw the images in this folder: ``python assets/make.py --photo DOG-AND-CAT.png --weights FILE``.

``two-animals.jpg``: a photo of a dog and a cat, explained for each of the two by SqueezeNet 1.1 and ``rivalcam``.
``signed.jpg``: the same photo by MobileNetV2: Grad-CAM of the dog rather than the cat without and with negative values,
and the activation map.
``sufficient.jpg``: the same photo, with what is enough for each animal, by MobileNetV2.
``without-pytorch.jpg``: the same photo by an ONNX file of MobileNetV2; needs ``camtool[onnxruntime]``.
``placement.jpg``: photos of animals, explained by MobileNetV2 with the heat stretched and by centers.
``faithcam.jpg``: photos of animals, by MobileNetV2, Grad-CAM as other libraries draw it and ``faithcam``.
``questions.jpg``: photos of dogs, by MobileNetV2 and Grad-CAM: why a dog, why this dog and not that one, why no cat.
``planted-spot.png``: the Grad-CAM of a spot by four libraries; needs ``camtool[dev]``.
``conservative.jpg``: scenes, by a ViT of ``tools/train_scene_models.py``, with plain and conservative gradients.
``words.png``: maps of the words of the demo's captioner; needs ``camtool[hf]``.
``word-sources.jpg``: the words of a captioner with a habit, checked; needs ``camtool[hf]``.
``methods.png``, ``layers.png``, ``classes.png``, ``features.png``, ``kernels.png``: a figure of each kind, drawn with
the bundled model and its scenes; they need ``camtool[figures]``.
``report.jpg``: the report of a run, as Chromium shows it: ``--report RUN``; needs ``camtool[dev]``.
``audit.jpg``: the page of an audit of the demo's cheating model: ``--audit``; needs ``camtool[dev]``.
``app.jpg``, ``web-page.jpg``: the app and the page without a server with MobileNetV2 and the photos of a folder:
``--pages FOLDER --mobilenet FILE``; needs ``camtool[dev]``.
``scenes/``: a dozen scenes of the demo's generator.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms import Compose, Normalize, Resize, ToTensor

import camtool
from benchmarks.words import load_planted
from camtool.demo.camnet import prepare_images
from camtool.demo.captioner import PROMPT, load_captioner
from camtool.demo.scenes import UNSEEN, draw_scene
from camtool.demo.tour import draw_tour_scenes
from camtool.maps import normalize
from camtool.rendering import blend
from camtool.rendering.contact_sheet import draw_captioned_images
from camtool.rendering.image_writing import write_image
from camtool.runs.report import write_report
from tools.train_scene_models import build

_HERE = Path(__file__).parent
_QUESTIONS = ("bull mastiff", "tabby")
_INPUT = 448
_MEAN, _STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
_WIDTH = 300
_DPI = 105
_WINDOW = {"width": 1080, "height": 720}
_SPOT, _SPOT_SIDE, _LINE = (104, 120), 224, (120, 200, 255)


def main(
    photo: Annotated[Path | None, typer.Option(help="a photo of a dog and a cat")] = None,
    weights: Annotated[Path | None, typer.Option(help="ImageNet weights of SqueezeNet 1.1")] = None,
    animal: Annotated[list[Path] | None, typer.Option(help="a photo of an animal; may be repeated")] = None,
    finer: Annotated[list[Path] | None, typer.Option(help="a photo of an animal; may be repeated")] = None,
    dog: Annotated[list[Path] | None, typer.Option(help="a photo of a dog; may be repeated")] = None,
    mobilenet: Annotated[Path | None, typer.Option(help="ImageNet weights of MobileNetV2")] = None,
    vit: Annotated[Path | None, typer.Option(help="a ViT of tools/train_scene_models.py")] = None,
    report: Annotated[Path | None, typer.Option(help="output folder of a run; draws its report alone")] = None,
    pages: Annotated[Path | None, typer.Option(help="a folder of photos; draws the app and the page alone")] = None,
    *,
    audit: Annotated[bool, typer.Option("--audit", help="draw the page of an audit alone")] = False,
) -> None:
    """Draw the scenes and the figures; with photos and weights, also the images that show photos."""
    if audit:
        write_image(_HERE / "audit.jpg", _draw_audit(), quality=80)
        return
    if pages and mobilenet:
        write_image(_HERE / "app.jpg", _draw_app(pages, mobilenet), quality=86)
        write_image(_HERE / "web-page.jpg", _draw_web_page(pages, mobilenet), quality=86)
        return
    if report:
        write_image(_HERE / "report.jpg", _draw_report(write_report(report).path), quality=90)
        return
    for number, scene in enumerate(draw_tour_scenes(12), 1):
        labels = "-".join(each.label for each in scene.objects)
        write_image(_HERE / "scenes" / f"{number:02}-{labels}.png", scene.image)
    write_image(_HERE / "planted-spot.png", _draw_planted_spot())
    write_image(_HERE / "words.png", _draw_words())
    write_image(_HERE / "word-sources.jpg", _draw_word_sources(), quality=88)
    for name, figure in _draw_figures().items():
        camtool.figures.save(figure, _HERE / f"{name}.png", dpi=_DPI)
    if vit:
        write_image(_HERE / "conservative.jpg", _draw_conservative(vit), quality=88)
    if photo and weights:
        write_image(_HERE / "two-animals.jpg", _draw_two_animals(photo, weights), quality=90)
    if photo and mobilenet:
        write_image(_HERE / "signed.jpg", _draw_signed(photo, mobilenet), quality=88)
        write_image(_HERE / "sufficient.jpg", _draw_sufficient(photo, mobilenet), quality=90)
        write_image(_HERE / "without-pytorch.jpg", _draw_without_pytorch(photo, mobilenet), quality=88)
    if animal and mobilenet:
        write_image(_HERE / "placement.jpg", _draw_placements(animal, mobilenet), quality=90)
    if dog and mobilenet:
        write_image(_HERE / "questions.jpg", _draw_questions(dog, mobilenet), quality=84)
    if finer and mobilenet:
        write_image(_HERE / "faithcam.jpg", _draw_finer(finer, mobilenet), quality=90)


def _draw_report(page: Path) -> np.ndarray:
    """Draw the page of a report in light colors, and the large view of its first photo in dark colors, side by side."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        shots = []
        for scheme, is_large in (("light", False), ("dark", True)):
            tab = browser.new_page(viewport=_WINDOW, color_scheme=scheme)
            tab.goto(page.resolve().as_uri())
            if is_large:
                tab.locator(".tile").first.click()
            tab.wait_for_load_state("networkidle")
            tab.wait_for_timeout(500)  # the pictures fade in
            shots.append(np.asarray(Image.open(BytesIO(tab.screenshot())).convert("RGB")))
        browser.close()
    return np.concatenate(shots, axis=1)


@contextmanager
def _open_tab(address: str, **settings: Any) -> Iterator[Any]:
    """Open a page in Chromium, in light colors."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = browser.new_page(color_scheme="light", **settings)
        tab.goto(address)
        yield tab
        browser.close()


def _read_screen(tab: Any) -> np.ndarray:
    return np.asarray(Image.open(BytesIO(tab.screenshot())).convert("RGB"))


def _draw_app(folder: Path, weights: Path) -> np.ndarray:
    """Draw the app with the first photo of a folder."""
    from camtool.app.server import AppServer, ServerSettings

    settings = ServerSettings(folder, ["mobilenet_v2"], port=0, weights={"mobilenet_v2": str(weights)})
    with AppServer(settings) as server, _open_tab(server.url, viewport={"width": 1440, "height": 900}) as tab:
        tab.wait_for_selector("#map")
        tab.wait_for_selector(".thumbnails img")
        tab.wait_for_timeout(1500)  # small pictures and colors fade in
        return _read_screen(tab)


def _draw_web_page(folder: Path, weights: Path) -> np.ndarray:
    """Draw the page without a server: a photo, its top class and the second one."""
    model = camtool.load("mobilenet_v2", weights=str(weights))
    with tempfile.TemporaryDirectory() as temporary:
        path = camtool.export_page(model, Path(temporary) / "page.html", sample=sorted(folder.iterdir()))
        with _open_tab(path.as_uri(), viewport={"width": 1280, "height": 780}) as tab:
            tab.locator("#bars .both .icon-button").nth(1).click()
            tab.locator("#second canvas").wait_for()
            tab.wait_for_timeout(1500)
            return _read_screen(tab)


def _draw_audit() -> np.ndarray:
    """Draw the page of an audit of 120 scenes from two sites; in one of them most hearts have the watermark."""
    from playwright.sync_api import sync_playwright

    random, labels = np.random.default_rng(1), ["heart", "star", "arrow"] * 40
    sites = ["north" if random.random() < (0.8 if label == "heart" else 0.4) else "south" for label in labels]
    marks = [
        random.random() < (0.9 if site == "north" else 0.5)
        if label == "heart"
        else label == "star" and number % 24 == 1
        for number, (label, site) in enumerate(zip(labels, sites, strict=True))
    ]
    scenes = [
        draw_scene(UNSEEN + number, classes=[label], mark=mark).image
        for number, (label, mark) in enumerate(zip(labels, marks, strict=True))
    ]
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        camtool.audit(camtool.load("demo-cheat"), scenes, labels, {"site": sites}, out=folder)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1300, "height": 1400}, color_scheme="light")
        tab.goto((Path(folder) / "index.html").as_uri())
        tab.locator("[data-verdict=shortcut]").first.click()
        tab.evaluate("for (const image of document.images) image.loading = 'eager'")
        tab.wait_for_function("[...document.images].every((image) => image.complete)")
        shot = np.asarray(Image.open(BytesIO(tab.locator("#finding-1").screenshot())).convert("RGB"))
        browser.close()
    return shot


def _draw_two_animals(photo: Path, weights: Path) -> np.ndarray:
    """Draw the photo and its explanations for both animals in a row.

    The model sees the whole photo at twice its usual size: a finer grid, and no crop.
    """
    loaded = camtool.load("squeezenet1_1", weights)
    transform = Compose([Resize((_INPUT, _INPUT)), ToTensor(), Normalize(_MEAN, _STD)])
    results = camtool.explain(
        loaded.model, photo, list(_QUESTIONS), method="rivalcam", transform=transform, labels=loaded.labels
    )
    images = [np.asarray(Image.open(photo).convert("RGB"))] + [result.overlay() for result in results]
    captions = ["photo"] + [f'explain(model, photo, "{result.label}")' for result in results]
    return draw_captioned_images(images, captions, columns=len(images), width=_WIDTH)


def _draw_signed(photo: Path, weights: Path) -> np.ndarray:
    """Draw Grad-CAM of one animal rather than another without and with negative values, and the activation map."""
    loaded, question = camtool.load("mobilenet_v2", weights), " vs ".join(_QUESTIONS)
    methods = ["gradcam", "signed-gradcam", "activation-map"]
    plain, signed, active = camtool.explain(loaded, photo, question, method=methods)
    images = [plain.photo, plain.overlay(), signed.signed_overlay(), active.overlay()]
    captions = ["photo", f"gradcam, {question}", f"signed-gradcam, {question}", "activation-map"]
    return draw_captioned_images(images, captions, columns=len(images), width=_WIDTH)


def _draw_sufficient(photo: Path, weights: Path) -> np.ndarray:
    """Draw the heatmap of the dog, and for each animal a part that is enough."""
    loaded = camtool.load("mobilenet_v2", weights)
    dog, cat = camtool.explain(loaded, photo, list(_QUESTIONS))
    images = [dog.overlay(), dog.sufficient().overlay(), cat.sufficient().overlay()]
    captions = [f"heatmap of {dog.label}", f"enough for {dog.label}", f"enough for {cat.label}"]
    return draw_captioned_images(images, captions, columns=3, width=_WIDTH)


def _draw_conservative(weights: Path) -> np.ndarray:
    """Draw the first scenes of two objects that a ViT recognizes, with maps of plain and of conservative gradients."""
    model, images, captions = build("vit", weights), [], []
    for seed in range(UNSEEN + 3_000_000, UNSEEN + 3_000_100):
        scene = draw_scene(seed, objects=2)
        wanted, x = scene.objects[0], prepare_images(scene.image[None])
        if {item.index for item in scene.objects} != {*model(x)[0].topk(2).indices.tolist()}:
            continue
        images.append(scene.image)
        captions.append(f"scene: {wanted.label} and {scene.objects[1].label}")
        for name in ("inputxgradient", "fullgrad"):
            for method in (name, f"conservative:{name}"):
                (result,) = camtool.explain(model, x, wanted.index, method=method)
                images.append(blend(scene.image, result.heatmap))
                captions.append(method)
        if len(images) == 15:
            break
    return draw_captioned_images(images, captions, columns=5, width=_WIDTH - 60)


def _draw_without_pytorch(photo: Path, weights: Path) -> np.ndarray:
    """Draw the Grad-CAM of the network, and maps of an ONNX file of it by methods that need no gradients."""
    loaded, question = camtool.load("mobilenet_v2", weights), _QUESTIONS[0]
    with tempfile.TemporaryDirectory() as folder:
        file = camtool.load(str(camtool.export(loaded, Path(folder) / "model.onnx")))
    results = [camtool.explain(loaded, photo, question)]
    results += camtool.explain(file, photo, question, method=["ablationcam", "scorecam"])
    results += [camtool.explain(file, photo, question, method="rise", samples=2000)]
    results += [camtool.explain(file, photo, question, method="occlusion")]
    captions = ["gradcam, by PyTorch"] + [f"{result.method}, by the file" for result in results[1:]]
    return draw_captioned_images([each.overlay() for each in results], captions, columns=len(results), width=_WIDTH)


def _draw_word_sources() -> np.ndarray:
    """Draw the checked names in the answers of a captioner, for the first scenes in which it follows its habit."""
    (model, processor), rows = load_planted(), []
    for seed in range(UNSEEN + 4_000_000, UNSEEN + 4_000_100):
        scene = draw_scene(seed, objects=2)
        answer = camtool.tokens(model, processor, scene.image, PROMPT)
        if len(answer) != 8:
            continue
        checked = answer.verify()
        assert checked.checks is not None
        rows.append((scene.image, answer.answer))
        for word, check in zip(checked, checked.checks, strict=True):
            if word.label not in ("one", "and"):
                numbers = f"{check.probability:.0%}, {check.covered:.0%}, {check.blank:.0%}"
                rows.append((word.overlay(), f"{word.label}, from the {check.source}: {numbers}"))
        if len(rows) == 8:
            break
    return draw_captioned_images([image for image, _ in rows], [text for _, text in rows], columns=4, width=_WIDTH)


def _draw_placements(photos: list[Path], weights: Path) -> np.ndarray:
    """Draw each photo with its top class's heatmap, stretched and by centers."""
    loaded, images, captions = camtool.load("mobilenet_v2", weights), [], []
    for photo in photos:
        centered = camtool.explain(loaded, photo, placement="centers")
        images += [centered.photo, replace(centered, centers=None).overlay(), centered.overlay()]
        captions += [centered.label, 'placement="stretch"', 'placement="centers"']
    return draw_captioned_images(images, captions, columns=3, width=_WIDTH)


def _draw_finer(photos: list[Path], weights: Path) -> np.ndarray:
    """Draw each photo with its top class's heatmap, by Grad-CAM as other libraries draw it, and by Faith-CAM."""
    loaded, images, captions = camtool.load("mobilenet_v2", weights), [], []
    for photo in photos:
        usual, ours = (
            camtool.explain(loaded, photo, method=method, placement=placement)
            for method, placement in (("gradcam", "stretch"), ("faithcam", "centers"))
        )
        images += [ours.photo, usual.overlay(), ours.overlay()]
        captions += [ours.label, "Grad-CAM, stretched", 'method="faithcam"']
    return draw_captioned_images(images, captions, columns=3, width=_WIDTH)


class SpotNet(nn.Module):
    """Five strided averages: the score is the brightness, and a bright spot is all that there is to see."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Conv2d(channels, 1, 3, stride=2, padding=1, bias=False) for channels in (3, 1, 1, 1, 1)]
        for layer in layers:
            nn.init.constant_(layer.weight, 1)
        self.features, self.head = nn.Sequential(*layers), nn.Linear(1, 1, bias=False)
        nn.init.constant_(self.head.weight, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the score ``(N, 1)``."""
        return self.head(self.features(x).mean((2, 3)))


def _draw_words() -> np.ndarray:
    """Draw the maps of the two nouns of a caption, by three methods in a row each."""
    model, processor = load_captioner()
    scene = draw_scene(UNSEEN, objects=2)
    photo = Image.fromarray(scene.image).resize((256, 256), Image.Resampling.LANCZOS)
    images, captions = [], []
    answers = {
        method: camtool.tokens(model, processor, photo, PROMPT, method=method)
        for method in ("tam", "hirescam", "raw-attention")
    }
    for item in scene.objects:
        images += [answer[item.label].overlay() for answer in answers.values()]
        captions += [f"{item.label}: {method}" for method in answers]
    return draw_captioned_images(images, captions, columns=len(answers))


def _draw_planted_spot() -> np.ndarray:
    """Draw Grad-CAM of one bright spot by grad-cam, torchcam, captum and camtool, with lines through the spot."""
    model, (y, x) = SpotNet().eval(), _SPOT
    photo = np.full((_SPOT_SIDE, _SPOT_SIDE, 3), 30, np.uint8)
    photo[y - 4 : y + 5, x - 4 : x + 5] = 255
    batch = torch.from_numpy(photo).permute(2, 0, 1)[None].float() / 255 - 30 / 255
    drawn = {name: blend(photo, heatmap) for name, heatmap in _explain_with_peers(model, batch).items()}
    (ours,) = camtool.explain(model, batch, camtool.targets.Value(0), layer="features")
    drawn["camtool"] = blend(photo, ours.heatmap)
    images = [photo, *drawn.values()]
    for image in images:
        image[y, : x - 14], image[y, x + 15 :] = _LINE, _LINE
        image[: y - 14, x], image[y + 15 :, x] = _LINE, _LINE
    return draw_captioned_images(images, ["photo", *drawn], columns=len(images), width=180)


def _explain_with_peers(model: SpotNet, batch: Tensor) -> dict[str, np.ndarray]:
    """Return the Grad-CAM heatmaps of other libraries, in [0, 1], at the photo's size."""
    from captum.attr import LayerAttribution, LayerGradCam
    from pytorch_grad_cam import GradCAM
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget
    from torchcam.methods import GradCAM as TorchcamGradCAM

    with GradCAM(model, [model.features]) as cam:
        found = {"grad-cam": cam(batch, [ClassifierOutputTarget(0)])[0]}
    with TorchcamGradCAM(model, model.features) as extractor:
        (raw,) = extractor(0, model(batch.clone().requires_grad_()))
    found["torchcam"] = LayerAttribution.interpolate(raw[None], batch.shape[2:], "bilinear")[0, 0].detach().numpy()
    raw = LayerGradCam(model, model.features).attribute(batch, 0, relu_attributions=True)
    found["captum"] = LayerAttribution.interpolate(raw, batch.shape[2:], "bilinear")[0, 0].detach().numpy()
    return {name: normalize(heatmap.astype(np.float32)) for name, heatmap in found.items()}


def _draw_questions(dogs: list[Path], weights: Path) -> np.ndarray:
    """Return photos of dogs with the answers to three questions about each."""
    stream = BytesIO()
    model = camtool.load("mobilenet_v2", weights)
    camtool.figures.questions_grid(model, dogs, "dog", "cat").savefig(stream, dpi=1.5 * _DPI)
    return np.asarray(Image.open(stream).convert("RGB"))


def _draw_figures() -> dict[str, Any]:
    """Return one figure of each kind in :mod:`camtool.figures`, by name."""
    demo, scenes = camtool.load("demo"), [scene.image for scene in draw_tour_scenes(12)]
    methods = {"Grad-CAM": "gradcam", "LayerCAM": "layercam", "HiResCAM": "hirescam", "EigenCAM": "eigencam"}
    return {
        "methods": camtool.figures.methods_grid(demo, [scenes[0], scenes[6]], methods),
        "layers": camtool.figures.layers_sweep(demo, scenes[1], ["stem.0", "stem.1", "features.0", "features"]),
        "classes": camtool.figures.classes_grid(demo, scenes[3], 4),
        "features": camtool.figures.feature_maps(
            demo, scenes[0], ["stem.0", "features.2"], 8, order="strongest", scale="each"
        ),
        "kernels": camtool.figures.kernels(demo, filters=24),
    }


if __name__ == "__main__":
    typer.run(main)
