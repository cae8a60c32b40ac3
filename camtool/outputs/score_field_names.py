"""Names of fields in model outputs: under which names models return scores, embeddings, boxes and masks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = [
    "EMBEDDING_FIELDS",
    "SCORE_FIELDS",
    "UNAMBIGUOUS_FIELDS",
    "find_score_field",
]

SCORE_FIELDS = ("logits", "logits_per_image", "out", "pred_logits", "image_embeds", "pooler_output")
"""Names of scores, or of the image's embedding if there are none, in order of preference. Hugging Face's classifiers
return ``logits``, CLIP ``logits_per_image``, torchvision's segmenters ``out``, DETR's own code ``pred_logits``, and
models without a head ``image_embeds`` or ``pooler_output``. ``out`` comes before ``aux``, a second set of planes."""

EMBEDDING_FIELDS = ("image_embeds", "pooler_output", "last_hidden_state")
"""Names of tensors that are embeddings or features, not scores."""

UNAMBIGUOUS_FIELDS = frozenset({"last_hidden_state", "masks_queries_logits"})
"""Names in outputs of Hugging Face's models that show which tensor is meant, although none of them is in
``SCORE_FIELDS``: the features of a model without a head, and the masks of MaskFormer."""


def find_score_field(named: Mapping[str, Any]) -> str | None:
    """Return the first name in ``SCORE_FIELDS`` under which an output has a value, or ``None``."""
    return next((name for name in SCORE_FIELDS if named.get(name) is not None), None)
