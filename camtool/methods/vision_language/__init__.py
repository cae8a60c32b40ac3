"""Methods for models of images and texts."""
