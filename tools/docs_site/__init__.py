"""The documentation site: stage the pages, build them with Sphinx, write their Markdown twins and ``llms.txt``."""
