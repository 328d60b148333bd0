"""A participant's side of a private truth discovery: it deals shares of what it adds, and adds shares of others."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b

import numpy as np
from msgspec import Struct

from winnow.analytics.truth.answer_arrays import AnswerArrays
from winnow.analytics.truth.truth_methods import TruthEstimate
from winnow.analytics.truth.truth_terms import HEADER_BYTES, KEPT, TruthTerms
from winnow.analytics.truth.truth_vectors import added_by
from winnow.analytics.truth.vector_shares import (
    Elements,
    decode_elements,
    encode_elements,
    in_field,
    split_vector,
    to_fixed_point,
)
from winnow.core import Failure, Handler, Outcome, Payload, Reply, Task
from winnow.privacy.shares.errors import SharesError

DEAL = "truth-deal"
ADD = "truth-add"
ESTIMATE, SUM, DEALT, TOTAL = "estimate", "sum", "dealt", "total"
VALUES = "values"


class AddTask(Struct, frozen=True):
    """Whose shares a holder is to add: the same for all holders, and fixed before anything is added."""

    senders: tuple[int, ...]


class TruthSite:
    """The handlers of a site that hosts participants, whose own answers `answers` has by client.

    A vector is dealt as its difference from the last one that was counted, so a holder keeps one running total: the
    sum over the last vectors of everybody who ever dealt. Nobody answers twice in a round, and a holder adds nobody
    again who left: a sum with and one without somebody differ by that participant's vector. A message says from which
    estimate it was made, and a holder adds those alone that were made from its own: one participant whose trust was
    moved apart from all others' would show in the sum.
    """

    def __init__(self, terms: TruthTerms, answers: Mapping[int, AnswerArrays]) -> None:
        self._terms, self._answers = terms, answers
        self._last_round: dict[tuple[str, int], int] = {}
        self._told: dict[int, tuple[int, bytes]] = {}
        """The round in which each participant dealt last, and the digest of the estimate that it was told."""
        self._senders: dict[int, frozenset[int]] = {}
        """Whom each holder added last."""

    def handlers(self) -> dict[str, Handler[object]]:
        return {name: partial(_answer_each, step) for name, step in ((DEAL, self._deal), (ADD, self._add))}

    def _deal(self, task: Task) -> Reply:
        terms = self._terms
        estimate = read_estimate(task.payload, terms)
        self._only_once(task)
        told = _digest(estimate)
        self._told[task.client] = (task.round, told)
        vector = own_vector(terms, self._answers[task.client], estimate)
        last = _kept(task, DEALT, terms) if terms.dropouts == KEPT else np.zeros_like(vector)
        shares = split_vector(in_field(vector.astype(np.int64) - last), terms.holders, terms.threshold)
        messages = {
            holder: terms.header(task.round, task.client, holder, told) + encode_elements(row)
            for holder, row in zip(terms.holders, shares, strict=True)
        }
        kept = {**task.client_state, DEALT: {VALUES: vector}}
        return Reply(task=task, peer_messages=messages, new_client_state=kept)

    def _add(self, task: Task) -> Reply:
        terms, me = self._terms, task.client
        senders = _senders_of(task, terms)
        if me not in terms.holders:
            raise SharesError(f"participant {me} holds no shares")
        dealt_in, told = self._told.get(me, (0, b""))
        if dealt_in != task.round:
            raise SharesError(f"participant {me} is to add in round {task.round}, in which it dealt nothing")
        self._only_once(task)
        for again in sorted({*senders} - self._senders.get(me, {*senders})):
            raise SharesError(f"participant {again} was left out before and is to be added again", again)
        for stranger in sorted({*task.peer_messages} - {*senders}):
            raise SharesError(f"there is a message of participant {stranger}, who is not among the senders", stranger)
        kept = terms.dropouts == KEPT
        before = _kept(task, TOTAL, terms) if kept else np.zeros(terms.length, np.uint32)
        added = before.astype(np.int64)
        for sender in senders:
            added += self._shares(task, sender, told)
        total = in_field(added)
        self._senders[me] = frozenset(senders)
        state = {**task.client_state, TOTAL: {VALUES: total}} if kept else task.client_state
        return Reply(task=task, payload={SUM: {VALUES: total}}, new_client_state=state)

    def _shares(self, task: Task, sender: int, told: bytes) -> Elements:
        message = task.peer_messages.get(sender)
        if message is None:
            raise SharesError(f"there is no message of participant {sender}", sender)
        if message[:HEADER_BYTES] != self._terms.header(task.round, sender, task.client, told):
            raise SharesError(
                f"the message of participant {sender} is of another round or estimate, or for another holder", sender
            )
        try:
            return decode_elements(message[HEADER_BYTES:], self._terms.length)
        except SharesError as error:
            raise SharesError(f"participant {sender}: {error}", sender) from error

    def _only_once(self, task: Task) -> None:
        """Two answers in a round would tell a difference: the second would deal the change since the first, zeros."""
        if task.round <= self._last_round.get((task.name, task.client), 0):
            raise SharesError(f"{task.name} of round {task.round} was asked before")
        self._last_round[task.name, task.client] = task.round


def own_vector(terms: TruthTerms, answers: AnswerArrays, estimate: TruthEstimate | None) -> Elements:
    """What a participant adds to all sums, zeros included: its length says nothing of its answers."""
    bound = terms.method.bound
    return to_fixed_point(added_by(terms.method, answers, estimate).clip(-bound, bound), terms.bits)


def read_estimate(payload: Payload, terms: TruthTerms) -> TruthEstimate | None:
    """The estimate that the server sends; there is none at first."""
    if ESTIMATE not in payload:
        return None
    confidence, shared = (np.asarray(payload[ESTIMATE].get(name)) for name in ("confidence", "shared"))
    shapes = (terms.items, terms.columns), (terms.method.shared_sums,)
    if (confidence.shape, shared.shape) != shapes or {confidence.dtype, shared.dtype} != {np.dtype(np.float64)}:
        raise SharesError("the server's estimate does not fit the items")
    low = terms.method.least_confidence
    if not (np.isfinite(shared).all() and ((confidence >= low) & (confidence <= 1)).all()):  # NaN is neither
        raise SharesError("the server's estimate has a value that is not a confidence")
    return TruthEstimate(confidence=confidence, shared=shared)


def _digest(estimate: TruthEstimate | None) -> bytes:
    told = b"" if estimate is None else estimate.confidence.tobytes() + estimate.shared.tobytes()
    return blake2b(told).digest()


def _senders_of(task: Task, terms: TruthTerms) -> tuple[int, ...]:
    if not isinstance(task.settings, AddTask):
        raise SharesError("the task does not say whose shares to add")
    senders = task.settings.senders
    known = all(0 <= sender < terms.participants for sender in senders)
    if not known or len({*senders}) != len(senders):
        raise SharesError("the senders are not participants, or one of them is named twice")
    if len(senders) < terms.threshold:
        raise SharesError(f"a sum over {len(senders)} senders tells too much of each; {terms.threshold} are needed")
    return senders


def _kept(task: Task, part: str, terms: TruthTerms) -> Elements:
    if part not in task.client_state:
        return np.zeros(terms.length, np.uint32)
    return np.asarray(task.client_state[part][VALUES], np.uint32)


def _answer_each(step: Callable[[Task], Reply], tasks: Sequence[Task], site: object) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for task in tasks:
        try:
            outcomes.append(step(task))
        except SharesError as error:
            outcomes.append(Failure(task=task, stage=f"answering {task.name}", reason=str(error)))
    return outcomes
