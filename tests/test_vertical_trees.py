"""Trees over columns of two owners: those of the joined table, whatever the parties write to each other."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as arrow
import pytest

import winnow
from tree_rows import DECLARATION, grown, rows_of
from winnow.analytics.explain_question import explain_question
from winnow.analytics.permissions import PERMISSIONS
from winnow.analytics.program import PartyProtocol, run_plain
from winnow.analytics.query_rules import QueryRule
from winnow.analytics.question import Answer, QueryTerms, merge_terms, read_question
from winnow.analytics.simulate import ask_owners, noted
from winnow.analytics.tables.declaration import TableDeclaration
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.analytics.trees.boosted_trees import BoostedTrees
from winnow.analytics.trees.masked_bins import node_words
from winnow.analytics.trees.vertical_messages import (
    FEATURES,
    LABELS,
    THIRD,
    AskSplits,
    EndOfStep,
    MaskedGradients,
    MaskSeed,
    SplitAsked,
    encoded_bits,
)
from winnow.analytics.trees.vertical_parts import PART_FILE, PREDICTIONS_FILE, joined_model, with_parts
from winnow.analytics.trees.vertical_setup import MAX_ROWS
from winnow.core import ConfigError, DataError, RoundFinished, RunError, WinnowError
from winnow.deploy.server.task_exchange import MAX_TASK_BYTES
from winnow.privacy.replicated_product import from_words, keystream, transposed_product
from winnow.privacy.shares.errors import SharesError
from winnow.privacy.shares.message_party import (
    MessageParty,
    MessageStep,
    PartyProgram,
    PeerFaultError,
    ProtocolResult,
    SessionMemory,
    Turn,
    converse,
)
from winnow.privacy.shares.step_messages import MESSAGE_BYTES

COLUMNS = ["x", "heavy", "kind"]
DECLARED = DECLARATION.model_dump(mode="json")["columns"]
KEY = {"level": "private", "key": True, "type": "text"}


def table(rows: pd.DataFrame, *columns: str) -> OwnerTable:
    declared = TableDeclaration.model_validate({"columns": {"id": KEY, **{name: DECLARED[name] for name in columns}}})
    return OwnerTable(declared, arrow.Table.from_pandas(rows[["id", *columns]], preserve_index=False))


def keyed(count: int, seed: int = 0) -> pd.DataFrame:
    return rows_of(count, seed).assign(id=[f"p{place:05d}" for place in range(count)])


def two_owners(rows: pd.DataFrame, target: str = "yes") -> dict[str, OwnerTable]:
    return {"bank": table(rows, "x", target), "shop": table(rows.sample(frac=1, random_state=1), "heavy", "kind")}


def asked(**settings: Any) -> dict[str, Any]:
    given = {"kind": "trees", "table": "loans", "vertical": "baskets", "key": "id", "target": "yes", "overlap": 10}
    return {**given, "rounds": 3, "depth": 3, **settings}


def terms_of(owners: Mapping[str, OwnerTable], minimum: int = 5) -> dict[str, QueryTerms]:
    names = {"bank": "", "shop": "baskets"}
    return {
        name: QueryTerms(declaration=each.declaration, table=names[name], allow=PERMISSIONS, minimum=minimum)
        for name, each in owners.items()
    }


def plain(owners: Mapping[str, OwnerTable], minimum: int = 5, **settings: Any) -> tuple[Answer, dict[str, Any]]:
    """The answer and each owner's files, without messages between processes."""
    question, files = read_question(asked(**settings)), dict[str, Any]()
    merged = merge_terms(question, terms_of(owners, minimum))
    tables, steps = list(owners.values()), []

    def program() -> Any:
        return noted(question.program(merged), steps)

    answer = run_plain(_ending(program, tables, list(owners), files), tables)
    return answer, files


def _ending(program: Callable[[], Any], tables: list[OwnerTable], names: list[str], files: dict[str, Any]) -> Any:
    """A program whose last step's files are kept, made of what each owner has then."""

    def run() -> Any:
        running = program()
        try:
            step = next(running)
            while True:
                if isinstance(step, PartyProtocol) and step.files is not None:
                    step = _filed(step, names, files)
                step = running.send((yield step))
        except StopIteration as stop:
            return stop.value

    return run


def _filed(step: PartyProtocol, names: list[str], files: dict[str, Any]) -> PartyProtocol:
    from dataclasses import replace

    def start(table: OwnerTable | None, place: int) -> Any:
        begin = step.start(table, place)

        def begun(memory: SessionMemory) -> PartyProgram:
            result = yield from begin(memory)
            if table is not None and step.files is not None:
                files[names[table.place]] = step.files(replace(table, kept=result.kept), result.kept)
            return result

        return begun

    return replace(step, start=start)


def pooled(rows: pd.DataFrame, **settings: Any) -> Answer:
    whole = OwnerTable(DECLARATION, arrow.Table.from_pandas(rows.drop(columns="id"), preserve_index=False))
    return grown([whole], minimum=5, columns=COLUMNS, rounds=3, depth=3, **settings)


@pytest.mark.parametrize("target", ["yes", "three", "amount"])
def test_trees_are_those_of_the_joined_table(target: str) -> None:
    """Cuts, splits, weights, losses and importance: byte for byte, for two classes, several, and a number."""
    rows = keyed(700)
    answer, files = plain(two_owners(rows, target), target=target)
    expected = pooled(rows, target=target)
    model = with_parts(answer, files)
    assert model["trees"] == expected["trees"]
    assert model["base_score"] == expected["base_score"]
    assert answer["curve"] == expected["curve"]
    assert answer["importance"] == expected["importance"]
    assert any(column > 0 for tree in model["trees"] for column in tree["column"])  # of the other owner


def test_simulated_parties_give_the_same_answer_and_files() -> None:
    rows = keyed(120)
    owners, files = two_owners(rows), dict[str, Mapping[str, str]]()
    question = read_question(asked(rounds=2))
    answer = ask_owners(question, owners, terms_of(owners), on_files=files.__setitem__)
    assert (answer, files) == plain(owners, rounds=2)
    assert "trees" not in answer
    assert "condition" not in files["shop"][PART_FILE]


def test_rows_without_a_target_and_rows_held_out_are_predicted_by_the_best_rounds() -> None:
    rows = keyed(600)
    rows.loc[500:, "yes"] = None
    noise = np.random.default_rng(3).choice(["no", "yes"], 500)
    rows.loc[:499, "yes"] = np.where(np.random.default_rng(4).random(500) < 0.6, noise, rows["yes"][:500])
    settings = {"holdout": 0.3, "early_stopping": 3, "rounds": 30, "learning_rate": 0.8}
    answer, files = plain(two_owners(rows), **settings)
    assert answer["grown"] > answer["rounds"]
    assert (answer["rows"], answer["common"]) == (pytest.approx(350, abs=40), 600)
    told = pd.read_csv(pd.io.common.StringIO(files["bank"][PREDICTIONS_FILE]))
    model = BoostedTrees(with_parts(answer, files))
    assert told["yes"].to_numpy() == pytest.approx(model.predict(rows), abs=1e-5)
    assert told["id"].tolist() == rows["id"].tolist()


@pytest.mark.parametrize(
    ("ids", "line"),
    [
        (range(1000, 1300), "fewer than 5 rows in common by 'id'; 10 are the least"),
        (range(297, 597), "fewer than 5 rows in common by 'id'"),
        (range(292, 592), "8 rows in common by 'id'; 10 are the least"),
        ([*range(299), 0], "two of its rows have the same 'id'"),
    ],
)
def test_overlaps_that_are_too_small_and_keys_that_stand_twice_are_refused(ids: Any, line: str) -> None:
    rows = keyed(300)
    other = rows.assign(id=[f"p{place:05d}" for place in ids])
    with pytest.raises(DataError, match=line):
        plain({"bank": table(rows, "x", "yes"), "shop": table(other, "heavy", "kind")})


def test_half_an_overlap_and_rows_without_a_key_give_the_trees_of_the_rows_in_common() -> None:
    rows = keyed(600)
    other = rows.iloc[200:].copy()
    other.loc[other.index[:100], "id"] = [None if place % 2 else "  " for place in range(100)]
    answer, files = plain({"bank": table(rows.iloc[:500], "x", "yes"), "shop": table(other, "heavy", "kind")})
    assert answer["common"] == 200
    assert with_parts(answer, files)["trees"] == pooled(rows.iloc[300:500], target="yes")["trees"]


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"key": "heavy"}, "there is no column 'heavy'"),
        ({"key": None}, "go together"),
        ({"method": "bagging"}, "vertical trees have one method"),
        ({"secure": False}, "nothing in them is plain"),
        ({"columns": ["heavy"]}, "table 'loans' has no column to split"),
        ({"columns": ["x", "heavyy"]}, "column 'heavyy' is in neither table"),
        ({"vertical": "loans"}, "under a name of its own"),
        ({"epsilon": 1.0}, "cannot be made noisy"),
    ],
)
def test_mistakes_are_one_line(settings: dict[str, Any], line: str) -> None:
    given = {key: value for key, value in {**asked(), **settings}.items() if value is not None}
    owners = two_owners(keyed(50))

    def ask() -> None:
        question = read_question(given)
        next(question.program(merge_terms(question, terms_of(owners))))

    with pytest.raises(ConfigError, match=line):
        ask()


def test_vertical_trees_are_allowed_by_name_and_explained() -> None:
    question = read_question(asked())
    assert question.needs() == {"match", "vertical-trees"}
    assert "vertical-trees" not in QueryRule().allow
    told = explain_question(question, merge_terms(question, terms_of(two_owners(keyed(30)), 10)))
    assert told.complete
    assert "makes gradients up" in " ".join(told.learns["bank"])
    assert "which rows in common reach those nodes" in " ".join(told.learns["shop"])
    assert "all gradients, and so the targets" in " ".join(told.learns["the third party, a helper site or the server"])


# In a folder ----------------------------------------------------------------------------------------------------------


def test_an_interrupted_run_goes_on_and_the_folder_has_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("winnow.analytics.question_run_folder.CHECKPOINT_SECONDS", 0.0)
    rows = keyed(60)
    rows[["id", "x", "yes"]].to_csv("bank.csv", index=False)
    rows[["id", "heavy", "kind"]].to_csv("shop.csv", index=False)
    text = ""
    for name, file, columns in (("loans", "bank.csv", ["x", "yes"]), ("baskets", "shop.csv", ["heavy", "kind"])):
        declared = {"id": KEY, **{each: DECLARED[each] for each in columns}}
        lines = [f"{each} = {_inline(values)}" for each, values in declared.items()]
        text += f'[tables.{name}]\nfiles = ["{file}"]\n[tables.{name}.columns]\n' + "\n".join(lines) + "\n"
    Path("federation.toml").write_text(text)
    given = {key: value for key, value in asked(rounds=3).items() if key not in ("kind", "table", "target")}
    whole = winnow.trees("loans", "yes", **given)
    from winnow import questions

    steps = 0

    def stop(event: Any) -> None:
        nonlocal steps
        steps += isinstance(event, RoundFinished)
        if steps == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        questions.ask(read_question(asked(rounds=3)), folder="run", on_event=stop)
    again = winnow.trees("loans", "yes", folder="run", **given)
    assert again.answer == whole.answer
    assert winnow.load_trees("run").predict(rows).tolist() == whole.predict(rows).tolist()
    told = json.loads(Path("run/owner_files.json").read_text())
    for name, files in told.items():
        Path(f"{name}.json").write_text(files[PART_FILE])
    Path("run/owner_files.json").unlink()
    with pytest.raises(ConfigError, match="bank and shop keep a part each of these trees"):
        winnow.load_trees("run").predict(rows)
    parted = winnow.load_trees("run", parts=["bank.json", "shop.json"])
    assert parted.predict(rows).tolist() == whole.predict(rows).tolist()
    with pytest.raises(RunError, match="do not belong together"):
        winnow.load_trees("run", parts=["shop.json", "bank.json"])


def _inline(values: Mapping[str, Any]) -> str:
    known = {key: value for key, value in values.items() if value not in (None, False)}
    return "{ " + ", ".join(f"{key} = {json.dumps(value)}" for key, value in known.items()) + " }"


def test_messages_to_an_owner_stay_small_however_many_nodes_and_bins_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of both other parties come together in a task, and no site takes one of more than 4 MiB."""
    rows, rng, most = keyed(300), np.random.default_rng(0), 2 * 2 * 8 * 2 * 720
    for place in range(12):
        rows[f"f{place}"] = rng.normal(size=300).clip(-4, 4)
    columns = {"id": KEY, **{f"f{place}": DECLARED["x"] for place in range(12)}}
    shop = OwnerTable(
        TableDeclaration.model_validate({"columns": columns}),
        arrow.Table.from_pandas(rows[list(columns)], preserve_index=False),
    )
    sizes: list[int] = []

    def note(number: int, sent: dict[int, bytes]) -> dict[int, bytes]:
        sizes.append(len(sent.get(LABELS, b"")))
        return sent

    monkeypatch.setattr("winnow.analytics.trees.vertical_messages.MESSAGE_BYTES", most)
    tampered(FEATURES, note, {"bank": table(rows, "x", "yes"), "shop": shop}, rounds=1, depth=5)
    assert most // 8 < max(sizes) <= most // 2
    assert MAX_ROWS * 16 <= MESSAGE_BYTES < MAX_TASK_BYTES - 8192


# Liars ----------------------------------------------------------------------------------------------------------------


def tampered(
    place: int,
    change: Callable[[int, dict[int, bytes]], dict[int, bytes]],
    tables: Mapping[str, OwnerTable] | None = None,
    **settings: Any,
) -> None:
    """Grow trees while what one party writes in each turn of the rounds is changed, by the number of the turn."""
    from dataclasses import replace

    owners = two_owners(keyed(300)) if tables is None else tables
    question = read_question(asked(**settings))
    merged = merge_terms(question, terms_of(owners))

    def lying(program: PartyProgram) -> PartyProgram:
        arrived, number = None, 0
        while True:
            try:
                turn = next(program) if arrived is None else program.send(arrived)
            except StopIteration as stop:
                return stop.value
            arrived = yield Turn(messages=change(number, dict(turn.messages)), awaits=turn.awaits)
            number += 1

    def program() -> Any:
        running = question.program(merged)
        step = next(running)
        while True:
            if isinstance(step, PartyProtocol) and step.label == "a tree":
                start = step.start
                step = replace(
                    step,
                    start=lambda table, at, start=start: (
                        lambda memory: lying(start(table, at)(memory)) if at == place else start(table, at)(memory)
                    ),
                )
            try:
                step = running.send((yield step))
            except StopIteration as stop:
                return stop.value

    run_plain(program, list(owners.values()))


def _words_changed(messages: dict[int, bytes]) -> dict[int, bytes]:
    if len(messages[LABELS]) < 100:  # rows that go left
        return messages
    words = np.frombuffer(messages[LABELS], "<u8").copy()
    words[: len(words) // 2] += np.uint64(1 << 30)
    return {LABELS: words.tobytes()}


def test_a_third_party_or_owner_that_changes_sums_is_found_out() -> None:
    """What steers a split shows when the rows that go left do not add up to it."""
    for place in (THIRD, FEATURES):
        with pytest.raises(PeerFaultError, match="do not add up to the sums by bin"):
            tampered(place, lambda number, sent: _words_changed(sent) if {*sent} == {LABELS} else sent)


@pytest.mark.parametrize("place", [THIRD, FEATURES])
@pytest.mark.parametrize("wrong", [b"", b"1234567", bytes(8 * 999)])
def test_words_of_another_length_are_refused(place: int, wrong: bytes) -> None:
    with pytest.raises(PeerFaultError, match="bytes of words where") as refused:
        tampered(place, lambda number, sent: {LABELS: wrong} if {*sent} == {LABELS} else sent)
    assert refused.value.place == place


def test_an_owner_of_features_that_sends_other_rows_left_is_found_out() -> None:
    def other_rows(number: int, sent: dict[int, bytes]) -> dict[int, bytes]:
        if {*sent} != {LABELS} or len(sent[LABELS]) > 100:  # sums are longer
            return sent
        bits, *others = msgspec.msgpack.decode(sent[LABELS])
        flipped = bytes([bits[0] ^ 0x80, *bits[1:]])
        return {LABELS: msgspec.msgpack.encode([flipped, *others])}

    with pytest.raises(PeerFaultError, match="do not add up"):
        tampered(FEATURES, other_rows)


def _asking(column: int, cut: int, rows: "np.ndarray[Any, Any]") -> bytes:
    return msgspec.msgpack.encode(AskSplits(splits=[SplitAsked(column, cut, False, encoded_bits(rows))]))


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (_asking(7, 0, np.ones(300, bool)), "a split that does not exist"),
        (_asking(-1, 0, np.ones(300, bool)), "a split that does not exist"),
        (_asking(0, 999, np.ones(300, bool)), "a split that does not exist"),
        (_asking(1, 0, np.arange(300) < 3), "fewer than 5 rows on a side"),
        (_asking(1, 0, np.ones(304, bool)), "bits are of more rows"),
        (_asking(1, 0, np.ones(800, bool)), "bytes of bits where"),
        (msgspec.msgpack.encode(MaskedGradients(words=b"123")), "bytes of words where"),
        (msgspec.msgpack.encode(EndOfStep(opened=[1])), "another length or size"),
        (msgspec.msgpack.encode(EndOfStep(opened=[1 << 63] * 7)), "another length or size|cannot be read"),
        (msgspec.msgpack.encode(MaskSeed(seed=b"", columns=1)), "cannot be read"),
        (b"\xc1", "cannot be read"),
    ],
)
def test_an_owner_of_labels_that_asks_for_what_there_is_not_is_refused(message: bytes, line: str) -> None:
    with pytest.raises(PeerFaultError, match=line) as refused:
        tampered(LABELS, lambda number, sent: {**sent, FEATURES: message} if number == 1 else sent)
    assert refused.value.place == LABELS


def test_gradients_that_are_made_up_tell_the_bin_of_a_row() -> None:
    """Not protected, and said: the owner of labels chooses what is summed. One row's 1 among zeros finds its bin."""
    rows, bins = 40, 7
    codes = np.random.default_rng(0).integers(0, bins, (rows, 1))
    hot = np.eye(bins, dtype=np.uint64)[codes[:, 0]]
    gradient = np.zeros(rows)
    gradient[11] = 1
    words = node_words(gradient, None, [np.ones(rows, bool)])
    masks, bin_masks = keystream(b"u" * 32, words.shape), keystream(b"v" * 32, hot.shape)
    opened = (
        transposed_product(masks, bin_masks)
        + transposed_product(words - masks, hot)
        + transposed_product(masks, hot - bin_masks)
    )
    assert from_words(opened)[0].argmax() == codes[11, 0]
    assert from_words(opened)[1].tolist() == np.bincount(codes[:, 0], minlength=bins).tolist()


def test_what_owners_and_the_third_party_see_is_masked() -> None:
    """Equal inputs look different each time, and masked words of zeros look like chance."""
    seen: list[bytes] = []

    def note(number: int, sent: dict[int, bytes]) -> dict[int, bytes]:
        if number == 1:
            seen.append(msgspec.msgpack.decode(sent[FEATURES])["words"])
        return sent

    tampered(LABELS, note, rounds=1)
    tampered(LABELS, note, rounds=1)
    first, second = (np.frombuffer(words, np.uint8) for words in seen)
    assert len(first) == len(second) == 300 * 2 * 8
    assert (first == second).mean() < 0.02
    counts = np.bincount(first, minlength=256)
    assert counts.max() < 3 * counts.mean()


def test_messages_that_are_repeated_swapped_or_of_another_session_are_refused() -> None:
    def program(place: int, memory: SessionMemory) -> PartyProgram:
        others = frozenset({0, 1, 2} - {place})
        yield Turn(messages=dict.fromkeys(others, b"one"), awaits=others)
        yield Turn(messages=dict.fromkeys(others, b"two"), awaits=others)
        return ProtocolResult(opened=np.zeros(1, np.int64))

    def parties(digest: bytes = b"step") -> list[MessageParty]:
        step = MessageStep(digest=digest, parties=(5, 6, 7), third_party=7, max_exchanges=9)
        starts = [lambda memory, place=place: program(place, memory) for place in range(3)]
        return [MessageParty(step, me, start, SessionMemory()) for me, start in zip((5, 6, 7), starts, strict=True)]

    def to_first(written: dict[int, dict[int, bytes]]) -> dict[int, bytes]:
        return {sender: messages[5] for sender, messages in written.items() if sender != 5}

    def exchanged(group: list[MessageParty], written: dict[int, dict[int, bytes]]) -> dict[int, dict[int, bytes]]:
        names = (5, 6, 7)
        return {
            me: party.receive({sender: messages[me] for sender, messages in written.items() if sender != me})
            for me, party in zip(names, group, strict=True)
        }

    group, other = parties(), parties()
    nonces = {me: party.first_messages() for me, party in zip((5, 6, 7), group, strict=True)}
    foreign = {me: party.first_messages() for me, party in zip((5, 6, 7), other, strict=True)}
    ones = exchanged(group, nonces)
    foreign_ones = exchanged(other, foreign)
    for wrong in (to_first(nonces), to_first(foreign_ones), {6: ones[7][5], 7: ones[6][5]} | {6: nonces[6][5]}):
        with pytest.raises(SharesError, match="another step or attempt"):
            group[0].receive(dict(wrong))
    with pytest.raises(SharesError, match="no part in this step"):
        other[0].receive({9: b""})
    with pytest.raises(SharesError, match="cannot be read"):
        other[1].receive({5: b"\xc1"})
    assert converse([program(place, SessionMemory()) for place in range(3)])[2].opened.tolist() == [0]


def _floats(*values: float) -> list[int]:
    return np.array(values).view(np.int64).tolist()


@pytest.mark.parametrize(
    ("begun", "told"),
    [
        ([1, 60, 0, 0], [1, 60, 0, 0, *_floats(np.nan, 1, 1)]),
        ([1, 60, 0, 0], [1, 60, 0, 0, *_floats(np.inf, 1, 1)]),
        ([1, 60, 0, 0], [1, 60, 0, 0, *_floats(1, -1, 0)]),
        ([1, 60, 0, 0], [-(1 << 62), 60, 0, 0, *_floats(1, 1, 1)]),
        ([1, 61, 0, 0], []),
        ([1, -3, 0, 0], []),
    ],
)
def test_an_owner_of_labels_that_tells_impossible_losses_or_gains_is_refused(begun: list[int], told: list[int]) -> None:
    """They are its word alone, and nothing that is no number gets into an answer."""
    question = read_question(asked(target="amount"))
    program = question.program(merge_terms(question, terms_of(two_owners(keyed(60), "amount"))))

    def tell() -> None:
        for opened in ([0, 0, *begun], told):
            program.send(np.array(opened, np.int64))

    next(program)
    program.send(np.array([1, 60], object))
    with pytest.raises(DataError, match="tells losses or gains that cannot be"):
        tell()


def test_parts_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(RunError, match="do not belong together"):
        joined_model("{}", "{}")
    tree = {"left": [1, -1, -1], "column": [1, 0], "condition": [0.0]}
    labels = {"columns": [{"name": "x"}], "base_score": 0.5, "round_ends": [0, 1]}
    for wrong in ({"left": 3}, tree, {**tree, "column": [1, 0, 0], "condition": ["a", 0.0, 0.0]}):
        with pytest.raises(WinnowError, match="do not belong together"):
            joined_model(json.dumps({**labels, "trees": [wrong]}), '{"columns": [], "splits": [[0, 0, 1.5]]}')
