"""Whether a table's columns differ enough to matter: with enough rows, any two honest owners differ beyond chance."""

import math

import numpy as np

from winnow.learn.client_quality.column_differences import column_differences
from winnow.learn.client_quality.evidence import COLUMNS, ClientEvidence
from winnow.learn.client_quality.input_names import InputNames
from winnow.learn.client_quality.label_free_expected_moments import expected_moments
from winnow.learn.client_quality.reference_summary import ReferenceSummary

LARGE_SHIFT = 0.85
"""In standard deviations within classes: patients of a hospital may well be half a standard deviation older. A true
shift of 0.75 is rarely measured as more, and one of 1 rarely as less.
"""
LARGE_SPREAD = math.log(1.6)
"""Of the standard deviation; likewise for a true ratio of 1.5."""
CERTAIN = 3.0
"""Differences of fewer standard errors are not looked at."""
FEW = 3
"""If more columns than this differ in ways worth mentioning, it matters even if each differs by little."""


def difference_size(evidence: ClientEvidence, reference: ReferenceSummary, names: InputNames) -> float:
    """How large the largest difference of a table's columns is; 1 is large enough to matter.

    ∞ if many columns differ, or if it is not columns that differ: the table's joint distribution, or images.
    """
    client, known = evidence.blocks.get(COLUMNS), reference.moments.get(COLUMNS)
    if client is None or known is None or not names.features or client.mean.shape[1] != len(names.features):
        return math.inf
    expected = expected_moments(client, known, reference.fourth[COLUMNS], one_scale=True)
    if expected is None:
        return math.inf
    found, numbers = column_differences(client, expected), np.array([each.kind == "number" for each in names.features])
    shift = np.where(np.abs(np.where(numbers, found.shift_z, found.share_z)) >= CERTAIN, np.abs(found.shift), 0.0)
    spread = np.where(numbers & (np.abs(found.spread_z) >= CERTAIN), np.abs(found.spread), 0.0)
    many = len({names.features[place].column for place in np.flatnonzero(found.strength >= 1)}) > FEW
    size = float(max(shift.max() / LARGE_SHIFT, spread.max() / LARGE_SPREAD))
    return math.inf if many or not size else size
