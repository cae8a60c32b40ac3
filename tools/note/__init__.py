"""The note on placement, Rival-CAM and Faith-CAM: the page ``docs/note.md``, its figures, and a PDF file of it."""
