"""Classes and functions of grad-cam, torchcam and captum, and how to write the same with camtool.

This module imports nothing heavy: ``camtool.__getattr__`` asks it about a name that camtool does not have.
"""

from __future__ import annotations

import re
import sys
from typing import NoReturn

METHOD_NAMES = {
    **{
        name: name
        for name in (
            *("ablationcam", "cam", "eigencam", "eigengradcam", "fem", "fullgrad", "gradcam", "hirescam", "kpcacam"),
            *("layercam", "legrad", "scorecam", "segeigencam", "shapleycam", "sscam", "iscam", "xgradcam"),
            *("inputxgradient", "occlusion"),
        )
    },
    **dict.fromkeys(("gradcamplusplus", "gradcampp"), "gradcam++"),
    **dict.fromkeys(("smoothgradcampp", "smoothgradcamplusplus"), "smoothgradcam++"),
    "gradcamelementwise": "gradcam-elementwise",
    "randomcam": "random",
    "fasterscorecam": "scorecam",
    "gradientinput": "inputxgradient",
    **dict.fromkeys(("sobolattributionmethod", "hsicattributionmethod"), "rise"),
    **dict.fromkeys(("layergradcam", "layergradientxactivation"), "gradcam"),
    **dict.fromkeys(("guidedbackprop", "guidedbackproprelumodel", "deconvolution", "deconvnet"), "guided-backprop"),
    "guidedgradcam": "guided-gradcam",
    **dict.fromkeys(("saliency", "vanillagradient", "squaregrad", "vargrad"), "smoothgrad"),
    **dict.fromkeys(
        ("integratedgradients", "layerintegratedgradients", "layerconductance", "gradientshap", "layergradientshap"),
        "integrated-gradients",
    ),
    **dict.fromkeys(("deeplift", "deepliftshap", "layerdeeplift", "layerdeepliftshap"), "liftcam"),
    **dict.fromkeys(("transformerattribution", "transformerexplainability"), "chefer"),
    **dict.fromkeys(("featureablation", "featurepermutation"), "occlusion"),
    **dict.fromkeys(
        ("layerfeatureablation", "ablationlayer", "ablationlayervit", "ablationlayerfasterrcnn"), "ablationcam"
    ),
    **dict.fromkeys(("lime", "limebase", "kernelshap", "shapleyvalues", "shapleyvaluesampling", "aise"), "rise"),
    "noisetunnel": "noise:gradcam",
    "sess": "sess:gradcam",
    "augsmooth": "tta:gradcam",
    "eigensmooth": "eigen:gradcam",
}
"""A name of another library → the method that computes the same, or what comes closest."""

_FINER = "target_class=camtool.targets.Finer(index), with any method"
_LRP = (
    '"chefer" for transformers or "conservative:inputxgradient", which come closest. camtool has no LRP: '
    "https://camtool.github.io/camtool/reference/formulas.html#methods-that-are-not-included-and-why"
)
_CONCEPTS = "camtool.concepts(model, images)"
_ATTENTION = 'method="rollout", "legrad" or "chefer"; camtool.attention(model, img) shows the attention itself'
_PREPARED = "not needed: give the photo, and transform= if the model is your own; see camtool.preprocessing"
_OVERLAY = "result.overlay() or result.save(path); with a heatmap of your own camtool.rendering.blend(photo, heatmap)"
_RECORDER = "camtool.Recorder(model, layers, gradients=True)"
_LAYOUT = "not needed: the layout of a layer's output is detected"
_EXPLAIN = "camtool.explain(model, img, target_class, method=...)"


def _metrics(*names: str) -> str:
    return f"camtool.evaluate(model, images, methods, metrics={[*names]})"


_OTHERS = {
    **dict.fromkeys(("finercam", "finer", "finerweightedtarget"), _FINER),
    **dict.fromkeys(
        ("deepfeaturefactorization", "dff", "rundffonimage", "showfactorizationonimage", "tcav", "concept", "nmf"),
        _CONCEPTS,
    ),
    **dict.fromkeys(("attention", "attentionmap", "attentionmaps", "attentionrollout", "gradientrollout"), _ATTENTION),
    **dict.fromkeys(("lrp", "layerlrp", "attnlrp", "cplrp", "epsilonlrp"), _LRP),
    "refinecam": "several layers: layer=[...], merge=...",
    "sobelcam": "an edge filter, e.g. skimage.filters.sobel: edges of the photo do not depend on the model",
    **dict.fromkeys(("classifieroutputtarget", "rawscoresoutputtarget"), "target_class=index, or targets.ClassScore"),
    **dict.fromkeys(("classifieroutputsoftmaxtarget", "softmaxoutputtarget"), "camtool.targets.Probability(index)"),
    "classifieroutputrest": "camtool.targets.AgainstRest(index)",
    "binaryclassifieroutputtarget": "target_class=0 or 1: a single output is the score of two classes",
    "classifieroutputentropy": "camtool.targets.Custom(function)",
    "semanticsegmentationtarget": "camtool.targets.Region(index, mask); the class alone is explained where it is found",
    "fasterrcnnboxscoretarget": "camtool.targets.Detection(n) or camtool.targets.Box((x0, y0, x1, y1))",
    **dict.fromkeys(("showcamonimage", "overlaymask"), _OVERLAY),
    **dict.fromkeys(("preprocessimage", "normalize"), _PREPARED),
    **dict.fromkeys(("deprocessimage", "scalecamimage", "scaleaccrossbatchandchannels"), "result.heatmap, from 0 to 1"),
    "layerattribution": "result.heatmap, at the size of the photo",
    "createlabelslegend": "result.label",
    **dict.fromkeys(("vitreshapetransform", "swintreshapetransform", "fasterrcnnreshapetransform"), _LAYOUT),
    **dict.fromkeys(("activationsandgradients", "layeractivation", "neurongradient"), _RECORDER),
    **dict.fromkeys(("basecam", "attribution", "gradientattribution", "perturbationattribution"), _EXPLAIN),
    **dict.fromkeys(
        (
            *("roadcombined", "roadmostrelevantfirst", "roadleastrelevantfirst", "roadmostrelevantfirstaverage"),
            *("roadleastrelevantfirstaverage", "noisylinearimputer"),
        ),
        _metrics("road"),
    ),
    "cammultimageconfidencechange": _metrics("average-drop", "average-gain"),
    "dropinconfidence": _metrics("average-drop"),
    "increaseinconfidence": _metrics("increase"),
    "classificationmetric": _metrics("average-drop", "increase"),
    "deletioninsertionmetric": _metrics("deletion", "insertion"),
    **dict.fromkeys(("perturbationconfidencemetric", "averageracrossthresholds"), _metrics("deletion", "insertion")),
    "infidelity": _metrics("infidelity"),
    "sensitivitymax": _metrics("max-sensitivity"),
}
"""A name of another library → what to write here."""


def describe_foreign_name(name: str) -> str | None:
    """Return how camtool writes what another library calls ``name``; None for any other name."""
    folded = re.sub(r"[^a-z0-9]", "", name.casefold())
    if folded in METHOD_NAMES:
        return f'camtool.explain(model, img, method="{METHOD_NAMES[folded]}")'
    return _OTHERS.get(folded)


def raise_missing_name(module: str, name: str) -> NoReturn:
    """Raise the error for a name that a module does not have; it says what to write for one of another library.

    Raises:
        AttributeError: Always, but in a ``from`` import of a foreign name, which hides the text of that error.
        ImportError: In such an import.
    """
    hint = None if name.startswith("_") else describe_foreign_name(name)
    missing = f"module {module!r} has no attribute {name!r}"
    if hint is None:
        raise AttributeError(missing)
    # The function of importlib that looks a name up for `from module import name`.
    caller = sys._getframe(1)
    callers = [frame.f_code.co_name for frame in (caller, caller.f_back) if frame is not None]
    is_import = "_handle_fromlist" in callers
    kind = ImportError if is_import else AttributeError
    raise kind(f"{missing}. Use {hint}.")
