"""The report's section on clients: whose data look bad, for the people who run them."""

import re
from pathlib import Path

import numpy as np

from assessed_runs import HOSPITALS, RANDOM, UNITS, Client, write_assessed_run
from test_report_page import Outline, numbers, outline
from winnow.report import write_report
from winnow.runs import RunFolder


def page_of(*runs: Path) -> tuple[str, Outline]:
    path = write_report(runs[0] / "report.html", [RunFolder.open(run) for run in runs])
    return path.read_text(encoding="utf-8").split("</head>")[1], outline(path)


def test_it_is_the_first_section_and_says_it_in_a_sentence(tmp_path: Path) -> None:
    text, page = page_of(write_assessed_run(tmp_path / "run"))
    assert page.headings[:3] == ["hospitals: fedavg", "Clients", "Summary"]
    assert "<p>2 of 5 clients look bad: Eastgate, Northside. Clients were assessed 2 times, last after round 4," in text
    assert "About 10 % of honest clients exceed it by chance." in text, "as the run's configuration promises"


def test_the_table_has_every_client_the_worst_first(tmp_path: Path) -> None:
    _, page = page_of(write_assessed_run(tmp_path / "run"))
    assert page.rows[:4] == [
        ["Name", "Samples", "Invited", "Score", "Verdict", "Evidence"],
        ["Eastgate", "310", "2", "9.41", "harmful", RANDOM],
        ["Northside", "280", "4", "11.20", "suspect", UNITS],
        ["Holm", "1,250", "3", "0.90", "different", "inputs: unlike the reference's"],
    ]


def test_cards_count_the_clients_of_each_verdict(tmp_path: Path) -> None:
    text, _ = page_of(write_assessed_run(tmp_path / "run", [*HOSPITALS, Client(name="Essen")]))
    counted = dict(re.findall(r"<h3>(\w[\w ]+)</h3><p class=\"value\">(\d)</p>", text))
    assert counted == {"Harmful": "1", "Suspect": "1", "Different": "1", "Cannot tell": "1", "Fine": "2", "Rounds": "4"}


def test_the_picture_has_a_dot_a_client_in_the_colour_of_its_verdict(tmp_path: Path) -> None:
    _, page = page_of(write_assessed_run(tmp_path / "run"))
    figure = page.figures[0]
    dots = {trace["name"]: numbers(trace["x"]) for trace in figure["data"]}
    assert dots == {"harmful": [9.41], "suspect": [11.2], "different": [0.9], "fine": [0.31]}
    assert figure["layout"]["yaxis"]["ticktext"] == ["Eastgate", "Northside", "Holm", "St Mary"], "as in the table"
    assert len({trace["marker"]["color"] for trace in figure["data"]}) == 4
    assert [line["x0"] for line in figure["layout"]["shapes"]] == [1], "the alarm threshold"


def test_what_a_kept_client_was_kept_from_is_in_the_report(tmp_path: Path) -> None:
    _, page = page_of(write_assessed_run(tmp_path / "run", actions=[(3, "keep", UNITS)]))
    assert ["4", "Northside", "kept by quality.keep", UNITS] in page.rows


def test_many_clients_are_all_there_to_be_found(tmp_path: Path) -> None:
    many = [Client(name=f"ward {number}", score=number / 100) for number in range(99)]
    text, page = page_of(write_assessed_run(tmp_path / "run", [*many, HOSPITALS[1]]))
    assert sum(row[0].startswith("ward") for row in page.rows if row) == 99
    assert text.count("<tr data-folded>") == 75, "which the page shows when they are searched for, or all are wanted"
    assert "Show all 100" in text
    worst_first = [y for trace in page.figures[0]["data"] for y in numbers(trace["y"])]
    assert len(worst_first) == 100
    np.testing.assert_allclose(max(worst_first), 9.41)


def test_what_the_policy_did_has_its_reason(tmp_path: Path) -> None:
    run = write_assessed_run(tmp_path / "run", actions=[(1, "exclude", f"harmful: {RANDOM}")])
    assert ["4", "Eastgate", "excluded", f"harmful: {RANDOM}"] in page_of(run)[1].rows


def test_rejected_replies_have_names(tmp_path: Path) -> None:
    rows = page_of(write_assessed_run(tmp_path / "run"))[1].rows
    assert ["the update is not finite", "Tiny", "fedavg", "0", "1", "1"] in rows


def test_several_runs_show_who_looks_bad_after_how_they_compare(tmp_path: Path) -> None:
    fine = [Client(name="St Mary"), Client(name="Holm")]
    runs = [write_assessed_run(tmp_path / "a"), write_assessed_run(tmp_path / "b", fine, accuracy=0.4)]
    text, page = page_of(*runs)
    assert page.headings.index("Summary") < page.headings.index("Clients")
    assert ["Eastgate", "310", "2", "9.41", "harmful", RANDOM] in page.rows
    assert not any(row[:1] == ["Holm"] for row in page.rows), "of several runs only who looks bad is named"
    assert text.count("2 of 5 clients look bad: ") == 1


def test_no_name_and_no_evidence_becomes_markup(tmp_path: Path) -> None:
    attack = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    clients = [Client(name=attack, verdict="suspect", evidence=attack, score=3.0), Client(name="x", verdict=attack)]
    text, _ = page_of(write_assessed_run(tmp_path / "run", clients, actions=[(0, attack, attack)]))
    assert "<script>alert" not in text
    assert "<img src=x" not in text


def test_without_an_assessment_there_is_no_section(tmp_path: Path) -> None:
    _, page = page_of(write_assessed_run(tmp_path / "run", assessed=False))
    assert "Clients" not in page.headings
