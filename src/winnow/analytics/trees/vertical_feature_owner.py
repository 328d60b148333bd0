"""The owner of features in vertical trees: it hides its bins once, adds up masked gradients by bin, and says which rows
go left at a split of its own.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from secrets import token_bytes
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from winnow.analytics.trees.masked_bins import BinSums, masked_bins, zero_words
from winnow.analytics.trees.split_gain import BinLayout
from winnow.analytics.trees.tree_columns import Cells
from winnow.analytics.trees.vertical_messages import (
    LABELS,
    THIRD,
    AskSplits,
    BinRows,
    BinsOf,
    EndOfStep,
    MaskedGradients,
    SplitAsked,
    ToFeatures,
    decoded_bits,
    decoded_words,
    encoded_bits,
    encoded_words,
    opened_numbers,
)
from winnow.analytics.trees.vertical_parts import FeatureState, feature_state
from winnow.analytics.trees.vertical_setup import MAX_WORDS, VerticalSetup, aligned_rows, bin_codes, own_cuts
from winnow.core import DataError
from winnow.privacy.replicated_product import SEED_BYTES, WORD_BYTES
from winnow.privacy.shares.message_party import (
    PartyProgram,
    PeerFaultError,
    ProtocolResult,
    SessionMemory,
    Turn,
    decode_body,
)
from winnow.privacy.shares.step_messages import MESSAGE_BYTES

if TYPE_CHECKING:
    from winnow.analytics.tables.owner_table import OwnerTable


@dataclass(frozen=True, kw_only=True)
class FeatureRows:
    """Its rows in common, in bins."""

    cuts: list[Cells]
    codes: NDArray[np.int64]
    layout: BinLayout
    sums: BinSums


def feature_rows(setup: VerticalSetup, table: "OwnerTable") -> FeatureRows:
    rows = aligned_rows(table, setup.key)
    cuts = own_cuts(setup.theirs, setup, rows)
    layout = BinLayout(tuple(len(own) + 1 for own in cuts))
    if layout.total * setup.rows > MAX_WORDS:
        raise DataError(
            f"{setup.rows:,} rows in {layout.total:,} bins are too many to be hidden; ask for fewer bins or columns"
        )
    codes = bin_codes(setup.theirs, cuts, rows)
    return FeatureRows(cuts=cuts, codes=codes, layout=layout, sums=BinSums(codes, layout))


def feature_owner_round(setup: VerticalSetup, length: int, table: "OwnerTable", memory: SessionMemory) -> PartyProgram:
    """A round of trees; what it keeps are the splits of its own that the trees have."""
    asked_splits = {*feature_state(table.kept).splits}
    written: dict[int, bytes] = {}
    if "rows" not in memory.values:
        memory.values["rows"] = feature_rows(setup, table)
        written = yield from _share_bins(memory.values["rows"], memory)
    rows: FeatureRows = memory.values["rows"]
    while True:
        arrived = yield Turn(messages=written, awaits=frozenset({LABELS}))
        asked: ToFeatures = decode_body(arrived[LABELS], ToFeatures, LABELS)  # type: ignore[arg-type]
        if isinstance(asked, EndOfStep):
            kept = msgspec.msgpack.encode(FeatureState(splits=sorted(asked_splits)))
            return ProtocolResult(opened=opened_numbers(asked, length, LABELS), kept=kept)
        if isinstance(asked, AskSplits):
            written = {LABELS: msgspec.msgpack.encode([_left_rows(each, setup, rows) for each in asked.splits])}
            asked_splits |= {(each.column, each.cut) for each in asked.splits}
        else:
            written = {LABELS: _summed(asked, setup, rows, memory)}


def _share_bins(rows: FeatureRows, memory: SessionMemory) -> Generator[Turn, Mapping[int, bytes], dict[int, bytes]]:
    """Send the third party Y − V, some rows at a time; the last messages of it, with the owner of labels' part."""
    seed, key, width = token_bytes(SEED_BYTES), token_bytes(SEED_BYTES), rows.layout.total
    memory.values["key"], memory.values["number"] = key, 0
    step = max(2, MESSAGE_BYTES // (WORD_BYTES * width) // 2 * 2)
    for first in range(0, len(rows.codes), step):
        words = encoded_words(masked_bins(rows.codes[first : first + step], rows.layout, seed, first))
        message = msgspec.msgpack.encode(BinRows(width=width, key=key, words=words))
        if first + step < len(rows.codes):
            yield Turn(messages={THIRD: message}, awaits=frozenset({THIRD}))
    bins = msgspec.msgpack.encode(BinsOf(bins=list(rows.layout.bins), seed=seed))
    return {THIRD: message, LABELS: bins}


def _summed(asked: MaskedGradients, setup: VerticalSetup, rows: FeatureRows, memory: SessionMemory) -> bytes:
    """(X − U)ᵀY, with the part of zero."""
    columns = len(asked.words) // (WORD_BYTES * setup.rows)
    part = rows.sums.sums(decoded_words(asked.words, (setup.rows, columns), LABELS))
    memory.values["number"] += 1
    return encoded_words(part + zero_words(memory.values["key"], memory.values["number"], part.shape))


def _left_rows(asked: SplitAsked, setup: VerticalSetup, rows: FeatureRows) -> bytes:
    """Bits of the rows that were asked about. A split that leaves fewer than the minimum on a side is not answered."""
    if not 0 <= asked.column < len(rows.layout.bins) or not 0 <= asked.cut < rows.layout.bins[asked.column]:
        raise PeerFaultError(LABELS, "it asks for a split that does not exist")
    here = np.flatnonzero(decoded_bits(asked.rows, setup.rows, LABELS))
    codes = rows.codes[here, asked.column]
    missing = codes == rows.layout.bins[asked.column]
    left = np.where(missing, asked.missing_left, codes <= asked.cut)
    if min(left.sum(), len(left) - left.sum()) < max(setup.growth.rules.minimum, 1):
        raise PeerFaultError(LABELS, f"it asks for a split with fewer than {setup.growth.rules.minimum} rows on a side")
    return encoded_bits(left)
