"""What a notebook shows of an audit, a comparison of models, a repair or an evaluation: the cards of its page."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from base64 import b64decode, b64encode
from io import BytesIO
from pathlib import Path

from PIL import Image

from camtool.errors import Forgive

# The longer side of a picture in pixels, and its quality as WebP: a result has at most 300 kB.
_SIDE, _QUALITY = 128, 70


class ResultCard(ABC):
    """Result that a notebook shows as cards, and as Markdown where HTML is not shown.

    Attributes:
        folder: The folder that the addresses of pictures start from; None if pictures are in the page.
    """

    folder: Path | None = None

    @abstractmethod
    def to_markdown(self) -> str:
        """Return the result as a page of Markdown."""

    @abstractmethod
    def _render_card(self) -> str:
        """Return the cards as HTML, with pictures as on the page."""

    def __str__(self) -> str:
        return self.to_markdown()

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        # A notebook may show several results, whose identifiers would be the same.
        html = re.sub(r' (id|aria-labelledby)="[^"]*"', "", self._render_card())
        html = re.sub(r'(?<= src=")[^"]*', lambda source: self._encode_thumbnail(source[0]), html)
        return {"text/html": html, "text/markdown": self.to_markdown()}

    def _encode_thumbnail(self, source: str) -> str:
        """Return a picture, at an address of the page, as a small one in a URL; without pixels if it is gone."""
        stream = BytesIO()
        with Forgive(OSError):
            _, _, inside = source.partition("base64,")
            data = BytesIO(b64decode(inside)) if inside else Path(self.folder or "", source)
            with Image.open(data) as picture:
                picture.thumbnail((_SIDE, _SIDE))
                picture.save(stream, "WEBP", quality=_QUALITY)
        return f"data:image/webp;base64,{b64encode(stream.getvalue()).decode()}"
