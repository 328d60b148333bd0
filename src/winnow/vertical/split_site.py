"""A site's side of split learning: an owner of features, or the owner of the labels.

An epoch is a session: it begins with what the site kept of the last one, and its steps come in order, each once. The
order of rows is the plan's, so a server cannot ask for a row of its choice.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from winnow.core import Failure, Handler, Outcome, Payload, Randomness, Reply, Task, WinnowError
from winnow.core.message_decoding import UnreadableError
from winnow.core.random_streams import derive
from winnow.privacy.set_intersection.site import SetIntersectionSite
from winnow.vertical.cut_messages import checked_cut, decode_cut, encode_cut
from winnow.vertical.keyed_rows import KeyedRows
from winnow.vertical.label_party import LabelParty
from winnow.vertical.split_plan import RowOrder, SplitPlan
from winnow.vertical.trained_module import TrainedModule

ALIGN, FORWARD, LEARN, SHOW, SCORE, KEEP = (
    "split-align", "split-forward", "split-learn", "split-show", "split-score", "split-keep",
)  # fmt: skip
VOLATILE = frozenset({FORWARD, LEARN, SHOW, SCORE})
"""Their replies belong to a session in memory."""

STATE, KEYS, EPOCHS, CUT = "split", "keys", "epochs", "cut"
MAX_ATTEMPTS = 3
"""Times that an epoch may begin: each shows gradients of every row once."""


class StepRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a task asks: a step of an epoch, and which number each owner has in the job."""

    owners: dict[str, int]
    epoch: int = 0
    attempt: int = 0
    step: int = 0


class SplitError(WinnowError):
    """A task that this site does not answer, and why."""


@dataclass(frozen=True, kw_only=True, eq=False)
class KeptEpochs:
    """What an owner keeps between epochs: the common keys, how many epochs are over, and its modules."""

    keys: list[str]
    epochs: int
    arrays: Mapping[str, Tensor]

    def of(self, prefix: str) -> dict[str, Tensor]:
        """The arrays of one part."""
        return {name.removeprefix(prefix): value for name, value in self.arrays.items() if name.startswith(prefix)}


@dataclass(kw_only=True)
class _Session:
    """An epoch under way at one owner."""

    epoch: int
    attempt: int
    order: RowOrder
    shuffled: np.ndarray
    rows: KeyedRows
    keys: Tensor
    bottom: TrainedModule | None = None
    label_party: LabelParty | None = None
    steps: dict[str, int] = field(default_factory=lambda: dict.fromkeys((FORWARD, LEARN, SHOW, SCORE), 0))
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    """Of activations whose gradients are still to come."""
    failed: bool = False
    """A step was begun and not ended: what modules are now is nobody's."""

    @property
    def is_complete(self) -> bool:
        """Whether every step of the epoch has been taken, and every test row scored."""
        steps, order = self.steps, self.order
        shown = self.bottom is None or (steps[FORWARD] > order.steps and not self.bottom.batches_under_way)
        scored = (steps[LEARN], steps[SCORE]) == (order.steps, order.scored_batches)
        return not self.failed and shown and (self.label_party is None or scored)

    def modules(self) -> dict[str, nn.Module]:
        found = {} if self.label_party is None else self.label_party.modules()
        return found if self.bottom is None else {**found, "bottom": self.bottom.module}


class SplitSite:
    """The handlers of the owners that this site hosts. `name_of` tells who a number of the job is, for certain."""

    def __init__(
        self,
        plan: SplitPlan,
        rows: Callable[[int], KeyedRows],
        name_of: Callable[[int], str],
        randomness: Randomness,
        begin_epoch: Callable[[int, int, int], bool] = lambda client, epoch, attempt: True,
        on_trained: Callable[[Mapping[str, nn.Module]], None] = lambda modules: None,
    ) -> None:
        """`begin_epoch` records for good that an epoch begins with noise, and says whether it may. `on_trained` gets
        an owner's modules after every epoch.
        """
        self._plan, self._rows, self._name_of = plan, rows, name_of
        self._randomness, self._begin_epoch, self._on_trained = randomness, begin_epoch, on_trained
        self._common: dict[int, list[str]] = {}
        self._sessions: dict[int, _Session] = {}
        self._intersection: SetIntersectionSite[Any] = SetIntersectionSite(
            lambda site, client: rows(client).keys, self._found, share=True
        )

    def handlers(self) -> dict[str, Handler[Any]]:
        steps = {
            ALIGN: self._align,
            FORWARD: self._forward,
            LEARN: self._learn,
            SHOW: self._show,
            SCORE: self._score,
            KEEP: self._keep,
        }
        return {
            **self._intersection.handlers(),
            **{name: answered_one_by_one(self._noting_failure(step)) for name, step in steps.items()},
        }

    def _noting_failure(self, step: Callable[[Task], Reply]) -> Callable[[Task], Reply]:
        """A step that fails halfway ends the epoch: no later one may build on it, and nothing of it is kept."""

        def noted(task: Task) -> Reply:
            try:
                return step(task)
            except SplitError:
                raise  # refused before anything happened
            except Exception:
                if (session := self._sessions.get(task.client)) is not None:
                    session.failed = True
                raise

        return noted

    def _found(self, client: int, identifiers: Sequence[str]) -> None:
        self._common[client] = sorted(identifiers)

    # Tasks ------------------------------------------------------------------------------------------------------------

    def _align(self, task: Task) -> Reply:
        """Keep the keys that all owners have, and the modules as the program made them."""
        request, owner = self._request(task)
        if len(self._plan.owners) == 1:
            self._found(task.client, self._rows(task.client).keys)
        if task.client not in self._common:
            raise SplitError("this site does not know yet which keys owners have in common")
        common = self._common[task.client]
        if len(common) < self._plan.minimum:
            raise SplitError(f"owners have {len(common)} keys in common; {self._plan.minimum} are the least")
        session = self._new_session(owner, common, request)
        return Reply(task=task, new_client_state=_state(session, epochs=0))

    def _forward(self, task: Task) -> Reply:
        """Learn from the gradient of an earlier batch, and show the next one's activations."""
        request, owner = self._request(task)
        session = self._session(task, request, owner, FORWARD)
        bottom, order = _bottom(session), session.order
        with _seeded(self._plan.seed, owner, request, "forward"):
            if (gradient := self._gradient(task, session, request)) is not None:
                bottom.backward(gradient)
            if request.step >= order.steps:
                return Reply(task=task)
            if bottom.batches_under_way >= self._plan.pipeline:
                raise SplitError("a gradient of an earlier batch is missing")
            activations = bottom.forward(_x(session, order.of_step(session.shuffled, request.step)))
        session.shapes.append(tuple(activations.shape))
        return self._to_labels(task, request, activations)

    def _learn(self, task: Task) -> Reply:
        request, owner = self._request(task)
        session = self._session(task, request, owner, LEARN)
        if session.label_party is None or request.step >= session.order.steps:
            raise SplitError("there is nothing to learn in this step")
        batch = session.order.of_step(session.shuffled, request.step)
        activations = self._activations(task, request, len(batch))
        noise = self._randomness(self._plan.seed, "split gradients", request.epoch, request.attempt, request.step)
        with _seeded(self._plan.seed, owner, request, "learn"):
            leaving = session.label_party.learn(activations, batch, noise)
        if self._plan.middle is not None:
            return Reply(task=task, payload={CUT: {"gradient": leaving[CUT]}})
        messages = {request.owners[name]: encode_cut(leaving[name]) for name in self._plan.senders}
        return Reply(task=task, peer_messages=messages)

    def _show(self, task: Task) -> Reply:
        """Activations of rows that nobody trains on."""
        request, owner = self._request(task)
        session = self._session(task, request, owner, SHOW)
        batch = session.order.scored(request.step)
        return self._to_labels(task, request, _bottom(session).outputs(_x(session, batch)))

    def _score(self, task: Task) -> Reply:
        request, owner = self._request(task)
        session = self._session(task, request, owner, SCORE)
        if session.label_party is None:
            raise SplitError("this owner has no labels")
        batch = session.order.scored(request.step)
        session.label_party.score(self._activations(task, request, len(batch)), batch)
        return Reply(task=task)

    def _keep(self, task: Task) -> Reply:
        """Propose what the epoch has made of this owner's modules; the owner of labels tells how good they are."""
        request, _ = self._request(task)
        session = self._sessions.get(task.client)
        if session is None or (session.epoch, session.attempt) != (request.epoch, request.attempt):
            raise SplitError("the epoch is not under way at this site; it has to begin again")
        if not session.is_complete:
            raise SplitError("the epoch is not complete at this site")
        self._on_trained(session.modules())
        metrics = {} if session.label_party is None else session.label_party.metrics()
        return Reply(task=task, metrics=metrics, new_client_state=_state(session, epochs=request.epoch + 1))

    # Sessions ---------------------------------------------------------------------------------------------------------

    def _request(self, task: Task) -> tuple[StepRequest, str]:
        """What is asked, and who this site is; the numbers of the others must be theirs."""
        try:
            request = msgspec.convert(task.settings, StepRequest)
        except msgspec.ValidationError as error:
            raise SplitError(f"the task cannot be read: {error}") from error
        if {*request.owners} != {*self._plan.owners}:
            raise SplitError("the task does not name the owners of the program")
        if not (0 <= request.epoch < self._plan.epochs and 0 <= request.attempt < MAX_ATTEMPTS):
            raise SplitError(f"the program has {self._plan.epochs} epochs, each with {MAX_ATTEMPTS} attempts")
        for name, number in request.owners.items():
            if self._name_of(number) != name:
                raise SplitError(f"client {number} of this job is not {name}")
        owner = self._name_of(task.client)
        if owner not in self._plan.owners:
            raise SplitError(f"the program has no part for {owner}")
        return request, owner

    def _session(self, task: Task, request: StepRequest, owner: str, kind: str) -> _Session:
        session = self._sessions.get(task.client)
        same = session is not None and (session.epoch, session.attempt) == (request.epoch, request.attempt)
        if not same and request.step == 0 and kind in (FORWARD, LEARN):
            session = self._sessions[task.client] = self._restored(task, request, owner)
        elif not same:
            raise SplitError("the epoch is not under way at this site; it has to begin again")
        assert session is not None
        if session.failed:
            raise SplitError("a step of this epoch failed; it has to begin again")
        if session.steps[kind] != request.step or request.step > session.order.steps + self._plan.pipeline:
            raise SplitError(f"step {request.step} does not follow; step {session.steps[kind]} is next")
        session.steps[kind] += 1
        return session

    def _restored(self, task: Task, request: StepRequest, owner: str) -> _Session:
        """The session of an epoch, from what this site kept."""
        held = self._kept(task)
        told = owner == self._plan.labels and self._plan.protection.noise > 0
        if told and not self._begin_epoch(task.client, request.epoch, request.attempt):
            raise SplitError("the gradients of this epoch have been shown before")
        session = self._new_session(owner, held.keys, request)
        for prefix, part in (("bottom.", session.bottom), ("labels.", session.label_party)):
            if part is not None:
                part.restore(held.of(prefix))
        return session

    def _kept(self, task: Task) -> KeptEpochs:
        held = task.client_state.get(STATE)
        if held is None:
            raise SplitError("this site keeps nothing of this job; it has to begin with the keys in common")
        keys = msgspec.msgpack.decode(bytes(torch.as_tensor(held[KEYS]).numpy()), type=list[str])
        arrays = {name: torch.as_tensor(held[name]) for name in held if name not in (KEYS, EPOCHS)}
        return KeptEpochs(keys=keys, epochs=int(held[EPOCHS]), arrays=arrays)

    def _new_session(self, owner: str, keys: Sequence[str], request: StepRequest) -> _Session:
        plan, held = self._plan, self._rows(request.owners[owner])
        rows, order = held.ordered(keys), plan.rows(len(keys))
        label_party = self._label_party(rows, held) if owner == plan.labels else None
        if label_party is not None:
            label_party.start_epoch(request.epoch)
        return _Session(
            epoch=request.epoch,
            attempt=request.attempt,
            order=order,
            shuffled=order.of_epoch(request.epoch),
            rows=rows,
            keys=torch.frombuffer(bytearray(msgspec.msgpack.encode(list(keys))), dtype=torch.uint8),
            bottom=TrainedModule(plan.bottoms[owner], plan, owner) if owner in plan.senders else None,
            label_party=label_party,
        )

    def _label_party(self, rows: KeyedRows, held: KeyedRows) -> LabelParty:
        """Of the common rows; `held` are all that the owner has."""
        return LabelParty(self._plan, rows)

    # What travels -----------------------------------------------------------------------------------------------------

    def _to_labels(self, task: Task, request: StepRequest, activations: Tensor) -> Reply:
        """To the owner of labels, whom alone they are for; in the U shape to the server, which has the middle."""
        if self._plan.middle is not None:
            return Reply(task=task, payload={CUT: {"activations": activations}})
        return Reply(task=task, peer_messages={request.owners[self._plan.labels]: encode_cut(activations)})

    def _activations(self, task: Task, request: StepRequest, rows: int) -> dict[str, Tensor]:
        if self._plan.middle is not None:
            return {CUT: checked_cut(torch.as_tensor(_array(task.payload, "activations")), rows)}
        return {name: decode_cut(peer_message(task, request.owners[name], name), rows) for name in self._plan.senders}

    def _gradient(self, task: Task, session: _Session, request: StepRequest) -> Tensor | None:
        """The gradient of the oldest batch that waits for one, if this step brings it."""
        number = request.owners[self._plan.labels]
        brought = CUT in task.payload if self._plan.middle is not None else number in task.peer_messages
        if not brought:
            return None
        if not session.shapes:
            raise SplitError("no batch waits for a gradient")
        shape = session.shapes.pop(0)
        if self._plan.middle is not None:
            return checked_cut(torch.as_tensor(_array(task.payload, "gradient")), shape[0], shape)
        return decode_cut(peer_message(task, number, self._plan.labels), shape[0], shape)


def answered_one_by_one(step: Callable[[Task], Reply]) -> Handler[Any]:
    def answered(tasks: Sequence[Task], site: Any) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for task in tasks:
            try:
                outcomes.append(step(task))
            except (SplitError, UnreadableError) as error:
                outcomes.append(Failure(task=task, stage=task.name, reason=str(error)))
        return outcomes

    return answered


def peer_message(task: Task, sender: int, name: str) -> bytes:
    if sender not in task.peer_messages:
        raise UnreadableError(f"a message of {name} is missing")
    return task.peer_messages[sender]


def _array(payload: Payload, name: str) -> Any:
    if name not in payload.get(CUT, {}):
        raise UnreadableError(f"the task has no {name}")
    return payload[CUT][name]


def _bottom(session: _Session) -> TrainedModule:
    if session.bottom is None:
        raise SplitError("this owner sends no activations")
    return session.bottom


def _x(session: _Session, batch: np.ndarray) -> Tensor:
    assert session.rows.x is not None
    return session.rows.x[torch.from_numpy(batch)]


def _state(session: _Session, epochs: int) -> Mapping[str, Mapping[str, Tensor]]:
    held = {KEYS: session.keys, EPOCHS: torch.tensor(epochs)}
    for prefix, part in (("bottom.", session.bottom), ("labels.", session.label_party)):
        if part is not None:
            held.update({f"{prefix}{name}": value for name, value in part.arrays().items()})
    return {STATE: held}


class _seeded:  # noqa: N801 - a context, used like a function
    """Dropout and the like draw from the step's own stream, so that an epoch that begins again is the same."""

    def __init__(self, seed: int, owner: str, request: StepRequest, what: str) -> None:
        self._seed = derive(seed, "split modules", owner, request.epoch, request.step, what)
        self._forked = torch.random.fork_rng(devices=[])

    def __enter__(self) -> None:
        self._forked.__enter__()
        torch.manual_seed(self._seed % 2**63)

    def __exit__(self, *error: object) -> None:
        self._forked.__exit__(None, None, None)
