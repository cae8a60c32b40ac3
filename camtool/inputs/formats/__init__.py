"""Formats of science and industry, one file each: DICOM, NIfTI, TIFF of many bands or slices, gray PNG of 16 bits.

To add one, write a file with a function that recognizes it and one that reads it, and add it to
:data:`camtool.inputs.formats.format_table.FORMATS`.
"""
