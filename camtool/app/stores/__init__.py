"""Stores of the page: models, images, the folder that it serves, results, and files on the disk."""

from __future__ import annotations

from camtool.app.stores.image_store import DiskSpace, ImageFolder, ImageStore, StoredImage
from camtool.app.stores.model_store import DEMO, ModelStore, ResultCache

__all__ = ["DEMO", "DiskSpace", "ImageFolder", "ImageStore", "ModelStore", "ResultCache", "StoredImage"]
