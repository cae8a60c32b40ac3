"""Video files: explain their frames, or windows of frames, and write them with the heatmap over them."""

# The command line reads this to choose a command, so nothing is imported here.

# The file suffixes, in lower case, that count as videos.
VIDEO_SUFFIXES = frozenset({".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts", ".ogv", ".wmv"})
