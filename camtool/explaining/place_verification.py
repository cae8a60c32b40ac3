"""Explanations whose places are tested, as :meth:`camtool.Explanation.check` does, while they are made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from camtool.evidence.evidence import Evidence
from camtool.evidence.forward_pass import ForwardPass
from camtool.explaining.explanation import Explanation
from camtool.explaining.pipeline import BatchExplainer, Row
from camtool.explaining.types import Verify
from camtool.inputs.prepared_inputs import InputBatch
from camtool.methods import Method
from camtool.warning_codes import MapWarning


@dataclass(frozen=True)
class VerifyingExplainer(BatchExplainer):
    """Does what its base does, and adds what the test of places finds to the warnings.

    Attributes:
        verify: Which explanations are tested.
    """

    verify: Verify = "places"
    _tested: set[object] = field(default_factory=set, init=False)

    def _explain_evidence(
        self,
        method: Method,
        evidence: Sequence[Evidence],
        forward_pass: ForwardPass,
        batch: InputBatch,
        rows: Sequence[Row],
    ) -> Iterator[Explanation]:
        for explanation in super()._explain_evidence(method, evidence, forward_pass, batch, rows):
            yield self._test(explanation) if self._is_due(method, evidence) else explanation

    def _is_due(self, method: Method, evidence: Sequence[Evidence]) -> bool:
        layers = [of_layer.get_layer() for of_layer in evidence if of_layer.layer]
        forward_pass = evidence[0].forward_pass
        question = method.name, *layers, forward_pass.image_input.shape[1:]
        is_known = question in self._tested
        self._tested.add(question)
        return (
            self.verify == "places"
            or not is_known
            or any(forward_pass.find_place(layer).by_content for layer in layers)
        )

    def _test(self, explanation: Explanation) -> Explanation:
        assert explanation.checker is not None  # it was just made
        known = {warning.code for warning in explanation.warnings}
        found = explanation.checker(explanation, only=("place",)).findings
        new = [MapWarning(finding.sentence, finding.code) for finding in found if finding.code not in known]
        return replace(explanation, warnings=(*explanation.warnings, *new))
