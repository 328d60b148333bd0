"""Truth discovery as a question to owners of a table, and the ranking of participants by trust."""

import json
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from crowd import made_up, made_up_numbers
from winnow.analytics.agreement import Agreement, Statement
from winnow.analytics.answers import answer_errors, render_answer, write_answer_page
from winnow.analytics.explain_question import explain_question
from winnow.analytics.program import Compare, Program, run_plain
from winnow.analytics.program_run import ProgramRun
from winnow.analytics.question import MergedTerms, QueryTerms, read_question
from winnow.analytics.simulate import ask_owners
from winnow.analytics.tables.declaration import TableDeclaration
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.analytics.truth.answer_arrays import AnswerArrays
from winnow.analytics.truth.ranking_simulation import rank_participants
from winnow.analytics.truth.trust_ranking import sort_by_comparisons
from winnow.analytics.truth.truth_methods import METHODS
from winnow.analytics.truth.truth_question import TruthQuestion, _Owner
from winnow.analytics.truth.truth_report import TruthReport
from winnow.analytics.truth.truth_vectors import discover_plainly
from winnow.core import ConfigError, DataError, RunError

OWNERS = ("north", "south", "east")


def declaration(items: int, classes: int) -> TableDeclaration:
    label: dict[str, Any] = {"values": [f"l{k}" for k in range(classes)]} if classes else {"bounds": [-1, 1]}
    return TableDeclaration.model_validate(
        {
            "columns": {
                "item": {"level": "public", "values": [f"q{k}" for k in range(items)]},
                "worker": {"level": "private", "type": "text"},
                "label": {"level": "protected", **label},
            }
        }
    )


def tables(crowd: AnswerArrays) -> dict[str, OwnerTable]:
    """Workers by turns at three owners; an item that is not listed, and one without an answer, are no answers."""
    found = {}
    for place, name in enumerate(OWNERS):
        own = np.flatnonzero(crowd.workers % len(OWNERS) == place)
        labels = [f"l{k}" for k in crowd.labels[own]] if crowd.classes else crowd.values[own].tolist()
        rows = {
            "item": arrow.array([*(f"q{k}" for k in crowd.items[own]), "elsewhere", "q0"], arrow.string()),
            "worker": arrow.array([*(f"w{k}" for k in crowd.workers[own]), "w0", "w99"], arrow.string()),
            "label": arrow.array([*labels, labels[0], None]),
        }
        found[name] = OwnerTable(declaration(crowd.item_count, crowd.classes), arrow.table(rows))
    return found


def ask(owned: dict[str, OwnerTable], minimum: int = 1, **question: Any) -> dict[str, Any]:
    asked = TruthQuestion(table="answers", **{"worker": "worker", **question})
    allow = ("truth", "per-owner")
    terms = {
        name: QueryTerms(declaration=each.declaration, minimum=minimum, allow=allow) for name, each in owned.items()
    }
    return ask_owners(asked, owned, terms)


@pytest.mark.parametrize(("method", "classes"), [("logistic", 2), ("sum", 3), ("dawid-skene", 3), ("crh", 0)])
def test_owners_with_several_workers_find_what_somebody_who_sees_all_answers_finds(method: str, classes: int) -> None:
    crowd = made_up(workers=8, items=25, classes=classes) if classes else made_up_numbers(workers=8, items=25)
    answer = ask(tables(crowd), method=method, iterations=4)
    plain = discover_plainly(METHODS[method], crowd, 4)
    assert [each["item"] for each in answer["items"]] == [f"q{k}" for k in range(25)]
    if not classes:
        assert np.allclose([each["truth"] for each in answer["items"]], plain.confidence[:, 0], atol=1e-6)
        return
    by_label = np.hstack([1 - plain.confidence, plain.confidence]) if classes == 2 else plain.confidence
    assert [each["truth"] for each in answer["items"]] == [f"l{k}" for k in by_label.argmax(axis=1)]
    assert np.allclose([each["confidence"] for each in answer["items"]], by_label.max(axis=1), atol=1e-6)


def test_items_with_fewer_answers_than_the_owners_demand_are_left_out_of_everything() -> None:
    crowd = made_up(workers=8, items=25, share=0.5)
    counts = np.bincount(crowd.items, minlength=25)
    minimum = int(np.median(counts))
    answer = ask(tables(crowd), minimum=minimum)
    known = [each["truth"] is not None for each in answer["items"]]
    assert known == (counts >= minimum).tolist()
    assert 0 < sum(known) < 25
    kept = np.isin(crowd.items, np.flatnonzero(known))
    numbers = np.cumsum(known) - 1
    left = AnswerArrays(
        items=numbers[crowd.items[kept]],
        workers=crowd.workers[kept],
        values=crowd.values[kept],
        item_count=sum(known),
        worker_count=8,
        classes=2,
    )
    sure = discover_plainly(METHODS["logistic"], left, 10).confidence[:, 0]
    told = [each["confidence"] for each in answer["items"] if each["truth"] is not None]
    assert np.allclose(told, np.maximum(sure, 1 - sure), atol=1e-6)
    nothing = ask(tables(crowd), minimum=100, ranking=True)
    assert {each["truth"] for each in nothing["items"]} == {None}


def test_an_owners_trust_is_told_if_all_allow_it_and_the_ranking_without() -> None:
    crowd = made_up(workers=9, items=40, classes=2, seed=5)
    owned = tables(crowd)
    answer = ask(owned, ranking=True, trust=True)
    sure = discover_plainly(METHODS["logistic"], crowd, 10).confidence[:, 0]
    of_answers = np.where(crowd.labels == 1, sure[crowd.items], 1 - sure[crowd.items])  # equation 13
    own = [float(of_answers[crowd.workers % 3 == place].mean()) for place in range(3)]
    assert [each["trust"] for each in answer["participants"]] == pytest.approx(own, abs=1e-6)
    ranks = [each["rank"] for each in answer["participants"]]
    assert ranks == [1 + sum(other > trust for other in own) for trust in own]
    ranked = ask(owned, ranking=True)
    assert ranked["participants"] == [
        {"worker": name, "trust": None, "rank": rank} for name, rank in zip(OWNERS, ranks, strict=True)
    ]
    question = TruthQuestion(table="answers", trust=True)
    assert question.needs() == {"truth", "per-owner"}


def test_of_two_answers_to_an_item_a_workers_first_counts_and_without_workers_an_owners_first() -> None:
    crowd = made_up(workers=6, items=10)
    once = tables(crowd)
    rows = {name: arrow.concat_tables([each.rows, each.rows.take([3, 2, 1])]) for name, each in once.items()}
    twice = {name: OwnerTable(each.declaration, rows[name]) for name, each in once.items()}
    assert ask(twice) == ask(once)
    alone = ask(once, worker=None, method="sum", iterations=1)
    first: dict[tuple[int, int], int] = {}
    for item, worker, label in zip(crowd.items, crowd.workers, crowd.labels, strict=True):
        first.setdefault((int(item), int(worker) % 3), int(label))
    for item in range(10):
        votes = [label for (answered, _), label in first.items() if answered == item]
        share = float(np.mean(votes))
        assert alone["items"][item]["confidence"] == pytest.approx(max(share, 1 - share), abs=1e-6)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"item": "worker"}, "item, label and worker are different columns"),
        ({"method": "mean"}, r"method.*must be one of logistic, sum"),
        ({"epsilon": 1.0}, "a truth discovery opens exact sums; it takes no epsilon"),
    ],
)
def test_a_question_with_a_mistake_is_refused(change: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        read_question({"kind": "truth", "table": "answers", "worker": "worker", **change})


@pytest.mark.parametrize(
    ("column", "change", "asked", "line"),
    [
        ("item", {"level": "public"}, {}, "all owners have to list the items: values = "),
        ("item", {"level": "private", "values": ["a"]}, {}, "column 'item' is private"),
        ("label", {"level": "public", "values": ["a"]}, {}, "has one value; answers take two or more"),
        ("label", {"level": "public", "type": "number"}, {"method": "crh"}, "declare bounds"),
        ("label", {"level": "public", "values": ["a", "b"]}, {"worker": "person"}, "there is no column 'person'"),
    ],
)
def test_a_declaration_that_does_not_do_is_named(
    column: str, change: dict[str, Any], asked: dict[str, Any], line: str
) -> None:
    columns = declaration(3, 2).model_dump(mode="json", exclude_none=True)["columns"]
    declared = TableDeclaration.model_validate({"columns": {**columns, column: change}})
    terms = MergedTerms(declaration=declared, minimum=1, owners=OWNERS)
    with pytest.raises(ConfigError, match=line):
        next(TruthQuestion(table="answers", **{"worker": "worker", **asked}).program(terms))


def opened_by(program: Program[Any], owned: Sequence[OwnerTable]) -> list[tuple[str, list[Any]]]:
    """What every step opens."""
    found: list[tuple[str, list[Any]]] = []

    def recorded() -> Program[Any]:
        step = next(program)
        try:
            while True:
                opened = yield step
                found.append((step.label, list(opened)))
                step = program.send(opened)
        except StopIteration as stop:
            return stop.value

    run_plain(recorded, owned)
    return found


def test_nothing_but_sums_of_all_owners_and_their_order_is_opened() -> None:
    crowd = made_up(workers=9, items=12)
    owned = [*tables(crowd).values()]
    merged = MergedTerms(declaration=owned[0].declaration, minimum=1, owners=OWNERS)
    question = TruthQuestion(table="answers", worker="worker", ranking=True, iterations=2)
    steps = opened_by(question.program(merged), owned)
    assert [label for label, _ in steps] == ["answers to each item", "iteration 1", "iteration 2", "ranking"]
    assert [len(opened) for _, opened in steps] == [12, 12, 12, 3]
    told = explain_question(question, merged)
    assert "ranking: compare 3 pairs of owners in shares; of each, only yes or no is opened" in told.steps
    assert told.complete


# Liars ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "classes"), [("logistic", 2), ("sum", 3), ("dawid-skene", 2), ("crh", 0)])
@pytest.mark.parametrize("number", [2**61, -(2**61)])
def test_an_owner_that_puts_absurd_numbers_in_spoils_the_answer_and_nothing_else(
    method: str, classes: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can: sums are not checked. But the others go on, and all numbers stay numbers."""
    owned = tables(made_up(workers=6, items=5, classes=classes) if classes else made_up_numbers(items=5))
    honest, lies = _Owner.added, list[int]()

    def lie(self: _Owner, table: OwnerTable) -> np.ndarray:
        told = honest(self, table)
        if OWNERS[table.place] != "south":
            return told
        lies.append(number)
        return np.full_like(told, number)

    monkeypatch.setattr(_Owner, "added", lie)
    answer = ask(owned, method=method, iterations=3, ranking=True)
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    assert sorted(each["rank"] for each in answer["participants"]) == [1, 2, 3]
    assert len(lies) == 3


@pytest.mark.parametrize("number", [2**61, -(2**61), 2 << 32])
def test_an_owner_that_claims_more_trust_than_there_is_is_named(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a weight of a training it would count for all others together."""
    owned = tables(made_up(workers=6, items=5))
    honest = _Owner.shown_trust

    def lie(self: _Owner, table: OwnerTable) -> np.ndarray:
        return np.array([number]) if OWNERS[table.place] == "south" else honest(self, table)

    monkeypatch.setattr(_Owner, "shown_trust", lie)
    with pytest.raises(
        DataError, match=r"^owner 'south' says that its trust is .*; with logistic it is at most 1: ask"
    ):
        ask(owned, trust=True)


def test_owners_who_compare_other_pairs_refuse_each_other() -> None:
    def digest(*pairs: tuple[int, int]) -> bytes:
        def program() -> Program[Any]:
            yield Compare(label="ranking", local=lambda _: np.zeros(1), thresholds=np.zeros(3, np.int64), pairs=pairs)

        owned = tables(made_up(workers=6, items=5))
        terms = QueryTerms(declaration=owned["north"].declaration, allow=("truth",)).model_dump_json()
        agreement = Agreement(
            question=TruthQuestion(table="answers"),
            submission="",
            statements=tuple(Statement(client=k, owner=name, terms=terms) for k, name in enumerate(owned)),
        )
        return agreement.secure_step(ProgramRun(program(), 3)).digest

    assert digest((0, 1), (0, 2), (1, 2)) == digest((0, 1), (0, 2), (1, 2))
    assert digest((0, 1), (0, 2), (1, 2)) != digest((1, 0), (0, 2), (1, 2))


def test_an_answer_that_a_server_made_up_is_shown_without_harm(tmp_path: Path) -> None:
    told = {"worker": "<b>\x1b[31mx", "trust": 0.5, "rank": 1}
    answer = {
        "kind": "truth",
        "table": "answers",
        "method": "logistic",
        "iterations": 1,
        "items": [{"item": "\x1b]0;x\x07<script>", "truth": "<script>", "confidence": 0.5}],
        "participants": [told],
    }
    shown = Console(file=StringIO(), record=True, width=100)
    shown.print(render_answer(answer))
    assert "\x1b" not in shown.export_text()
    page = write_answer_page(answer, tmp_path / "page.html").read_text()
    assert "<script>\x1b" not in page
    assert "&lt;script&gt;" in page
    for change in ({"items": 3}, {"participants": [{"worker": 1}]}, {"items": [{"item": "a", "confidence": "x"}]}):
        with pytest.raises(RunError, match="has not the shape"):
            render_answer({**answer, **change})
    with pytest.raises(RunError, match="has not the shape"):
        write_answer_page({**answer, "method": "\ud800"}, tmp_path / "page.html")  # no text that a file can hold
    with pytest.raises(RunError, match="has not the shape"), answer_errors():
        TruthReport({**answer, "participants": [None]}).write_csv(tmp_path)


@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.5000001, 0.9, 1.0]), min_size=2, max_size=60))
@settings(max_examples=60, deadline=None)
def test_a_sort_by_comparisons_ranks_as_sorting_does(trusts: list[float]) -> None:
    sort, order = sort_by_comparisons(len(trusts)), None
    pairs, asked = next(sort), list[tuple[int, int]]()
    while order is None:
        asked.extend(pairs)
        try:
            pairs = sort.send([trusts[first] >= trusts[second] for first, second in pairs])
        except StopIteration as stop:
            order = stop.value
    assert order == sorted(range(len(trusts)), key=lambda place: (-trusts[place], place))
    assert len({*asked}) == len(asked), "nothing is compared twice"


@given(st.lists(st.floats(-1, 20), min_size=3, max_size=9), st.data())
@settings(max_examples=6, deadline=None)
def test_participants_rank_themselves_in_shares_as_sorting_would(trusts: list[float], data: st.DataObject) -> None:
    tied = [data.draw(st.sampled_from(trusts)) for _ in trusts]
    for each in (trusts, tied):
        rounded = [round(trust * 2**24) for trust in each]
        assert rank_participants(each) == sorted(range(len(each)), key=lambda place: (-rounded[place], place))


@pytest.mark.slow(part="science")
@pytest.mark.parametrize("count", [17, 60, 150])
def test_many_participants_rank_themselves_in_shares(count: int) -> None:
    trusts = np.random.default_rng(count).random(count).round(2).tolist()
    assert rank_participants(trusts) == sorted(range(count), key=lambda place: (-trusts[place], place))
