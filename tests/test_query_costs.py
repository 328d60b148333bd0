"""What `--explain` says that a statement costs is what it costs, and what is left of a budget is what is told."""

import json
from pathlib import Path

import pytest
from pyarrow import csv

from command_line import call
from query_tables import divided, pooled_rows, terms_of
from winnow.analytics.budget_question import BudgetQuestion
from winnow.analytics.explain_question import likely_steps
from winnow.analytics.program import Step, run_plain
from winnow.analytics.question import EpsilonLeft, merge_terms, read_question
from winnow.analytics.simulate import ask_owners, noted, planned_steps
from winnow.analytics.step_costs import costs_of
from winnow.core import AnyEvent, RoundFinished

ROWS = pooled_rows(400, seed=3)
STATEMENTS = {
    2: "SELECT outcome, COUNT(*) AS n, AVG(cost) AS c FROM stays WHERE age >= 30 GROUP BY outcome",
    3: "SELECT ward, SUM(age) AS s FROM stays GROUP BY ward",
    5: "SELECT COUNT(*) FILTER (WHERE well) AS n, MAX(age) AS m FROM stays",
    8: "SELECT well, CORR(x, y) AS r FROM stays GROUP BY well",
}
FILE = """
[tables.stays]
file = "stays.csv"
owner = "note"
[tables.stays.columns]
age = { level = "protected", type = "integer", bounds = [0, 110] }
outcome = { level = "protected", values = ["home", "moved", "died"] }
"""


@pytest.fixture
def federation(tmp_path: Path) -> Path:
    owners = ["north" if place % 3 else "south" for place in range(len(ROWS))]
    csv.write_csv(ROWS.set_column(ROWS.column_names.index("note"), "note", [owners]), tmp_path / "stays.csv")
    path = tmp_path / "federation.toml"
    path.write_text(FILE)
    return path


@pytest.mark.parametrize("owners", STATEMENTS)
def test_exchanges_and_bytes_are_those_that_a_run_counts(owners: int) -> None:
    question, terms = read_question({"kind": "query", "sql": STATEMENTS[owners]}), terms_of(owners)
    tables, events = dict(zip(terms, divided(ROWS, owners, seed=2), strict=True)), list[AnyEvent]()
    ask_owners(question, tables, terms, on_event=events.append)
    steps = [event for event in events if isinstance(event, RoundFinished)]
    merged, planned = merge_terms(question, terms), list[Step]()
    run_plain(lambda: noted(question.program(merged), planned), list(tables.values()))
    told = costs_of(planned, owners)
    assert told.exchanges == pytest.approx(sum(event.metrics["messages"]["exchanges"] for event in steps), rel=0.2)
    assert told.sent_bytes == pytest.approx(sum(event.cost.sent_bytes for event in steps), rel=0.2)


def test_costs_are_explained_before_and_counted_after(federation: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sql = "SELECT outcome, COUNT(*) AS n FROM stays GROUP BY outcome"
    explained = call(capsys, "query", "--explain", sql, "--in", federation)
    last = explained.out.splitlines()[-1]
    assert last.startswith("Costs: about ")
    done = call(capsys, "query", sql, "--in", federation)
    counted = done.err.splitlines()[-1]
    assert counted.startswith("2 owners, ")
    assert counted.split(", ")[1] == last.removeprefix("Costs: about ").split(", ")[0]
    _, steps = planned_steps(read_question({"kind": "query", "sql": sql}), federation)
    assert f"{costs_of(steps, 2).exchanges} exchanges" in last


def test_costs_that_depend_on_what_is_opened_are_at_least_something() -> None:
    question = read_question({"kind": "query", "sql": STATEMENTS[2]})
    steps, complete = likely_steps(question, merge_terms(question, terms_of(3)))
    assert complete
    assert len(steps) >= 4
    told = read_question({"kind": "query", "sql": STATEMENTS[2], "explain": True})
    answer = run_plain(lambda: told.program(merge_terms(told, terms_of(3))), [])
    assert answer["rows"] == []
    assert answer["costs"].startswith("Costs: about ")


def test_a_budget_is_told_by_owner_and_nothing_is_opened() -> None:
    question = BudgetQuestion(table="stays")
    terms = terms_of(2, noise_needed=True, noise_delta=1e-6)
    left = EpsilonLeft(left=1.29, epsilon=4.0, delta=1e-6)
    terms["owner 1"] = terms["owner 1"].model_copy(update={"budget": left})
    answer = run_plain(lambda: question.program(merge_terms(question, terms)), [])
    assert answer["budgets"] == [
        {"owner": "owner 0"},
        {"owner": "owner 1", "left": 1.29, "epsilon": 4.0, "delta": 1e-6},
    ]


def test_simulated_owners_tell_the_budget_of_their_rule(federation: Path, capsys: pytest.CaptureFixture[str]) -> None:
    federation.write_text(FILE + "[[queries]]\nnoise = { epsilon = 4.0 }\n")
    done = call(capsys, "query", "budget", "--in", federation, "--json")
    told = json.loads(done.out)
    assert [each["owner"] for each in told] == ["north", "south"]
    assert {(each["left"], each["epsilon"]) for each in told} == {(4.0, 4.0)}
    assert "4 of 4" in call(capsys, "query", "budget", "--in", federation).out
