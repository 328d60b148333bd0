"""winnow truth and winnow.truth: what they print and write, and what they say of bad input."""

import csv
import json
import tomllib
from pathlib import Path

import numpy as np
import pandas
import pytest

import winnow
from command_line import call
from crowd import crowd_set
from winnow.analytics.truth.truth_report import TruthReport

ANSWERS = """question,person,answer
q1,ann,yes
q1,bob,yes
q1,eve,no
q2,ann,no
q2,bob,no
q2,eve,no
q3,ann,yes
q3,bob,
q3,eve,no
q4,bob,
"""
COLUMNS = ("--item", "question", "--worker", "person", "--label", "answer")


@pytest.fixture
def answers(tmp_path: Path) -> Path:
    path = tmp_path / "answers.csv"
    path.write_text(ANSWERS)
    return path


def test_json_has_items_and_participants(answers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = call(capsys, "truth", answers, *COLUMNS, "--method", "sum", "--iterations", 1, "--json")
    assert said.code == 0
    told = json.loads(said.out)
    items = {record["item"]: (record["truth"], record["confidence"]) for record in told["items"]}
    assert items["q1"] == ("yes", pytest.approx(2 / 3))
    assert items["q2"] == ("no", 1.0)
    assert items["q3"] == ("no", 0.5), "of a tie the first label counts"
    assert items["q4"] == (None, None), "nobody answered it"
    trust = {record["worker"]: record["trust"] for record in told["participants"]}
    assert trust == {  # equation 13
        "ann": pytest.approx((2 / 3 + 1 + 1 / 2) / 3),
        "bob": pytest.approx((2 / 3 + 1) / 2),
        "eve": pytest.approx((1 / 3 + 1 + 1 / 2) / 3),
    }
    assert told["agreement"] == 1.0


def test_private_and_plain_say_the_same_and_write_tables_and_a_page(
    answers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = json.loads(call(capsys, "truth", answers, *COLUMNS, "--json").out)
    written = ("--csv", tmp_path / "tables", "--out", tmp_path / "page.html")
    private = json.loads(call(capsys, "truth", answers, *COLUMNS, "--private", "--json", *written).out)
    assert [record["truth"] for record in private["items"]] == [record["truth"] for record in plain["items"]]
    assert private["private"] == {
        "holders": 3,
        "threshold": 2,
        "dropouts": "kept",
        "stayed": 3,
        "fraction_bits": 25,
        "stopped": None,
    }
    with (tmp_path / "tables" / "items.csv").open() as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["item", "truth", "confidence"]
    assert [row[:2] for row in rows[1:]] == [["q1", "yes"], ["q2", "no"], ["q3", "yes"], ["q4", ""]]
    page = (tmp_path / "page.html").read_text()
    assert "Truth discovery" in page
    assert "q4" in page
    assert "nobody answered 1 of the items" in page


def test_participants_rank_themselves(answers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = json.loads(call(capsys, "truth", answers, *COLUMNS, "--private", "--ranking", "--json").out)
    trust = {record["worker"]: record["trust"] for record in told["participants"]}
    ranked = sorted(told["participants"], key=lambda record: record["rank"])
    assert [record["worker"] for record in ranked] == sorted(trust, key=lambda name: -trust[name])
    assert [record["rank"] for record in ranked] == [1, 2, 3]
    shown = call(capsys, "truth", answers, *COLUMNS, "--private", "--ranking").out
    assert "rank" in shown
    explained = call(capsys, "truth", answers, *COLUMNS, "--private", "--ranking", "--explain").out
    assert "who is trusted more than whom, and not how much" in " ".join(explained.split())


FEDERATION = """
[tables.answers]
file = "answers.csv"
owner = "team"
[tables.answers.columns]
question = { level = "public", values = ["q1", "q2", "q3", "q4"] }
person = { level = "private" }
answer = { level = "protected", values = ["no", "yes"] }
[[queries]]
minimum = 2
"""


def test_owners_of_a_table_are_asked_alike_by_command_and_in_python(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    teams = {"ann": "red", "bob": "red", "eve": "blue"}
    lines = ANSWERS.splitlines()[1:]
    rows = [f"{line},{teams[line.split(',')[1]]}" for line in lines] + ["q2,kim,no,green"]
    (tmp_path / "answers.csv").write_text("\n".join(["question,person,answer,team", *rows]) + "\n")
    place = tmp_path / "federation.toml"
    place.write_text(FEDERATION)
    folder = tmp_path / "run"
    asked = ("truth", "answers", "--in", place, *COLUMNS, "--method", "sum", "--iterations", 1, "--ranking")
    said = call(capsys, *asked, "--json", "--folder", folder)
    assert said.code == 0, said.err
    told = json.loads(said.out)
    assert told["items"] == [
        {"item": "q1", "truth": "yes", "confidence": pytest.approx(2 / 3)},
        {"item": "q2", "truth": "no", "confidence": 1.0},
        {"item": "q3", "truth": "no", "confidence": pytest.approx(0.5)},
        {"item": "q4", "truth": None, "confidence": None},
    ]
    assert [record["worker"] for record in told["participants"]] == ["blue", "green", "red"]
    # equation 13 over all answers of an owner: red (2/3 + 1 + 2/3 + 1 + 1/2)/5, blue (1/3 + 1 + 1/2)/3, green 1
    assert [record["rank"] for record in told["participants"]] == [3, 1, 2]
    again = winnow.truth(
        "answers", place, item="question", worker="person", label="answer", method="sum", iterations=1, ranking=True
    )
    assert again.answer == told
    assert "fewer than 2 answered 1 of the items" in call(capsys, "show", folder).out
    assert call(capsys, "report", folder).code == 0
    explained = call(capsys, *asked, "--explain").out
    assert "3 owners" in explained
    assert "iteration 1: open the sum over all owners of 8 numbers" in explained
    assert "2 owners" in call(capsys, *asked, "--explain", "--owners", "red,blue").out
    for options, line in (
        (("--in", place, "--private"), "--private is for simulated participants of a file; leave it out"),
        (("--in", place, "--holders", 0), "--holders is for simulated participants of a file; leave it out"),
        (("--in", place, "--trust"), "no rule of [[queries]] allows per-owner, truth"),
        ((), "there is no file answers; a table of several owners needs --in FILE or --kit KIT"),
        (("--kit", tmp_path, "--explain"), "--explain takes the owners' terms from a federation file"),
        (("--folder", folder), "--folder is for a table of several owners (--in, --kit); leave it out"),
    ):
        refused = call(capsys, "truth", "answers", *options)
        assert refused.code == 2
        assert line in refused.err


def test_trust_is_written_for_a_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line of TOML whatever participants are called; who gave no answer is not named, so the training asks for it."""
    names = {"ann": 'so "ann" 😀', "bob": "bob\x1b]0;\\", "eve": "eve"}
    path = tmp_path / "answers.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        for question, person, answer in csv.reader(ANSWERS.splitlines()):
            writer.writerow([question, names.get(person, person), answer])
        writer.writerow(["q4", "kim", ""])
    said = call(capsys, "truth", path, *COLUMNS, "--weights")
    assert said.code == 0, said.err
    assert said.out.count("\n") == 1
    told = tomllib.loads(said.out)["aggregate"]
    report = winnow.truth(path, item="question", worker="person", label="answer")
    assert told["name"] == report.training_weights["name"] == "trust"
    assert [*told["trust"].values()] == pytest.approx([*report.training_weights["trust"].values()], rel=1e-5)
    assert [*report.training_weights["trust"]] == [*names.values()]
    assert {names["ann"], "eve"} <= {*told["trust"]}
    untold = TruthReport({"participants": [{"worker": "ann", "trust": None}]})
    with pytest.raises(
        winnow.WinnowError, match=r"the answer has nobody's trust; ask owners of a table for it \(--trust\)"
    ):
        _ = untold.training_weights


def test_columns_may_come_as_objects(data_directory: Path) -> None:
    crowd, _ = crowd_set(data_directory, "bluebird")
    arrays = crowd.arrays
    columns = {"item": arrays.items, "worker": arrays.workers, "label": arrays.labels.astype(float)}
    report = winnow.truth(columns, method="dawid-skene", iterations=3)
    again = winnow.truth(data_directory / "crowd" / "bluebird" / "label.csv", method="dawid-skene", iterations=3)
    assert [record["truth"] for record in report.items] == [record["truth"] for record in again.items]
    assert np.allclose([*report.trust.values()], [*again.trust.values()])
    assert json.loads(report.to_json()) == report.answer


def test_numbers_come_in_their_own_units(tmp_path: Path) -> None:
    """Three agree on 10 and 20; with equal trust, the mean."""
    path = tmp_path / "numbers.csv"
    path.write_text("item,worker,label\na,1,10\na,2,10\na,3,40\nb,1,20\nb,2,20\nb,3,-8\n")
    assert winnow.truth(path, method="crh", iterations=1).truth == {"a": pytest.approx(20), "b": pytest.approx(32 / 3)}
    found = winnow.truth(path, method="crh", private=True).truth
    assert found == {"a": pytest.approx(10, abs=0.1), "b": pytest.approx(20, abs=0.1)}


def test_explain_says_who_learns_what_and_warns(answers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = call(capsys, "truth", answers, *COLUMNS, "--explain")
    assert "every answer of every participant" in plain.out
    arguments = ("truth", answers, *COLUMNS, "--private", "--explain", "--json")
    told = json.loads(call(capsys, *arguments).out)
    assert not any("adaptive" in line for line in told["warnings"])
    told = json.loads(call(capsys, *arguments, "--dropouts", "adaptive", "--threshold", 2).out)
    assert any("adaptive" in line and "gives away" in line for line in told["warnings"])


@pytest.mark.parametrize(
    ("rows", "options", "line"),
    [
        ("a,1,x\na,2,y\na,1,y\n", (), "answers.csv, line 4: worker '1' answers item 'a' a second time (before: "),
        ("a,1,x\na,2,z\n", ("--labels", "x,y"), "answers.csv, line 3: unknown label 'z'; valid: x, y"),
        ("a,1,x\na,2,y\n", ("--labels", "x"), "labels: name two or more, each once"),
        ("a,1,x\na,2,y\n", ("--labels", ""), "--labels: name two or more, each once"),
        ("a,1,x\na,2,y\n", ("--seed", -1), "seed: -1 is not 0 or more"),
        ("a,1,\na,2,\n", (), "all cells of column 'label' are empty: nobody answered"),
        ("", (), "there are no answers"),
        ("a,1,x\nb,1,y\n", (), "all answers are from worker '1'"),
        ("a,1,x\na,2,x\n", (), "every answer is 'x'; name the other labels, too"),
        ("a,,x\na,2,y\n", (), "answers.csv, line 2: the worker is empty"),
        ("a,1\n", (), "answers.csv, line 2: 2 cells instead of 3"),
        ("a,1,x\na,2,5\n", ("--method", "crh"), "answers.csv, line 2: 'x' is not a number"),
        ("a,1,nan\na,2,5\n", ("--method", "crh"), "answers.csv, line 2: 'nan' is not a number"),
        ("a,1,5\na,2,5\n", ("--method", "crh"), "every answer is 5"),
        ("a,1,x\na,2,y\n", ("--method", "logistics"), "there is no method 'logistics'; did you mean 'logistic'?"),
        ("a,1,x\na,2,y\n", ("--item", "items"), "has no column 'items'; did you mean 'item'?"),
        ("a,1,x\na,2,y\n", ("--private",), "2 participants are too few for a private truth discovery"),
        ("a,1,x\na,2,y\na,3,y\n", ("--private", "--holders", 4), "holders: 4 is not between 3 and the 3 participants"),
        ("a,1,x\na,2,y\na,3,y\n", ("--private", "--threshold", 9), "threshold: 9 is not between 2 and the 3 holders"),
        ("a,1,x\na,2,y\na,3,y\n", ("--private", "--dropouts", "x"), "dropouts: 'x' is neither 'kept' nor 'adaptive'"),
        ("a,1,x\na,2,y\n", ("--threshold", 2), "belong to the private protocol; add --private"),
        ("a,1,x\na,2,y\n", ("--dropout", 1), "dropout: 1 is not a probability below 1"),
        ("a,1,x\na,2,y\n", ("--item", "worker"), "item, worker and label are different columns"),
        ("a,1,x\na,2,y\n", ("--out", "page.txt"), "page.txt"),
        ("a,1,x\na,2,y\n", ("--weights", "--json"), "--json is for everything that was found"),
        (
            "a,1,x\na,2,y\n",
            ("--method", "crh", "--labels", "x,y"),
            "labels are for classes; the method crh takes numbers",
        ),
        ("a,1,x\na,2,y\n", ("--ranking",), "belong to the private protocol; add --private"),
        ("a,1,x\na,2,y\n", ("--explain", "--holders", 3), "belong to the private protocol; add --private"),
    ],
)
def test_bad_input_gets_one_line(
    rows: str, options: tuple[object, ...], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "answers.csv"
    path.write_text("item,worker,label\n" + rows)
    said = call(capsys, "truth", path, *options, "--csv", tmp_path / "tables")
    assert said.code == 2
    assert line in said.err
    assert said.err.count("\n") == 1
    assert not (tmp_path / "tables").exists()


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", "is empty; its first line names the columns"),
        (b"item,item,worker,label\n", "has more than one column 'item'"),
        (b"item,worker,label\na,1,\xe9\n", "is not a readable CSV file: 'utf-8' codec can't decode byte 0xe9"),
        (b'item,worker,label\na,1,"x\n', "is not a readable CSV file: unexpected end of data"),
        (b"item;worker;label\na;1;x\n", "has no column 'item'; valid: item;worker;label"),
        (None, "cannot be read: No such file or directory"),
    ],
    ids=["empty", "twice", "latin", "quote", "semicolons", "missing"],
)
def test_files_that_are_no_answers_get_one_line(
    content: bytes | None, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "answers.csv"
    if content is not None:
        path.write_bytes(content)
    said = call(capsys, "truth", path)
    assert said.code == 2
    assert line in said.err
    assert said.err.count("\n") == 1


def test_cells_of_objects_may_be_missing_or_no_text() -> None:
    cells = {"item": [1.0, 1.0, 2.0, 2.0], "worker": ["a", "b", "a", "b"], "label": [1.5, 1.5, float("inf"), None]}
    report = winnow.truth(pandas.DataFrame({**cells, "label": pandas.array([1, 0, 1, None], "Int64")}), labels=[0, 1])
    assert [*report.truth] == ["1", "2"]
    assert report.truth["2"] == "1"
    with pytest.raises(winnow.WinnowError, match="row 2: 'inf' is not a number"):
        winnow.truth(cells, method="crh")
    with pytest.raises(winnow.WinnowError, match="labels: 'yes' is one text; give a list"):
        winnow.truth(cells, labels="yes")


def test_what_would_not_fit_into_memory_is_refused() -> None:
    answers = {
        "item": [*range(70_000), 0, 1],
        "worker": [*(f"w{number % 150}" for number in range(70_000)), "w1", "w0"],
        "label": ["yes", "no"] * 35_001,
    }
    with pytest.raises(winnow.WinnowError, match=r"take 6 GB in one process.*take a committee of fewer holders"):
        winnow.truth(answers, private=True)
    labels = {**answers, "label": [str(number % 900) for number in range(70_002)]}
    with pytest.raises(winnow.WinnowError, match="900 labels are too many for dawid-skene"):
        winnow.truth(labels, method="dawid-skene")


def test_a_run_that_opens_no_sum_says_why(answers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = call(capsys, "truth", answers, *COLUMNS, "--private", "--threshold", 3, "--dropout", 0.9)
    assert said.code == 2
    assert "no sum could be opened: iteration 1: " in said.err
    assert "participants dealt shares; 3 are needed" in said.err
