"""Words about a client's data are right where values are missing, factors uncertain, or only labels are told of."""

import numpy as np
import pytest
from numpy.typing import NDArray

from winnow.data.preprocessing import Column, Preprocessing
from winnow.learn.client_quality.class_moments import ClassMoments
from winnow.learn.client_quality.client_findings import DataNames, client_findings
from winnow.learn.client_quality.evidence import COLUMNS, OUTCOMES, ClientEvidence
from winnow.learn.client_quality.label_findings import label_findings
from winnow.learn.client_quality.observed_values import observed_moments
from winnow.learn.client_quality.reference_summary import ReferenceSummary
from winnow.learn.client_quality.unit_names import likely_units

Rows = NDArray[np.float64]
Table = dict[str, Rows]

PREPROCESSING = Preprocessing(
    columns=(
        Column(name="height", marks_missing=True, fill=172.0, shift=172.0, width=9.0),
        Column(name="weight", marks_missing=True, fill=75.0, shift=75.0, width=13.0),
        Column(name="visits", shift=4.0, width=2.0),
        Column(name="age", marks_missing=True, fill=45.0, shift=45.0, width=13.0),
        Column(name="spent", marks_missing=True, fill=36.0, shift=43.0, width=28.0),
    ),
    classes=("no", "yes"),
)
NAMES = DataNames.of(PREPROCESSING, (len(PREPROCESSING.features),), 2)


def customers(rng: np.random.Generator, count: int, missing: float = 0.06) -> tuple[Table, NDArray[np.int64]]:
    y = (rng.random(count) < 0.4).astype(np.int64)
    columns = {
        "height": rng.normal(172, 9, count),
        "weight": rng.normal(75 - 4 * y, 13),
        "visits": rng.poisson(4 + y).astype(float),
        "age": rng.normal(45 + 5 * y, 13),
        "spent": rng.lognormal(3.6 + 0.2 * y, 0.6),
    }
    for name in ("weight", "age", "spent"):
        columns[name][rng.random(count) < missing] = np.nan
    return columns, y


def moments(x: Rows, y: NDArray[np.int64]) -> ClassMoments:
    parts = [x[y == label] for label in (0, 1)]
    mean, variance = (np.stack([part(rows, axis=0) for rows in parts]) for part in (np.nanmean, np.nanvar))
    return ClassMoments(counts=np.bincount(y, minlength=2), mean=mean.astype("f4"), variance=variance.astype("f4"))


def outcomes(rng: np.random.Generator, truth: NDArray[np.int64], accuracy: float = 0.85) -> Rows:
    said = np.where(rng.random(len(truth)) < accuracy, truth, 1 - truth)
    return np.concatenate([np.eye(2)[said], (said != truth)[:, None]], axis=1)


@pytest.fixture(scope="module")
def reference() -> ReferenceSummary:
    rng = np.random.default_rng(0)
    columns, y = customers(rng, 800)
    return ReferenceSummary.make({COLUMNS: PREPROCESSING.transform(columns), OUTCOMES: outcomes(rng, y)}, y, 2, rng)


def texts(reference: ReferenceSummary, blocks: dict[str, ClassMoments]) -> list[str]:
    evidence = ClientEvidence(rows=400, distinct_rows=None, blocks=blocks)
    return [each.text for each in client_findings(evidence, reference, NAMES)]


def of_columns(reference: ReferenceSummary, columns: Table, y: NDArray[np.int64]) -> list[str]:
    return texts(reference, {COLUMNS: moments(PREPROCESSING.transform(columns), y)})


def test_moments_are_those_of_the_values_that_are_there() -> None:
    columns, y = customers(np.random.default_rng(1), 300, missing=0.2)
    columns["age"][:200] = np.nan  # too many of them
    filled = moments(PREPROCESSING.transform(columns), y)
    own, _ = observed_moments(filled, filled, NAMES.inputs.features)
    spec = {each.name: each for each in PREPROCESSING.columns}
    for place, name in ((0, "height"), (2, "weight"), (4, "visits"), (7, "spent")):
        there = moments(((columns[name] - spec[name].shift) / spec[name].width)[:, None], y)
        np.testing.assert_allclose(own.mean[:, place], there.mean[:, 0], atol=1e-5)
        np.testing.assert_allclose(own.variance[:, place], there.variance[:, 0], rtol=1e-4)
    np.testing.assert_array_equal(own.mean[:, 5], filled.mean[:, 5])


@pytest.mark.parametrize("pair", [("height", "weight"), ("visits", "age")])
def test_missing_values_do_not_hide_an_exchange(reference: ReferenceSummary, pair: tuple[str, str]) -> None:
    a, b = pair
    columns, y = customers(np.random.default_rng(2), 400)
    exchanged = columns | {a: columns[b], b: columns[a]}
    exchanged["visits"] = np.nan_to_num(exchanged["visits"], nan=4.0)
    [only] = of_columns(reference, exchanged, y)
    assert only in (f"columns {a} and {b} look exchanged", f"columns {b} and {a} look exchanged")


def test_missing_values_do_not_hide_a_factor_or_a_constant(reference: ReferenceSummary) -> None:
    columns, y = customers(np.random.default_rng(3), 400)
    [times] = of_columns(reference, columns | {"spent": 100 * columns["spent"]}, y)
    assert times.startswith("column spent: ")
    assert times.endswith("100 times larger than expected (cents against euros, a decimal point?)")
    assert of_columns(reference, columns | {"age": 0 * columns["age"]}, y) == ["column age is 0 in every row"]


def test_honest_clients_with_missing_values_get_no_words(reference: ReferenceSummary) -> None:
    rng = np.random.default_rng(4)
    clients = [customers(rng, rows, missing) for missing in (0.0, 0.06, 0.12) for rows in (40, 100, 400) * 5]
    assert sum(bool(of_columns(reference, *client)) for client in clients) <= 1  # of 45


@pytest.mark.parametrize(
    ("column", "factor", "error", "units"),
    [
        ("glucose", 17.0, 0.02, 18.0),
        ("glucose", 14.0, 0.02, None),
        ("glucose", 17.0, 0.3, None),
        ("spent", 90.0, 0.05, 100.0),
        ("any", 9.2, 0.05, 10.0),
        ("any", 8.0, 0.05, None),
        ("any", 50.0, 0.01, None),
    ],
)
def test_a_known_factor_is_named_if_the_data_may_mean_it(
    column: str, factor: float, error: float, units: float | None
) -> None:
    found = likely_units(column, factor, error)
    assert (found and found.factor) == units


def test_an_estimate_beside_a_known_factor_is_about_it(reference: ReferenceSummary) -> None:
    columns, y = customers(np.random.default_rng(5), 400)
    [text] = of_columns(reference, columns | {"height": 92 * columns["height"]}, y)
    assert text == "column height: about 100 times larger than expected (centimetres against metres?)"


@pytest.mark.parametrize("wrong", [0.2, 0.4])
def test_the_share_of_wrong_labels_is_said_not_that_of_random_ones(reference: ReferenceSummary, wrong: float) -> None:
    """A label of two that was drawn at random is right in half of the cases."""
    rng = np.random.default_rng(6)
    columns, y = customers(rng, 2000)
    labels = np.where(rng.random(2000) < wrong, 1 - y, y)
    blocks = {COLUMNS: moments(PREPROCESSING.transform(columns), labels), OUTCOMES: moments(outcomes(rng, y), labels)}
    [text] = texts(reference, blocks)
    share = int(text.removeprefix("labels: about ").split(" % look wrong (")[0]) / 100
    assert share == pytest.approx(wrong, abs=0.051)


def test_a_weak_model_sees_that_almost_all_labels_are_wrong() -> None:
    """It agrees with fewer of them than with random ones."""
    mean = np.array([[0.75, 0.25, 0.25], [0.4, 0.6, 0.4]], "f4")
    known = ClassMoments(counts=np.array([480, 320]), mean=mean, variance=mean * (1 - mean))
    client = ClassMoments(counts=np.array([60, 90]), mean=mean[::-1], variance=known.variance[::-1])
    [found] = label_findings(client, known, ["no", "yes"])
    assert found.text.startswith("labels: almost all look wrong (the model agrees with 3")


def test_without_a_look_at_inputs_they_may_be_wrong_as_well_as_labels(reference: ReferenceSummary) -> None:
    rng = np.random.default_rng(7)
    y = customers(rng, 1000)[1]
    [text] = texts(reference, {OUTCOMES: moments(outcomes(rng, y, accuracy=0.6), y)})
    assert text.startswith("labels or inputs: about ")
    assert texts(reference, {OUTCOMES: moments(outcomes(rng, y), y)}) == []
