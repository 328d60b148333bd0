"""The server's part in one step: it carries messages from owner to owner until all have opened the result."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from secrets import token_hex

import msgspec
import numpy as np

from winnow.analytics.agreement import SERVER, Agreement, encode_statements
from winnow.analytics.program import PartyProtocol, SumChain, opened_length
from winnow.analytics.program_run import ProgramRun, decode_opened, encode_opened
from winnow.analytics.question import Answer
from winnow.analytics.site import RESTARTED_STAGE, StepTask
from winnow.analytics.tasks import ANALYSIS_STEP
from winnow.core import Cost, Failure, Federation, Payload, Reply, Task, WinnowError
from winnow.core.broadcast_and_relay import peer_messages, wait
from winnow.core.join_names import listed
from winnow.core.untrusted_text import one_line
from winnow.privacy.shares.batched_step import BatchedStep, step_party
from winnow.privacy.shares.errors import SharesError
from winnow.privacy.shares.masked_sum import MaskedStep, MaskedSumServer
from winnow.privacy.shares.message_party import MessageParty, MessageStep, SessionMemory
from winnow.privacy.shares.party import SecureStep, StepParty
from winnow.privacy.shares.product_party import ProductParty
from winnow.privacy.shares.product_step import ProductStep

ATTEMPT_BYTES = 16
MAX_PART_BYTES = 1 << 26
"""Of a part of a reply: a message to the server, a result."""
MAX_NAMED = 10
"""Owners that one line names."""
WAITING_STAGE = "waiting"
"""The stage of a failure that is no answer at all."""
WORKING_STAGE = "working"
"""The stage of a failure at a site whose process ended before it answered."""
MAX_ATTEMPTS = 4
"""At a step, while owners restart in the middle of it."""


class RestartedError(WinnowError):
    """An owner lost its part of the present step; the next attempt may end well."""


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What a step opened, the tasks with whose replies owners did, and what it cost them and the network."""

    opened: bytes
    tasks: list[Task]
    costs: list[Cost]
    exchanges: int
    sent_bytes: int
    cells: int
    """How many numbers became known."""


def replies_of(federation: Federation, tasks: Sequence[Task], names: Mapping[int, str]) -> dict[int, Reply]:
    """Every owner's reply, by client; those who do not answer are named."""
    outcomes = wait(federation.dispatch(tasks))
    replies = {outcome.task.client: outcome for outcome in outcomes if isinstance(outcome, Reply)}
    for outcome in outcomes:
        if isinstance(outcome, Failure) and outcome.stage != WAITING_STAGE:
            kind = RestartedError if outcome.stage in (RESTARTED_STAGE, WORKING_STAGE) else WinnowError
            raise kind(f"{names[outcome.task.client]}: {one_line(outcome.reason)}")
    if silent := [names[task.client] for task in tasks if task.client not in replies]:
        reasons = {outcome.reason for outcome in outcomes if isinstance(outcome, Failure)} or {"no answer"}
        of = f"{len(silent)} of {len(tasks)} owners did not answer"
        raise WinnowError(f"{of} ({one_line(listed(sorted(reasons)))}): {listed(silent, MAX_NAMED)}")
    return replies


def part_bytes(reply: Reply, part: str, name: str, owner: str) -> bytes:
    """Bytes that an owner put into its reply as an array; none if there are none."""
    if part not in reply.payload:
        return b""
    try:
        array = np.asarray(reply.payload[part][name])
    except KeyError:
        raise WinnowError(f"{owner}: its reply has a part {part!r} without {name!r}") from None
    if array.dtype != np.uint8 or array.ndim != 1 or len(array) > MAX_PART_BYTES:
        raise WinnowError(f"{owner}: its reply has a part {part!r} that is not a list of bytes, or is too long")
    return array.tobytes()


def open_step(
    federation: Federation,
    agreement: Agreement,
    program: ProgramRun[Answer],
    memory: SessionMemory,
    *,
    new_keys: bool,
) -> StepResult:
    """Have the owners open the program's present step; it begins again if one of them restarted meanwhile, with new
    keys of masks, or another session. `new_keys` asks for them at once. `memory` is the server's, as a third party.
    """
    for attempt in range(MAX_ATTEMPTS - 1):
        with suppress(RestartedError):
            return _StepExchange(federation, agreement, program, memory, new_keys=new_keys or attempt > 0).run()
    return _StepExchange(federation, agreement, program, memory, new_keys=True).run()


class _StepExchange:
    """Messages of an exchange are delivered together; the server's own, where it computes, go with the owners'."""

    def __init__(
        self,
        federation: Federation,
        agreement: Agreement,
        program: ProgramRun[Answer],
        memory: SessionMemory,
        *,
        new_keys: bool,
    ) -> None:
        assert program.step is not None
        self._federation, self._agreement, self._new_keys = federation, agreement, new_keys
        self._step, self._round = program.step, program.number
        self._secure = agreement.secure_step(program)
        self._clients = [party for party in self._secure.everybody if party != SERVER]
        self._own: StepParty | BatchedStep | MaskedSumServer | ProductParty | MessageParty | None = None
        if isinstance(self._secure, MaskedStep) and len(self._clients) > 1:
            assert isinstance(self._step, SumChain)
            self._own = MaskedSumServer(self._secure, self._step.vectors(None))
        if isinstance(self._secure, SecureStep) and self._secure.third_party == SERVER:
            self._own = step_party(self._secure, SERVER, None)
        if isinstance(self._secure, ProductStep) and self._secure.third_party == SERVER:
            self._own = ProductParty(self._secure, SERVER, None)
        if isinstance(self._secure, MessageStep) and self._secure.third_party == SERVER:
            assert isinstance(self._step, PartyProtocol)
            if new_keys:
                memory.session, memory.begun, memory.values = b"", set(), {}
            self._own = MessageParty(self._secure, SERVER, self._step.start(None, 2), memory)
        self._attempt, self._exchanges, self._sent_bytes = token_hex(ATTEMPT_BYTES), 0, 0
        self._costs: list[Cost] = []
        self._opened: dict[int, bytes] = {}
        self._last_tasks: list[Task] = []

    def run(self) -> StepResult:
        from_server = {} if self._own is None else self._own.first_messages()
        replies = self._send(self._clients, {}, {}, encode_statements(self._agreement.statements))
        while len(self._opened) < len(self._clients):
            messages = peer_messages(replies.values())
            to_server = self._messages_to_server(replies)
            if not (messages or to_server or from_server) or self._exchanges > self._secure.max_exchanges:
                absent = [self._agreement.names[each] for each in self._clients if each not in self._opened]
                raise WinnowError(f"{self._where} came to a stop without a result at {listed(absent, MAX_NAMED)}")
            addressed = [client for client in self._clients if client in messages or client in from_server]
            replies = self._send(addressed, messages, from_server) if addressed else {}
            from_server = self._server_receives(to_server)
        return StepResult(
            opened=self._agreed(),
            tasks=self._last_tasks,
            costs=self._costs,
            exchanges=self._exchanges - 1,  # before the first there is nothing to carry
            sent_bytes=self._sent_bytes,
            cells=self._cells(),
        )

    def _cells(self) -> int:
        if isinstance(self._own, MaskedSumServer):
            return self._own.cells
        return opened_length(self._step, len(self._agreement.owners))

    @property
    def _where(self) -> str:
        return f"step {self._round} ({self._step.label})"

    def _send(
        self,
        clients: Sequence[int],
        messages: Mapping[int, Mapping[int, bytes]],
        from_server: Mapping[int, bytes],
        statements: str = "",
    ) -> dict[int, Reply]:
        settings = StepTask(
            attempt=self._attempt, exchange=self._exchanges, statements=statements, new_keys=self._new_keys
        )
        self._exchanges += 1
        parts = {id(message): _message_part(message) for message in from_server.values()}
        """One for all who get the same message: it is written once."""
        tasks = [
            Task(
                name=ANALYSIS_STEP,
                client=client,
                round=self._round,
                version=0,
                settings=msgspec.to_builtins(settings),
                peer_messages=messages.get(client, {}),
                payload=parts[id(from_server[client])] if client in from_server else {},
            )
            for client in clients
        ]
        replies = replies_of(self._federation, tasks, self._agreement.names)
        self._sent_bytes += sum(map(len, from_server.values())) + sum(map(_sent_bytes, replies.values()))
        for client, reply in replies.items():
            self._costs.append(reply.cost)
            if opened := part_bytes(reply, "opened", "values", self._agreement.names[client]):
                self._opened[client] = opened
                self._last_tasks.append(reply.task)
        return replies

    def _messages_to_server(self, replies: Mapping[int, Reply]) -> dict[int, bytes]:
        names = self._agreement.names
        messages = {client: part_bytes(reply, "messages", "server", names[client]) for client, reply in replies.items()}
        return {client: message for client, message in messages.items() if message}

    def _server_receives(self, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        if self._own is None or not messages:
            return {}
        try:
            return self._own.receive(messages)
        except SharesError as error:
            whose = "" if error.party is None else f"{self._agreement.names.get(error.party, error.party)}: "
            raise WinnowError(f"{self._where}: {whose}{error}") from error

    def _agreed(self) -> bytes:
        """What all parties opened; if they differ, who is alone with it."""
        opened = dict(self._opened)
        if self._own is not None and self._own.opened is not None:
            opened[SERVER] = encode_opened(self._own.opened)
        ((most, supporters), *others) = Counter(opened.values()).most_common()
        if others:
            alone = [self._agreement.names[party] for party, value in opened.items() if value != most]
            who = alone if supporters > 1 else [self._agreement.names[party] for party in opened]
            raise WinnowError(f"{self._where} gave different results at {listed(who, MAX_NAMED)}; nothing was released")
        decode_opened(self._step, len(self._agreement.owners), most)
        return most


def _sent_bytes(reply: Reply) -> int:
    messages = sum(map(len, reply.peer_messages.values()))
    return messages + sum(int(np.asarray(each).nbytes) for part in reply.payload.values() for each in part.values())


def _message_part(message: bytes) -> Payload:
    return {"messages": {"server": np.frombuffer(message, np.uint8)}}
