"""Attention as maps on the photo, ``camtool.attention``; of tiles in a bag, of words in a U-Net; similar features."""
