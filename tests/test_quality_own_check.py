"""`winnow check`: an owner learns, alone and before joining, what the federation would say of the data."""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import winnow
from command_line import call
from winnow.runs.file_names import REFERENCE_SUMMARY

Table = list[dict[str, object]]
HOSPITALS = ("St Mary", "Eastgate", "Holm", "Lakeview", "Northside")


def patients(rng: np.random.Generator, count: int, sick: float) -> Table:
    y = rng.random(count) < sick
    age, glucose = rng.normal(50 + 20 * y, 10), rng.normal(5.5 + 2.5 * y, 1)
    height, weight = rng.normal(170, 9, count), rng.normal(74, 10, count)
    return [
        {"age": a, "glucose": g, "height": h, "weight": w, "outcome": "yes" if sick else "no"}
        for a, g, h, w, sick in zip(age, glucose, height, weight, y.tolist(), strict=True)
    ]


def times18(rows: Table) -> Table:
    return [row | {"glucose": 18 * float(str(row["glucose"]))} for row in rows]


def write(path: Path, rows: Table) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five hospitals have trained."""
    folder = tmp_path_factory.mktemp("hospitals")
    rng = np.random.default_rng(0)
    rows: Table = []
    for place, name in enumerate(HOSPITALS):
        rows += [row | {"hospital": name} for row in patients(rng, 400, 0.3 + 0.1 * place)]
    winnow.run(
        data=str(write(folder / "hospitals.csv", rows)),
        targets=["outcome"],
        owner="hospital",
        reference=400,
        model="linear",
        rounds=10,
        quality={"assessments": 1},
        progress=False,
        out=folder / "run",
    )
    return folder


@pytest.fixture(scope="module")
def unlike(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight hospitals have trained whose patients are not equally tall, as patients of other regions are not."""
    folder, rng = tmp_path_factory.mktemp("unlike"), np.random.default_rng(8)
    rows: Table = []
    for place in range(8):
        taller = 9 * rng.normal()
        rows += [
            row | {"height": float(str(row["height"])) + taller, "hospital": f"H{place}"}
            for row in patients(rng, 300, 0.5)
        ]
    winnow.run(
        data=str(write(folder / "hospitals.csv", rows)),
        targets=["outcome"],
        owner="hospital",
        reference=400,
        model="linear",
        rounds=5,
        quality={"assessments": 1},
        progress=False,
        out=folder / "run",
    )
    return folder / "run"


def test_an_owner_is_measured_by_how_much_the_clients_differ(
    unlike: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = patients(np.random.default_rng(9), 400, 0.5)
    mine = write(tmp_path / "mine.csv", [row | {"height": float(str(row["height"])) + 14} for row in rows])
    score = checked(capsys, unlike, mine)["score"]
    alone = shutil.copytree(unlike, tmp_path / "alone")
    with safe_open(alone / REFERENCE_SUMMARY, framework="np") as file:
        text = file.metadata()["winnow"]
    arrays = {name: each for name, each in load_file(alone / REFERENCE_SUMMARY).items() if "clients." not in name}
    save_file(arrays, alone / REFERENCE_SUMMARY, metadata={"winnow": text})
    assert float(str(score)) < 0.7 * float(str(checked(capsys, alone, mine)["score"]))


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    shutil.copytree(made / "run", tmp_path / "run")
    return tmp_path / "run"


def checked(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, object]:
    done = call(capsys, "check", *arguments, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert isinstance(found, dict)
    return found


def test_honest_data_of_another_mix_are_fine(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = write(tmp_path / "mine.csv", patients(np.random.default_rng(1), 500, 0.8))
    found = checked(capsys, made / "run", mine)
    assert found["name"] == "mine"
    assert found["samples"] == 500
    assert found["verdict"] == "fine"
    assert found["findings"] == []


@pytest.mark.parametrize(
    ("spoil", "evidence"),
    [
        (times18, "column glucose: 18 times larger"),
        (
            lambda rows: [row | {"outcome": {"yes": "no", "no": "yes"}[str(row["outcome"])]} for row in rows],
            "labels: 'no' and 'yes' look exchanged",
        ),
        (lambda rows: rows[:20] * 25, "500 rows, of which only 20 differ"),
    ],
)
def test_bad_data_are_named(
    made: Path, tmp_path: Path, spoil: Callable[[Table], Table], evidence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = write(tmp_path / "mine.csv", spoil(patients(np.random.default_rng(2), 500, 0.5)))
    found = checked(capsys, made / "run", mine)
    assert found["verdict"] in ("suspect", "harmful")
    assert str(found["evidence"]).startswith(evidence)
    shown = call(capsys, "check", made / "run", mine)
    assert shown.code == 0
    assert evidence in " ".join(shown.out.split())


def test_the_federation_says_the_same(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A hospital's rows, checked alone, get the verdict that they got in the run."""
    with (made / "hospitals.csv").open() as file:
        own: Table = [dict(row) for row in csv.DictReader(file) if row["hospital"] == "Northside"]
    found = checked(capsys, made / "run", write(tmp_path / "Northside.csv", own))
    told = json.loads(call(capsys, "clients", made / "run", "--json").out)
    (same,) = [row for row in told if row["name"] == "Northside"]
    assert (found["verdict"], found["evidence"]) == (same["verdict"], same["evidence"]) == ("fine", "")


def test_arrays_are_checked_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(3)
    centres = rng.normal(size=(3, 1, 8, 8))
    y = rng.integers(0, 3, 1200)
    x = (centres[y] + 0.3 * rng.normal(size=(1200, 1, 8, 8))).astype(np.float32)
    quality = {"assessments": 1}
    data = (x[:900], y[:900])
    winnow.run(data=data, clients=3, reference=300, rounds=3, quality=quality, progress=False, out=tmp_path / "run")
    np.savez(tmp_path / "mine.npz", x=x[900:], y=y[900:])
    np.savez(tmp_path / "dark.npz", x=x[900:] - 2, y=y[900:])
    assert checked(capsys, tmp_path / "run", tmp_path / "mine.npz")["findings"] == []
    assert checked(capsys, tmp_path / "run", tmp_path / "dark.npz")["evidence"] == "images: darker than expected"


def test_no_row_is_in_the_file(made: Path) -> None:
    """It tells of classes, and a class of four hundred rows is many."""
    held = load_file(made / "run" / REFERENCE_SUMMARY)
    assert held["rows"].tolist() == [400, 400]
    assert held["columns.counts"].sum() == 400
    assert held["columns.mean"].shape == (2, 4)
    assert (made / "run" / REFERENCE_SUMMARY).stat().st_size < 30_000


def failing(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line in which it ends."""
    done = call(capsys, "check", *arguments)
    assert done.code == 2
    assert not done.out
    lines = done.err.splitlines()
    assert len(lines) == 1
    return lines[0]


def test_mistakes_end_in_one_line(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = patients(np.random.default_rng(4), 50, 0.5)
    mine = write(tmp_path / "mine.csv", rows)
    assert "there is no file" in failing(capsys, made / "run", tmp_path / "none.csv")
    assert "data come in" in failing(capsys, made / "run", tmp_path / "mine.xlsx")
    assert "no column 'result'" in failing(capsys, made / "run", mine, "--targets", "result")
    other = write(tmp_path / "other.csv", [row | {"outcome": "maybe"} for row in rows])
    assert "there is a class 'maybe'" in failing(capsys, made / "run", other)
    short = write(tmp_path / "short.csv", [{"age": 1.0, "outcome": "yes"}] * 5)
    assert "glucose" in failing(capsys, made / "run", short)
    assert "contains no model" in failing(capsys, tmp_path, mine)


def change_header(text: str, **changes: object) -> str:
    return json.dumps(json.loads(text) | changes)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda arrays, text: (arrays, ""), "is damaged, or not Winnow's"),
        (lambda arrays, text: (arrays, "[" * 10_000), "is damaged, or not Winnow's"),
        (lambda arrays, text: (arrays, change_header(text, format=2)), "is damaged, or not Winnow's"),
        (lambda arrays, text: (arrays, change_header(text, classes=10**9)), "is damaged, or not Winnow's"),
        (lambda arrays, text: (arrays, change_header(text, classes=3)), "header does not fit"),
        (lambda arrays, text: (arrays, change_header(text, edges="12")), "is damaged, or not Winnow's"),
        (lambda arrays, text: (arrays, change_header(text, edges=[2.0, 1.0])), "bins do not fit"),
        (lambda arrays, text: (arrays, change_header(text, false_alarms=0)), "is damaged, or not Winnow's"),
        (lambda arrays, text: (arrays, change_header(text, loss=None)), "header does not fit"),
        (lambda arrays, text: (arrays, change_header(text, layer="__class__")), "a layer that the model does not have"),
        (lambda arrays, text: (arrays, change_header(text, parameters="0" * 32)), "belongs to another model"),
        (lambda arrays, text: (arrays | {"more": np.zeros(3)}, text), "is damaged, or not Winnow's"),
        (
            lambda arrays, text: (arrays | {"columns.mean": np.full((2, 4), 3e38, np.float32)}, text),
            "numbers that no rows have",
        ),
        (lambda arrays, text: (arrays | {"rows": np.array([-5, 2])}, text), "is damaged, or not Winnow's"),
        (
            lambda arrays, text: (arrays | {"columns.mean": np.full((2, 4), np.nan, np.float32)}, text),
            "is damaged, or not Winnow's",
        ),
        (
            lambda arrays, text: (arrays | {"columns.variance": -arrays["columns.variance"]}, text),
            "is damaged, or not Winnow's",
        ),
        (lambda arrays, text: (arrays | {"clients.spread": np.full(9, -1.0)}, text), "spread of clients is negative"),
        (lambda arrays, text: (arrays | {"clients.centre": np.full(9, np.inf)}, text), "not a list of numbers"),
        (lambda arrays, text: (arrays | {"clients.centre": np.zeros(10**6)}, text), "not a list of numbers"),
        (lambda arrays, text: (arrays | {"clients.spread": np.zeros(9, np.int8)}, text), "not a list of numbers"),
        (
            lambda arrays, text: ({name: arrays[name] for name in arrays if name != "clients.spread"}, text),
            "not a list of numbers",
        ),
    ],
)
def test_a_strangers_summary_is_refused_in_one_line(
    run: Path,
    tmp_path: Path,
    spoil: Callable[[dict[str, np.ndarray], str], tuple[dict[str, np.ndarray], str]],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = run / REFERENCE_SUMMARY
    with safe_open(path, framework="np") as file:
        text = file.metadata()["winnow"]
    arrays, header = spoil(load_file(path), text)
    save_file(arrays, path, metadata={"winnow": header})
    mine = write(tmp_path / "mine.csv", patients(np.random.default_rng(5), 50, 0.5))
    assert said in failing(capsys, run, mine)


EIGHT_BITS = b'{"rows":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]}}'
"""A type that NumPy does not have."""


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 20,
        (2**60).to_bytes(8, "little") + b"{}",
        len(EIGHT_BITS).to_bytes(8, "little") + EIGHT_BITS + b"\0\0",
    ],
)
def test_a_file_that_is_no_summary(
    run: Path, tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / REFERENCE_SUMMARY).write_bytes(content)
    mine = write(tmp_path / "mine.csv", patients(np.random.default_rng(5), 50, 0.5))
    assert "is damaged, or not Winnow's" in failing(capsys, run, mine)


def test_names_of_a_strangers_model_are_shown_and_not_obeyed(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    description = json.loads((run / "model.json").read_text())
    description["preprocessing"]["columns"][1]["name"] = "[bold]\x1b[2Jglucose"
    (run / "model.json").write_text(json.dumps(description))
    rows = times18(patients(np.random.default_rng(6), 300, 0.5))
    renamed: Table = [{("[bold]\x1b[2Jglucose" if key == "glucose" else key): row[key] for key in row} for row in rows]
    done = call(capsys, "check", run, write(tmp_path / "mine.csv", renamed))
    assert done.code == 0, done.err
    assert "\x1b" not in done.out
    assert "[bold]?[2Jglucose" in "".join(done.out.split())


def test_a_run_that_compared_nothing_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.random.default_rng(7).normal(size=(80, 3)).astype(np.float32)
    data = (x, (x.sum(1) > 0).astype(int))
    winnow.run(data=data, clients=2, rounds=1, quality={"evidence": []}, progress=False, out=tmp_path / "run")
    np.savez(tmp_path / "mine.npz", x=x, y=data[1])
    assert "has no reference-summary.safetensors" in failing(capsys, tmp_path / "run", tmp_path / "mine.npz")
