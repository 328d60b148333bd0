"""Answers a question over a federation: owners state their terms, then run its program step by step.

The server runs the same program without rows. It carries messages that it cannot read, compares what the owners opened,
and is the third party itself where two owners have no helper. Every step is a round.
"""

import json
from collections.abc import Iterator, Sequence
from hashlib import sha256

import msgspec
import numpy as np

from winnow.analytics.agreement import Agreement, Statement, decode_statements, encode_statements
from winnow.analytics.program import PartyProtocol, Product, Sum, SumChain, opens_bits
from winnow.analytics.question import Answer, Question
from winnow.analytics.relay_step_messages import StepResult, open_step, part_bytes, replies_of
from winnow.analytics.tasks import ANALYSIS_BEGIN
from winnow.core import (
    Answered,
    AnyEvent,
    ConfigError,
    Cost,
    Federation,
    Released,
    Reply,
    RoundFinished,
    Snapshot,
    Task,
    WinnowError,
)
from winnow.core.federation import clients_of
from winnow.privacy.concentrated_privacy import epsilon_of
from winnow.privacy.shares.message_party import SessionMemory
from winnow.runs import file_names

MESSAGES = "messages"
"""The part of a step's metrics that counts its exchanges."""
MAX_TERMS_BYTES = 1 << 20
"""Of one owner's terms."""


def answer_text(answer: Answer) -> str:
    """What `answer.json` holds."""
    return json.dumps(answer, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def read_snapshot(snapshot: Snapshot) -> tuple[str, list[bytes]]:
    """The owners' statements, and what was opened."""
    return msgspec.msgpack.decode(np.asarray(snapshot.arrays["analysis"]).tobytes(), type=tuple[str, list[bytes]])


class AnalysisWorkflow:
    """After it has run, `answer` is the question's answer. `names` are the owners', by client; parties of another
    `submission` refuse each other's messages.
    """

    def __init__(self, question: Question, names: Sequence[str], submission: str = "") -> None:
        self._question, self._names, self._submission = question, names, submission
        self._statements: list[Statement] = []
        self._opened: list[bytes] = []
        self.answer: Answer | None = None

    def run(self, federation: Federation) -> Iterator[AnyEvent]:
        if not self._statements:
            self._statements = self._ask_for_terms(federation)
        agreement = Agreement(question=self._question, submission=self._submission, statements=tuple(self._statements))
        program = agreement.run(self._opened)
        keys_agreed, memory = False, SessionMemory()
        while program.step is not None:
            step, number = program.step, program.number
            keyed = isinstance(step, PartyProtocol) or (isinstance(step, SumChain) and step.masked)
            result = open_step(federation, agreement, program, memory, new_keys=keyed and not keys_agreed)
            keys_agreed = keys_agreed or keyed
            federation.settle(result.tasks)
            program.add(result.opened)
            self._opened = list(program.opened)
            if isinstance(step, Sum | SumChain | Product | PartyProtocol) and not opens_bits(step):
                yield self._released(federation, step, number, result.cells)
            yield _round_finished(federation, number, result)
        assert program.answer is not None
        self.answer = program.answer
        digest = sha256(answer_text(self.answer).encode()).hexdigest()
        yield Answered(round=len(self._opened), at=federation.clock.now, file=file_names.ANSWER, digest=digest)

    def snapshot(self) -> Snapshot:
        """The terms, and what was opened: a restored program runs over it again."""
        kept = msgspec.msgpack.encode((encode_statements(self._statements), self._opened))
        return Snapshot(arrays={"analysis": np.frombuffer(kept, np.uint8)}, values={"steps": len(self._opened)})

    def restore(self, snapshot: Snapshot) -> None:
        statements, self._opened = read_snapshot(snapshot)
        self._statements = decode_statements(statements)

    def _ask_for_terms(self, federation: Federation) -> list[Statement]:
        if len(federation.population) != len(self._names):
            raise ConfigError(f"{len(self._names)} owners were named; the federation has {len(federation.population)}")
        names = dict(enumerate(self._names))
        tasks = [Task(name=ANALYSIS_BEGIN, client=client, round=1, version=0) for client in names]
        replies = replies_of(federation, tasks, names)
        terms = {client: _terms_of(reply, names[client]) for client, reply in replies.items()}
        statements = [Statement(client=client, owner=names[client], terms=terms[client]) for client in sorted(terms)]
        return decode_statements(encode_statements(statements))

    def _released(
        self, federation: Federation, step: Sum | SumChain | Product | PartyProtocol, number: int, cells: int
    ) -> Released:
        noise = step.noise if isinstance(step, Sum) else None
        hidden = step.hidden if isinstance(step, Sum | Product) else 0
        epsilon = None if noise is None else epsilon_of(noise.rho, self._question.delta)
        return Released(
            round=number, at=federation.clock.now, step=step.label, cells=cells, hidden=hidden, epsilon=epsilon
        )


def _round_finished(federation: Federation, number: int, result: StepResult) -> RoundFinished:
    spent = Cost.total(result.costs)._replace(sent_bytes=float(result.sent_bytes))
    return RoundFinished(
        round=number,
        at=federation.clock.now,
        version=number,
        metrics={MESSAGES: {"exchanges": float(result.exchanges)}},
        aggregated=clients_of(result.tasks),
        joules=spent.joules,
        cost=spent,
    )


def _terms_of(reply: Reply, owner: str) -> str:
    """An owner's terms; a helper has none."""
    terms = part_bytes(reply, "terms", "json", owner)
    if len(terms) > MAX_TERMS_BYTES:
        raise WinnowError(f"{owner}: its terms are longer than {MAX_TERMS_BYTES:,} bytes")
    try:
        return terms.decode()
    except UnicodeDecodeError:
        raise WinnowError(f"{owner}: its terms are not text") from None
