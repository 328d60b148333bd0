"""How truth discovery fares where participants leave, on a real crowd and against probability theory."""

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from crowd import accuracy, crowd_set, made_up, terms_of
from winnow.analytics.truth.truth_simulation import discover_privately

REPEATS = 40


@pytest.mark.slow(part="science")
def test_kept_vectors_are_as_accurate_as_the_adaptive_update(data_directory: Path) -> None:
    """A tenth leaves in each iteration, half of the participants open a sum; an independent program had 0.771."""
    crowd, truth = crowd_set(data_directory, "bluebird")
    found = {"kept": [], "adaptive": []}
    for dropouts, accuracies in found.items():
        terms = terms_of(crowd.arrays, threshold=len(crowd.workers) // 2, dropouts=dropouts)
        for seed in range(REPEATS):
            estimate = discover_privately(terms, crowd.arrays, dropout=0.1, seed=seed).estimate
            assert estimate is not None
            accuracies.append(accuracy(estimate.confidence, truth))
    assert np.mean(found["kept"]) == pytest.approx(0.771, abs=0.01)
    assert np.mean(found["kept"]) >= np.mean(found["adaptive"]) - 0.005


@pytest.mark.slow(part="science")
def test_runs_fail_as_often_as_too_few_stay() -> None:
    """Figure 4 of the paper, smaller: 30 participants, a threshold of 15, a tenth leaves in each of six iterations."""
    crowd = made_up(workers=30, items=2, share=0.5)
    terms, repeats = terms_of(crowd, "sum", threshold=15), 60
    failed = sum(
        discover_privately(terms, crowd, iterations=6, dropout=0.1, seed=seed).stopped is not None
        for seed in range(repeats)
    )
    low, high = binom.ppf([0.001, 0.999], repeats, binom.cdf(14, 30, 0.9**6))
    assert low <= failed <= high
