"""Pictures of findings: images with the cue outlined and covered, the cue on other images, and counterexamples."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from camtool.errors import Forgive
from camtool.evaluation.audit.candidates import Change, CueCandidate, RegionCandidate
from camtool.evaluation.audit.images import ImageRecord
from camtool.evaluation.audit.trials import Bench
from camtool.inputs.prepared_inputs import PreparedInput
from camtool.rendering.image_writing import open_atomically, write_image
from camtool.rendering.regions import draw_contours, find_contours
from camtool.rendering.written_files import check_inside, replace_files
from camtool.runs.file_names import is_inside
from camtool.runs.stored_files import parse_object

FOLDER, LIST_NAME = "index_files", "pictures.json"
"""The folder of the pictures, and the file that lists them by finding."""

_EXAMPLES, _OTHERS = 4, 3
"""Images with the cue, and images of each other kind, for one finding."""

_MOST_FINDINGS = 40
"""Findings with pictures: 20 pictures of 10 KB each."""

_SIDE, _SMALL = 288, 128
"""The longest side of a picture, and that of inputs which are enlarged."""

_PRESENT = 0.95
"""An image of another class is like those with the cue if it has it more strongly than this share of the others."""

_QUALITY = 88

Pixels: TypeAlias = NDArray[np.uint8]
Entry: TypeAlias = "dict[str, Any]"
"""A picture or a pair: ``name``, ``file`` (the short name), ``files``, ``answers``, and ``label``, the class."""


@dataclass(frozen=True)
class FindingPictures:
    """The pictures of a finding.

    Attributes:
        folder: The folder of the audit.
        bench: The images of its class and of others, the model, and what was computed.
        candidate: The candidate that was tested.
        present: Images of the class that have it, by number.
        name_class: Returns the name of a class.
    """

    folder: Path
    bench: Bench
    candidate: CueCandidate
    present: Sequence[int]
    name_class: Callable[[int], str]

    def draw(self, number: int) -> dict[str, list[Entry]]:
        """Write the pictures of the finding with a number, and return them by kind."""
        target, records = self.candidate.target, {record.index: record for record in self.bench.records}
        of_class, others = _split_by(records.values(), "target", target)
        without = [record for record in of_class if record.index not in self.present]
        right, otherwise = _split_by([records[index] for index in self.present], "answer", target)
        mistaken, told_apart = _split_by(others, "answer", target)
        similar = self._find_similar(others)
        _, similar_otherwise = _split_by(similar, "answer", target)
        unlike = [record for record in told_apart if record not in similar]
        return {
            "covered": [*self._change(right[:_EXAMPLES], others[:1], f"{number}-covered", is_removal=True)],
            "pasted": [*self._change(unlike[:_OTHERS], right[:1], f"{number}-pasted", is_removal=False)],
            "without": self._show_all(without, f"{number}-without", is_outlined=False),
            "otherwise": self._show_all(otherwise, f"{number}-otherwise", is_outlined=True),
            "similar": self._show_all(similar_otherwise, f"{number}-similar", is_outlined=True),
            "mistaken": self._show_all(mistaken, f"{number}-mistaken", is_outlined=False),
        }

    def _find_similar(self, others: Sequence[ImageRecord]) -> list[ImageRecord]:
        """Return the images of other classes that are most like those with the cue, the most similar first."""
        bench, candidate = self.bench, self.candidate
        values = bench.measure_strengths(candidate).tolist()
        strengths = {record.index: value for record, value in zip(bench.records, values, strict=True)}
        limit = np.quantile([strengths[record.index] for record in others], _PRESENT)
        similar = [record for record in others if strengths[record.index] > limit]
        return sorted(similar, key=lambda record: -strengths[record.index])

    def _change(
        self, records: Sequence[ImageRecord], partners: Sequence[ImageRecord], name: str, *, is_removal: bool
    ) -> Iterator[Entry]:
        """Yield a pair for each image: as it is, with the region outlined, and changed."""
        images, candidate = self.bench.images, self.candidate
        change = candidate.remove if is_removal else candidate.transplant
        for place, record in enumerate(records if partners else (), 1):
            image = images.prepare(record.index)
            variants = change(Change(images, record.index, partners[0].index, 1, np.random.default_rng(0)))
            if variants is None or variants.shape[-3:] != image.tensor.shape:  # e.g. activations, which have no picture
                if is_removal:
                    yield self._show(record, f"{name}-{place}", is_outlined=True)
                continue
            changed = variants.reshape(-1, *image.tensor.shape)[0]  # by the first fill, before the controls
            outline = self._locate(image if is_removal else images.prepare(partners[0].index))
            yield {
                **self._name(record),
                "files": [
                    self._write(f"{name}-{place}", image, image.tensor, outline if is_removal else None),
                    self._write(f"{name}-{place}-after", image, changed, None if is_removal else outline),
                ],
                "answers": self._answer(f"{name.partition('-')[2]} {record.index}", image.tensor, changed),
            }

    def _answer(self, name: str, before: Tensor, after: Tensor) -> list[Entry]:
        """Return the answers to an image and to the changed one, with their probabilities.

        Of a model of several labels they are the class, or none without a probability if it is not answered.
        """

        def score() -> list[float]:
            logits, target = self.bench.images.score(torch.stack([before, after])), self.candidate.target
            if self.bench.images.head.is_independent:
                _, shares, is_answer = self.bench.images.measure_margins(logits, target)
                return [*torch.where(is_answer > 0, target, -1).tolist(), *shares.tolist()]
            best = logits.softmax(1).max(1)
            return [*map(float, best.indices), *best.values.tolist()]

        *classes, first, second = self.bench.remember(f"{self.candidate.key} shown {name}", score)
        return [
            {"label": self.name_class(int(index)), "probability": share if index >= 0 else None}
            for index, share in zip(classes, (first, second), strict=True)
        ]

    def _show_all(self, records: Sequence[ImageRecord], name: str, *, is_outlined: bool) -> list[Entry]:
        """Show the first few records."""
        return [
            self._show(record, f"{name}-{number}", is_outlined=is_outlined)
            for number, record in enumerate(records[:_OTHERS], 1)
        ]

    def _show(self, record: ImageRecord, name: str, *, is_outlined: bool) -> Entry:
        image = self.bench.images.prepare(record.index)
        outline = self._locate(image) if is_outlined else None
        answers = [{"label": self.name_class(record.answer), "probability": None}]
        return {**self._name(record), "files": [self._write(name, image, image.tensor, outline)], "answers": answers}

    def _name(self, record: ImageRecord) -> Entry:
        file = self.bench.images.shorten_name(record.index)
        return {"name": self.bench.images.name(record.index), "file": file, "label": self.name_class(record.target)}

    def _locate(self, image: PreparedInput) -> Tensor | None:
        return self.candidate.locate(self.bench.images, image) if isinstance(self.candidate, RegionCandidate) else None

    def _write(self, name: str, image: PreparedInput, tensor: Tensor, mask: Tensor | None) -> str:
        """Write a picture, and return its path below the folder."""
        pixels = resize(_to_pixels(image, tensor))
        if mask is not None:
            size = pixels.shape[1::-1]
            region = Image.fromarray(mask.cpu().numpy()).resize(size, Image.Resampling.NEAREST)
            pixels = draw_contours(pixels, find_contours(np.asarray(region, np.float32), threshold=0.5))
        path = Path(FOLDER) / f"{name}.jpg"
        check_inside(self.folder, path)
        write_image(self.folder / path, pixels, quality=_QUALITY)
        return path.as_posix()


def write_pictures(folder: Path, findings: Mapping[str, FindingPictures]) -> None:
    """Write the pictures of findings by key, and the list of them; those of an earlier list that are in it no more go.

    Raises:
        CamtoolError: A link leads out of the folder, or camtool did not make the folder of the pictures.
    """
    check_inside(folder, Path(FOLDER) / LIST_NAME)
    before = read_pictures(folder)
    with replace_files(folder, [FOLDER]):
        (folder / FOLDER).mkdir(exist_ok=True)
        shown = islice(findings.items(), _MOST_FINDINGS)
        pictures = {key: one.draw(number) for number, (key, one) in enumerate(shown, 1)}
    with open_atomically(folder / FOLDER / LIST_NAME) as stream:
        stream.write((json.dumps(pictures, indent=1) + "\n").encode())
    for name in {*_list_files(before)} - {*_list_files(pictures)}:
        (folder / name).unlink(missing_ok=True)


def resize(pixels: Pixels) -> Pixels:
    """Return pixels ``(H, W, 3)`` in the size of a picture: small ones are enlarged by a whole number."""
    longest = max(pixels.shape[:2])
    if longest <= _SMALL:
        factor = _SIDE // longest
        return pixels.repeat(factor, 0).repeat(factor, 1)
    if longest <= _SIDE:
        return pixels
    height, width = (max(1, round(side * _SIDE / longest)) for side in pixels.shape[:2])
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.LANCZOS))


def _to_pixels(image: PreparedInput, tensor: Tensor) -> Pixels:
    """Return an input of the model as pixels ``(H, W, 3)``.

    Where black and white are unknown they are 0 and 1, or the smallest and the largest value if these are outside.
    """
    if image.black is None or image.white is None:
        low, high = image.tensor.float().aminmax()
        black, white = low.clamp_max(0), high.clamp_min(1)
    else:
        black, white = (bound.float()[:, None, None] for bound in (image.black, image.white))
    values = ((tensor.detach().float() - black) / (white - black)).cpu()
    colors = values[:3] if len(values) >= 3 else values[:1].expand(3, -1, -1)
    return (colors.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()


def _split_by(
    records: Iterable[ImageRecord], field: Literal["target", "answer"], target: int
) -> tuple[list[ImageRecord], list[ImageRecord]]:
    """Return the records of which a field is a class, and the others."""
    chosen, others = list[ImageRecord](), list[ImageRecord]()
    for record in records:
        (chosen if getattr(record, field) == target else others).append(record)
    return chosen, others


def read_pictures(folder: Path) -> dict[str, dict[str, list[Entry]]]:
    """Return the pictures that are in the folder of an audit, by finding and kind; none if there is no list of them."""
    with Forgive(OSError, ValueError, KeyError, TypeError, AttributeError):
        content = parse_object((folder / FOLDER / LIST_NAME).read_bytes())
        if all(map(_is_picture, _list_files(content))):
            return content
    return {}


def find_picture(folder: Path | None, key: str) -> Path | None:
    """Return a picture of a finding: one that has another answer when it is covered, or else the first."""
    kinds = {} if folder is None else read_pictures(folder).get(key, {})
    entries = sorted(
        kinds.get("covered", []), key=lambda entry: entry["answers"][0]["label"] == entry["answers"][-1]["label"]
    )
    return folder / entries[0]["files"][0] if folder is not None and entries else None


def _is_picture(name: Any) -> bool:
    return isinstance(name, str) and is_inside(name) and Path(name).parent == Path(FOLDER) and name.endswith(".jpg")


def _list_files(pictures: dict[str, dict[str, list[Entry]]]) -> list[str]:
    entries = [entry for kinds in pictures.values() for group in kinds.values() for entry in group]
    return [name for entry in entries for name in entry["files"]]
