"""Whole slides: read by tiles, explain the tiles, and stitch their maps to one heatmap of the slide."""

# The command line reads this to choose a command, so nothing is imported here.

# The suffixes, in lower case, that only slides have. Slides may be TIFF and DICOM files too.
SLIDE_SUFFIXES = frozenset({".svs", ".ndpi", ".mrxs", ".scn", ".vms", ".vmu", ".bif", ".svslide"})
