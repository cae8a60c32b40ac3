"""The report of a run: one page that shows all explanations, works from disk and needs no network."""

from camtool.runs.report.page import WrittenReport, write_report

__all__ = ["WrittenReport", "write_report"]
