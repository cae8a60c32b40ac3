"""Photos and transforms for the tests of geometry."""

from __future__ import annotations

import cv2
import numpy as np
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms._presets import ImageClassification, ObjectDetection, SemanticSegmentation

LANDSCAPE, PORTRAIT = (375, 500), (500, 333)
SIZES = [LANDSCAPE, PORTRAIT, (224, 224), (225, 224), (224, 225), (223, 400), (100, 60), (97, 1000), (1, 1)]

to_tensor = v1.ToTensor()


def draw_photo(height, width, box=None):
    """Return a black photo with an optional white rectangle (top, left, bottom, right)."""
    pixels = np.zeros((height, width, 3), np.uint8)
    if box is not None:
        pixels[box[0] : box[2], box[1] : box[3]] = 255
    return Image.fromarray(pixels)


def compute_centroid(image):
    """Return the mean position (row, column) of the light in an image (h, w), in pixels with edges at 0."""
    light = np.asarray(image, float)
    light = np.where(light > 0.5 * light.max(), light, 0)
    rows, columns = np.indices(light.shape) + 0.5
    return np.array([(rows * light).sum(), (columns * light).sum()]) / light.sum()


def to_photo(geometry, point):
    """Return the photo coordinates of a point (row, column) of the model's input."""
    top, left, bottom, right = geometry.box
    return np.array([top, left]) + np.divide(point, geometry.size) * [bottom - top, right - left]


def to_input(geometry, point):
    """Return the input coordinates of a point (row, column) of the photo."""
    top, left, bottom, right = geometry.box
    return np.subtract(point, [top, left]) / [bottom - top, right - left] * geometry.size


def compute_preset_box(photo, resize, crop):
    """Return the box of the classification preset, written out literally."""
    height, width = photo
    if width <= height:
        new_height, new_width = int(resize * height / width), resize
    else:
        new_height, new_width = resize, int(resize * width / height)
    pad_top, pad_left = max(crop - new_height, 0) // 2, max(crop - new_width, 0) // 2
    padded_height, padded_width = max(new_height, crop), max(new_width, crop)
    top = int(round((padded_height - crop) / 2.0)) - pad_top  # noqa: RUF046 - as torchvision writes it
    left = int(round((padded_width - crop) / 2.0)) - pad_left  # noqa: RUF046
    rows, columns = height / new_height, width / new_width
    return top * rows, left * columns, (top + crop) * rows, (left + crop) * columns


def squash(photo):
    """Return the photo resized to 224 x 224."""
    resized = cv2.resize(np.asarray(photo), (224, 224), interpolation=cv2.INTER_LINEAR)
    return torch.from_numpy(resized).permute(2, 0, 1).float() / 255


TRANSFORMS = {
    "classification": ImageClassification(crop_size=224, resize_size=256),
    "bicubic": ImageClassification(crop_size=224, resize_size=232, interpolation=InterpolationMode.BICUBIC),
    "crop larger than the resize": ImageClassification(crop_size=300, resize_size=200),
    "segmentation": SemanticSegmentation(resize_size=260),
    "segmentation without resizing": SemanticSegmentation(resize_size=None),
    "detection": ObjectDetection(),
    "v1": v1.Compose([v1.Resize(300, max_size=310), v1.Pad((7, 20)), v1.CenterCrop(310), v1.ToTensor()]),
    "v2": v2.Compose(
        [
            v2.ToImage(),
            v2.Compose([v2.Resize(size=None, max_size=320), v2.Pad([1, 2, 30, 40], fill=3)]),
            v2.CenterCrop([270, 250]),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.4] * 3, [0.2] * 3),
        ]
    ),
    "squash, flip, gray": v1.Compose(
        [v1.Resize((180, 240)), v1.RandomHorizontalFlip(1.0), v1.Grayscale(3), v1.PILToTensor()]
    ),
}
