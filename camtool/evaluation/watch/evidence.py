"""Evidence over many looks at the same images: one alarm level for the whole training, however the looks depend.

Each look at a class has an e-value: ``1 / LEAST_P`` if its p-value is at most ``LEAST_P``, else 0. Its expectation is
at most 1 if nothing is wrong. The sum of e-values with fixed weights that add up to 1 has an expectation of at most 1
as well, whatever their dependence (Vovk and Wang 2021, 10.1214/20-AOS2020), and it never falls. So the chance that it
ever reaches ``classes / level`` for one of the classes is at most ``level`` (Markov's inequality, a union bound). A
product of e-values would need looks that are independent, which looks at one probe set are not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LEAST_P = 1e-4
"""The p-value of a look that counts as evidence."""


@dataclass(frozen=True)
class Alarm:
    """A class that is recognized by a place of the image.

    Attributes:
        step: The step of the look.
        epoch: The epoch of the look, as it was given; None if it was not.
        target: The class.
        label: Its name.
        region: Words for the place.
        p: The p-value of the look.
        evidence: The sum of weighted e-values, at least ``classes / level``.
        removal: By how much the probability of the class falls where the place is covered, beyond control regions.
        transplant: By how much it rises in other images with the place of this class, beyond that of others.
        sentence: All of it in words.
    """

    step: int
    epoch: int | None
    target: int
    label: str
    region: str
    p: float
    evidence: float
    removal: float
    transplant: float
    sentence: str


def compute_weight(look: int) -> float:
    """Return the weight of the e-values of a look, counted from 1; the weights of all looks add up to 1.

    ``6 / (π (j + 1))² / 2^j`` with ``j = floor(log2 look)``: those from look 2^j to 2^(j+1) - 1 share one part.
    """
    octave = look.bit_length() - 1
    return 6 / (math.pi * (octave + 1)) ** 2 / float(2**octave)


def compute_least_p(images: int, of_class: int) -> float:
    """Return the smallest p-value that permuting the labels of the images can give for a class."""
    return 1 / math.comb(images, of_class)
