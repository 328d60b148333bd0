"""Noise of statements over many repeats: centred on the truth, and as wide as it says."""

import numpy as np
import pytest

from query_tables import answer_of, divided, pooled_rows

REPEATS = 500
SQL = "SELECT outcome, COUNT(*) AS n, SUM(age) AS s, AVG(cost) AS c FROM stays GROUP BY outcome"


@pytest.mark.slow(part="science")
def test_noise_of_five_hundred_repeats_has_the_stated_mean_and_spread() -> None:
    """Mean error within 2 standard errors of 0, spread within 10 % of the stated one."""
    tables = divided(pooled_rows(3000, seed=4, missing=0.0), 3, seed=4)
    truth = {row["outcome"]: row for row in answer_of(SQL, tables, minimum=1)["rows"]}
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for seed in range(REPEATS):
        answer = answer_of(SQL, tables, seed=seed, epsilon=1.0)
        for row, errors in zip(answer["rows"], answer["errors"], strict=True):
            for name in ("n", "s", "c") if row["outcome"] in ("home", "moved") else ():
                missed = row[name] - truth[row["outcome"]][name]
                found.setdefault((row["outcome"], name), []).append((missed, errors[name]))
    assert len(found) == 6
    for key, pairs in found.items():
        missed, errors = np.array(pairs).T
        assert len(missed) == REPEATS, key
        assert abs(missed.mean()) < 2 * missed.std() / np.sqrt(REPEATS), key
        assert 0.9 < missed.std() / errors.mean() < 1.1, key
