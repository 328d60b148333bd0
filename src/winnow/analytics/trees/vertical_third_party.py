"""The third party of vertical trees: it multiplies masks by masked bins, and learns neither."""

from collections.abc import Generator, Mapping

import numpy as np

from winnow.analytics.trees.masked_bins import zero_words
from winnow.analytics.trees.vertical_messages import (
    FEATURES,
    LABELS,
    BinRows,
    EndOfStep,
    MaskSeed,
    ToThird,
    decoded_words,
    encoded_words,
    opened_numbers,
)
from winnow.analytics.trees.vertical_setup import MAX_WORDS, VerticalSetup
from winnow.privacy.replicated_product import SEED_BYTES, Words, keystream, transposed_product
from winnow.privacy.shares.message_party import (
    PartyProgram,
    PeerFaultError,
    ProtocolResult,
    SessionMemory,
    Turn,
    decode_body,
)


def third_party_round(setup: VerticalSetup, length: int, memory: SessionMemory) -> PartyProgram:
    if "bins" not in memory.values:
        memory.values["bins"] = yield from _receive_bins(setup, memory)
    bins: Words = memory.values["bins"]
    written: dict[int, bytes] = {}
    while True:
        arrived = yield Turn(messages=written, awaits=frozenset({LABELS}))
        asked: ToThird = decode_body(arrived[LABELS], ToThird, LABELS)  # type: ignore[arg-type]
        if isinstance(asked, EndOfStep):
            return ProtocolResult(opened=opened_numbers(asked, length, LABELS))
        written = {LABELS: encoded_words(_part(asked, setup, bins, memory))}


def _part(asked: MaskSeed, setup: VerticalSetup, bins: Words, memory: SessionMemory) -> Words:
    """Uᵀ(Y − V), less the part of zero."""
    if len(asked.seed) != SEED_BYTES or not 0 < asked.columns * setup.rows <= MAX_WORDS:
        raise PeerFaultError(LABELS, "its seed or its number of columns is impossible")
    part = transposed_product(keystream(asked.seed, (setup.rows, asked.columns)), bins)
    memory.values["number"] += 1
    return part - zero_words(memory.values["key"], memory.values["number"], part.shape)


def _receive_bins(setup: VerticalSetup, memory: SessionMemory) -> Generator[Turn, Mapping[int, bytes], Words]:
    """Y − V, some rows at a time; each is acknowledged."""
    arrived = yield Turn(awaits=frozenset({FEATURES}))
    message = decode_body(arrived[FEATURES], BinRows, FEATURES)
    width, rows = message.width, 0
    most = setup.bins * len(setup.theirs)
    if len(message.key) != SEED_BYTES or not 0 < width <= most or width * setup.rows > MAX_WORDS:
        raise PeerFaultError(FEATURES, "its key or its number of bins is impossible")
    memory.values["key"], memory.values["number"] = message.key, 0
    bins = np.empty((setup.rows, width), np.uint64)
    while True:
        count = len(message.words) // (8 * width)
        if not 0 < count <= setup.rows - rows or message.width != width:
            raise PeerFaultError(FEATURES, "its rows of bins are none, or too many")
        bins[rows : rows + count] = decoded_words(message.words, (count, width), FEATURES)
        rows += count
        if rows == setup.rows:
            break
        arrived = yield Turn(messages={FEATURES: b""}, awaits=frozenset({FEATURES}))
        message = decode_body(arrived[FEATURES], BinRows, FEATURES)
    return bins
