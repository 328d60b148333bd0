"""What secure steps cost: exchanges of messages, bytes, and about how many seconds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, log2

import numpy as np

from winnow.analytics.program import (
    Compare,
    CountDistinct,
    Match,
    Mix,
    PartyProtocol,
    Product,
    Step,
    Sum,
    SumChain,
    opened_length,
)
from winnow.analytics.program_run import CHAIN_NUMBER_BYTES, NUMBER_BYTES
from winnow.core.join_names import counted
from winnow.privacy.replicated_product import WORD_BYTES
from winnow.privacy.set_intersection.psi_protocol import padded_length
from winnow.privacy.shares.party import MAX_COMPUTING, MIN_COMPUTING, NAMED
from winnow.privacy.shares.product_step import TOP_BITS
from winnow.privacy.shares.secure_comparison import batches, comparison_field
from winnow.privacy.shares.shamir_shares import field_of
from winnow.report.number_format import size_text

MESSAGE_BYTES = 48
"""Of a message without its shares, as measured."""
SIMULATED_SECONDS, DEPLOYED_SECONDS = 0.002, 0.025
"""Of an exchange, besides its arithmetic."""
OWNER_SECONDS, START_SECONDS = 0.05, 2.0
"""To read an owner's rows and select them; to start a job of real owners."""
SECONDS_A_BYTE = 2e-7
"""Of arithmetic, over all parties."""


@dataclass(frozen=True, kw_only=True)
class StepCosts:
    """Bytes are those that all parties send: messages to each other, and what they opened to the server."""

    exchanges: int
    sent_bytes: int

    def __add__(self, other: "StepCosts") -> "StepCosts":
        return StepCosts(exchanges=self.exchanges + other.exchanges, sent_bytes=self.sent_bytes + other.sent_bytes)

    def seconds(self, owners: int, *, deployed: bool) -> float:
        """Simulated parties work one after another."""
        arithmetic = self.sent_bytes * SECONDS_A_BYTE
        if deployed:
            return START_SECONDS + self.exchanges * DEPLOYED_SECONDS + arithmetic / computing_parties(owners)
        return owners * OWNER_SECONDS + self.exchanges * SIMULATED_SECONDS + arithmetic

    def text(self) -> str:
        return f"{counted(self.exchanges, 'exchange')}, {size_text(self.sent_bytes)}"


def computing_parties(owners: int) -> int:
    return MIN_COMPUTING if owners <= 2 else owners if owners <= MAX_COMPUTING else NAMED


def costs_of(steps: Iterable[Step], owners: int) -> StepCosts:
    return sum((_step_costs(step, owners) for step in steps), StepCosts(exchanges=0, sent_bytes=0))


def explained_costs(steps: Sequence[Step], owners: int, *, complete: bool, deployed: bool) -> str:
    """A line. `complete` is False where further steps depend on what is opened."""
    costs = costs_of(steps, owners)
    least = "about" if complete else "at least"
    return f"Costs: {least} {costs.text()} and {costs.seconds(owners, deployed=deployed):.1f} s"


def _step_costs(step: Step, owners: int) -> StepCosts:
    """One owner alone computes without messages. What a set intersection sends depends on how many keys there are."""
    if isinstance(step, Match):
        return StepCosts(exchanges=2 * len(step.parties), sent_bytes=0)
    if isinstance(step, Product):
        return _product_costs(step)
    if isinstance(step, PartyProtocol):
        return StepCosts(exchanges=step.exchanges, sent_bytes=step.sent_bytes)
    computing = computing_parties(owners)
    if isinstance(step, Mix):
        boxes = step.slots * owners
        return StepCosts(exchanges=3 + computing, sent_bytes=boxes * computing * (step.width + 60 * computing // 2))
    if isinstance(step, CountDistinct):
        items = owners * padded_length(step.most)
        return StepCosts(exchanges=owners + 3 + computing, sent_bytes=items * (32 * owners + 48 + 60 * computing))
    if isinstance(step, SumChain):  # owners send words, the server their sums
        words = 2 * owners * step.words * WORD_BYTES if owners > 1 else 0
        return StepCosts(exchanges=step.sums, sent_bytes=words + owners * step.length * CHAIN_NUMBER_BYTES)
    length = opened_length(step, owners)
    opened = owners * length * (NUMBER_BYTES if isinstance(step, Sum) else 1)
    if owners == 1:
        return StepCosts(exchanges=0, sent_bytes=opened)
    exchanges = 2 if isinstance(step, Sum) else 2 + (_comparison_exchanges(step) - 2) * batches(length)
    return StepCosts(exchanges=exchanges, sent_bytes=opened + _message_bytes(step, length, owners, exchanges))


def _product_costs(step: Product) -> StepCosts:
    """Owners send their matrices, masked, and all three parties their parts of the result; to compare, they find first
    how often parts wrap round.
    """
    sent = WORD_BYTES * step.rows * sum(step.columns)
    if step.thresholds is None:
        opened = len(step.entries) * (6 * WORD_BYTES + 2 * NUMBER_BYTES)
        return StepCosts(exchanges=2, sent_bytes=sent + opened + 12 * MESSAGE_BYTES)
    length, nobody = len(step.thresholds), lambda _: step.thresholds
    wraps = Compare(label="", local=nobody, thresholds=np.zeros(2 * length, np.int64), bits=TOP_BITS + 2)
    compared = Compare(label="", local=nobody, thresholds=step.thresholds, bits=step.bits)
    parts = [_step_costs(each, MIN_COMPUTING) for each in (wraps, compared)]
    return StepCosts(exchanges=1, sent_bytes=sent) + parts[0] + parts[1]


def _comparison_exchanges(step: Compare) -> int:
    """Over a tree of the bits; numbers are shared before, and the result opened after it."""
    return 5 + ceil(log2(step.bits + 2))


def _message_bytes(step: Sum | Compare, length: int, owners: int, exchanges: int) -> int:
    """Inputs go to all who compute, results to everybody; comparisons take 2·bits + 6.5 elements a pair besides."""
    computing = computing_parties(owners)
    everybody = max(owners, computing)
    pairs, outside = computing * (computing - 1), everybody - computing
    inputs = owners * computing - min(owners, computing)
    results = pairs + computing * outside
    if isinstance(step, Sum):
        width = field_of(step.bits + owners.bit_length() + 2).byte_length
        return int((inputs + results) * (width * length + MESSAGE_BYTES) + computing * outside * MESSAGE_BYTES)
    width = comparison_field(step.bits).byte_length
    elements = inputs + results + pairs * (2 * step.bits + 6.5)
    messages = pairs * exchanges + 3 * computing * outside
    return int(elements * width * length + messages * MESSAGE_BYTES)
