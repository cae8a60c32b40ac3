"""Oracles of the methods that score single patches, on nested lists: a CLIP, from the weights of its modules."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tests.oracles.base import Map, oracle

Vector = list[float]


@dataclass(frozen=True)
class Linear:
    """``W x + b``."""

    W: Map
    b: Vector

    def __call__(self, x: Vector) -> Vector:
        return [dot(row, x) + b for row, b in zip(self.W, self.b, strict=True)]


@dataclass(frozen=True)
class Norm:
    """Layer norm: ``(x - mean) / sqrt(var + eps) · scale + shift``."""

    scale: Vector
    shift: Vector
    eps: float

    def __call__(self, x: Vector) -> Vector:
        mean = sum(x) / len(x)
        deviation = math.sqrt(sum((each - mean) ** 2 for each in x) / len(x) + self.eps)
        return [(each - mean) / deviation * a + b for each, a, b in zip(x, self.scale, self.shift, strict=True)]


@dataclass(frozen=True)
class PreNormBlock:
    """The attention of one block.

    Attributes:
        x: The tokens that enter the block, the class token first.
        norm: The norm before the attention.
        q: The layers to queries; k, v: to keys and values; o: the output projection.
    """

    x: Map
    norm: Norm
    q: Linear
    k: Linear
    v: Linear
    o: Linear


@dataclass(frozen=True)
class Clip:
    """One image, one of several texts.

    Attributes:
        blocks: All blocks.
        heads: The number of heads.
        norm: The last norm.
        projection: The layer to embeddings.
        image: The embedding of the image.
        texts: The embeddings of all texts.
        index: The text that is explained.
        against: Embeddings of redundant texts.
        grid: Rows and columns of patches.
    """

    blocks: list[PreNormBlock]
    heads: int
    norm: Norm
    projection: Linear
    image: Vector
    texts: Map
    index: int
    against: Map
    grid: tuple[int, int]


@oracle("maskclip")
def maskclip(case: Clip) -> Map:
    """Zhou et al. 2022: the value of each token through the output projection, then to the embeddings."""
    block = case.blocks[-1]
    tokens = [block.o(block.v(block.norm(x))) for x in block.x]
    return lay_out(case, [cosine(embed(case, token), case.texts[case.index]) for token in tokens])


@oracle("clearclip")
def clearclip(case: Clip) -> Map:
    """Lan et al. 2024: ``X = Proj(softmax(q qᵀ / sqrt(d)) v)``, without residual and feed-forward network."""
    block = case.blocks[-1]
    entries = [block.norm(x) for x in block.x]
    tokens = attend([block.q(x) for x in entries], [block.v(x) for x in entries], case.heads)
    return lay_out(case, [cosine(embed(case, block.o(token)), case.texts[case.index]) for token in tokens])


@oracle("clipsurgery")
def clipsurgery(case: Clip, blocks: int = 6, temperature: float = 2.0) -> Map:
    """Li et al. 2023: the new path ``x̂_{i+1} = f_vv(x_i) + x̂_i`` from ``x̂_d = x_d``, and the feature surgery."""
    new_path: Map | None = None
    for block in case.blocks[-blocks:]:
        entries = [block.norm(x) for x in block.x]
        values = [block.v(x) for x in entries]
        added = [block.o(token) for token in attend(values, values, case.heads)]
        new_path = block.x if new_path is None else new_path
        new_path = [[a + b for a, b in zip(x, y, strict=True)] for x, y in zip(new_path, added, strict=True)]
    features = [normalize(embed(case, token)) for token in new_path or []]
    own = normalize(case.texts[case.index])
    if case.against:  # a single text and redundant features: f · (t - r)
        others = [normalize(text) for text in case.against]
        mean = [sum(each) / len(others) for each in zip(*others, strict=True)]
        return lay_out(case, [dot(f, [a - b for a, b in zip(own, mean, strict=True)]) for f in features])
    # The products of features before the sum over the channels, for each patch and each text.
    texts = [normalize(text) for text in case.texts]
    exponentials = [math.exp(temperature * cosine(case.image, text)) for text in texts]
    s = [each / sum(exponentials) for each in exponentials]
    w = [each / (sum(s) / len(s)) for each in s]
    result = []
    for f in features:
        multiplied = [[f[c] * text[c] * w[t] for c in range(len(f))] for t, text in enumerate(texts)]
        redundant = [sum(row[c] for row in multiplied) / len(multiplied) for c in range(len(f))]
        result.append(sum(multiplied[case.index][c] - redundant[c] for c in range(len(f))))
    return lay_out(case, result)


def attend(vectors: Map, values: Map, heads: int) -> Map:
    """Return ``softmax(x xᵀ / sqrt(d)) v``, head by head."""
    size = len(values[0]) // heads
    result = [[0.0] * len(values[0]) for _ in values]
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        for i, x in enumerate(vectors):
            logits = [dot(x[part], y[part]) / math.sqrt(size) for y in vectors]
            weights = [math.exp(each) for each in logits]
            for j, weight in enumerate(weights):
                for c in range(part.start, part.stop):
                    result[i][c] += weight / sum(weights) * values[j][c]
    return result


def embed(case: Clip, token: Vector) -> Vector:
    return case.projection(case.norm(token))


def lay_out(case: Clip, by_token: Vector) -> Map:
    """Return values of the tokens as a map, without the class token."""
    rows, columns = case.grid
    return [[by_token[1 + i * columns + j] for j in range(columns)] for i in range(rows)]


def cosine(x: Vector, y: Vector) -> float:
    return dot(normalize(x), normalize(y))


def normalize(x: Vector) -> Vector:
    length = math.sqrt(dot(x, x))
    return [each / length for each in x]


def dot(x: Vector, y: Vector) -> float:
    return sum(a * b for a, b in zip(x, y, strict=True))
