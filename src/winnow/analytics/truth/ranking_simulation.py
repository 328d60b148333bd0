"""The ranking of simulated participants: every one of them is a party, and only messages pass between them."""

from collections.abc import Mapping, Sequence
from secrets import token_bytes

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.truth.trust_ranking import COMPARED_BITS, Pair, sort_by_comparisons, trust_as_integer
from winnow.privacy.shares.batched_step import step_party
from winnow.privacy.shares.party import MIN_COMPUTING, SecureStep

MIN_RANKED = MIN_COMPUTING
"""Fewer participants could not hide their trust from one another."""


def rank_participants(trusts: Sequence[float]) -> list[int]:
    """The places of participants, the most trusted first; of equals, the first."""
    own = [trust_as_integer(trust) for trust in trusts]
    sort = sort_by_comparisons(len(own))
    pairs = next(sort)
    try:
        while True:
            pairs = sort.send(_compared(pairs, own))
    except StopIteration as stop:
        order: list[int] = stop.value
        return order


def _compared(pairs: tuple[Pair, ...], own: Sequence[int]) -> list[bool]:
    """Whether the first of each pair has as much as the second or more."""
    inputs = np.zeros((len(own), len(pairs)), np.int64)
    for place, (first, second) in enumerate(pairs):
        inputs[first, place], inputs[second, place] = own[first], -own[second]
    step = SecureStep(
        digest=token_bytes(32),
        owners=tuple(range(len(own))),
        length=len(pairs),
        bits=COMPARED_BITS,
        thresholds=np.zeros(len(pairs), np.int64),
    )
    opened: list[bool] = _opened(step, dict(enumerate(inputs))).tolist()
    return opened


def _opened(step: SecureStep, inputs: Mapping[int, NDArray[np.int64]]) -> NDArray[np.bool_]:
    """What the parties open, whose messages are carried between them here."""
    parties = {me: step_party(step, me, values) for me, values in inputs.items()}
    messages = {me: party.first_messages() for me, party in parties.items()}
    while any(messages.values()):
        arrived: dict[int, dict[int, bytes]] = {}
        for sender, written in messages.items():
            for addressee, message in written.items():
                arrived.setdefault(addressee, {})[sender] = message
        messages = {me: parties[me].receive(received) for me, received in arrived.items()}
    results = [party.opened for party in parties.values()]
    assert results[0] is not None
    assert all(each is not None and (each == results[0]).all() for each in results)
    return results[0]
