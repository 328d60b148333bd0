"""Tables of what chance does are those of plain resampling, are made once where they can be, and serve all alike."""

import numpy as np
import torch
from numpy.typing import NDArray

from winnow.learn.client_quality.class_moments import ClassMoments
from winnow.learn.client_quality.departures import measure_all, measure_departures
from winnow.learn.client_quality.evidence import COLUMNS, OUTCOMES, REPRESENTATION, ClientEvidence
from winnow.learn.client_quality.evidence_pass import EvidencePass
from winnow.learn.client_quality.reference_source import ReferenceRows, SummarySettings
from winnow.learn.client_quality.reference_summary import ReferenceSummary
from winnow.learn.client_quality.resamples import GRID
from winnow.learn.model_evaluator import ModelEvaluator
from winnow.learn.stack import LOSSES, model_state

CLASSES = 3
PLACE = GRID.index(40)


def drawn(rng: np.random.Generator, rows: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    y = rng.integers(CLASSES, size=rows)
    return np.array([-1.0, 0.0, 2.0])[y, None] * np.array([1, 0.5, -1, 0]) + rng.normal(0, 1, (rows, 4)), y


def capped_squares(own: NDArray[np.float64], other: NDArray[np.float64], x: NDArray[np.float64]) -> float:
    """The mean of the capped squares of two samples' differences, from its definition; κ of normal rows is 2."""
    n, big_n = len(own), len(other)
    pooled = (n * own.var(axis=0) + big_n * other.var(axis=0)) / (n + big_n) + x.var(axis=0) * (0.01 + 2 / n)
    z = (own.mean(axis=0) - other.mean(axis=0)) / np.sqrt(pooled * (1 / n + 1 / big_n))
    return float((np.minimum(np.abs(z), 5) ** 2).mean())


def test_tables_by_class_are_those_of_rows_drawn_one_sample_after_another() -> None:
    rng = np.random.default_rng(0)
    x, y = drawn(rng, 600)
    null = ReferenceSummary.make({REPRESENTATION: x}, y, CLASSES, rng, draws=512).nulls[REPRESENTATION]
    for label in range(CLASSES):
        rows = x[y == label]
        values = [capped_squares(rng.choice(rows, GRID[PLACE]), rng.choice(rows, len(rows)), x) for _ in range(512)]
        mean, variance, _ = null.by_class[label, PLACE, 0]
        np.testing.assert_allclose(mean, np.mean(values), rtol=0.12)
        np.testing.assert_allclose(variance, np.var(values), rtol=0.4)


def test_more_draws_give_the_same_tables_with_less_error() -> None:
    x, y = drawn(np.random.default_rng(1), 300)

    def scatter(draws: int) -> float:
        tables = [
            ReferenceSummary.make({COLUMNS: x}, y, CLASSES, np.random.default_rng(seed), draws=draws).nulls[COLUMNS]
            for seed in range(8)
        ]
        return float(np.stack([each.blind[..., 0, 0] for each in tables]).std(axis=0).mean())

    assert scatter(256) < 0.75 * scatter(64)  # half, but for the scatter of the scatter


def evidence(rng: np.random.Generator, rows: int, classes: int) -> ClientEvidence:
    """Of rows of the first so many classes, and maybe too few of any to be told."""
    x, y = drawn(rng, rows)
    x, y = x[y < classes], y[y < classes]
    counts = np.bincount(y, minlength=CLASSES)
    blocks = {}
    for block, values in {REPRESENTATION: np.tanh(x), COLUMNS: x, OUTCOMES: x**2}.items():
        mean, variance = np.zeros((2, CLASSES, 4), np.float32)
        for label in np.flatnonzero(counts):
            mean[label], variance[label] = values[y == label].mean(axis=0), values[y == label].var(axis=0)
        blocks[block] = ClassMoments(counts=counts, mean=mean, variance=variance)
    return ClientEvidence(rows=max(len(y), 1), distinct_rows=max(len(y) // 2, 1), blocks=blocks)


def test_it_does_not_matter_with_whom_together_a_client_is_compared() -> None:
    rng = np.random.default_rng(2)
    x, y = drawn(rng, 300)
    features = {REPRESENTATION: np.tanh(x), COLUMNS: x, OUTCOMES: x**2}
    reference = ReferenceSummary.make(features, y, CLASSES, rng, distinct_rows=290)
    clients = [evidence(rng, rows, classes) for rows, classes in ((200, 3), (30, 1), (0, 3), (90, 2))]
    clients.append(ClientEvidence(rows=9, distinct_rows=None, blocks={COLUMNS: clients[0].blocks[COLUMNS]}))
    together = measure_all(reference, clients)
    for client, departures in zip(clients, together, strict=True):
        np.testing.assert_allclose(departures.array, measure_departures(reference, client).array, rtol=1e-9)
    assert np.isnan(together[2].array[:8]).all()
    assert np.isfinite(together[0].array[:, :3]).all()


def test_columns_are_summarised_once_a_run_and_alike_after_an_interruption() -> None:
    x, y = drawn(np.random.default_rng(3), 120)
    module = torch.nn.Linear(4, CLASSES)
    states = [{name: tensor + k for name, tensor in model_state(module).items()} for k in (0.0, 0.3)]
    looking = EvidencePass(ModelEvaluator(module, LOSSES["cross-entropy"], None), CLASSES)
    settings = SummarySettings(blocks=(COLUMNS, OUTCOMES), classes=CLASSES, edges=(), seed=5, min_rows=5)

    def rows() -> ReferenceRows:
        return ReferenceRows(looking, torch.from_numpy(x).float(), torch.from_numpy(y), settings)

    whole = rows()
    first, second = (whole.summary(state, number).arrays() for number, state in zip((4, 8), states, strict=True))
    resumed = rows().summary(states[1], 8).arrays()
    assert resumed.keys() == second.keys()
    for name in second:
        np.testing.assert_array_equal(np.asarray(resumed[name]), np.asarray(second[name]))
        if name.startswith(COLUMNS):
            np.testing.assert_array_equal(np.asarray(first[name]), np.asarray(second[name]))
    assert not np.array_equal(np.asarray(first["outcomes.by_class"]), np.asarray(second["outcomes.by_class"]))
