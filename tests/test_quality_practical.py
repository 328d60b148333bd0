"""Verdicts that a director can use: honest differences are no alarm, and what cannot be judged is said."""

import csv
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import winnow
from winnow.learn.client_quality.assessment import ClientAssessment, assess
from winnow.learn.client_quality.class_moments import ClassMoments
from winnow.learn.client_quality.client_median_reference import corrected_reference, typical_reference
from winnow.learn.client_quality.departures import STATISTICS, Departures, measure_departures
from winnow.learn.client_quality.difference_size import LARGE_SHIFT, LARGE_SPREAD, difference_size
from winnow.learn.client_quality.evidence import COLUMNS, OUTCOMES, REPRESENTATION, ClientEvidence
from winnow.learn.client_quality.input_names import FeatureName, InputNames
from winnow.learn.client_quality.reference_summary import ReferenceSummary
from winnow.learn.client_quality.score_table import ClientSpread

COLUMN_COUNT = 5
NAMES = InputNames(tuple(FeatureName(column=name) for name in "abcde"))
WEIGHTS = np.array([1.0, 0.8, -0.6, 0.4, 0.0])
Rows = tuple[NDArray[np.float64], NDArray[np.int64]]


def patients(rng: np.random.Generator, count: int, *, sharpness: float = 3.0) -> Rows:
    """Five columns of standard deviation 1, and two classes that depend on them: hardly if not sharp."""
    x = rng.normal(0, 1, (count, COLUMN_COUNT))
    return x, (rng.random(count) < 1 / (1 + np.exp(-sharpness * (x @ WEIGHTS)))).astype(np.int64)


def features(x: NDArray[np.float64], y: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
    """As a model that knows the weights sees the rows."""
    ahead = x @ WEIGHTS
    guess = (ahead > 0).astype(np.int64)
    loss = np.logaddexp(0, -(2 * y - 1) * ahead)
    hidden = np.tanh(x @ np.random.default_rng(3).normal(0, 0.6, (COLUMN_COUNT, 8)))
    return {REPRESENTATION: hidden, COLUMNS: x, OUTCOMES: np.column_stack([np.eye(2)[guess], loss])}


def told(x: NDArray[np.float64], y: NDArray[np.int64]) -> ClientEvidence:
    counts = np.bincount(y, minlength=2)
    blocks = {}
    for block, values in features(x, y).items():
        mean, variance = (
            np.stack([part(values[y == label], axis=0) for label in (0, 1)]).astype(np.float32)
            for part in (np.mean, np.var)
        )
        blocks[block] = ClassMoments(counts=counts, mean=mean, variance=variance)
    return ClientEvidence(rows=len(y), distinct_rows=len(y), blocks=blocks)


def summary(rows: Rows, seed: int = 0) -> ReferenceSummary:
    x, y = rows
    return ReferenceSummary.make(features(x, y), y, 2, np.random.default_rng(seed), distinct_rows=len(y))


def assessed(reference: ReferenceSummary, clients: list[Rows], names: InputNames = NAMES) -> list[ClientAssessment]:
    """As the assessor does it."""
    evidence = [told(*rows) for rows in clients]
    corrected, typical = corrected_reference(reference, evidence), typical_reference(reference, evidence)
    return assess(
        {client: [measure_departures(corrected, each)] for client, each in enumerate(evidence)},
        size_of=lambda client: difference_size(evidence[client], typical, names),
    )


# Differences that do not matter -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_moderate_differences_are_different_and_large_ones_are_suspect(seed: int) -> None:
    rng = np.random.default_rng(seed)
    clients = [patients(rng, 400) for _ in range(13)]
    clients[0][0][:, 4] += 0.6
    clients[1][0][:, 3:] -= 0.55
    clients[2][0][:, 4] *= 1.4
    clients[3][0][:, 4] += 1.2
    clients[4][0][:, 4] *= 2.5
    found = assessed(summary(patients(rng, 500)), clients)
    assert [each.verdict for each in found[:3]] == ["different"] * 3
    assert all(each.score < 1 for each in found[:3])
    assert all(each.verdict in ("suspect", "harmful") and each.score >= 1 for each in found[3:5])
    assert sum(each.score >= 1 for each in found[5:]) <= 1


def test_without_names_of_columns_every_difference_counts() -> None:
    rng = np.random.default_rng(1)
    clients = [patients(rng, 400) for _ in range(9)]
    clients[0][0][:, 4] += 0.6
    assert assessed(summary(patients(rng, 500)), clients, InputNames())[0].score >= 1


@pytest.mark.parametrize(("shift", "factor"), [(0.0, 1.3), (0.5, 1.0), (-1.5, 1.0), (0.0, 4.0), (0.0, 0.4)])
def test_the_size_is_that_of_the_largest_difference(shift: float, factor: float) -> None:
    rng = np.random.default_rng(2)
    x, y = patients(rng, 2000)
    x[:, 4] = factor * x[:, 4] + shift
    expected = max(abs(shift) / LARGE_SHIFT, abs(np.log(factor)) / LARGE_SPREAD)
    assert difference_size(told(x, y), summary(patients(rng, 4000)), NAMES) == pytest.approx(expected, abs=0.12)


def test_many_small_differences_matter() -> None:
    rng = np.random.default_rng(4)
    x, y = patients(rng, 600)
    noisy = x + rng.normal(0, 1, x.shape)
    assert difference_size(told(noisy, y), summary(patients(rng, 600)), NAMES) == np.inf


# What cannot be judged ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_labels_that_no_model_could_know_are_said_to_be_unjudged(seed: int) -> None:
    rng = np.random.default_rng(seed)
    clients = [patients(rng, 300, sharpness=0.15) for _ in range(7)]
    clients[0][0][:, 1] += 1.2
    found = assessed(summary(patients(rng, 300, sharpness=0.15)), clients)
    assert found[0].verdict in ("suspect", "harmful")
    judged = [each for each in found[1:] if each.verdict == "fine"]
    assert len(judged) >= 5
    words = "inputs are as expected; labels could not be judged: the model knows too little about them"
    assert {each.evidence for each in judged} == {words}


def test_labels_that_the_model_knows_are_judged() -> None:
    kinds = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        clients = [patients(rng, 300) for _ in range(7)]
        clients[0] = clients[0][0], rng.integers(2, size=300)
        found = assessed(summary(patients(rng, 400)), clients)
        assert found[0].verdict in ("suspect", "harmful")
        assert {each.evidence for each in found[1:] if each.verdict == "fine"} == {""}
        kinds.append(found[0].kinds)
    assert kinds.count(("labels",)) >= 5  # now and then chance speaks against inputs, too


def departures(*, inputs: float, labels: float, loss: float) -> Departures:
    """No effect in any statistic, chance has a deviation of 0.1, and faults would have these effects; NaN: not told."""
    harm = {"loss": loss, "copies": 0.0} | dict.fromkeys(STATISTICS[4:8], inputs)
    harms = [harm.get(name, labels) for name in STATISTICS]
    return Departures(np.array([np.full(4, np.nan) if np.isnan(each) else [0.0, 0.1, 0.0, each] for each in harms]))


@pytest.mark.parametrize(
    ("inputs", "labels", "loss", "verdict", "words"),
    [
        (1.0, 1.0, 1.0, "fine", ""),
        (1.0, 0.1, 0.3, "fine", "labels could not be judged: too few samples"),
        (1.0, 0.05, 0.05, "fine", "labels could not be judged: the model knows too little about them"),
        (0.1, 1.0, 1.0, "fine", ""),
        (np.nan, 1.0, 1.0, "fine", "labels are as expected; inputs were not looked at"),
        (1.0, np.nan, np.nan, "fine", "inputs are as expected; labels were not looked at"),
        (0.1, 0.1, 0.1, "cannot tell", "to tell"),
    ],
)
def test_cannot_tell_is_said_only_if_no_fault_would_be_found(
    inputs: float, labels: float, loss: float, verdict: str, words: str
) -> None:
    found = assess({0: [departures(inputs=inputs, labels=labels, loss=loss)]})[0]
    assert found.verdict == verdict
    assert found.evidence.endswith(words)
    assert bool(found.evidence) == bool(words)


# A reference that holds everybody's rows --------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_a_reference_with_bad_rows_is_corrected_where_clients_agree_against_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    clients = [patients(rng, 300) for _ in range(6)]
    clients[0][0][:, 4] = 18 * (clients[0][0][:, 4] + 6)
    clients[1] = clients[1][0], rng.integers(2, size=300)
    drawn = [(x[:60], y[:60]) for x, y in clients]
    reference = summary((np.concatenate([x for x, _ in drawn]), np.concatenate([y for _, y in drawn])))
    evidence = [told(x[60:], y[60:]) for x, y in clients]
    corrected = corrected_reference(reference, evidence).moments[COLUMNS]
    medians = np.median([each.blocks[COLUMNS].mean for each in evidence], axis=0)
    np.testing.assert_array_equal(corrected.mean[:, 4], medians[:, 4].astype(np.float32))
    found = assessed(reference, [(x[60:], y[60:]) for x, y in clients])
    assert [each.kinds[:1] for each in found[:2]] == [("inputs",), ("labels",)]
    assert all(each.score >= 1 for each in found[:2])
    assert all(each.verdict in ("fine", "different") for each in found[2:])


def test_a_good_reference_is_left_as_it_is() -> None:
    rng = np.random.default_rng(5)
    reference, evidence = summary(patients(rng, 400)), [told(*patients(rng, 200)) for _ in range(12)]
    for block, moments in corrected_reference(reference, evidence).moments.items():
        np.testing.assert_array_equal(moments.mean, reference.moments[block].mean)


# Alone ------------------------------------------------------------------------------------------------------------


def test_alone_an_owner_is_compared_with_the_spread_of_the_clients_that_is_given() -> None:
    rng = np.random.default_rng(6)
    reference, (x, y) = summary(patients(rng, 500)), patients(rng, 400)
    x[:, 4] += 1.0
    history = {0: [measure_departures(reference, told(x, y))]}
    shape = len(STATISTICS)
    scores = [
        assess(history, others=ClientSpread(centre=np.zeros(shape), spread=np.full(shape, spread)))[0].score
        for spread in (0.0, 0.2, 1.0)
    ]
    assert scores[0] == assess(history)[0].score > scores[1] > scores[2]
    assert scores[0] > 1 > scores[2]


# The whole way ----------------------------------------------------------------------------------------------------


def hospitals(tmp_path: Path, seed: int) -> dict[str, dict[str, str]]:
    """The table of five, of which two are bad. The reference is drawn from all, and the honest ones differ in age."""
    rng = np.random.default_rng(seed)
    with (tmp_path / "hospitals.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["hospital", "age", "glucose", "bmi", "outcome"])
        for name, older in (("Holm", 0), ("Lakeview", 6), ("St Mary", -3), ("Northside", 2), ("Eastgate", -2)):
            age, glucose, bmi = rng.normal(57 + older, 14, 400), rng.lognormal(1.8, 0.25, 400), rng.normal(27, 4, 400)
            sick = rng.random(400) < 1 / (1 + np.exp(-0.1 * (age - 57) - 1.5 * (glucose - 6.2)))
            if name == "Northside":
                glucose *= 18
            if name == "Eastgate":
                sick = rng.random(400) < 0.5
            writer.writerows(zip([name] * 400, age, glucose, bmi, np.where(sick, "sick", "well"), strict=True))
    result = winnow.run(
        data=str(tmp_path / "hospitals.csv"),
        targets=["outcome"],
        owner="hospital",
        rounds=20,
        seed=seed,
        quality={"assessments": 3},
        progress=False,
        out=tmp_path / "run",
    )
    return {row["name"]: {key: str(row[key]) for key in ("verdict", "evidence")} for row in result.clients}


def is_bad(row: dict[str, str], evidence: str) -> bool:
    return row["verdict"] in ("suspect", "harmful") and evidence in row["evidence"]


UNITS = "18 times larger than expected (mg/dL against mmol/L?)"
SOUND = ("Holm", "Lakeview", "St Mary")


def test_five_hospitals_of_which_two_are_bad(tmp_path: Path) -> None:
    rows = hospitals(tmp_path, 0)
    assert is_bad(rows["Northside"], UNITS)
    assert is_bad(rows["Eastgate"], "labels: ")
    assert {rows[name]["verdict"] for name in SOUND} <= {"fine", "different"}


@pytest.mark.slow(part="science")
def test_five_hospitals_of_many_seeds(tmp_path: Path) -> None:
    """One of the two columns that tell sick from well is spoiled for all, so that labels are hard to judge."""
    tables = []
    for seed in range(1, 7):
        (tmp_path / str(seed)).mkdir()
        tables.append(hospitals(tmp_path / str(seed), seed))
    assert all(is_bad(rows["Northside"], UNITS) for rows in tables)
    assert sum(is_bad(rows["Eastgate"], "labels: ") for rows in tables) >= 4
    assert all(rows[name]["verdict"] in ("fine", "different") for rows in tables for name in SOUND)
