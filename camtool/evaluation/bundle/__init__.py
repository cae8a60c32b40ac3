"""Evidence bundle: what a run was made of and what it measured, as one ZIP file. Supporting evidence, and no more."""

from camtool.evaluation.bundle.writing import WrittenBundle, check_bundle, write_bundle

__all__ = ["WrittenBundle", "check_bundle", "write_bundle"]
