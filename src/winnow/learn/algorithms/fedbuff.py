"""FedBuff (Nguyen et al., 2022): clients train all the time, and every few replies make a new version of the model."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Literal

import numpy as np
from msgspec.structs import replace
from pydantic import Field

from winnow.core import AnyEvent, Federation, Outcome, Reply
from winnow.learn.algorithm import Algorithm, Recipe
from winnow.learn.collect import Gathered, fold_finite
from winnow.learn.pace import Pace
from winnow.learn.replies import sift
from winnow.learn.select import Invitation, Selection, Turn
from winnow.learn.stack import ModelState
from winnow.learn.training import Training
from winnow.learn.tree import minus, plus, real
from winnow.learn.underway import Underway

GOAL = 10
"""The paper's K, unless another one is set or fewer clients are at work."""
DRAWS = 100
"""If so many draws find nobody who is idle, there is nobody."""


class Buffered(Pace):
    """As many clients as `select` invites are always at work; every `goal` replies make a version (the paper's K).

    A reply that is τ versions late counts 1/√(1 + τ): θ ← θ + 1/K·Σ s(τ_k)·(θ_k − θ_v), where θ_v is the version from
    which client k departed. When a client has answered, another one takes its place and is sent the present version.
    """

    name: Literal["buffered"] = "buffered"
    goal: int | None = Field(None, ge=1)

    @property
    def fewest_at_work(self) -> int:
        return self.goal or 1

    def objection(self, whole: Algorithm) -> str | None:
        rule, goal = whole.aggregate, self.goal or GOAL
        if goal < rule.fewest:
            name = getattr(rule, "name", "")
            return f"pace.goal = {goal}: aggregate.name = {name!r} needs {rule.fewest} updates a version; raise it"
        return None

    def run(self, training: Training, selection: Selection, federation: Federation) -> Iterator[AnyEvent]:
        with federation.dispatch(()) as exchange:
            underway = Underway.resumed(training, federation, exchange)
            while training.round < training.rounds:
                turn = training.begin(federation, underway.oldest(training.round))
                invitation = selection.propose(turn)
                places, sent, arrived = len(invitation.clients), list[int](), list[Outcome]()
                idle = _idle(invitation, selection, turn, underway, sent)
                while len(arrived) < min(self.goal or GOAL, places):
                    vacant = max(0, places - len(underway))  # a selection may have invited more before
                    fresh = list(dict.fromkeys(islice(idle, vacant)))
                    underway.send(training, federation, fresh)
                    sent += fresh
                    arrived.append(next(iter(exchange)))
                    underway.done(arrived[-1].task)
                yield from training.announce(_only(invitation, sent), federation)
                gathered = _fold(arrived, training, federation)
                gathered = training.apply(gathered, federation)
                training.observe(selection, turn, gathered.reported)
                training.underway = underway.snapshot()
                yield from training.finish(gathered, selection, federation)


def _idle(
    invitation: Invitation, selection: Selection, turn: Turn, underway: Underway, sent: Sequence[int]
) -> Iterator[int]:
    """Clients that are not at work, in the order in which the selection would have them.

    Nobody is sent the same version twice: it would make the same update of it again.
    """
    for _ in range(DRAWS):
        for client in turn.rng.permutation(invitation.clients).tolist():
            if client not in underway and client not in sent:
                yield client
        invitation = selection.propose(turn)


def _only(invitation: Invitation, clients: Sequence[int]) -> Invitation:
    """The invitation as far as it was sent."""
    chosen, counts = np.unique(np.array(clients, np.int64), return_counts=True)
    return Invitation(clients=chosen, counts=counts, scores=invitation.scores)


def _fold(arrived: Sequence[Outcome], training: Training, federation: Federation) -> Gathered:
    """Fold the replies as if each had departed from the present model."""
    ordered = sorted(arrived, key=lambda outcome: outcome.task.client)
    sound, refused, answered = sift(ordered, training.expected)
    moved = [_moved(reply, training.shared, training.round - 1) for reply in sound]
    aggregate, population = training.algorithm.aggregate, federation.population
    counts = {reply.task.client: 1 for reply in sound}
    folded, model, parts = fold_finite(
        moved, refused, counts, lambda: aggregate.start(training.shared, population, len(arrived)), training.expected
    )
    return Gathered(model=model, parts=parts, folded=folded, reported=sound, refused=refused, answered=answered)


def _moved(reply: Reply, present: ModelState, version: int) -> Reply:
    """The client's step, shortened by its lateness, taken from the present model. Counters come as they are."""
    own, departed = real(reply.payload["model"]), reply.task.payload["model"]
    weight = 1 / np.sqrt(1 + version - reply.task.version)
    step = minus(own, departed)
    model = {**reply.payload["model"], **plus({name: present[name] for name in own}, step, weight)}
    return replace(reply, payload={**reply.payload, "model": model})


fedbuff = Recipe(
    name="fedbuff",
    summary="asynchronous: every few replies make a new version",
    parts={
        "select": {"name": "uniform"},
        "aggregate": {"name": "partial", "weights": "uniform"},
        "pace": {"name": "buffered"},
    },
)
