"""All that is found in one client's data, strongest first."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from winnow.core.untrusted_text import one_line
from winnow.data.preprocessing import Preprocessing
from winnow.learn.client_quality.column_findings import column_findings
from winnow.learn.client_quality.copied_rows import copy_findings, independent_share
from winnow.learn.client_quality.evidence import COLUMNS, OUTCOMES, REPRESENTATION, ClientEvidence
from winnow.learn.client_quality.findings import Finding, strongest_first
from winnow.learn.client_quality.image_findings import image_findings
from winnow.learn.client_quality.input_names import InputNames
from winnow.learn.client_quality.label_findings import label_findings, regression_findings
from winnow.learn.client_quality.label_free_expected_moments import unexplained_share
from winnow.learn.client_quality.reference_summary import ReferenceSummary

_INPUT_BLOCKS = {REPRESENTATION, COLUMNS}
MOSTLY = 0.5
"""If more than this of the difference cannot be due to labels, it is due to inputs."""


@dataclass(frozen=True, kw_only=True)
class DataNames:
    """What inputs and labels are called."""

    inputs: InputNames
    classes: Sequence[str] = ()
    """Empty in a regression."""
    target_width: float = 1.0
    """In a regression, what turns errors of its first target into its own units."""

    @classmethod
    def of(cls, preprocessing: Preprocessing, sample_shape: Sequence[int], classes: int | None) -> Self:
        """The names that are known of data with so many classes; None: a regression."""
        return cls(
            inputs=InputNames.of(preprocessing, sample_shape),
            classes=[] if classes is None else [one_line(label)[:40] for label in preprocessing.labels(classes)],
            target_width=preprocessing.targets[0].width if preprocessing.targets else 1.0,
        )


def client_findings(evidence: ClientEvidence, reference: ReferenceSummary, names: DataNames) -> list[Finding]:
    """What is wrong with a client's data, or unlike the reference's; nothing for an honest client, as a rule.

    The strongest comes first. A model also disagrees with right labels if inputs are wrong: where what the model makes
    of the samples cannot be a mixture of the reference's classes, nothing is said of labels; where nothing is known of
    inputs, either may be wrong.
    """
    counts = evidence.rows, evidence.distinct_rows, reference.rows, reference.distinct_rows
    copies, independent = copy_findings(*counts), independent_share(*counts)
    inputs = _input_findings(evidence, reference, names, independent)
    labels = _label_findings(evidence, reference, names, independent)
    if not labels or not _is_due_to_inputs(evidence, reference, independent):
        return strongest_first([*copies, *inputs, *labels])
    text = "inputs: unlike what is expected, as the model sees them"
    inputs = inputs or [Finding(kind="inputs", strength=labels[0].strength, text=text)]
    return strongest_first([*copies, *inputs])


def _is_due_to_inputs(evidence: ClientEvidence, reference: ReferenceSummary, independent: float) -> bool:
    block = REPRESENTATION if REPRESENTATION in evidence.blocks else COLUMNS
    if block not in evidence.blocks or block not in reference.moments:
        return False
    left = unexplained_share(
        evidence.blocks[block], reference.moments[block], reference.fourth[block], independent=independent
    )
    return left is not None and left > MOSTLY


def _input_findings(
    evidence: ClientEvidence, reference: ReferenceSummary, names: DataNames, independent: float
) -> list[Finding]:
    client, known = evidence.blocks.get(COLUMNS), reference.moments.get(COLUMNS)
    if client is None or known is None:
        return []
    fourth = reference.fourth[COLUMNS]
    if names.inputs.features:
        return column_findings(client, known, fourth, names.inputs, independent=independent)
    return image_findings(client, known, fourth, independent=independent)


def _label_findings(
    evidence: ClientEvidence, reference: ReferenceSummary, names: DataNames, independent: float
) -> list[Finding]:
    client, known = evidence.blocks.get(OUTCOMES), reference.moments.get(OUTCOMES)
    if client is None or known is None:
        return []
    if names.classes:
        found = label_findings(client, known, names.classes, independent=independent)
    else:
        found = regression_findings(client, known, names.target_width, independent=independent)
    if _INPUT_BLOCKS & evidence.blocks.keys() & reference.moments.keys():
        return found
    return [replace(each, text=each.text.replace("labels:", "labels or inputs:", 1)) for each in found]
