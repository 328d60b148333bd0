"""What is found in a client's data and said in words: for bad data the right thing, for honest data nothing."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from winnow.data.preprocessing import Column, Preprocessing, TargetSpec
from winnow.learn.client_quality.class_moments import ClassMoments
from winnow.learn.client_quality.client_findings import DataNames, client_findings
from winnow.learn.client_quality.client_median_reference import typical_reference
from winnow.learn.client_quality.copied_rows import copy_findings, distinct_rows, expected_distinct, independent_share
from winnow.learn.client_quality.evidence import COLUMNS, OUTCOMES, ClientEvidence
from winnow.learn.client_quality.image_findings import image_findings
from winnow.learn.client_quality.image_statistics import IMAGE_STATISTICS, image_statistics
from winnow.learn.client_quality.label_findings import label_findings
from winnow.learn.client_quality.label_free_expected_moments import unexplained_share
from winnow.learn.client_quality.reference_summary import ReferenceSummary

Rows = NDArray[np.float64]
Classes = NDArray[np.int64]

TABLE = ("age", "glucose", "height", "weight", "temperature", "pay")
SCALES = {"age": (60, 15), "glucose": (6, 1.5), "height": (170, 9), "weight": (77, 13), "temperature": (37, 0.5)}
PREPROCESSING = Preprocessing(
    columns=(
        *(Column(name=name, shift=shift, width=width) for name, (shift, width) in SCALES.items()),
        Column(name="pay", marks_missing=True, fill=0.2),
        Column(name="sex", kind="category", categories=("f", "m")),
    ),
    classes=("no", "yes"),
)
NAMES = DataNames.of(PREPROCESSING, (len(PREPROCESSING.features),), 2)


def patients(rng: np.random.Generator, count: int, sick: float) -> tuple[dict[str, NDArray], Classes]:
    """Raw columns, two of them alike in no class and one that is seldom other than 0."""
    y = (rng.random(count) < sick).astype(np.int64)
    noise = rng.standard_normal((5, count))
    pay = np.where(rng.random(count) < 0.1, np.exp(rng.standard_normal(count)), 0.0)
    columns = {
        "age": 60 + 8 * y + 15 * noise[0],
        "glucose": 5.5 + 1.5 * y + 1.2 * noise[1],
        "height": 170 + 9 * noise[2],
        "weight": 75 + 5 * y + 12 * noise[3],
        "temperature": 36.8 + 0.3 * y + 0.4 * noise[4],
        "pay": np.where(rng.random(count) < 0.05, np.nan, pay),
        "sex": np.where(rng.random(count) < 0.5, "f", "m").astype(object),
    }
    return columns, y


def moments(x: Rows, y: Classes, classes: int) -> ClassMoments:
    counts = np.bincount(y, minlength=classes)
    counts[counts < 5] = 0
    told = [x[y == c] if counts[c] else np.zeros((1, x.shape[1])) for c in range(classes)]
    mean, variance = (np.stack([part(rows, axis=0) for rows in told]) for part in (np.mean, np.var))
    return ClassMoments(counts=counts, mean=mean.astype(np.float32), variance=variance.astype(np.float32))


def predicted(rng: np.random.Generator, truth: Classes, classes: int, accuracy: float = 0.85) -> Rows:
    """What a model says that is right so often, and otherwise any other class: one-hot, and a loss."""
    wrong = (truth + rng.integers(1, classes, len(truth))) % classes
    said = np.where(rng.random(len(truth)) < accuracy, truth, wrong)
    return np.concatenate([np.eye(classes)[said], (said != truth)[:, None]], axis=1)


@pytest.fixture(scope="module")
def reference() -> ReferenceSummary:
    rng = np.random.default_rng(0)
    columns, y = patients(rng, 400, 0.5)
    features = {COLUMNS: PREPROCESSING.transform(columns), OUTCOMES: predicted(rng, y, 2)}
    return ReferenceSummary.make(features, y, 2, rng, distinct_rows=400)


def found(
    reference: ReferenceSummary, columns: dict[str, NDArray], labels: Classes, truth: Classes | None = None
) -> list[tuple[str, str]]:
    """Kinds and texts, for a client with these columns and labels whose true classes are others."""
    truth = labels if truth is None else truth
    x = PREPROCESSING.transform(columns)
    outcomes = predicted(np.random.default_rng(len(labels)), truth, 2)
    evidence = ClientEvidence(
        rows=len(x),
        distinct_rows=distinct_rows(torch.from_numpy(x)),
        blocks={COLUMNS: moments(x, labels, 2), OUTCOMES: moments(outcomes, labels, 2)},
    )
    return [(each.kind, each.text) for each in client_findings(evidence, reference, NAMES)]


def set_column(name: str, change: Callable[[NDArray], NDArray]) -> Callable[[dict[str, NDArray]], dict[str, NDArray]]:
    return lambda columns: columns | {name: change(columns[name])}


def exchange(*names: str) -> Callable[[dict[str, NDArray]], dict[str, NDArray]]:
    return lambda columns: columns | {a: columns[b] for a, b in zip(names, names[1:] + names[:1], strict=True)}


def noisy(columns: dict[str, NDArray]) -> dict[str, NDArray]:
    rng = np.random.default_rng(5)
    return columns | {
        name: columns[name] + 1.2 * width * rng.standard_normal(300) for name, (_, width) in SCALES.items()
    }


@pytest.mark.parametrize(
    ("spoil", "kind", "text"),
    [
        (
            set_column("glucose", lambda v: 18.0 * v),
            "column",
            "column glucose: 18 times larger than expected (mg/dL against mmol/L?)",
        ),
        (set_column("height", lambda v: v / 100), "column", "column height: 100 times smaller than expected"),
        (set_column("temperature", lambda v: 1.8 * v + 32), "column", "(°F against °C?)"),
        (set_column("age", lambda v: 0 * v), "column", "column age is 0 in every row"),
        (set_column("age", lambda v: 0 * v + 37.5), "column", "column age is 37.5 in every row"),
        (set_column("weight", lambda v: v + 20), "column", "column weight: higher by "),
        (exchange("height", "weight"), "column", "columns height and weight look exchanged"),
        (exchange("age", "height", "weight"), "column", "(among one another) look exchanged"),
        (
            set_column("pay", lambda v: np.where(np.arange(len(v)) % 2, np.nan, v)),
            "column",
            "column pay: missing in 5",
        ),
        (
            set_column("sex", lambda v: np.where(v == "f", "female", "male").astype(object)),
            "column",
            "column sex: values that the model does not know in 100 % of the rows; 0 % expected",
        ),
        (set_column("sex", lambda v: np.full(len(v), "m", object)), "column", "column sex: 'f' in 0 % of the rows; 5"),
        (noisy, "inputs", "vary more than expected, as if noise had been added"),
    ],
)
def test_wrong_columns_are_named(
    reference: ReferenceSummary, spoil: Callable[[dict[str, NDArray]], dict[str, NDArray]], kind: str, text: str
) -> None:
    columns, y = patients(np.random.default_rng(3), 300, 0.3)
    first = found(reference, spoil(columns), y)[0]
    assert first[0] == kind
    assert text in first[1]


def test_honest_clients_with_another_class_mix_have_no_findings(reference: ReferenceSummary) -> None:
    rng, wrong = np.random.default_rng(4), 0
    for count in (12, 40, 150, 800):
        for sick in np.linspace(0.05, 0.95, 25):
            columns, y = patients(rng, count, float(sick))
            wrong += bool(found(reference, columns, y))
    assert wrong <= 1  # of a hundred


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        (lambda rng, y: np.where(rng.random(len(y)) < 0.4, rng.integers(0, 2, len(y)), y), "labels: about "),
        (lambda rng, y: rng.integers(0, 2, len(y)), "labels: about 50 % look wrong, as if drawn at random ("),
        (lambda rng, y: 1 - y, "labels: 'no' and 'yes' look exchanged"),
    ],
)
def test_wrong_labels_are_no_fault_of_the_columns(
    reference: ReferenceSummary, labels: Callable[[np.random.Generator, Classes], Classes], text: str
) -> None:
    rng = np.random.default_rng(6)
    columns, y = patients(rng, 600, 0.3)
    said = found(reference, columns, labels(rng, y), truth=y)
    assert {kind for kind, _ in said} == {"labels"}
    assert text in said[0][1]


def test_copied_rows_are_said_first_and_are_no_further_evidence(reference: ReferenceSummary) -> None:
    columns, y = patients(np.random.default_rng(7), 12, 0.5)
    copies = np.tile(np.arange(12), 26)
    said = found(reference, {name: values[copies] for name, values in columns.items()}, y[copies])
    assert said == [("copies", "312 rows, of which only 12 differ")]


# Labels of many classes -----------------------------------------------------------------------------------------------


def outcomes(rng: np.random.Generator, truth: Classes, labels: Classes, classes: int) -> ClassMoments:
    return moments(predicted(rng, truth, classes), labels, classes)


def test_the_share_of_random_labels_is_estimated() -> None:
    rng = np.random.default_rng(8)
    y = rng.integers(0, 10, 2000)
    known = outcomes(rng, y[:1000], y[:1000], 10)
    share, mine = 0.4, y[1000:]
    random = np.where(rng.random(1000) < share, rng.integers(0, 10, 1000), mine)
    only = label_findings(outcomes(rng, mine, random, 10), known, [str(c) for c in range(10)])
    agrees = 0.85 * (1 - share) + 0.1 * share
    assert len(only) == 1
    wrong = int(only[0].text.removeprefix("labels: about ").split(" % look wrong (the model agrees with ")[0]) / 100
    assert abs(wrong - 0.9 * share) < 0.05
    assert abs(int(only[0].text.split("agrees with ")[1].split()[0]) / 100 - agrees) < 0.03


def test_two_exchanged_classes_and_permuted_ones() -> None:
    rng = np.random.default_rng(9)
    y = rng.integers(0, 6, 1500)
    known, names, mine = outcomes(rng, y[:700], y[:700], 6), list("abcdef"), y[700:]
    pair = np.array([1, 0, 2, 3, 4, 5])[mine]
    assert [each.text for each in label_findings(outcomes(rng, mine, pair, 6), known, names)] == [
        "labels: 'a' and 'b' look exchanged"
    ]
    turned = label_findings(outcomes(rng, mine, (mine + 1) % 6, 6), known, names)
    assert [each.text for each in turned] == [
        "labels: classes look permuted ('a' is 'f', 'b' is 'a', 'c' is 'b' and 3 more)"
    ]


def test_a_class_that_the_model_does_not_know_is_not_blamed() -> None:
    """A rare class is mostly taken for another by the model: at the reference as at an honest client."""
    rng = np.random.default_rng(10)
    y = np.repeat([0, 1, 2], [500, 460, 40])
    said = np.where((y == 2) & (rng.random(1000) < 0.8), 1, y)
    known = moments(np.concatenate([np.eye(3)[said], np.zeros((1000, 1))], axis=1), y, 3)
    mine = np.repeat([1, 2], [20, 180])
    told = np.where((mine == 2) & (rng.random(200) < 0.8), 1, mine)
    client = moments(np.concatenate([np.eye(3)[told], np.zeros((200, 1))], axis=1), mine, 3)
    assert label_findings(client, known, ["a", "b", "c"]) == []


def test_what_mixtures_explain_is_due_to_labels() -> None:
    rng = np.random.default_rng(11)
    y = rng.integers(0, 3, 1200)
    x = rng.standard_normal((3, 12))[y] + rng.standard_normal((1200, 12))
    known, rows, labels = ReferenceSummary.make({COLUMNS: x[:600]}, y[:600], 3, rng), x[600:], y[600:]

    def left(rows: Rows, labels: Classes) -> float | None:
        return unexplained_share(moments(rows, labels, 3), known.moments[COLUMNS], known.fourth[COLUMNS])

    by_labels = left(rows, (labels + rng.integers(0, 3, 600)) % 3)
    by_inputs = left(rows + 1.5 * rng.standard_normal(rows.shape), labels)
    assert by_labels is not None
    assert by_inputs is not None
    assert by_labels < 0.1
    assert by_inputs > 0.9
    assert left(rows, labels) is None


def test_targets_of_a_regression() -> None:
    rng = np.random.default_rng(12)
    target = rng.standard_normal(900)
    bins = np.searchsorted([-0.8, -0.3, 0.3, 0.8], target)
    error = 0.3 * rng.standard_normal(900)
    features = {OUTCOMES: np.stack([error, error**2], axis=1)[:400]}
    known = ReferenceSummary.make(features, bins[:400], 5, rng)
    names = DataNames.of(Preprocessing(targets=(TargetSpec(width=10.0),)), (3,), None)

    def texts(errors: Rows, rows: Classes) -> list[str]:
        blocks = {OUTCOMES: moments(np.stack([errors, errors**2], axis=1), rows, 5)}
        evidence = ClientEvidence(rows=500, distinct_rows=None, blocks=blocks)
        return [each.text for each in client_findings(evidence, known, names)]

    random = rng.permutation(target[400:])
    assert texts(error[400:], bins[400:]) == []
    said = texts(target[400:] - random + error[400:], np.searchsorted([-0.8, -0.3, 0.3, 0.8], random))
    assert len(said) == 1
    off = float(np.sqrt(np.mean((target[400:] - random + error[400:]) ** 2)))
    assert said[0].startswith(f"labels or inputs: the model is off by {10 * off:.3g}")


# Images and rows ------------------------------------------------------------------------------------------------------


def test_statistics_of_an_image_follow_their_definition() -> None:
    image = np.random.default_rng(13).random((1, 3, 9, 7))
    grey = image[0].mean(0)
    unit = (grey - grey.mean()) / grey.std()
    across, down = np.diff(unit, axis=1), np.diff(unit, axis=0)
    kernel = np.array([[1, -2, 1], [-2, 4, -2], [1, -2, 1]]) / 6
    grain = [(unit[i : i + 3, j : j + 3] * kernel).sum() for i in range(7) for j in range(5)]
    alike = [(np.abs(part) < 0.02).mean() for part in (across, down)]
    by_hand = {
        "brightness": grey.mean(),
        "contrast": grey.std(),
        "colour": np.abs(image[0] - grey).mean(),
        "edges": np.sqrt(((across**2).mean() + (down**2).mean()) / 2),
        "grain": np.sqrt(np.square(grain).mean()),
        "flat": np.mean(alike),
        "top": unit[:4].mean() - unit[5:].mean(),
        "left": unit[:, :3].mean() - unit[:, 4:].mean(),
        "centre": unit[2:7, 1:6].mean(),
    }
    assert tuple(by_hand) == IMAGE_STATISTICS
    np.testing.assert_allclose(image_statistics(torch.tensor(image))[0], [*by_hand.values()], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(0, 1, 8, 8), (2, 1, 1, 1), (2, 2, 5), (2, 3, 40, 1)])
def test_any_image_has_statistics(shape: tuple[int, ...]) -> None:
    for images in (torch.zeros(shape), torch.full(shape, 1e20), torch.rand(shape)):
        found = image_statistics(images)
        assert found.shape == (shape[0], len(IMAGE_STATISTICS))
        assert found.isfinite().all()


def test_images_of_a_client_are_described() -> None:
    digits = load_digits()
    order = np.random.default_rng(16).permutation(len(digits.images))[:1000]  # they come writer by writer
    images, y = torch.tensor(digits.images[order], dtype=torch.float32)[:, None] / 16, digits.target[order]
    images = torch.nn.functional.interpolate(images, scale_factor=2, mode="bilinear")
    x = image_statistics(images[:600]).numpy()
    known, here = moments(x, y[:600], 10), y[:600]
    fourth = np.stack([((x[here == c] - known.mean[c]) ** 4).mean(0) for c in range(10)])

    def texts(part: torch.Tensor, labels: Classes) -> list[str]:
        told = moments(image_statistics(part).numpy(), labels, 10)
        return [each.text for each in image_findings(told, known, fourth)]

    mine, labels = images[600:], y[600:]
    assert texts(mine, labels) == []
    assert texts(mine[labels < 3], labels[labels < 3]) == []
    assert texts(mine, np.random.default_rng(1).permutation(labels)) == []
    assert texts(mine + 0.2 * torch.randn(mine.shape, generator=torch.Generator().manual_seed(0)), labels) == [
        "images: noisy"
    ]
    assert texts(torch.nn.functional.avg_pool2d(mine, 5, 1, 2, count_include_pad=False), labels) == ["images: blurred"]
    assert texts(0.5 * mine, labels) == ["images: darker than expected"]


def test_distinct_rows_are_counted() -> None:
    rng = np.random.default_rng(14)
    table = rng.integers(0, 3, (500, 4)).astype(np.float32)
    assert distinct_rows(torch.from_numpy(table)) == len(np.unique(table, axis=0))
    assert distinct_rows(torch.tensor([[0.0, 1.0], [-0.0, 1.0], [1.0, 0.0]])) == 2
    assert distinct_rows(torch.arange(20_000).reshape(-1, 1, 1, 1)) == 20_000
    assert distinct_rows(torch.zeros(0, 3)) == 0


def test_rows_that_are_alike_at_the_reference_too_are_no_copies() -> None:
    """Few columns with few values: rows repeat by chance, and the more so the more there are."""
    rng = np.random.default_rng(15)

    def draw(count: int) -> int:
        return distinct_rows(torch.from_numpy(rng.integers(0, 8, (count, 3)).astype(np.float32)))

    known = draw(200)
    for rows in (20, 200, 2000):
        assert copy_findings(rows, draw(rows), 200, known) == []
    assert expected_distinct(2000, 200, known) == pytest.approx(512, rel=0.35)
    assert [each.kind for each in copy_findings(200, 20, 200, known)] == ["copies"]


@pytest.mark.parametrize(
    "frequencies", [np.full(32, 1 / 32), np.r_[0.8, np.full(1000, 0.0002)]], ids=["even", "uneven"]
)
@pytest.mark.parametrize("rows", [60, 1500])
def test_honest_clients_whose_rows_repeat_by_nature_are_not_said_to_have_copies(
    frequencies: NDArray[np.float64], rows: int
) -> None:
    rng = np.random.default_rng(18)

    def differing(count: int) -> int:
        return len(np.unique(rng.choice(len(frequencies), count, p=frequencies)))

    known, client = differing(500), differing(rows)
    assert expected_distinct(rows, 500, known) <= 1.1 * client
    assert copy_findings(rows, client, 500, known) == []
    assert independent_share(rows, client, 500, known) > 0.9
    assert independent_share(500, known, 500, known) == pytest.approx(1.0)


# Typical clients ------------------------------------------------------------------------------------------------------


def test_a_reference_with_a_bad_clients_rows_does_not_mislead() -> None:
    """A fifth of the reference has glucose in other units, as a fifth of the clients: they are named, and only they."""
    rng = np.random.default_rng(17)
    columns, y = patients(rng, 500, 0.5)
    mixed = columns | {"glucose": np.where(rng.random(500) < 0.2, 18, 1) * columns["glucose"]}
    features = {COLUMNS: PREPROCESSING.transform(mixed)}
    known = ReferenceSummary.make(features, y, 2, rng)
    clients = []
    for place in range(10):
        own, labels = patients(rng, 200, 0.3 + 0.05 * place)
        x = PREPROCESSING.transform(own | {"glucose": (18 if place < 2 else 1) * own["glucose"]})
        clients.append(ClientEvidence(rows=200, distinct_rows=None, blocks={COLUMNS: moments(x, labels, 2)}))
    typical = typical_reference(known, clients)
    said = [[each.text for each in client_findings(each, typical, NAMES)] for each in clients]
    assert said[2:] == [[]] * 8
    words = "column glucose: 18 times larger than expected (mg/dL against mmol/L?)"
    assert said[:2] == [[words]] * 2
    few = typical_reference(known, clients[:4]).moments[COLUMNS]
    np.testing.assert_array_equal(few.mean, known.moments[COLUMNS].mean)
