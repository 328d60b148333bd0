"""Methods of truth discovery, against the equations worked out answer by answer, and on real crowds."""

import math
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from bench.truth import RIVALS

from crowd import accuracy, crowd_set, made_up, made_up_numbers
from winnow.analytics.truth.answer_arrays import AnswerArrays
from winnow.analytics.truth.truth_methods import CLIP, METHODS
from winnow.analytics.truth.truth_vectors import discover_plainly


def answers_of(crowd: AnswerArrays) -> list[tuple[int, int, float]]:
    return list(zip(crowd.items.tolist(), crowd.workers.tolist(), crowd.values.tolist(), strict=True))


def vote_by_hand(crowd: AnswerArrays, iterations: int, *, logistic: bool) -> dict[tuple[int, int], float]:
    """Equations 12, 13, 15, 18 and 19, one event after another; an event is an item and a class."""
    events = [1] if crowd.classes == 2 else list(range(crowd.classes))
    rho: dict[tuple[int, int], float] = {}
    for _ in range(iterations):
        trust = {}
        for worker in range(crowd.worker_count):
            agreed = [
                rho[item, k] if value == k else 1 - rho[item, k]
                for item, who, value in answers_of(crowd)
                for k in events
                if who == worker and rho
            ]
            trust[worker] = sum(agreed) / len(agreed) if agreed else 0.9
        above, below = defaultdict(float), defaultdict(float)
        for item, worker, value in answers_of(crowd):
            for k in events:
                if logistic:
                    weight = -math.log(1 - min(max(trust[worker], CLIP), 1 - CLIP))
                    above[item, k] += weight if value == k else -weight
                else:
                    above[item, k] += trust[worker] * (value == k)
                    below[item, k] += trust[worker]
        rho = {key: 1 / (1 + math.exp(-above[key])) if logistic else above[key] / below[key] for key in above}
    return rho


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("method", ["sum", "logistic"])
def test_voting_follows_the_equations(method: str, classes: int) -> None:
    crowd = made_up(workers=5, items=8, classes=classes, share=0.8)
    found = discover_plainly(METHODS[method], crowd, 4).confidence
    for (item, k), rho in vote_by_hand(crowd, 4, logistic=method == "logistic").items():
        assert found[item, 0 if classes == 2 else k] == pytest.approx(rho, abs=1e-12)


def test_crh_follows_the_equations() -> None:
    crowd = made_up_numbers()
    answers, trust, rho = answers_of(crowd), dict.fromkeys(range(crowd.worker_count), 1.0), {}
    for _ in range(5):
        if rho:
            errors = {w: np.mean([(x - rho[item]) ** 2 for item, who, x in answers if who == w]) for w in trust}
            trust = {w: math.log(sum(errors.values())) - math.log(error) for w, error in errors.items()}
        for item in {item for item, _, _ in answers}:
            own = [(trust[w], x) for i, w, x in answers if i == item]
            rho[item] = sum(t * x for t, x in own) / sum(t for t, _ in own)
    found = discover_plainly(METHODS["crh"], crowd, 5).confidence
    assert all(found[item, 0] == pytest.approx(value, abs=1e-12) for item, value in rho.items())


def test_dawid_skene_turns_a_systematic_liar_around() -> None:
    """Two workers always say the opposite; five are right in three of four answers."""
    rng = np.random.default_rng(1)
    truth = rng.integers(0, 2, 200)
    right = np.where(rng.random((5, 200)) < 0.75, truth, 1 - truth)
    values = np.concatenate([right, np.tile(1 - truth, (2, 1))])
    worker, item = np.indices(values.shape)
    crowd = AnswerArrays(
        items=item.ravel(), workers=worker.ravel(), values=values.ravel(), item_count=200, worker_count=7, classes=2
    )
    found = discover_plainly(METHODS["dawid-skene"], crowd, 30)
    assert accuracy(found.confidence, truth) == 1
    assert METHODS["dawid-skene"].trust(crowd, found)[5:].max() < 0.01
    assert accuracy(discover_plainly(METHODS["logistic"], crowd, 30).confidence, truth) < 0.9


def test_nobody_is_trusted_without_bound() -> None:
    """Three workers who always agree: trust reaches 1, and its logarithm stays finite."""
    crowd = AnswerArrays(
        items=np.tile(np.arange(6), 3),
        workers=np.repeat(np.arange(3), 6),
        values=np.tile([0, 1, 0, 1, 1, 0], 3),
        item_count=7,
        worker_count=3,
        classes=2,
    )
    for name in ("sum", "logistic", "dawid-skene"):
        found = discover_plainly(METHODS[name], crowd, 50)
        assert np.isfinite(found.confidence).all()
        assert np.isfinite(METHODS[name].trust(crowd, found)).all()
        assert accuracy(found.confidence[:6], np.array([0, 1, 0, 1, 1, 0])) == 1
    assert discover_plainly(METHODS["logistic"], crowd, 5).confidence[6, 0] == 0.5  # nobody answered it


PUBLISHED = {
    "bluebird": {"majority": 0.759, "sum": 0.750, "logistic": 0.778},
    "rte": {"majority": 0.897, "sum": 0.921, "logistic": 0.925},
    "MS": {"majority": 0.704, "sum": 0.789, "logistic": 0.786},
    "SP_amt": {"majority": 0.943, "sum": 0.944, "logistic": 0.944},
}
"""Accuracy by an independent program."""
DAWID_SKENE = {"bluebird": 0.898, "rte": 0.928, "MS": 0.767, "SP_amt": 0.944}


@pytest.mark.parametrize("name", PUBLISHED)
def test_accuracy_on_real_crowds(name: str, data_directory: Path) -> None:
    crowd, truth = crowd_set(data_directory, name)
    expected = PUBLISHED[name]
    assert accuracy(crowd.votes(), truth) == pytest.approx(expected["majority"], abs=0.002)
    for method in ("sum", "logistic"):
        found = discover_plainly(METHODS[method], crowd.arrays, 10)
        assert accuracy(found.confidence, truth) == pytest.approx(expected[method], abs=0.002)
    found = discover_plainly(METHODS["dawid-skene"], crowd.arrays, 50)
    assert accuracy(found.confidence, truth) == pytest.approx(DAWID_SKENE[name], abs=0.002)


@pytest.mark.parametrize(
    ("name", "zencrowd", "crh", "catd"),
    [("bluebird", 0.722, 0.759, 0.778), ("rte", 0.925, 0.923, 0.919), ("MS", 0.794, 0.800, 0.801)],
)
def test_the_benchmarks_rivals_are_what_they_are_called(
    name: str, zencrowd: float, crh: float, catd: float, data_directory: Path
) -> None:
    crowd, truth = crowd_set(data_directory, name)
    found = [accuracy(RIVALS[rival](crowd), truth) for rival in ("ZenCrowd", "CRH", "CATD")]
    assert found == pytest.approx([zencrowd, crh, catd], abs=0.002)


def test_crh_on_real_numbers(data_directory: Path) -> None:
    crowd, truth = crowd_set(data_directory, "emotion_numeric")
    found = crowd.in_units(discover_plainly(METHODS["crh"], crowd.arrays, 10).confidence[:, 0])
    assert np.sqrt(np.mean((found - truth) ** 2)) == pytest.approx(17.81, abs=0.01)
    assert np.mean(np.abs(found - truth)) == pytest.approx(11.88, abs=0.01)
