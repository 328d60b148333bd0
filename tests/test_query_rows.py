"""Rows as they are, and the nearest ones: the right ones, sealed for who asks, and nobody sees whose they were."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as arrow
import pytest

from query_tables import DECLARATION, divided, nearest_statement, pooled_answer, pooled_rows, spatial, terms_of
from statistics_tables import recorded
from winnow.analytics.program import Mix, run_plain
from winnow.analytics.question import Answer, merge_terms, read_question
from winnow.analytics.sealed_answer import opened_answer, with_reader
from winnow.analytics.simulate import ask_owners
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.core import ConfigError, RunError
from winnow.privacy.mixing.mix_party import MixParty, MixStep
from winnow.privacy.mixing.sealed_boxes import OVERHEAD, open_box, seal_box
from winnow.privacy.mixing.sealed_rows import box_bytes, open_row, sealed_rows
from winnow.privacy.secagg.errors import ProtocolError
from winnow.privacy.secagg.key_agreement import KeyPair
from winnow.privacy.shares.errors import SharesError

ROWS = pooled_rows(1200, seed=3)
KEYS = ("age", "cost", "x", "day", "well", "x * y", "age - cost")
SHOWN = ("age", "cost", "ward", "outcome", "day", "well", "x + 1", "UPPER(note)")
CONDITIONS = ("age > 40", "ward = 'cardiac'", "x > y", "patient <> 'p7'", "outcome IS NULL", "well AND cost < 9000")


def answered(sql: str, tables: list[OwnerTable], rows: int = 50, minimum: int = 10, shares: bool = False) -> Answer:
    question, reader = with_reader(read_question({"kind": "query", "sql": sql}))
    terms = terms_of(len(tables), minimum, rows=rows)
    if shares:
        return opened_answer(ask_owners(question, dict(zip(terms, tables, strict=True)), terms), reader)
    return opened_answer(run_plain(lambda: question.program(merge_terms(question, terms)), tables), reader)


def random_rows_statement(rng: np.random.Generator) -> tuple[str, str]:
    """A statement, and the same without LIMIT and with what it sorts by."""
    shown = [str(each) for each in rng.choice(SHOWN, rng.integers(1, 4), replace=False)]
    order = [str(each) for each in rng.choice(KEYS, rng.integers(1, 3), replace=False)]
    if rng.random() < 0.4:
        order[0] = spatial(rng)
    directions = [f"{each} {rng.choice(['', 'DESC', 'NULLS FIRST', 'DESC NULLS FIRST'])}" for each in order]
    where = f" WHERE {rng.choice(CONDITIONS)}" if rng.random() < 0.6 else ""
    tail = f"FROM stays{where} ORDER BY {', '.join(directions)}"
    return f"SELECT {', '.join(shown)} {tail} LIMIT {rng.integers(1, 40)}", f"SELECT {', '.join(shown + order)} {tail}"


def check_rows(seed: int) -> None:
    """The rows that are shown are DuckDB's first ones; where keys are equal, any of those rows will do."""
    rng = np.random.default_rng(seed)
    sql, whole = random_rows_statement(rng)
    answer = answered(sql, divided(ROWS, int(rng.integers(1, 6)), seed), minimum=1)
    pooled, limit = pooled_answer(nearest_statement(whole), ROWS), int(sql.rpartition(" ")[2])
    width = len(answer["columns"])
    told = [tuple(row.values()) for row in answer["rows"]]
    assert len(told) == min(limit, len(pooled)), sql
    assert answer["more_rows"] == (len(pooled) > limit), sql
    beyond = pooled[limit - 1][width:] if len(pooled) >= limit else None
    certain = [row for row in pooled[:limit] if row[width:] != beyond]
    for place, row in enumerate(certain):
        equals = [each[:width] for each in certain if each[width:] == row[width:]]
        assert told[place] in [tuple(map(plain, each)) for each in equals], (sql, place)
    ties = [tuple(map(plain, each[:width])) for each in pooled if each[width:] == beyond]
    assert all(row in ties for row in told[len(certain) :]), sql


def plain(value: Any) -> Any:
    return value.isoformat(sep=" ") if hasattr(value, "isoformat") else value


@pytest.mark.parametrize("seed", range(10))
def test_random_statements_show_the_rows_that_duckdb_does(seed: int) -> None:
    check_rows(seed)


@pytest.mark.slow(part="science")
def test_three_hundred_random_statements_show_the_rows_that_duckdb_does() -> None:
    for seed in range(100, 400):
        check_rows(seed)


def test_owners_who_mix_show_the_same_rows_in_their_order() -> None:
    sql = "SELECT cost, x FROM stays WHERE x IS NOT NULL ORDER BY DISTANCE(x, y, 1, 2) LIMIT 7"
    tables = divided(ROWS, 3, seed=5)
    assert answered(sql, tables, shares=True)["rows"] == answered(sql, tables)["rows"]


@pytest.mark.parametrize("owners", [1, 2, 3])
def test_numbers_about_the_nearest_are_about_exactly_those(owners: int) -> None:
    sql = (
        "SELECT COUNT(*) AS n, SUM(age) AS s, COUNT(*) FILTER (WHERE well) AS w FROM (SELECT * FROM stays "
        "WHERE x IS NOT NULL AND y IS NOT NULL ORDER BY DISTANCE(x, y, 2, 2) LIMIT 60)"
    )
    told = answered(sql, divided(ROWS, owners, seed=2), minimum=5, shares=owners == 3)["rows"]
    assert [tuple(row.values()) for row in told] == pooled_answer(nearest_statement(sql), ROWS)


def test_of_rows_that_are_equally_near_as_many_are_shown_as_asked_for() -> None:
    """All 90 rows are at the same place: the lot decides, and not by owner."""
    rows = arrow.table(
        {name: pooled_rows(90, seed=1, missing=0.0).column(name) for name in DECLARATION.columns}
        | {"x": np.zeros(90), "y": np.zeros(90), "age": np.arange(90)}
    )
    sql = "SELECT age FROM stays ORDER BY DISTANCE(x, y, 3, 4) LIMIT 30"
    shown = [row["age"] for row in answered(sql, divided(rows.select(list(DECLARATION.columns)), 3, seed=1))["rows"]]
    assert len({*shown}) == 30
    assert min(shown) < 30
    assert max(shown) >= 60


# What is hidden ------------------------------------------------------------------------------------------------------


def test_fewer_rows_than_the_minimum_are_not_shown_and_look_alike() -> None:
    """Nothing besides their being too few is opened, however many there are."""
    opened = []
    for age in (-1, 110):
        question, _ = with_reader(
            read_question({"kind": "query", "sql": f"SELECT age FROM stays WHERE age = {age} AND cost > 40000 LIMIT 1"})
        )
        terms, steps = merge_terms(question, terms_of(3, rows=50)), list[tuple[str, Any]]()
        answer = run_plain(lambda: recorded(question.program(terms), steps), divided(ROWS, 3, seed=1))  # noqa: B023
        assert answer["too_few_rows"]
        opened.append([(label, list(values)) for label, values in steps])
    assert opened[0] == opened[1]
    assert len(opened[0]) == 1


@pytest.mark.parametrize(
    ("sql", "line"),
    [
        (
            "SELECT patient FROM stays",
            "column 'patient' is private and cannot be shown; it may stand in WHERE (line 1)",
        ),
        ("SELECT age FROM stays ORDER BY\npatient", "column 'patient' is private and cannot be sorted by; it may"),
        (
            "SELECT age FROM stays ORDER BY note",
            "ORDER BY note: rows of several owners can be sorted by numbers, dates",
        ),
        ("SELECT age FROM stays LIMIT 3 OFFSET 2", "OFFSET over rows is not supported; choose rows by WHERE (line 1)"),
        ("SELECT age FROM stays ORDER BY 2", "ORDER BY 2: SELECT has 1 columns (line 1)"),
        ("SELECT SUM(age) FROM (SELECT age FROM stays LIMIT 20)", "LIMIT in a subquery needs ORDER BY: without it"),
        (
            "SELECT SUM(age) FROM (SELECT * FROM stays ORDER BY age LIMIT 20)\nWHERE well",
            "WHERE beside a subquery with LIMIT is not supported; write it into the subquery",
        ),
        (
            "SELECT SUM(age) FROM (SELECT * FROM stays ORDER BY age LIMIT 9)",
            "LIMIT 9 in a subquery: no number is told about fewer than 10 rows, the owners' minimum",
        ),
    ],
)
def test_what_cannot_be_shown_or_sorted_is_refused_by_name(sql: str, line: str) -> None:
    question, _ = with_reader(read_question({"kind": "query", "sql": sql, "table": "stays"}))
    with pytest.raises(ConfigError) as refused:
        next(question.program(merge_terms(question, terms_of(3, rows=50))))
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_rules_decide_about_rows_and_neighbours() -> None:
    near = read_question({"kind": "query", "sql": "SELECT age FROM stays ORDER BY KM(x, y, 0, 0) LIMIT 3"})
    with pytest.raises(ConfigError, match="owner 0 shows no rows of table 'stays'; ask for COUNT, SUM"):
        merge_terms(near, terms_of(3))
    with pytest.raises(ConfigError, match="owner 0 forbids nearest on table 'stays'"):
        merge_terms(near, terms_of(3, rows=5, allow=("aggregate",)))
    terms = terms_of(3, rows=5)
    terms["owner 1"] = terms["owner 1"].model_copy(update={"rows": 2})
    assert merge_terms(near, terms).rows == 2
    assert len(answered("SELECT age FROM stays ORDER BY age LIMIT 9", divided(ROWS, 3, seed=1), rows=2)["rows"]) == 2
    most = read_question({"kind": "query", "sql": "SELECT AVG(x) FROM (SELECT * FROM stays ORDER BY age LIMIT 20)"})
    assert most.needs() == {"aggregate", "extremes"}


def test_no_row_can_be_read_by_anybody_but_who_asked() -> None:
    question, reader = with_reader(read_question({"kind": "query", "sql": "SELECT ward, cost FROM stays LIMIT 12"}))
    terms, tables = terms_of(3, rows=12), divided(ROWS, 3, seed=1)
    sealed = ask_owners(question, dict(zip(terms, tables, strict=True)), terms)
    assert reader is not None
    assert "cardiac" not in str(sealed)
    assert len(opened_answer(sealed, reader)["rows"]) == 12
    assert len({len(box) for box in sealed["sealed"]}) == 1
    assert len(sealed["sealed"]) == 3 * 12
    for wrong in (
        lambda told: told | {"sealed": [*told["sealed"][:-1], "AAAA"]},
        lambda told: told | {"sealed": 5},
        lambda told: told | {"columns": ["one"]},
    ):
        with pytest.raises(RunError, match=r"^the answer's rows cannot be opened: [^\n]*$"):
            opened_answer(wrong(sealed), reader)
    with pytest.raises(RunError, match="the answer's rows cannot be opened"):
        opened_answer(sealed, KeyPair())


# Mixing --------------------------------------------------------------------------------------------------------------

READER = KeyPair()
SIZE, SLOTS = 24, 4


def step_of(owners: int, helper: int | None = None) -> MixStep:
    return MixStep(digest=b"d" * 32, owners=tuple(range(owners)), helper=helper, slots=SLOTS, width=box_bytes(SIZE))


def rows_of(owner: int) -> list[bytes]:
    return [f"row {place} of {owner}".encode() for place in range(owner % (SLOTS + 1))]


def parties_of(step: MixStep) -> dict[int, MixParty]:
    boxes = {owner: sealed_rows(rows_of(owner), SLOTS, SIZE, READER.public) for owner in step.owners}
    return {each: MixParty(step, each, boxes.get(each, [])) for each in step.everybody}


Carry = Callable[[int, int, int, bytes], bytes | None]


def mixed(parties: Mapping[int, MixParty], carry: Carry = lambda exchange, sender, to, message: message) -> None:
    """Messages carried from party to party; `carry` may change or drop them."""
    letters = {sender: party.first_messages() for sender, party in parties.items()}
    for exchange in range(20):
        waiting: dict[int, dict[int, bytes]] = {}
        for sender, written in letters.items():
            for to, message in written.items():
                if (carried := carry(exchange, sender, to, message)) is not None:
                    waiting.setdefault(to, {})[sender] = carried
        if not waiting:
            return
        letters = {to: parties[to].receive(messages) for to, messages in waiting.items()}


@pytest.mark.parametrize("owners", [1, 2, 3, 7, 9])
def test_a_mix_has_everybodys_rows_and_nothing_else(owners: int) -> None:
    step = step_of(owners, helper=owners if owners == 2 else None)
    parties = parties_of(step)
    mixed(parties)
    opened = {party.opened.tobytes() for party in parties.values() if party.opened is not None}
    assert len(opened) == 1
    assert all(party.opened is not None for party in parties.values())
    boxes = parties[0].opened.reshape(owners * SLOTS, -1)  # type: ignore[union-attr]
    found = [row for box in boxes if (row := open_row(READER, box.tobytes())) is not None]
    assert sorted(found) == sorted(row for owner in range(owners) for row in rows_of(owner))


def test_the_place_of_a_box_says_nothing_of_its_owner() -> None:
    """On average, owner 0's boxes are in the middle: within four standard errors over 15 mixes."""
    step, places = step_of(3), list[int]()
    for _ in range(15):
        parties = parties_of(step)
        own = {*parties[0]._own}
        mixed(parties)
        assert parties[0].opened is not None
        boxes = parties[0].opened.reshape(3 * SLOTS, -1)
        places += [place for place, box in enumerate(boxes) if box.tobytes() in own]
    spread = np.arange(3 * SLOTS).std()
    assert abs(np.mean(places) - (3 * SLOTS - 1) / 2) < 4 * spread / len(places) ** 0.5


def test_messages_have_one_length_however_many_rows_an_owner_has() -> None:
    lengths: dict[tuple[int, int], set[int]] = {}

    def carry(exchange: int, sender: int, to: int, message: bytes) -> bytes:
        lengths.setdefault((exchange, to), set()).add(len(message))
        return message

    mixed(parties_of(step_of(4)), carry)
    assert all(len(each) == 1 for each in lengths.values())


def flipped(message: bytes) -> bytes:
    return message[:-5] + bytes([message[-5] ^ 1]) + message[-4:]


@pytest.mark.parametrize(
    ("exchange", "sender", "to", "change", "line"),
    [
        (0, 1, 2, lambda message: b"\xc1", "its message cannot be read"),
        (0, 1, 2, lambda message: message.replace(b"d" * 32, b"e" * 32), "its message is about another step"),
        (0, 1, 2, lambda message: message[:-32] + bytes(32), "its key for the mix is not valid"),
        (1, 2, 0, lambda message: message[:-1], "its message cannot be read"),
        (1, 2, 0, flipped, "a box of its cannot be opened here"),
        (2, 0, 1, flipped, "a box of its cannot be opened here"),
        (
            4,
            2,
            1,
            lambda message: message[:-999] + bytes(999),
            "boxes were left out, repeated or replaced on their way: a mixer lied",
        ),
    ],
)
def test_a_liar_in_a_mix_ends_it_with_one_line(
    exchange: int, sender: int, to: int, change: Callable[[bytes], bytes], line: str
) -> None:
    def carry(now: int, by: int, for_: int, message: bytes) -> bytes:
        return change(message) if (now, by, for_) == (exchange, sender, to) else message

    with pytest.raises(SharesError) as refused:
        mixed(parties_of(step_of(3)), carry)
    assert line in str(refused.value)


@pytest.mark.parametrize("lie", ["repeat", "replace"])
def test_no_mixer_repeats_or_replaces_a_box(lie: str) -> None:
    """The last mixer does so to more boxes than it has: one of the others finds its own missing."""
    step = step_of(3)
    parties = parties_of(step)
    liar = parties[2]
    honest = liar._mixed

    def lying() -> dict[int, bytes]:
        assert liar._key is not None
        boxes = liar._gathered[1]
        for place in range(SLOTS + 1):
            fake = seal_box(READER.public, b"\1" + bytes(SIZE), b"")
            boxes[place] = boxes[-1] if lie == "repeat" else seal_box(liar._key.public, fake, step.digest)
        liar._own = []
        return honest()

    liar._mixed = lying  # type: ignore[method-assign]
    with pytest.raises(SharesError, match=r"a mixer lied|cannot be opened"):
        mixed(parties)


def test_a_message_out_of_order_or_of_a_stranger_is_refused() -> None:
    parties = parties_of(step_of(3))
    key = parties[1].first_messages()[0]
    parties[0].first_messages()
    parties[0].receive({1: key})
    with pytest.raises(SharesError, match="its message is out of order"):
        parties[0].receive({1: key})
    with pytest.raises(SharesError, match="its message is out of order"):
        parties[2].receive({9: key})


@pytest.mark.slow(part="science")
def test_whatever_is_written_over_a_mix_there_is_a_result_or_one_line() -> None:
    rng = np.random.default_rng(4)
    for _ in range(3000):
        target = (int(rng.integers(0, 5)), int(rng.integers(0, 3)))

        def carry(now: int, by: int, for_: int, message: bytes, target: tuple[int, int] = target) -> bytes | None:
            if (now, by) != target:
                return message
            garbled = bytearray(message)
            for _ in range(int(rng.integers(1, 6))):
                garbled[int(rng.integers(0, len(garbled)))] = int(rng.integers(0, 256))
            return bytes(garbled) if rng.random() < 0.8 else message[: int(rng.integers(0, len(message)))]

        with suppress(SharesError):
            mixed(parties_of(step_of(3)), carry)


def test_a_box_is_for_one_key_and_one_purpose() -> None:
    box = seal_box(READER.public, b"text", b"about")
    assert len(box) == len(b"text") + OVERHEAD
    assert open_box(READER, box, b"about") == b"text"
    for reader, sealed, about in ((KeyPair(), box, b"about"), (READER, box, b"other"), (READER, box[:20], b"about")):
        with pytest.raises(ProtocolError):
            open_box(reader, sealed, about)


def test_rows_that_do_not_fit_and_keys_that_are_none_are_refused() -> None:
    with pytest.raises(SharesError, match="this owner's rows do not fit the mix"):
        sealed_rows([b"x" * (SIZE + 1)], SLOTS, SIZE, READER.public)
    with pytest.raises(SharesError, match="no valid key for which rows could be sealed"):
        sealed_rows([b"x"], SLOTS, SIZE, bytes(32))
    with pytest.raises(SharesError, match="this owner's boxes do not fit the mix"):
        MixParty(step_of(3), 0, [b"x"])
    mix = Mix(label="rows", local=lambda table: [], slots=2, size=8, reader=b"")
    assert replace(mix, slots=3).length == 3 * mix.width
