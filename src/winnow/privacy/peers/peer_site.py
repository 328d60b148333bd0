"""What a site does among peers: it writes its clients' models to the others, averages what they write, and keeps the
average once all state the same.

A client trains from the average that it keeps, and first from the initial model, which every party builds: what model
the server sends does not matter. Whoever missed a round has another start than the others; then those count whose
start most have, and the others take over their average.
"""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from msgspec.structs import replace

from winnow.core import Failure, Handler, Outcome, Payload, Population, Reply, Task, stream
from winnow.core.message_decoding import UnreadableError
from winnow.learn.aggregation import Contribution, PartialAggregation
from winnow.learn.learning_site import LearningSite
from winnow.learn.profile_comparison import SiteExtension
from winnow.learn.stack import ModelState
from winnow.privacy.peers.peer_messages import (
    AverageStatement,
    ModelMessage,
    decode_statement,
    decrypt_model,
    disagreement,
    encode_statement,
    encrypt_model,
    encrypted_model_bytes,
    tensors_digest,
)
from winnow.privacy.secagg.errors import ProtocolError
from winnow.privacy.secagg.protocol_tasks import as_array, payload_bytes, read_vector, step_handler

if TYPE_CHECKING:
    from winnow.privacy.peers.peers_collect import PeersCollect

AVERAGE, KEEP = "peers-average", "peers-keep"
PEERS, PEERS_VERSION, MODEL = "peers", "peers-version", "model"
"""Parts of what a client keeps: the average, and the round that made it."""
VERSION = "round"
BOX = "box"
"""The part of a training reply with the encrypted model; on its way to the others, by its sender's number."""


@dataclass(frozen=True, kw_only=True)
class RoundUnderWay:
    """A client's round under way: its own message, what it would keep of training, and then the average."""

    number: int
    members: frozenset[int]
    own: ModelState
    message: bytes
    box: bytes
    kept: Payload
    average: ModelState | None = None
    statement: AverageStatement | None = None


class PeerAveraging:
    """The rounds under way of a site's clients."""

    def __init__(self, settings: "PeersCollect") -> None:
        self._settings = settings
        self._rounds: dict[int, RoundUnderWay] = {}

    def extension(self) -> SiteExtension:
        steps = {AVERAGE: step_handler(self._average), KEEP: step_handler(self._keep)}
        return SiteExtension(handlers=steps, filters=(self._with_own_model,))

    # Around training and evaluation -----------------------------------------------------------------------------------

    def _with_own_model(self, tasks: Sequence[Task], site: LearningSite, call_next: Handler[Any]) -> list[Outcome]:
        """A filter: each client works with the model that it keeps, and what it trained goes to its peers alone."""
        if tasks[0].name in (AVERAGE, KEEP) or MODEL not in tasks[0].payload:
            return list(call_next(tasks, site))
        groups: dict[bytes, list[int]] = defaultdict(list)
        starts = [self._start(task, site) for task in tasks]
        for place, start in enumerate(starts):
            groups[tensors_digest(start)].append(place)
        outcomes: dict[int, Outcome] = {}
        for places in groups.values():
            sent = tasks[places[0]].payload
            payload = {name: part for name, part in sent.items() if name != PEERS} | {MODEL: starts[places[0]]}
            given = [replace(tasks[place], payload=payload) for place in places]
            outcomes.update(zip(places, call_next(given, site), strict=True))
        return [self._posted(tasks[place], starts[place], outcomes[place], site) for place in range(len(tasks))]

    def _start(self, task: Task, site: LearningSite) -> ModelState:
        kept = task.client_state.get(PEERS)
        names = task.payload[MODEL].keys() if kept is None else kept.keys()
        initial: ModelState = {name: site.initial[name] for name in names if name in site.initial}
        return initial if kept is None else {name: kept[name] for name in initial}

    def _posted(self, task: Task, start: ModelState, outcome: Outcome, site: LearningSite) -> Outcome:
        """The reply to a training: messages to the other members, and nothing of the model for the server."""
        if task.name != "train" or not isinstance(outcome, Reply) or MODEL not in outcome.payload:
            return outcome
        try:
            members = frozenset(read_vector({"secure": task.payload.get(PEERS, {})}, "members").astype(int).tolist())
        except ProtocolError as error:
            return Failure(task=task, stage="writing to its peers", reason=str(error))
        if task.client not in members or len(members) < self._settings.min_clients:
            reason = f"a round among peers takes {self._settings.min_clients} members, this client among them"
            return Failure(task=task, stage="writing to its peers", reason=reason)
        own = {name: tensor.detach().clone() for name, tensor in outcome.payload[MODEL].items()}
        version = task.client_state.get(PEERS_VERSION, {}).get(VERSION)
        samples = int(site.data.cohort(np.array([task.client])).sizes(np.array([task.client]))[0])
        box, message = encrypt_model(own, start, 0 if version is None else int(version), samples)
        kept = {**task.client_state, **outcome.new_client_state}
        self._rounds[task.client] = RoundUnderWay(
            number=task.round, members=members, own=own, message=message, box=box, kept=kept
        )
        payload = {name: part for name, part in outcome.payload.items() if name != MODEL}
        payload[BOX] = {BOX: as_array(box)}
        messages = dict.fromkeys(sorted(members - {task.client}), message)
        return replace(outcome, payload=payload, peer_messages=messages, new_client_state={})

    # The protocol's steps ---------------------------------------------------------------------------------------------

    def _average(self, task: Task) -> Reply:
        """Average the messages, and state to all who wrote one what came of it."""
        under_way = self._under_way(task)
        messages = {**self._from_members(task, under_way), task.client: under_way.message}
        limit, given = (
            encrypted_model_bytes(under_way.own),
            {int(name) for name in task.payload.get(BOX, {}) if name.isdigit()},
        )
        if len(messages) < self._settings.min_clients:
            raise ProtocolError(f"{len(messages)} messages came, and an average takes {self._settings.min_clients}")
        boxes = {sender: payload_bytes(task.payload, str(sender), BOX, limit) for sender in messages if sender in given}
        average = average_models(messages, {**boxes, task.client: under_way.box}, under_way.own)
        text = encode_statement(messages, average)
        self._rounds[task.client] = dataclasses.replace(under_way, average=average, statement=decode_statement(text))
        return Reply(task=task, peer_messages=dict.fromkeys(sorted(messages.keys() - {task.client}), text))

    def _keep(self, task: Task) -> Reply:
        """Keep the average, if everyone whose message is in it states the same."""
        under_way = self._under_way(task)
        if under_way.average is None or under_way.statement is None:
            raise ProtocolError("there is no average of this round")
        try:
            stated = {k: decode_statement(text) for k, text in self._from_members(task, under_way).items()}
        except UnreadableError as error:
            raise ProtocolError(f"a peer's statement cannot be read: {error}") from error
        silent = sorted(under_way.statement.messages.keys() - stated.keys() - {task.client})
        if silent:
            raise ProtocolError(f"client {silent[0]} wrote a message and did not state what it averaged")
        reason = disagreement(under_way.statement, stated)
        if reason is not None:
            raise ProtocolError(reason)
        del self._rounds[task.client]
        version = {VERSION: torch.tensor(task.round)}
        state = {**under_way.kept, PEERS: under_way.average, PEERS_VERSION: version}
        told = {MODEL: under_way.average} if self._settings.average_to_server else {}
        return Reply(task=task, payload=told, new_client_state=state)

    def _under_way(self, task: Task) -> RoundUnderWay:
        found = self._rounds.get(task.client)
        if found is None or found.number != task.round:
            raise ProtocolError("there is no update of this round")
        return found

    @staticmethod
    def _from_members(task: Task, under_way: RoundUnderWay) -> Mapping[int, bytes]:
        return {sender: text for sender, text in task.peer_messages.items() if sender in under_way.members}


def average_models(messages: Mapping[int, bytes], boxes: Mapping[int, bytes], like: ModelState) -> ModelState:
    """θ = Σ n_k·θ_k / Σ n_k over the messages that can be read and have the start that most of them have, in the order
    of the clients' numbers, as a server would add them up; a function of the messages alone, so all come to the same.
    """
    read: dict[int, tuple[ModelMessage, ModelState]] = {}
    for sender, text in sorted(messages.items()):
        try:
            read[sender] = decrypt_model(text, boxes.get(sender, b""), like)
        except UnreadableError:
            continue  # to every reader: one who writes nonsense to some only is found out by their statements
    if not read:
        raise ProtocolError("no message of this round can be read")
    starts = Counter((message.start, message.version) for message, _ in read.values())
    common = max(starts, key=lambda start: (starts[start], start[1], start[0]))
    counted = {sender: each for sender, each in read.items() if (each[0].start, each[0].version) == common}
    sizes = np.ones(max(messages) + 1, np.int64)
    for sender, (message, _) in counted.items():
        sizes[sender] = message.samples
    unused = stream(0, "aggregate")  # a mean draws nothing
    fold = PartialAggregation().start(like, Population(sizes=sizes), len(counted), unused)
    for sender, (_, model) in counted.items():
        fold.add(Contribution(model=model, client=sender))
    return fold.finish()
