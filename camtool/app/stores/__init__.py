"""Stores of the page: models, images, the folder that it serves, results, and files on the disk."""

from __future__ import annotations

from camtool.app.stores.disk_space import DiskSpace
from camtool.app.stores.image_store import ImageFolder, ImageStore, StoredImage
from camtool.app.stores.model_store import DEMO, ModelStore
from camtool.app.stores.result_cache import ResultCache

__all__ = ["DEMO", "DiskSpace", "ImageFolder", "ImageStore", "ModelStore", "ResultCache", "StoredImage"]
