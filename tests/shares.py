"""Parties of a secure step in one process, for tests."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from winnow.privacy.shares.batched_step import BatchedStep
from winnow.privacy.shares.party import SecureStep, StepParty

Messages = dict[int, dict[int, bytes]]
"""By sender, then addressee."""
Post = Callable[[int, Messages], Messages]
"""What becomes of an exchange's messages on their way."""

SERVER = -1


def secure_step(
    owners: int, length: int, *, bits: int = 32, thresholds: Sequence[int] | None = None, digest: bytes = b"step"
) -> SecureStep:
    return SecureStep(
        digest=digest,
        owners=tuple(range(owners)),
        third_party=SERVER if owners == 2 else None,
        length=length,
        bits=bits,
        thresholds=None if thresholds is None else np.array(thresholds, np.int64),
    )


def parties_of(step: SecureStep, values: Sequence[Sequence[int]]) -> dict[int, StepParty]:
    parties = {owner: StepParty(step, owner, np.array(own, np.int64)) for owner, own in enumerate(values)}
    return (
        parties if step.third_party is None else {**parties, step.third_party: StepParty(step, step.third_party, None)}
    )


def exchange(
    parties: Mapping[int, StepParty | BatchedStep], post: Post = lambda number, messages: messages
) -> tuple[list[Messages], dict[int, NDArray[np.generic] | None]]:
    """Carry messages until nobody writes any more; all that were sent, and what each party opened."""
    messages: Messages = {me: party.first_messages() for me, party in parties.items()}
    sent = []
    while any(messages.values()):
        messages = post(len(sent), messages)
        sent.append(messages)
        arrived = {me: {sender: written[me] for sender, written in messages.items() if me in written} for me in parties}
        messages = {me: party.receive(arrived[me]) if arrived[me] else {} for me, party in parties.items()}
    return sent, {me: party.opened for me, party in parties.items()}
