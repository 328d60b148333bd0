"""`winnow clients`: who has bad data, by name, and why; whatever those names are."""

import csv
import json
from html import unescape
from pathlib import Path

import pytest

from assessed_runs import HOSPITALS, RANDOM, UNITS, Client, write_assessed_run
from command_line import call
from winnow.config.resolve import resolve, to_toml
from winnow.runs import RunFolder
from winnow.runs.client_table import BEST_SHOWN, COLUMNS, WORST_SHOWN, read_client_table
from world import BASE

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def five(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "160")
    return write_assessed_run(tmp_path / "run")


def test_clients_come_by_name_the_worst_first(five: Path, capsys: Capture) -> None:
    out = call(capsys, "clients", five).out
    assert out.splitlines()[0].split() == list(COLUMNS)
    rows = [" ".join(line.split()) for line in out.splitlines()[2:7]]
    assert rows == [
        f"Eastgate 310 2 9.41 harmful {RANDOM}",
        f"Northside 280 4 11.20 suspect {UNITS}",
        "Holm 1,250 3 0.90 different inputs: unlike the reference's",
        "Tiny 4 1 – cannot tell 4 samples are too few",
        "St Mary 295 1 0.31 fine",
    ]
    assert out.splitlines()[7] == "2 of 5 clients look bad; assessed 2 times, last after round 4"


def test_json_and_python_have_the_same_rows(five: Path, capsys: Capture) -> None:
    printed = json.loads(call(capsys, "clients", five, "--json").out)
    assert printed[1] == {
        "name": "Northside", "samples": 280, "invited": 4, "score": 11.2, "verdict": "suspect", "evidence": UNITS,
    }  # fmt: skip
    rows = [row.record() for row in read_client_table(RunFolder.open(five)).rows]
    assert [row["name"] for row in rows] == [row["name"] for row in printed]
    assert printed[3]["score"] is None


def test_of_many_clients_both_ends_are_shown_and_how_to_see_the_rest(tmp_path: Path, capsys: Capture) -> None:
    many = [Client(name=f"ward {number}", score=number / 100) for number in range(90)]
    run = write_assessed_run(tmp_path / "run", [*many, *HOSPITALS])
    few = call(capsys, "clients", run).out
    shown = [line for line in few.splitlines() if line.startswith((" ward", " East", " North", " Holm", " Tiny"))]
    assert len(shown) == WORST_SHOWN + BEST_SHOWN
    assert f"… {95 - WORST_SHOWN - BEST_SHOWN} more" in few
    assert "--all" in few
    assert "ward 0 " in few
    everything = call(capsys, "clients", run, "--all").out
    assert sum(line.startswith(" ward") for line in everything.splitlines()) == 90


def test_clients_are_found_by_name_evidence_and_verdict(five: Path, capsys: Capture) -> None:
    def names(*options: str) -> list[str]:
        return [row["name"] for row in json.loads(call(capsys, "clients", five, "--json", *options).out)]

    assert names("--find", "EAST") == ["Eastgate"]
    assert names("--find", "glucose") == ["Northside"]
    assert names("--verdict", "cannot tell") == ["Tiny"]
    assert names("--verdict", "fine", "--find", "glucose") == []
    assert call(capsys, "clients", five, "--find", "nobody").err == "no client fits\n"
    wrong = call(capsys, "clients", five, "--verdict", "suspekt")
    assert wrong.code == 2
    assert wrong.err == "winnow: error: --verdict suspekt: there is no such verdict; did you mean 'suspect'?\n"


def test_a_file_for_spreadsheets_runs_no_formula_of_a_strangers_name(tmp_path: Path, capsys: Capture) -> None:
    clients = [Client(name='=cmd|"/C calc"!A1', evidence="@sum"), Client(name="a\nb", score=0.125)]
    run, file = write_assessed_run(tmp_path / "run", clients), tmp_path / "clients.csv"
    assert call(capsys, "clients", run, "--out", file).code == 0
    header, first, second = csv.reader(file.read_text("utf-8").splitlines())
    assert header == list(COLUMNS)
    assert first == ['\'=cmd|"/C calc"!A1', "100", "1", "0.2", "fine", "'@sum"]
    assert second == ["a b", "100", "2", "0.125", "fine", ""]


def test_no_formula_hides_behind_space_that_a_line_loses(tmp_path: Path, capsys: Capture) -> None:
    clients = [Client(name=" =1+1", evidence="\n\u3000@sum", score=0.5), Client(name="\uff1d1+1", score=0.25)]
    run, file = write_assessed_run(tmp_path / "run", clients), tmp_path / "clients.csv"
    assert call(capsys, "clients", run, "--out", file).code == 0
    _, first, second = csv.reader(file.read_text("utf-8").splitlines())
    assert (first[0], first[-1], second[0]) == ("'=1+1", "'@sum", "'\uff1d1+1")


def test_a_file_of_another_kind_is_refused_before_anything_is_written(five: Path, capsys: Capture) -> None:
    wrong = call(capsys, "clients", five, "--out", five / "clients.xlsx")
    assert (wrong.code, wrong.out) == (2, "")
    assert wrong.err == (
        f"winnow: error: --out {five}/clients.xlsx: the table is written as .csv, which spreadsheets open; "
        "name the file clients.csv\n"
    )
    assert not (five / "clients.xlsx").exists()
    assert call(capsys, "clients", five, "--out", five / "Clients.CSV").code == 0


def test_hostile_names_and_evidence_move_no_cursor_and_are_no_markup(tmp_path: Path, capsys: Capture) -> None:
    clients = [Client(name="\x1b[2J[red]x[/red]\n\rSt Mary", evidence="\x1b]0;title\x07" + "e" * 5000)]
    out = call(capsys, "clients", write_assessed_run(tmp_path / "run", clients)).out
    assert "\x1b" not in out
    assert "\x07" not in out
    assert "[red]x[/red]" in " ".join(out.split())
    assert out.count("e" * 10) < 100


def test_what_the_policy_did_is_said(tmp_path: Path, capsys: Capture) -> None:
    actions = [(1, "exclude", RANDOM), (3, "exclude", UNITS), (0, "readmit", "fine again")]
    out = call(capsys, "clients", write_assessed_run(tmp_path / "run", actions=actions)).out
    assert "excluded in round 4: Eastgate, Northside" in out
    assert "readmitted in round 4: St Mary" in out
    kept = write_assessed_run(tmp_path / "kept", actions=[(3, "keep", UNITS)])
    assert "kept by quality.keep in round 4: Northside" in call(capsys, "clients", kept).out
    policy = {row.name: row.policy for row in read_client_table(RunFolder.open(tmp_path / "run")).rows}
    assert policy == {"Eastgate": "exclude", "Northside": "exclude", "St Mary": "", "Holm": "", "Tiny": ""}


def test_an_unfinished_run_has_clients_too(tmp_path: Path, capsys: Capture) -> None:
    out = call(capsys, "clients", write_assessed_run(tmp_path / "run", finished=False)).out
    assert "2 of 5 clients look bad" in out


def test_of_several_runs_one_is_to_be_named(tmp_path: Path, capsys: Capture) -> None:
    for name in ("a", "b"):
        write_assessed_run(tmp_path / "both" / name)
    wrong = call(capsys, "clients", tmp_path / "both")
    assert wrong.code == 2
    assert wrong.err == (
        f"winnow: error: {tmp_path}/both holds 2 runs (a, b); name one of them: winnow clients {tmp_path}/both/a\n"
    )
    (tmp_path / "both" / "b" / "run.json").unlink()
    assert call(capsys, "clients", tmp_path / "both").code == 0


@pytest.mark.parametrize(
    ("content", "why"),
    [('{"schema": 2,', "Expecting property name"), ("", "Expecting value"), ("[]", "it does not describe a run")],
)
def test_a_broken_description_is_named(five: Path, content: str, why: str, capsys: Capture) -> None:
    (five / "run.json").write_text(content)
    wrong = call(capsys, "clients", five)
    assert (wrong.code, wrong.out, wrong.err.count("\n")) == (2, "", 1)
    assert wrong.err.startswith(f"winnow: error: {five}/run.json is damaged: {why}")


def test_show_tells_where_to_look(five: Path, capsys: Capture) -> None:
    assert f"2 of 5 clients look bad: winnow clients {five}" in call(capsys, "show", five).out


@pytest.mark.parametrize(
    "line",
    [
        '{"kind":"assessed","round":4,"at":0,"version":4,"clients":[0],"scores":[1,2],"verdicts":["fine"],"evidence":[""]}',
        '{"kind":"assessed","round":4,"at":0,"version":4,"clients":[-1],"scores":[1],"verdicts":["fine"],"evidence":[""]}',
        '{"kind":"assessed","round":4,"at":0,"version":4,"clients":[9],"scores":[1],"verdicts":["fine"],"evidence":[""]}',
        '{"kind":"assessed","round":4,"at":0,"version":4,"clients":[0],"scores":[1],"verdicts":[3],"evidence":[""]}',
        '{"kind":"policy_applied","round":4,"at":0,"client":"all","action":"exclude","reason":""}',
        '{"kind":"policy_applied","round":4,"at":0,"client":7,"action":"exclude","reason":""}',
    ],
)
def test_a_log_that_makes_no_sense_is_one_line(five: Path, line: str, capsys: Capture) -> None:
    with (five / "events.jsonl").open("a") as log:
        log.write(line + "\n")
    wrong = call(capsys, "clients", five)
    assert wrong.code == 2
    assert wrong.err.startswith("winnow: error: ")
    assert "damaged" in wrong.err
    assert wrong.err.count("\n") == 1


@pytest.mark.parametrize(
    ("sets", "why"),
    [
        (("quality.evidence=[]",), "quality.evidence = [] asks for nothing; remove it, or name what to look at"),
        (("collect.name=secure",), "inputs, columns, labels, updates would tell what collect.name = 'secure' hides"),
        (
            ("filters=[{name='local-dp',clip=1.0,noise_multiplier=1.0}]",),
            "inputs, columns, labels would tell what filters.name = 'local-dp' hides; "
            "quality.evidence may be set to contribution, updates",
        ),
        (("quality.assessments=2", "quality.evidence=['labels']"), "the first assessment is after round 2"),
        (("ensemble.clusters={name='random',count=2}",), "an ensemble does not compare its clients"),
    ],
)
def test_a_run_without_assessments_says_why(tmp_path: Path, capsys: Capture, sets: tuple[str, ...], why: str) -> None:
    config = to_toml(resolve({key: value for key, value in BASE.items() if key != "quality"}, sets=sets))
    run = write_assessed_run(tmp_path / "run", assessed=False, finished=False, config=config)
    told = call(capsys, "clients", run).out
    assert told.splitlines()[-1] == f"clients were not assessed: {why}"
    call(capsys, "report", run)
    page = unescape((run / "report.html").read_text(encoding="utf-8"))
    assert f"<h2>Clients</h2><p>Clients were not assessed: {why}.</p>" in page.replace("\n", "")
    rows = json.loads(call(capsys, "clients", run, "--json").out)
    assert {row["verdict"] for row in rows} == {"cannot tell"}


def test_a_strangers_configuration_is_not_executed(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('executed')")
    config = to_toml(resolve(BASE)).replace("plugins = []\n", "")
    config = f'plugins = ["{tmp_path}/evil.py"]\n{config}'
    out = call(capsys, "clients", write_assessed_run(tmp_path / "run", assessed=False, config=config)).out
    assert "clients were not assessed: " in out
