"""The owner of labels in vertical trees: it grows them, from its own sums by bin and from those that it opens of the
other owner's bins, and asks that owner which rows go left at a split of its columns.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from secrets import token_bytes
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from winnow.analytics.trees.binned_rows import BinnedRows, TreeData, held_out
from winnow.analytics.trees.boost import column_gains
from winnow.analytics.trees.growing_trees import GrowingTrees
from winnow.analytics.trees.grown_tree import GrownTree, Node
from winnow.analytics.trees.masked_bins import WORDS_A_NODE, node_sums, node_words
from winnow.analytics.trees.node_sums import NodeSums
from winnow.analytics.trees.split_gain import Sums
from winnow.analytics.trees.tree_objectives import objective_for
from winnow.analytics.trees.vertical_messages import (
    FEATURES,
    THIRD,
    AskSplits,
    BinsOf,
    EndOfStep,
    MaskedGradients,
    MaskSeed,
    SplitAsked,
    by_message_size,
    decoded_bits,
    decoded_words,
    encoded_bits,
    encoded_words,
)
from winnow.analytics.trees.vertical_parts import label_state
from winnow.analytics.trees.vertical_setup import VerticalSetup, aligned_rows, bin_codes, own_cuts
from winnow.privacy.replicated_product import SEED_BYTES, WORD_BYTES, Words, keystream, transposed_product
from winnow.privacy.shares.message_party import (
    PartyProgram,
    PeerFaultError,
    ProtocolResult,
    SessionMemory,
    Turn,
    decode_body,
)

if TYPE_CHECKING:
    from winnow.analytics.tables.owner_table import OwnerTable

CHANNELS = (0, 1, 2)
PARTS = "(of which it and the third party sent parts)"


@dataclass(frozen=True, kw_only=True)
class LabelRows:
    """Its rows in common. Those without a target have predictions, too, but no trees are grown on them."""

    codes: NDArray[np.int64]
    labelled: NDArray[np.int64]
    """Places of rows with a target."""
    binned: BinnedRows
    """Those rows; their margins are brought up to date by `with_margins`."""

    def with_margins(self, margins: NDArray[np.float32]) -> BinnedRows:
        return replace(self.binned, margins=margins[self.labelled].copy())


def label_rows(setup: VerticalSetup, table: "OwnerTable", base: float) -> LabelRows:
    rows = aligned_rows(table, setup.key)
    target = setup.target.cells(rows)
    cuts = own_cuts(setup.own, setup, rows)
    codes, labelled = bin_codes(setup.own, cuts, rows), np.flatnonzero(~np.isnan(target))
    data = TreeData(
        columns=setup.own,
        target=setup.target,
        objective=objective_for(len(setup.target.classes), setup.target.low, setup.target.high),
        cuts=tuple(cuts),
        bins=setup.bins,
        base=base,
        holdout=setup.holdout,
        seed=setup.seed,
    )
    binned = BinnedRows(
        data=data,
        codes=codes[labelled],
        target=target[labelled],
        held_out=held_out(setup.seed, table.place, setup.holdout, len(target))[labelled],
        margins=np.zeros((len(labelled), setup.trees), np.float32),
    )
    return LabelRows(codes=codes, labelled=labelled, binned=binned)


def label_owner_round(setup: VerticalSetup, table: "OwnerTable", memory: SessionMemory) -> PartyProgram:
    """A round of trees. Everybody learns the losses after it, and what each column's splits gained."""
    state = label_state(table.kept)
    if "rows" not in memory.values:
        memory.values["rows"] = label_rows(setup, table, state.base)
    if "bins" not in memory.values:
        memory.values["bins"] = yield from _receive_bins(setup)
    rows: LabelRows = memory.values["rows"]
    growing = _GrowingRound(setup, rows, memory.values["bins"], state.margins_of(setup.trees))
    grown = yield from growing.grow()
    margins = growing.margins.copy()
    for tree, own in enumerate(grown):
        margins[:, tree] += own.weight[growing.places[tree]]
    losses = rows.with_margins(margins).losses()
    gains = sum((column_gains(own, len(setup.names)) for own in grown), np.zeros(len(setup.names)))
    opened = np.concatenate([losses, gains.view(np.int64)])
    state = state.after(margins, grown, memory.values["bins"].bins)
    state = state.measured(int(losses[2])) if setup.early_stopping else state
    return ProtocolResult(opened=opened, kept=msgspec.msgpack.encode(state), messages=ending(opened))


def ending(opened: NDArray[np.int64]) -> dict[int, bytes]:
    return dict.fromkeys((FEATURES, THIRD), msgspec.msgpack.encode(EndOfStep(opened=opened.tolist())))


@dataclass(frozen=True)
class TheirBins:
    """How many bins each column of the other owner has, and their masks V."""

    bins: list[int]
    masks: Words


def _receive_bins(setup: VerticalSetup) -> Generator[Turn, Mapping[int, bytes], TheirBins]:
    arrived = yield Turn(awaits=frozenset({FEATURES}))
    told = decode_body(arrived[FEATURES], BinsOf, FEATURES)
    possible = all(0 < each <= setup.bins for each in told.bins)
    if len(told.bins) != len(setup.theirs) or not possible or len(told.seed) != SEED_BYTES:
        raise PeerFaultError(FEATURES, "it has another number of columns or bins than it can have, or no seed")
    return TheirBins(told.bins, keystream(told.seed, (setup.rows, sum(told.bins))))


class _GrowingRound:
    """The trees of a round, level by level."""

    def __init__(self, setup: VerticalSetup, rows: LabelRows, theirs: TheirBins, margins: NDArray[np.float32]) -> None:
        self._setup, self._rows, self._theirs, self.margins = setup, rows, theirs, margins
        binned = rows.with_margins(margins)
        own = binned.data
        numbers = tuple(np.arange(count - 1, dtype=np.float32) for count in theirs.bins)
        """Of the other owner's cuts only their numbers are known here."""
        data = replace(own, columns=setup.own + setup.theirs, cuts=own.cuts + numbers)
        self._growth = GrowingTrees(data, setup.growth)
        self._sums = NodeSums(binned, np.ones(len(binned.codes)))
        self._counts_hessian = own.objective.counts_hessian
        gradient, hessian = binned.derivatives()
        self._derivatives = [self._of_all(each) for each in (gradient, hessian)]
        self._growing = np.zeros(setup.rows, bool)
        self._growing[rows.labelled[~binned.held_out]] = True
        self._missing = binned.missing
        self.places = np.zeros((setup.trees, setup.rows), np.int64)
        """The node of every row in each tree."""

    def _of_all(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of all rows in common: 0 of those without a target."""
        found = np.zeros((self._setup.rows, values.shape[1]))
        found[self._rows.labelled] = values
        return found

    def grow(self) -> Generator[Turn, Mapping[int, bytes], list[GrownTree]]:
        growth = self._growth
        splittable = growth.begin(self._sums.totals(CHANNELS))
        summed: list[Node] = list(splittable)
        while splittable:
            theirs = yield from self._their_sums(summed)
            own = self._sums.sums(summed, CHANNELS)
            nodes, splittable = splittable, growth.split(splittable, summed, np.concatenate([own, theirs], axis=1))
            yield from self._descend([node for node in nodes if growth.grown[node[0]].column[node[1]] >= 0])
            summed = growth.summed(splittable)
        return growth.grown

    def _their_sums(self, nodes: Sequence[Node]) -> Generator[Turn, Mapping[int, bytes], Sums]:
        """Nodes × bins × 3: as many nodes at a time as fit a message, and their sums those of both others."""
        found, bins = list[Sums](), sum(self._theirs.bins)
        for some in by_message_size(nodes, WORDS_A_NODE * WORD_BYTES * max(self._setup.rows, 2 * bins)):
            words = np.concatenate([self._words(node) for node in some], axis=1)
            seed, width = token_bytes(SEED_BYTES), words.shape[1]
            masks = keystream(seed, words.shape)
            messages = {
                FEATURES: msgspec.msgpack.encode(MaskedGradients(words=encoded_words(words - masks))),
                THIRD: msgspec.msgpack.encode(MaskSeed(seed=seed, columns=width)),
            }
            arrived = yield Turn(messages=messages, awaits=frozenset({FEATURES, THIRD}))
            total = transposed_product(masks, self._theirs.masks)
            for place, data in arrived.items():
                total = total + decoded_words(data, (width, bins), place)
            found.append(node_sums(total, counts_hessian=self._counts_hessian))
        return np.concatenate(found)

    def _words(self, node: Node) -> Words:
        tree, place = node
        here = self._growing & (self.places[tree] == place)
        gradient, hessian = (each[:, tree] for each in self._derivatives)
        return node_words(gradient, None if self._counts_hessian else hessian, [here])

    def _descend(self, nodes: Sequence[Node]) -> Generator[Turn, Mapping[int, bytes], None]:
        """Rows of nodes that were split go on to their children."""
        own = len(self._setup.own)
        asked = [(tree, place) for tree, place in nodes if self._growth.grown[tree].column[place] >= own]
        left: dict[Node, NDArray[np.bool_]] = {}
        for some in by_message_size(asked, -(-self._setup.rows // 8)):
            left |= yield from self._ask(some)
        moved = self.places.copy()
        for tree, place in nodes:
            rows = np.flatnonzero(self.places[tree] == place)
            grown = self._growth.grown[tree]
            if (tree, place) in left:
                moved[tree, rows] = 2 * place + 1 + ~left[tree, place]
            else:
                moved[tree, rows] = grown.child(self.places[tree, rows], self._rows.codes[rows], self._missing)
        self.places = moved
        for tree in {tree for tree, _ in nodes}:
            self._sums.move(tree, moved[tree, self._rows.labelled])

    def _ask(self, nodes: Sequence[Node]) -> Generator[Turn, Mapping[int, bytes], dict[Node, NDArray[np.bool_]]]:
        splits = []
        for tree, place in nodes:
            grown = self._growth.grown[tree]
            column = int(grown.column[place]) - len(self._setup.own)
            rows = encoded_bits(self.places[tree] == place)
            splits.append(SplitAsked(column, int(grown.cut[place]), bool(grown.missing_left[place]), rows))
        message = msgspec.msgpack.encode(AskSplits(splits=splits))
        arrived = yield Turn(messages={FEATURES: message}, awaits=frozenset({FEATURES}))
        answers = decode_body(arrived[FEATURES], list[bytes], FEATURES)
        if len(answers) != len(nodes):
            raise PeerFaultError(FEATURES, f"it answers {len(answers)} splits of {len(nodes)}")
        return {node: self._checked(node, answer) for node, answer in zip(nodes, answers, strict=True)}

    def _checked(self, node: Node, answer: bytes) -> NDArray[np.bool_]:
        """The rows that go left must add up to what their bins did: who changes sums or rows is found out here."""
        tree, place = node
        rows = np.flatnonzero(self.places[tree] == place)
        left = decoded_bits(answer, len(rows), FEATURES)
        counted = rows[left & self._growing[rows]]
        gradient, hessian = (int(each[counted, tree].sum()) for each in self._derivatives)
        if [gradient, hessian, len(counted)] != self._growth.totals[tree, 2 * place + 1].tolist():
            raise PeerFaultError(FEATURES, "the rows that it sends left do not add up to the sums by bin " + PARTS)
        return left


def first_margins(setup: VerticalSetup, base: float) -> NDArray[np.float32]:
    objective = objective_for(len(setup.target.classes), setup.target.low, setup.target.high)
    return np.tile(objective.base_margins(base).astype(np.float32), (setup.rows, 1))
