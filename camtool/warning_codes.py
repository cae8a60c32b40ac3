"""The codes of all warnings and findings, in one table, and the string with a code that explanations carry.

To add a warning, add its code to :data:`WARNING_KINDS` and yield a :class:`MapWarning` where the fact is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

Severity: TypeAlias = Literal["warning", "note"]
"""``"warning"``: a reason not to trust the map. ``"note"``: a fact to know, with which the map may still be right."""


_PAGE = "https://camtool.github.io/camtool/reference/warnings.html"


@dataclass(frozen=True)
class WarningKind:
    """One kind of warning.

    Attributes:
        code: The name, e.g. ``"zero-gradient"``. It stays the same from version to version.
        condition: When it is raised, one sentence.
        remedy: What the user can do, one sentence.
        severity: See :data:`Severity`.
    """

    code: str
    condition: str
    remedy: str
    severity: Severity = "warning"

    @property
    def address(self) -> str:
        """The address of its paragraph on the documentation site."""
        return f"{_PAGE}#{self.code}"


class CodedWarning:
    """A warning with a code, and the remedy, address and severity that the table gives for this code.

    Attributes:
        code: The name of its kind, a key of :data:`WARNING_KINDS`.
    """

    code: str

    @property
    def remedy(self) -> str:
        """What the user can do, one sentence."""
        return WARNING_KINDS[self.code].remedy

    @property
    def address(self) -> str:
        """The address of its paragraph on the documentation site."""
        return WARNING_KINDS[self.code].address

    @property
    def severity(self) -> Severity:
        """``"warning"``, a reason not to trust the map, or ``"note"``, see :data:`Severity`."""
        return WARNING_KINDS[self.code].severity


class MapWarning(CodedWarning, str):
    """A warning of an explanation: the sentence as a string, with a code."""

    def __new__(cls, text: str, code: str) -> MapWarning:
        """Return a warning.

        Raises:
            KeyError: The code is not in the table.
        """
        warning = super().__new__(cls, text)
        warning.code = WARNING_KINDS[code].code
        return warning

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]  # str has one argument, this class has two
        return str(self), self.code


def to_map_warning(text: str, code: str) -> MapWarning:
    """Return a warning itself, or a plain string, e.g. of a user's own target, with a code."""
    return text if isinstance(text, MapWarning) else MapWarning(text, code)


_KINDS = (
    # ------------------------------------------------------------------------------------------------ the image
    WarningKind(
        "frames-ignored",
        "The file holds several frames or pages, and only the first was read.",
        "Open the file with PIL, choose a frame with image.seek(n), and pass the image.",
        "note",
    ),
    WarningKind(
        "photo-reduced",
        "A run reduced a photo of more than 40 million pixels, or with a side above 65,535.",
        "Add --max-side with the longest side that the overlay shall have.",
        "note",
    ),
    WarningKind(
        "assumed-contrast",
        "A medical or scientific file does not say which values are black and white, so all were stretched.",
        "Pass window=(center, width) or percentiles=(low, high) to camtool.open_image.",
        "note",
    ),
    WarningKind(
        "assumed-orientation",
        "A NIfTI file has neither a qform nor an sform, so left and right of its slices are a guess.",
        "Save the volume with its affine, e.g. by nibabel, or compare a slice with a viewer.",
        "note",
    ),
    WarningKind(
        "uneven-slices",
        "The slices of a series do not lie at equal distances, e.g. because one is missing.",
        "Look for missing or foreign files in the folder.",
    ),
    WarningKind(
        "assumed-scale",
        "A model of many bands or of volumes has no transform, so it got values in [0, 1].",
        "Pass transform= with the normalization of the training; it gets a tensor of the file's own numbers.",
        "note",
    ),
    WarningKind(
        "constant-image", "The input has the same value everywhere.", "Check the file and the code that reads it."
    ),
    WarningKind(
        "dark-image",
        "The brightest value of the photo is at most 16 of 255.",
        "Read it with camtool.open_image(path, percentiles=(2, 98)), or give an array of floats in [0, 1].",
    ),
    WarningKind(
        "small-part-seen",
        "The transform keeps less than a quarter of the photo's area.",
        "Pass a transform that resizes the photo instead of cropping it.",
    ),
    WarningKind(
        "byte-range",
        "A tensor, or what a transform returns, holds values from 0 to 255, as bytes do.",
        "Divide by 255 and normalize as in training, or give the photo as uint8.",
    ),
    WarningKind(
        "unusual-range",
        "A tensor, or what a transform returns, holds values that no usual normalization makes of a photo.",
        "Normalize once, values in [0, 1].",
    ),
    WarningKind(
        "not-normalized",
        "A tensor is in [0, 1], but the model's transform normalizes.",
        "Normalize the tensor as in training, or give the photo.",
    ),
    WarningKind(
        "other-normalization",
        "The transform that was given normalizes otherwise than that of the model.",
        "Normalize as the model's own transform does, or leave transform= out; keep it if the weights were trained so.",
    ),
    WarningKind(
        "unit-range",
        "The transform that was given returns [0, 1], and nothing shows whether the model expects this.",
        "Keep it if the model was trained so, or normalizes by itself; else normalize as in training.",
        "note",
    ),
    WarningKind(
        "upside-down",
        "The transform turns photos upside down, or the model predicts a folder's photos better that way.",
        "Check the transform, and whether files are read with their EXIF orientation; photos may be meant to be so.",
    ),
    WarningKind(
        "aspect-changed",
        "The transform that was given changes the aspect of the photo by 10 % or more, and that of the model does not.",
        "Keep it if the model was trained so; else resize the shorter side, and crop.",
        "note",
    ),
    WarningKind(
        "assumed-transform",
        "No transform is known, so that of ImageNet was used.",
        "Pass transform= with the preparation that the model was trained with.",
        "note",
    ),
    WarningKind(
        "made-gray",
        "The model takes one channel, so the photo was converted to gray.",
        "Pass transform= if the channel is something else.",
        "note",
    ),
    WarningKind(
        "scale-misfit",
        "The model predicts much better with the same image, or a folder's, in another usual range of values.",
        "Check the normalization: the image was scaled otherwise than in training.",
    ),
    WarningKind(
        "channels-swapped",
        "The model predicts much better with red and blue exchanged, or the transform that was given exchanges them.",
        "Convert BGR to RGB before the transform; OpenCV reads photos as BGR.",
    ),
    # ------------------------------------------------------------------------------------------------ the model
    WarningKind(
        "several-outputs",
        "The model returned several tensors, and no name says which one holds the scores.",
        "Pass a function from the output to a number as target_class.",
        "note",
    ),
    WarningKind(
        "train-mode",
        "The model is in training mode and holds dropout or batch normalization.",
        "Call model.eval() before you predict; camtool explains the model in evaluation mode.",
    ),
    WarningKind(
        "not-repeatable",
        "Explaining the same image again gives another map.",
        "Switch off what is random in the model, or explain again if the weights have changed since.",
    ),
    WarningKind(
        "negated-layer",
        "The last layer's weights speak against classes rather than for them.",
        "Check the sign of the last layer where its weights are converted or loaded.",
    ),
    WarningKind(
        "labels-mixed-up",
        "Classes with related names have weights that are no more alike than those of any two classes.",
        "Give the labels in the order of the training, and check that the last layer's weights were loaded.",
    ),
    WarningKind(
        "image-ignored",
        "An image of one color gets the same map.",
        "Check that the target depends on the image, and that the layer is not dead.",
    ),
    # ------------------------------------------------------------------------------------------------ the target
    WarningKind(
        "low-rank",
        "The model ranks the class below the first five.",
        "Explain a class that the model considers: target_class=None is the first.",
    ),
    WarningKind(
        "class-nowhere", "A segmenter predicts the class at no position.", "Explain a class that is in the image."
    ),
    WarningKind(
        "probability-score",
        "The model returns probabilities, whose gradient vanishes close to 1.",
        "Let the model return its logits, without the softmax or the sigmoid at its end.",
    ),
    WarningKind(
        "assumed-logits",
        "The scores are between 0 and 1, and nothing shows whether they are probabilities.",
        'If they are probabilities, pass target_class=Probability(index, of="identity").',
        "note",
    ),
    WarningKind(
        "saturated-probability", "The target is a probability within 0.0001 of 1.", "Explain the class's score instead."
    ),
    WarningKind(
        "nothing-found",
        "In a run: the detector found nothing in the photo. In Python it is a `NothingFoundError`.",
        "Ask for another target, or for detections with a lower confidence.",
        "note",
    ),
    WarningKind(
        "not-reported",
        "The detector itself does not report the detection: a threshold or a surer detection removes it.",
        "Take the map as that of a candidate, or explain a detection that is reported.",
    ),
    WarningKind(
        "low-confidence",
        "The detector's confidence in the detection is below 10 %.",
        "Explain a detection with a higher confidence.",
    ),
    WarningKind(
        "assumed-no-object",
        'The last class of the detector was taken for "no object", as nothing in the model says so.',
        "See the sentence.",
        "note",
    ),
    WarningKind(
        "embedding-dimension",
        "The model returns an embedding, and the map is of one of its dimensions.",
        "Explain the similarity to another embedding: camtool.targets.Similarity.",
    ),
    WarningKind("target-warning", "A user's own target warns.", "See the sentence."),
    # ------------------------------------------------------------------------------------------------ the layer
    WarningKind(
        "zero-gradient",
        "The gradient of the score at the layer is zero everywhere.",
        "Choose a layer after the module that loses the gradient, which check() names, or explain a logit.",
    ),
    WarningKind(
        "cells-not-read",
        "The score is read from the class token, or another token that is no cell; no gradient reaches the cells.",
        "Choose an earlier layer: leave out layer=, or take one that camtool.candidate_layers shows as good.",
    ),
    WarningKind(
        "vanishing-gradient",
        "By its gradient, the whole layer accounts for less than a thousandth of the score.",
        "Explain a logit instead of a saturated value.",
    ),
    WarningKind(
        "wrong-gradient",
        "The score does not follow the gradient at the layer, e.g. behind a gradient reversal or a detached part.",
        "Name a layer after the operation with a gradient of its own, or choose a method without gradients: occlusion.",
    ),
    WarningKind(
        "other-paths",
        "The score depends on the image in other ways than through the layer, e.g. in an ensemble.",
        "Name a layer of each branch, layer=[...], or a later one; or choose a method at the input, e.g. occlusion.",
    ),
    WarningKind(
        "cells-elsewhere",
        "The model mirrors, turns or moves the image before the layer, so the map marks wrong places.",
        "Do that to the image before you give it to the model, name a call that sees it as it is, or use occlusion.",
    ),
    WarningKind(
        "earlier-layers",
        "The class token, or another token that is no cell of the map, has read the image in earlier layers.",
        "Compare with a method that reads all layers, e.g. chefer or rollout.",
        "note",
    ),
    WarningKind(
        "several-calls",
        "The layer runs several times in a forward pass, and call_index was not given.",
        "Choose a call with call_index=.",
        "note",
    ),
    WarningKind(
        "layer-ignored",
        "A layer was given, but the method works at the input.",
        "Leave layer= out, or choose another method.",
        "note",
    ),
    WarningKind(
        "early-layer",
        "Less than 40 % of a classifier's layers with a grid come up to that given, and each channel has one weight.",
        "Leave layer= out for the best layer, or choose a method that weighs cells, e.g. layercam.",
    ),
    WarningKind(
        "coarse-layer",
        "The map has fewer than four cells along the height or the width of the image.",
        "Choose an earlier layer, see camtool.candidate_layers(model), or give a larger image.",
    ),
    WarningKind(
        "word-from-text",
        "The probability of a word hardly falls without its region or the image, so the word comes from the text.",
        "Do not take it for something that the model saw; see the numbers in answer.checks.",
    ),
    WarningKind(
        "word-method",
        "A word of a vision-language model is explained by another method than tam, which is often wrong.",
        'Use method="tam" if the text holds the image\'s tokens, or check the maps on photos that you know.',
    ),
    WarningKind(
        "few-images",
        'method="auto" got fewer than ten images, too few to choose a method by measurement.',
        "Pass ten images or more in one call, or name a method.",
    ),
    # ------------------------------------------------------------------------------------------------ the map
    WarningKind(
        "not-finite",
        "The map holds NaN or infinite values.",
        "Look for overflow: run the model in float32, and check its weights.",
    ),
    WarningKind("constant-map", "The map has the same value everywhere.", "Choose another method or layer."),
    WarningKind(
        "same-map",
        "Classes from all ranks of the model's prediction get the same map.",
        "Choose a method that tells classes apart, e.g. gradcam.",
    ),
    WarningKind(
        "class-agnostic-method",
        "All classes get the same map, as the method looks at activations or attention alone.",
        "Read the map as what the model looks at for any class, or choose a method that tells classes apart.",
        "note",
    ),
    WarningKind(
        "border-heat",
        "The heat is at the border of the image, and so it is for an image of one color: an artifact of padding.",
        "Remove it with explanation.trim_border(), or choose an earlier layer.",
    ),
    WarningKind(
        "unconfirmed-view",
        "Covering the hottest part of a view moves a policy's action back less than covering other parts.",
        "Do not read this map; try another method, or another fill= or reference=.",
    ),
    WarningKind(
        "unmoved-action",
        "A policy's action is the same with all inputs replaced.",
        "Choose another dimension or step, or another fill= and reference=.",
    ),
    WarningKind("method-note", "The method has something to say about the map.", "See the sentence.", "note"),
)

WARNING_KINDS: Mapping[str, WarningKind] = MappingProxyType({kind.code: kind for kind in _KINDS})
"""Code → kind: every warning and finding there is."""
