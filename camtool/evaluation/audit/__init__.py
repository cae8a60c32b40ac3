"""Audit: does a classifier recognize classes by something that it should not use?"""

from camtool.evaluation.audit.result import Audit, Finding, read_audit, read_verdicts
from camtool.evaluation.audit.running import audit

__all__ = ["Audit", "Finding", "audit", "read_audit", "read_verdicts"]
