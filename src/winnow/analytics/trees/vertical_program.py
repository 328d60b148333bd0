"""The program of vertical trees: rows in common, rounds of trees, and each owner's part in the end."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from winnow.analytics.program import Match, PartyProtocol, Program
from winnow.analytics.question import MergedTerms
from winnow.analytics.trees.base_score import class_counts, refuse_few, scaled_total, start_value
from winnow.analytics.trees.binned_rows import held_out
from winnow.analytics.trees.boost import best_round, gain_shares, losses_of, stalled
from winnow.analytics.trees.grow_trees import LOSS_WORDS
from winnow.analytics.trees.masked_bins import WORDS_A_NODE
from winnow.analytics.trees.tree_objectives import TreeObjective, objective_for
from winnow.analytics.trees.trees_question import OVERLAP, TreesQuestion
from winnow.analytics.trees.vertical_feature_owner import feature_owner_round, feature_rows
from winnow.analytics.trees.vertical_label_owner import ending, first_margins, label_owner_round, label_rows
from winnow.analytics.trees.vertical_messages import LABELS, EndOfStep, opened_numbers
from winnow.analytics.trees.vertical_parts import (
    LabelState,
    feature_files,
    feature_state,
    float_bytes,
    label_files,
    label_state,
)
from winnow.analytics.trees.vertical_setup import (
    MAX_ROWS,
    VerticalSetup,
    aligned_rows,
    asked_setup,
    matched_keys,
    parties_of,
)
from winnow.analytics.trees.vertical_third_party import third_party_round
from winnow.core import DataError
from winnow.privacy.replicated_product import WORD_BYTES
from winnow.privacy.shares.message_party import (
    PartyProgram,
    ProtocolResult,
    SessionMemory,
    StartProgram,
    Turn,
    decode_body,
)
from winnow.privacy.shares.step_messages import MESSAGE_BYTES

if TYPE_CHECKING:
    from winnow.analytics.tables.owner_table import OwnerTable

MOST_GAIN = 1e200
"""Of a column in a round; sums of it stay finite."""
LABELS_LEARN = (
    "how many bins each column of the other owner has, and in every round the sums of gradients, second derivatives "
    "and rows in each of its bins, by node, also of bins with few rows\n"
    "of the columns and bins that are split, which rows of the node are below: after many rounds about the bin of "
    "every row in common, not what bins stand for\n"
    "the bin of any row in common, if it departs from the protocol and makes gradients up: the other owner trusts it"
)
FEATURES_LEARN = (
    "which of its columns and cuts are split, and which rows in common reach those nodes; no target and no weight"
)
THIRD_LEARN = (
    "how many bins there are in all, and how many nodes each round has; nothing of the rows\n"
    "pooled with what the owner of labels sees, all bins of the rows in common; pooled with the owner of features, all "
    "gradients, and so the targets"
)


def vertical_trees(question: TreesQuestion, terms: MergedTerms) -> Program[dict[str, Any]]:
    """The answer: everything but the model, of which each owner keeps its part."""
    parties = parties_of(question, terms)
    setup, left_out = asked_setup(question, terms)
    rows = yield from _match(question, setup.key, terms.minimum, parties)
    setup = replace(setup, rows=rows)
    begun = yield _begin(setup, parties)
    kinds = max(len(setup.target.classes), 1)
    refuse_few(setup.target, (begun[: kinds + 1] == 0).tolist(), setup.minimum, "in common")
    objective = objective_of(setup)
    losses, gains = begun[kinds + 1 :], list[NDArray[np.float64]]()
    refuse_impossible_figures(losses, np.zeros(0), rows)
    curve = [losses_of(objective, losses)]
    while len(gains) < question.rounds and not stalled(curve, question.early_stopping):
        opened = yield _round(setup, parties)
        gained = opened[LOSS_WORDS:].view(np.float64)
        refuse_impossible_figures(opened[:LOSS_WORDS], gained, rows)
        curve.append(losses_of(objective, opened[:LOSS_WORDS]))
        gains.append(gained)
    best = len(gains) if question.early_stopping is None else best_round(curve)
    yield _end(setup, parties, best)
    return {
        "classes": list(setup.target.classes),
        "rows": int(losses[1]),
        "common": rows,
        "key": setup.key,
        "labels": terms.owners[parties[0]],
        "features": terms.owners[parties[1]],
        "left_out": list(left_out),
        "columns": [
            {"name": name, "values": list(column.values)}
            for name, column in zip(setup.names, setup.own + setup.theirs, strict=True)
        ],
        "objective": objective.name,
        "metric": objective.metric,
        "rounds": best,
        "grown": len(gains),
        "curve": curve,
        "importance": gain_shares(setup.names, sum(gains[:best], np.zeros(len(setup.names)))),
    }


def _match(question: TreesQuestion, key: str, minimum: int, parties: tuple[int, int]) -> Program[int]:
    """How many rows both owners have; both learn which."""
    enough, size = yield Match(
        label=f"values of {key} that both owners have",
        local=lambda table: matched_keys(table, key),
        parties=parties,
        minimum=minimum,
        share=True,
    )
    least = question.overlap or OVERLAP
    told = f"{least:,} are the least (--overlap)"
    if not enough:
        raise DataError(f"owners have fewer than {minimum:,} rows in common by '{key}'; {told}")
    if size < least:
        raise DataError(f"owners have {int(size):,} rows in common by '{key}'; {told}")
    if size > MAX_ROWS:
        raise DataError(
            f"owners have {int(size):,} rows in common by '{key}'; vertical trees take {MAX_ROWS:,} at most"
        )
    return int(size)


def refuse_impossible_figures(losses: NDArray[np.int64], gains: NDArray[np.float64], rows: int) -> None:
    """What the owner of labels tells everybody is its word alone; it must be numbers that an answer can have."""
    possible = losses.min() >= 0 and losses[1::2].sum() <= rows and np.all((gains >= 0) & (gains <= MOST_GAIN))
    if not possible:
        raise DataError("the owner of labels tells losses or gains that cannot be")


def _listening(length: int, memory: SessionMemory) -> PartyProgram:
    """A party that is told what everybody learns, and no more."""
    arrived = yield Turn(awaits=frozenset({LABELS}))
    end = decode_body(arrived[LABELS], EndOfStep, LABELS)
    return ProtocolResult(opened=opened_numbers(end, length, LABELS))


def _begin(setup: VerticalSetup, parties: tuple[int, int]) -> PartyProtocol:
    """The owner of labels counts its rows: for each class and those held out, 1 if they are too few; then the losses
    before the first round.
    """
    kinds = max(len(setup.target.classes), 1)
    length = kinds + 1 + LOSS_WORDS

    def start(table: "OwnerTable | None", place: int) -> StartProgram:
        if place != LABELS or table is None:
            return partial(_listening, length)
        return lambda memory: _count_rows(setup, table)

    return PartyProtocol(
        label="rows to grow on",
        parties=parties,
        length=length,
        start=start,
        exchanges=2,
        max_exchanges=8,
        sent_bytes=_shared_bytes(setup),
    )


def _shared_bytes(setup: VerticalSetup) -> int:
    """Of the masked bins, which the third party gets once."""
    return WORD_BYTES * setup.rows * setup.bins * len(setup.theirs)


def _count_rows(setup: VerticalSetup, table: "OwnerTable") -> PartyProgram:
    yield from ()
    cells = setup.target.cells(aligned_rows(table, setup.key))
    aside = held_out(setup.seed, table.place, setup.holdout, len(cells))
    counts = class_counts(setup.target, cells, aside)
    least = np.append(np.full(len(counts) - 1, setup.minimum), setup.minimum if setup.holdout else 0)
    short = (counts < least).astype(np.int64)
    opened, kept = np.append(short, np.zeros(LOSS_WORDS, np.int64)), b""
    if not short.any():
        total = 0 if setup.target.classes else scaled_total(setup.target, cells, aside)
        base = start_value(setup.target, counts.tolist(), total)
        margins = first_margins(setup, base)
        losses = label_rows(setup, table, base).with_margins(margins).losses()
        opened = np.append(short, losses)
        state = LabelState(base=base, margins=float_bytes(margins))
        kept = msgspec.msgpack.encode(state.measured(int(losses[2])) if setup.early_stopping else state)
    return ProtocolResult(opened=opened, kept=kept, messages=ending(opened))


def _round(setup: VerticalSetup, parties: tuple[int, int]) -> PartyProtocol:
    length = LOSS_WORDS + len(setup.names)

    def start(table: "OwnerTable | None", place: int) -> StartProgram:
        if table is None:
            return partial(third_party_round, setup, length)
        if place == LABELS:
            return partial(label_owner_round, setup, table)
        return partial(feature_owner_round, setup, length, table)

    nodes = setup.trees * 2 ** (setup.growth.depth - 1)
    sent, shared = setup.rows * nodes * WORDS_A_NODE * WORD_BYTES, _shared_bytes(setup)
    levels = 4 * setup.growth.depth + 2 * (sent // MESSAGE_BYTES)
    return PartyProtocol(
        label="a tree" if setup.trees == 1 else f"{setup.trees} trees",
        parties=parties,
        length=length,
        start=start,
        exchanges=levels + 1,
        max_exchanges=4 * levels + 4 * (shared // MESSAGE_BYTES) + 8 * nodes + 16,
        sent_bytes=sent,
        learns=(LABELS_LEARN, FEATURES_LEARN, THIRD_LEARN),
    )


def _end(setup: VerticalSetup, parties: tuple[int, int], best: int) -> PartyProtocol:
    """Owners write their parts of the first `best` rounds."""

    def start(table: "OwnerTable | None", place: int) -> StartProgram:
        if place != LABELS or table is None:
            return lambda memory: _keeping(1, b"" if table is None else table.kept)
        return lambda memory: _ended(setup, table, best)

    def files(table: "OwnerTable", kept: bytes) -> Mapping[str, str]:
        if table.place != parties[0]:
            return feature_files(setup, feature_rows(setup, table).cuts, feature_state(kept))
        state = label_state(kept)
        rows = label_rows(setup, table, state.base)
        predicted = objective_of(setup).predictions(state.margins_of(setup.trees).astype(np.float64))
        return label_files(setup, table.matched, rows.binned.data.cuts, state, predicted)

    return PartyProtocol(
        label="owners' parts",
        parties=parties,
        length=1,
        start=start,
        exchanges=1,
        max_exchanges=8,
        sent_bytes=0,
        files=files,
    )


def _keeping(length: int, kept: bytes) -> PartyProgram:
    result = yield from _listening(length, SessionMemory())
    return replace(result, kept=kept)


def _ended(setup: VerticalSetup, table: "OwnerTable", best: int) -> PartyProgram:
    """The trees of the best rounds, and the margins that they give."""
    yield from ()
    state = label_state(table.kept)
    if best < len(state.rounds):
        state = msgspec.structs.replace(state, rounds=state.rounds[:best], margins=state.best_margins)
    opened = np.array([best], np.int64)
    return ProtocolResult(opened=opened, kept=msgspec.msgpack.encode(state), messages=ending(opened))


def objective_of(setup: VerticalSetup) -> TreeObjective:
    return objective_for(len(setup.target.classes), setup.target.low, setup.target.high)
