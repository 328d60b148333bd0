"""Averaging among peers as a `collect`: the server passes sealed messages on, and sees no update."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from msgspec.structs import replace
from pydantic import Field

from winnow.core import Federation, Outcome, Payload, Randomness, Reply, Task
from winnow.core.array_spec import is_byte_array
from winnow.core.broadcast_and_relay import peer_messages, wait
from winnow.core.task import NO_WORK, Work
from winnow.learn.algorithm_part import ALL_EVIDENCE, EvidenceKind
from winnow.learn.collect import Collect, RoundContext, RoundResult
from winnow.learn.party_signing_interface import PartyIdentities
from winnow.learn.profile_comparison import SiteExtension
from winnow.learn.reply_checks import ExpectedReply, Rejection, check_replies, failure_reason
from winnow.learn.stack import ModelState
from winnow.privacy.peers.peer_messages import encrypted_model_bytes, tensors_digest
from winnow.privacy.peers.peer_site import AVERAGE, BOX, KEEP, MODEL, PEERS, PeerAveraging

if TYPE_CHECKING:
    from winnow.learn.algorithm import Algorithm


class PeersCollect(Collect):
    """Clients send their models to each other, sealed, and each averages for itself: swarm learning.

    The server says who takes part and passes messages on. The average stays with the clients, and every round starts
    from it; with `average_to_server` they tell it to the server, too. A round has at least `min_clients`.
    """

    name: Literal["peers"] = "peers"
    average_to_server: bool = False
    min_clients: int = Field(default=2, ge=2)
    needs: ClassVar[Mapping[str, str]] = {"schedule": "rounds", "aggregate": "partial", "server": "replace"}
    forbidden_evidence: ClassVar[frozenset[EvidenceKind]] = ALL_EVIDENCE

    @property
    def min_cohort_size(self) -> int:
        return self.min_clients

    @property
    def server_has_model(self) -> bool:
        return self.average_to_server

    def client_model(self, model: ModelState, kept: Payload) -> ModelState:
        return model | dict(kept.get(PEERS, {}))

    def conflict(self, whole: "Algorithm") -> str | None:
        own = f'collect.name = "{self.name}"'
        client, selector = (getattr(part, "name", "") for part in (whole.client, whole.select))
        if whole.client.extra_parts or whole.client.sends_predictions:
            return f"{own} averages the model alone, and client.name = {client!r} sends more; choose another"
        if whole.select.sees_updates:
            return f"{own} shows the server no update, and select.name = {selector!r} compares updates"
        if getattr(whole.aggregate, "weights", "size") != "size":
            return f"{own} averages by the number of samples; set aggregate.weights to 'size'"
        return None

    def privacy_text(self) -> str:
        told = (
            "Clients tell it the average of each round. "
            if self.average_to_server
            else "It learns no average either, and has no trained model at the end: each client has it. "
        )
        return (
            "peers: clients send their models to each other, encrypted, and each averages for itself. In a deployed "
            "job the server passes sealed messages on and learns who takes part, the models' sizes and losses. "
            f"{told}"
            "Every peer sees every other peer's model and must be trusted with what that reveals; differential privacy "
            "at the clients (dp-sgd) bounds it. A server that keeps messages back, or a peer that writes different "
            "things to different peers, can stop a round and change no average unnoticed. It costs every client one "
            "upload of its model, a download of each other client's, and two short exchanges a round."
        )

    def site_extension(self, randomness: Randomness, identities: PartyIdentities | None = None) -> SiteExtension:
        return PeerAveraging(self).extension()

    def gather(self, federation: Federation, context: RoundContext) -> RoundResult:
        members = {"members": np.array([task.client for task in context.tasks], np.float64)}
        tasks = [replace(task, payload={**task.payload, PEERS: members}) for task in context.tasks]
        with federation.dispatch(tasks, context.until) as exchange:
            outcomes = sorted(exchange, key=lambda outcome: outcome.task.client)
        expected = dataclasses.replace(context.expected, parts={}, reply_parts=(BOX,))
        most = encrypted_model_bytes(dict(context.expected.parts[MODEL]))
        trained, refused, answered = check_replies(outcomes, expected, lambda reply: _box_fault(reply, most))
        averaged = self._step(AVERAGE, federation, trained, refused, answered)
        kept = self._step(KEEP, federation, averaged, refused, answered)
        loss = {reply.task.client: reply.metrics for reply in trained}
        kept = [replace(reply, metrics=loss[reply.task.client], peer_messages={}) for reply in kept]
        kept, model = self._told(kept, refused, context.expected)
        return RoundResult(
            model=model,
            parts={},
            aggregated=kept,
            reported=[replace(reply, payload=_without_box(reply), peer_messages={}) for reply in trained],
            rejected=refused,
            answered=[replace(reply, payload={}, peer_messages={}) for reply in answered],
        )

    @staticmethod
    def _step(
        name: str,
        federation: Federation,
        before: Sequence[Reply],
        refused: list[Rejection],
        answered: list[Reply],
    ) -> list[Reply]:
        """Pass on what clients wrote to each other in the step before, and ask them for the next."""
        if len(before) < 2:
            return []
        present = {reply.task.client for reply in before}
        messages = peer_messages(before)
        boxes = {str(reply.task.client): reply.payload[BOX][BOX] for reply in before if BOX in reply.payload}
        payload = {BOX: boxes} if boxes else {}
        work = Work(download_bytes=(len(boxes) - 1) * before[0].task.work.upload_bytes) if boxes else NO_WORK
        tasks = [
            Task(
                name=name,
                client=client,
                round=before[0].task.round,
                version=before[0].task.version,
                payload=payload,
                work=work,
                peer_messages={sender: text for sender, text in messages[client].items() if sender in present},
            )
            for client in sorted(present)
        ]
        outcomes: list[Outcome] = wait(federation.dispatch(tasks))
        replies = [outcome for outcome in outcomes if isinstance(outcome, Reply)]
        refused += [
            Rejection(client=outcome.task.client, reason=failure_reason(outcome))
            for outcome in outcomes
            if not isinstance(outcome, Reply)
        ]
        answered += replies
        return replies

    def _told(
        self, kept: list[Reply], refused: list[Rejection], expected: ExpectedReply
    ) -> tuple[list[Reply], ModelState]:
        """The clients that keep the average, and the model that the server goes on with: the average, if all tell it
        the same one, and otherwise the one it had.
        """
        model = dict(expected.parts[MODEL])
        if not self.average_to_server:
            return [replace(reply, payload={}) for reply in kept], model
        asked = dataclasses.replace(expected, reply_parts=(MODEL,))
        as_training = [replace(reply, task=replace(reply.task, name="train")) for reply in kept]
        sound, faulty, _ = check_replies(as_training, asked)
        refused += faulty
        told = {reply.task.client: dict(reply.payload[MODEL]) for reply in sound}
        if not told or len({tensors_digest(each) for each in told.values()}) != 1:
            refused += [Rejection(client=k, reason="clients tell the server different averages") for k in told]
            return [], model
        return [reply for reply in kept if reply.task.client in told], next(iter(told.values()))


def _box_fault(reply: Reply, size: int) -> str | None:
    box = reply.payload.get(BOX, {})
    sound = box.keys() == {BOX} and is_byte_array(box, BOX, size) and len(box[BOX]) == size
    return None if sound else "the encrypted model has another size than the model"


def _without_box(reply: Reply) -> Payload:
    return {name: part for name, part in reply.payload.items() if name != BOX}
