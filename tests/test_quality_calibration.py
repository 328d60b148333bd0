"""Scores of clients hold the stated rate of false alarms, see what is wrong, and a summary from anywhere is checked."""

from collections.abc import Mapping

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import optimize, stats

from winnow.core import DataError
from winnow.learn.client_quality.assessment import ClientAssessment, assess
from winnow.learn.client_quality.class_moments import ClassMoments
from winnow.learn.client_quality.contribution import ContributionEstimate
from winnow.learn.client_quality.departures import Departures, measure_departures
from winnow.learn.client_quality.evidence import COLUMNS, OUTCOMES, REPRESENTATION, ClientEvidence
from winnow.learn.client_quality.findings import Finding
from winnow.learn.client_quality.fit_class_mixture import best_weights
from winnow.learn.client_quality.moment_differences import FeatureScale, Sample, mean_differences
from winnow.learn.client_quality.reference_summary import ReferenceSummary

CLASSES = 3
CENTRES = np.random.default_rng(7).normal(0, 1.5, (CLASSES, 6))
Rows = tuple[NDArray[np.float64], NDArray[np.int64]]


def drawn(rng: np.random.Generator, rows: int, mix: NDArray[np.float64] | None = None) -> Rows:
    """Rows of three classes; one of the features has long tails, and one is a rare category."""
    y = rng.choice(CLASSES, rows, p=mix)
    x = CENTRES[y] + rng.normal(0, 1, (rows, 6))
    x[:, 4] = np.exp(x[:, 4])
    x[:, 5] = rng.random(rows) < 0.02
    return x, y


def features(x: NDArray[np.float64], y: NDArray[np.int64]) -> Mapping[str, NDArray[np.float64]]:
    """Blocks as a model with the true centres would make them."""
    distance = ((x[:, None, :4] - CENTRES[None, :, :4]) ** 2).sum(axis=-1)
    hot = np.eye(CLASSES)[distance.argmin(axis=1)]
    loss = distance[np.arange(len(y)), y] - distance.min(axis=1)
    return {REPRESENTATION: np.tanh(x[:, :4]), COLUMNS: x, OUTCOMES: np.column_stack([hot, loss])}


def told(x: NDArray[np.float64], y: NDArray[np.int64], blocks: tuple[str, ...] | None = None) -> ClientEvidence:
    counts = np.bincount(y, minlength=CLASSES)
    counts[counts < 5] = 0
    found = {}
    for block, values in features(x, y).items():
        if blocks is not None and block not in blocks:
            continue
        mean, variance = np.zeros((2, CLASSES, values.shape[1]), np.float32)
        for label in np.flatnonzero(counts):
            mean[label], variance[label] = values[y == label].mean(axis=0), values[y == label].var(axis=0)
        found[block] = ClassMoments(counts=counts, mean=mean, variance=variance)
    return ClientEvidence(rows=len(y), distinct_rows=len(np.unique(x, axis=0)), blocks=found)


def summary(rng: np.random.Generator, rows: int = 400) -> ReferenceSummary:
    x, y = drawn(rng, rows)
    return ReferenceSummary.make(features(x, y), y, CLASSES, rng, distinct_rows=rows)


def assessed(reference: ReferenceSummary, clients: list[ClientEvidence]) -> list[ClientAssessment]:
    return assess({client: [measure_departures(reference, each)] for client, each in enumerate(clients)})


def honest(rng: np.random.Generator, count: int, rows: int = 150) -> list[Rows]:
    return [drawn(rng, rows, rng.dirichlet(np.full(CLASSES, 0.5))) for _ in range(count)]


# False alarms and power --------------------------------------------------------------------------------------------


def test_honest_clients_of_any_class_mix_raise_no_more_alarms_than_stated() -> None:
    rng = np.random.default_rng(0)
    alarms = [
        each.verdict in ("suspect", "harmful")
        for _ in range(8)
        for each in assessed(summary(rng), [told(*rows) for rows in honest(rng, 15)])
    ]
    assert np.mean(alarms) <= stats.binom.ppf(0.99, len(alarms), 0.05) / len(alarms)


def test_alone_a_client_is_compared_with_chance_and_rarely_blamed() -> None:
    rng = np.random.default_rng(1)
    alarms = [
        each.score >= 1
        for reference in (summary(rng) for _ in range(4))
        for rows in honest(rng, 20)
        for each in assessed(reference, [told(*rows)])
    ]
    assert np.mean(alarms) <= stats.binom.ppf(0.99, len(alarms), 0.05) / len(alarms)


def spoiled(way: str, x: NDArray[np.float64], y: NDArray[np.int64], rng: np.random.Generator) -> Rows:
    if way == "labels":
        return x, np.where(rng.random(len(y)) < 0.5, rng.integers(CLASSES, size=len(y)), y)
    if way == "copies":
        return x[np.arange(len(x)) % 12], y[np.arange(len(y)) % 12]
    changes = {"shift": (1, x[:, 1] + 1.5), "scale": (2, x[:, 2] * 4), "constant": (0, np.zeros(len(x)))}
    column, values = changes[way]
    changed = x.copy()
    changed[:, column] = values
    return changed, y


@pytest.mark.parametrize("way", ["labels", "shift", "scale", "constant", "copies"])
def test_bad_data_are_found_and_the_right_kind_is_named(way: str) -> None:
    rng = np.random.default_rng(2)
    rows = honest(rng, 10, rows=200)
    clients = [told(*(spoiled(way, x, y, rng) if k < 3 else (x, y))) for k, (x, y) in enumerate(rows)]
    found = assessed(summary(rng), clients)
    kind = way if way in ("labels", "copies") else "inputs"
    assert [each.kinds[:1] for each in found[:3]] == [(kind,)] * 3
    assert all(each.verdict in ("suspect", "harmful") and each.score > 1 for each in found[:3])
    assert sum(each.verdict in ("suspect", "harmful") for each in found[3:]) <= 1


def test_the_worse_the_labels_the_higher_the_score() -> None:
    rng = np.random.default_rng(3)
    reference, (x, y), wrong = summary(rng), drawn(rng, 300), np.random.default_rng(4).random(300)
    random = rng.integers(CLASSES, size=300)
    others = [told(*rows) for rows in honest(rng, 8)]
    scores = [
        assessed(reference, [told(x, np.where(wrong < r, random, y)), *others])[0].score for r in (0, 0.3, 0.6, 1)
    ]
    assert scores == sorted(scores)
    assert scores[0] < 1 < scores[2]


@pytest.mark.parametrize("rows", [3, 6, 8])
def test_of_a_tiny_sample_nothing_can_be_told(rows: int) -> None:
    rng = np.random.default_rng(5)
    clients = [told(*drawn(rng, rows)), *(told(*each) for each in honest(rng, 8))]
    found = assessed(summary(rng), clients)
    assert found[0].verdict == "cannot tell"
    assert [each.verdict for each in found[1:]].count("cannot tell") == 0


def test_clients_that_all_depart_alike_are_not_all_suspect() -> None:
    """The reference may be the odd one out: who is like the others is not blamed, who is unlike them is."""
    rng = np.random.default_rng(6)
    clients = [(x + 0.4, y) for x, y in honest(rng, 12, rows=200)]
    clients[0] = (clients[0][0] + 2.0, clients[0][1])
    found = assessed(summary(rng), [told(*each) for each in clients])
    assert found[0].score > 1
    assert sum(each.score >= 1 for each in found[1:]) <= 1


# Invariances -------------------------------------------------------------------------------------------------------


def test_units_of_features_do_not_matter() -> None:
    def one(unit: float) -> NDArray[np.float64]:
        rng = np.random.default_rng(8)
        x, y = drawn(rng, 300)
        reference = ReferenceSummary.make({COLUMNS: x * unit}, y, CLASSES, np.random.default_rng(1), distinct_rows=300)
        own, labels = drawn(rng, 100)
        moments = told(own, labels, (COLUMNS,)).blocks[COLUMNS]
        scaled = ClassMoments(
            counts=moments.counts,
            mean=(moments.mean * unit).astype(np.float32),
            variance=(moments.variance * unit**2).astype(np.float32),
        )
        return measure_departures(
            reference, ClientEvidence(rows=100, distinct_rows=100, blocks={COLUMNS: scaled})
        ).array

    np.testing.assert_allclose(one(1.0), one(1024.0), rtol=1e-3, atol=1e-4)


def test_the_numbering_of_classes_does_not_matter() -> None:
    rng = np.random.default_rng(9)
    (x, y), (own, labels) = drawn(rng, 300), drawn(rng, 100)
    order = np.array([2, 0, 1])
    scores = [
        measure_departures(
            ReferenceSummary.make({COLUMNS: x}, renamed[y], CLASSES, np.random.default_rng(1)),
            told(own, renamed[labels], (COLUMNS,)),
        ).array[:, 0]
        for renamed in (np.arange(CLASSES), order)
    ]
    np.testing.assert_allclose(*scores, atol=0.05)


def test_differences_are_those_of_two_samples() -> None:
    """z of the means is Student's t with the two samples' pooled variance, but for what is added to small variances."""
    rng = np.random.default_rng(10)
    one, other = rng.normal(0, 1, (60, 3)), rng.normal(0.3, 1, (2000, 3))
    scale = FeatureScale(variance=np.full(3, 1e-9), kurtosis=np.full(3, 2.0))
    z = mean_differences(
        *(Sample(np.array(float(len(each))), each.mean(axis=0), each.var(axis=0)) for each in (one, other)), scale
    )
    expected = stats.ttest_ind(one, other, axis=0).statistic
    np.testing.assert_allclose(z, expected, rtol=2e-3)


def test_mixtures_are_fitted_as_by_a_general_optimiser() -> None:
    rng = np.random.default_rng(11)
    mean, variance = rng.normal(size=(4, 8)), rng.uniform(0.5, 2, (4, 8))
    weights = np.array([0.5, 0.0, 0.2, 0.3])
    first = weights @ mean
    second = weights @ (variance + mean**2) - first**2
    scale = FeatureScale(variance=np.ones(8), kurtosis=np.full(8, 2.0))
    sample = Sample(np.array([50.0]), (first + rng.normal(0, 0.1, 8))[None], second[None])
    found = best_weights(sample, Sample(np.full(4, 100.0), mean, variance), scale, np.full(4, 0.25))[0]
    origin = mean.mean(axis=0)

    def moments(centre: NDArray[np.float64], spread: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.concatenate([centre - origin, (spread + (centre - origin) ** 2) / np.sqrt(2)], axis=-1)

    wanted = moments(sample.mean[0], sample.variance[0])
    fitted = optimize.minimize(
        lambda w: ((w @ moments(mean, variance) - wanted) ** 2).sum(),
        np.full(4, 0.25),
        bounds=[(0, 1)] * 4,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
    )
    np.testing.assert_allclose(found, fitted.x, atol=5e-3)


# Words and verdicts ------------------------------------------------------------------------------------------------


def test_the_finding_of_the_right_kind_is_the_evidence_and_a_harmful_contribution_makes_a_verdict_worse() -> None:
    rng = np.random.default_rng(12)
    rows = honest(rng, 8, rows=200)
    rows[0][0][:, 1] += 3
    reference = summary(rng)
    history = {client: [measure_departures(reference, told(*each))] for client, each in enumerate(rows)}
    found = [
        Finding(kind="labels", strength=9, text="labels: all wrong"),
        Finding(kind="column", strength=2, text="column b: 3 more than expected"),
    ]
    plain = assess(history, findings=lambda _: found)[0]
    assert plain.evidence == "column b: 3 more than expected"
    harm = ContributionEstimate(
        mean=-0.1, standard_error=0.001, leave_one_out=-0.1, leave_one_out_error=0.001, rounds=9
    )
    worse = assess(history, findings=lambda _: found, contribution={0: harm})[0]
    assert worse.verdict == "harmful"
    assert "contribution" in worse.kinds


def test_an_unlike_update_is_an_alarm_only_where_data_are_not_told() -> None:
    rng = np.random.default_rng(18)
    reference = summary(rng)
    history = {client: [measure_departures(reference, told(*each))] for client, each in enumerate(honest(rng, 8))}
    history[8] = []
    with_data, without = (assess(history, updates={0: 9.0, 8: 9.0})[client] for client in (0, 8))
    assert (with_data.verdict, with_data.kinds[-1]) == ("different", "updates")
    assert with_data.score == assess(history)[0].score
    assert (without.verdict, without.kinds) == ("suspect", ("updates",))


def test_without_evidence_nothing_can_be_told_and_later_assessments_count_more() -> None:
    rng = np.random.default_rng(13)
    reference, (x, y) = summary(rng), drawn(rng, 200)
    fine, bad = measure_departures(reference, told(x, y)), measure_departures(reference, told(x + 2, y))
    nothing, improved, worsened = assess({0: [], 1: [bad, bad, fine], 2: [fine, fine, bad]})
    assert nothing.verdict == "cannot tell"
    assert np.isnan(nothing.score)
    assert nothing.evidence == "no evidence so far"
    assert worsened.score > improved.score


def test_a_kind_of_evidence_that_was_once_missing_still_counts() -> None:
    rng = np.random.default_rng(17)
    reference, (x, y) = summary(rng), drawn(rng, 200)
    wrong = rng.integers(CLASSES, size=200)
    before = measure_departures(reference, told(x, y, (COLUMNS,)))
    after = measure_departures(reference, told(x, wrong))
    silent_once, always = assess({0: [before, after]})[0], assess({0: [after]})[0]
    assert silent_once.verdict == always.verdict == "harmful"
    assert silent_once.kinds == always.kinds == ("labels",)


# The summary as it travels -----------------------------------------------------------------------------------------


def test_a_summary_survives_the_journey() -> None:
    rng = np.random.default_rng(14)
    reference, evidence = summary(rng), told(*drawn(rng, 80))
    again = ReferenceSummary.of(reference.arrays())
    np.testing.assert_array_equal(
        measure_departures(again, evidence).array, measure_departures(reference, evidence).array
    )
    kept = measure_departures(reference, evidence)
    np.testing.assert_array_equal(Departures.of(kept.array).array, kept.array)


def test_summaries_of_several_holders_are_one_of_all_rows() -> None:
    rng = np.random.default_rng(15)
    x, y = drawn(rng, 300)
    parts = [
        ReferenceSummary.make(features(x[part], y[part]), y[part], CLASSES, rng, distinct_rows=100)
        for part in np.split(np.arange(300), 3)
    ]
    merged = ReferenceSummary.merged(parts)
    whole = ReferenceSummary.make(features(x, y), y, CLASSES, rng, distinct_rows=300)
    assert (merged.rows, merged.distinct_rows) == (300, 300)
    for block in (REPRESENTATION, COLUMNS, OUTCOMES):
        np.testing.assert_array_equal(merged.moments[block].counts, whole.moments[block].counts)
        np.testing.assert_allclose(merged.moments[block].mean, whole.moments[block].mean, atol=1e-5)
        np.testing.assert_allclose(merged.moments[block].variance, whole.moments[block].variance, rtol=1e-3, atol=1e-5)


def test_a_class_that_one_holder_has_is_as_uncertain_as_there() -> None:
    rng = np.random.default_rng(16)

    def holder(mix: list[float]) -> ReferenceSummary:
        x, y = drawn(rng, 150, np.array(mix))
        return ReferenceSummary.make(features(x, y), y, CLASSES, rng, distinct_rows=150)

    one, other = holder([1, 0, 0]), holder([0, 0.5, 0.5])
    merged = ReferenceSummary.merged([one, other])
    for block in (REPRESENTATION, COLUMNS, OUTCOMES):
        found = merged.nulls[block]
        np.testing.assert_allclose(found.by_class[0], one.nulls[block].by_class[0])
        np.testing.assert_allclose(found.by_class[1:], other.nulls[block].by_class[1:])
        np.testing.assert_allclose(found.blind[1:3], other.nulls[block].blind[1:3])
        np.testing.assert_allclose(found.blind[3], (one.nulls[block].blind[3] + other.nulls[block].blind[3]) / 2)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("rows", np.array([0, -1]), "impossible numbers of rows"),
        ("rows", np.array([400, 401]), "impossible numbers of rows"),
        ("columns.mean", np.full((CLASSES, 6), np.nan, np.float32), "not finite"),
        ("columns.variance", np.full((CLASSES, 6), -1, np.float32), "negative counts or variances"),
        ("columns.counts", np.full(CLASSES, 10**6), "more rows by class than in all"),
        ("columns.scale", np.zeros(6), "features without a scale"),
        ("columns.by_class", np.zeros((CLASSES, 5, 2)), "unexpected shape or type"),
        ("columns.mean", np.zeros((CLASSES, 6)), "unexpected shape or type"),
        ("columns.mean", np.zeros(6, np.float32), "strange shape"),
        ("extra", np.zeros(1), "unexpected parts"),
        ("columns.blind", None, "unexpected parts"),
    ],
)
def test_a_summary_that_somebody_has_tampered_with_is_refused(
    name: str, value: NDArray[np.float64] | None, words: str
) -> None:
    arrays = dict(summary(np.random.default_rng(16)).arrays())
    if value is None:
        del arrays[name]
    else:
        arrays[name] = value
    with pytest.raises(DataError, match=words):
        ReferenceSummary.of(arrays)


def test_evidence_of_another_model_is_refused() -> None:
    rng = np.random.default_rng(17)
    x, y = drawn(rng, 100)
    with pytest.raises(DataError, match="does not fit the reference's"):
        measure_departures(summary(rng), told(x[:, :4], y, (COLUMNS,)))
