"""Set intersection as a question: the same rules, terms and messages as any other, and liars among the owners."""

from typing import Any

import msgspec
import numpy as np
import pyarrow as arrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from winnow.analytics.intersect.intersect_question import IntersectQuestion, identifiers
from winnow.analytics.program import run_plain
from winnow.analytics.question import MergedTerms, QueryTerms, read_question
from winnow.analytics.simulate import ask_owners
from winnow.analytics.tables.declaration import TableDeclaration
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.core import ConfigError, WinnowError
from winnow.privacy.set_intersection.match_party import MatchParty, MatchStep
from winnow.privacy.shares.errors import SharesError

DECLARATION = TableDeclaration.model_validate(
    {"columns": {"patient": {"level": "private", "key": True, "type": "text"}, "ward": "public"}}
)


def table(keys: list[str | None]) -> OwnerTable:
    rows = {"patient": arrow.array(keys, arrow.string()), "ward": arrow.array(["a"] * len(keys), arrow.string())}
    return OwnerTable(DECLARATION, arrow.table(rows))


def terms(minimum: int = 2, allow: tuple[Any, ...] = ("match",)) -> QueryTerms:
    return QueryTerms(declaration=DECLARATION, minimum=minimum, allow=allow)


def ask(lists: dict[str, list[Any]], minimum: int = 2, **question: Any) -> dict[str, Any]:
    asked = IntersectQuestion(table="stays", key="patient", **question)
    return ask_owners(asked, {name: table(keys) for name, keys in lists.items()}, dict.fromkeys(lists, terms(minimum)))


NORTH, SOUTH, EAST = ([f"p{i}" for i in range(start, start + 30)] for start in (0, 12, 20))
LISTS = {"north": NORTH, "south": SOUTH, "east": EAST}


@pytest.mark.parametrize(
    ("question", "size"),
    [
        ({}, 10),
        ({"between": ("north", "south")}, 18),
        ({"between": ("east", "south")}, 22),
        ({"between": ("south", "north"), "reveal": "size"}, 18),
        ({"between": ("east", "north", "south"), "share": True}, 10),
    ],
)
def test_everybody_learns_how_many_are_in_common(question: dict[str, Any], size: int) -> None:
    answer = ask(LISTS, **question)
    assert answer["size"] == size
    merged = MergedTerms(declaration=DECLARATION, minimum=2, owners=tuple(LISTS))
    asked = IntersectQuestion(table="stays", key="patient", **question)
    assert run_plain(lambda: asked.program(merged), [table(keys) for keys in LISTS.values()]) == answer


def test_fewer_than_the_minimum_are_not_told() -> None:
    answer = ask({"north": NORTH, "south": SOUTH}, minimum=19)
    assert answer["size"] is None
    assert answer["minimum"] == 19
    assert ask({"north": ["a"], "south": ["b"]})["size"] is None


def test_blank_keys_are_none_and_repeated_ones_count_once() -> None:
    keys = ["a", "a", None, "", "b", "c"]
    assert identifiers(table(keys), "patient") == ["a", "b", "c"]
    assert ask({"north": keys, "south": [None, "", "c", "a", "a"]})["size"] == 2


def step(**settings: Any) -> MatchStep:
    given = {
        "digest": b"d",
        "everybody": (0, 1, 2),
        "parties": (0, 1),
        "reveal": "intersection",
        "share": True,
        "minimum": 2,
    }
    return MatchStep(**{**given, **settings})


def deliver(parties: dict[int, MatchParty]) -> list[tuple[int, int, bytes]]:
    """Carry messages until there are none; who wrote what to whom."""
    seen, written = [], {number: party.first_messages() for number, party in parties.items()}
    while any(written.values()):
        seen += [(sender, to, message) for sender, messages in written.items() for to, message in messages.items()]
        inbox = {to: {s: ls[to] for s, ls in written.items() if to in ls} for to in parties}
        written = {to: parties[to].receive(messages) for to, messages in inbox.items() if messages}
    return seen


keys = st.lists(st.text(alphabet="abcdefgh", min_size=1, max_size=2), max_size=12)


@settings(max_examples=15, deadline=None)
@given(lists=st.tuples(keys, keys, keys), share=st.booleans(), count=st.sampled_from([2, 3]))
def test_parties_learn_what_they_may(lists: tuple[list[str], ...], share: bool, count: int) -> None:
    asked = step(parties=tuple(range(count)), share=share)
    parties = {number: MatchParty(asked, number, own) for number, own in enumerate(lists)}
    seen = deliver(parties)
    common = sorted(set.intersection(*({*own} for own in lists[:count])))
    enough = len(common) >= 2
    for number, party in parties.items():
        assert party.opened is not None
        assert party.opened.tolist() == [int(enough), len(common) if enough else 0]
        knows = enough and (number == 0 or (share and number < count))
        assert (sorted(party.common) if party.common is not None else None) == (common if knows else None)
    for _, to, message in seen:
        if to == 2 and count == 2:
            assert len(message) < 40  # an owner that does not match hears the size and nothing else


def test_the_server_sees_messages_of_the_same_lengths_whatever_is_in_common() -> None:
    other = [f"q{i}" for i in range(30)]
    for share in (False, True):
        lengths = []
        for own in (NORTH, SOUTH, other):
            parties = {n: MatchParty(step(share=share, minimum=1), n, each) for n, each in enumerate([NORTH, own, []])}
            lengths.append([len(message) for _, _, message in deliver(parties)][:2])
        assert lengths[0] == lengths[1] == lengths[2]


def message(kind: str, body: bytes, digest: bytes = b"d") -> bytes:
    return msgspec.msgpack.encode([digest, kind, body])


LIES = {
    "garbage": b"\xff\x00",
    "another step": message("request", b"", b"e"),
    "no request": message("request", b"\x00"),
    "an answer that nobody asked for": message("answer", b""),
    "a result of nothing": message("result", b""),
    "too small a result": message("result", msgspec.msgpack.encode([1, b""])),
    "a negative result": message("result", msgspec.msgpack.encode([-5, b""])),
    "foreign identifiers": message(
        "result", msgspec.msgpack.encode([2, (9).to_bytes(8) + msgspec.msgpack.encode(["x1", "y12"]) + b"\0" * 9])
    ),
    "a list cut off": message("result", msgspec.msgpack.encode([2, (99).to_bytes(8) + b"\x90"])),
}


@pytest.mark.parametrize("lie", LIES)
def test_messages_that_are_not_in_order_are_refused_by_name(lie: str) -> None:
    party = MatchParty(step(), 1, SOUTH)
    party.first_messages()
    with pytest.raises(SharesError) as refused:
        party.receive({0: LIES[lie]})
    assert refused.value.party == 0
    assert "\n" not in str(refused.value)
    assert party.opened is None


def test_a_site_answers_one_question_and_only_the_asker() -> None:
    asker, party = MatchParty(step(), 0, NORTH), MatchParty(step(), 1, SOUTH)
    (request,) = asker.first_messages().values()
    with pytest.raises(SharesError, match="out of order"):
        party.receive({2: request})
    party.receive({0: request})
    with pytest.raises(SharesError, match="out of order"):
        party.receive({0: request})


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        ({"key": "ward"}, "'ward' is not a key at every owner"),
        ({"key": "patiant"}, "no column 'patiant'; did you mean 'patient'"),
        ({"key": "patient", "between": ["north", "west"]}, "no owner 'west'"),
        ({"key": "patient", "reveal": "size"}, "takes two owners, not 3"),
    ],
)
def test_questions_that_make_no_sense_get_one_line(question: dict[str, Any], reason: str) -> None:
    asked = read_question({"kind": "intersect", "table": "stays", **question})
    with pytest.raises(WinnowError, match=reason):
        ask_owners(asked, {name: table(keys) for name, keys in LISTS.items()}, dict.fromkeys(LISTS, terms()))


@pytest.mark.parametrize(
    "wrong",
    [{"between": ["a"]}, {"between": ["a", "a"]}, {"reveal": "size", "share": True}, {"epsilon": 1.0}, {"reveal": "x"}],
)
def test_sections_that_contradict_themselves_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"\[question\]"):
        read_question({"kind": "intersect", "table": "stays", "key": "patient", **wrong})


def test_an_owner_that_does_not_allow_matching_is_named() -> None:
    asked = IntersectQuestion(table="stays", key="patient")
    refusing = {**dict.fromkeys(LISTS, terms()), "south": terms(allow=("statistics",))}
    with pytest.raises(WinnowError, match="south forbids match"):
        ask_owners(asked, {name: table(keys) for name, keys in LISTS.items()}, refusing)


def test_whole_numbers_are_keys_however_they_are_stored() -> None:
    numbers = OwnerTable(
        TableDeclaration.model_validate({"columns": {"id": {"level": "private", "key": True}}}),
        arrow.table({"id": arrow.array(np.array([7.0, 8.5, np.nan]), from_pandas=True)}),
    )
    assert identifiers(numbers, "id") == ["7", "8.5"]
