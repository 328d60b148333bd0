"""The second stage of an ensemble: its samples are what the leaves make of samples, computed once where those are."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from winnow.core import Arrays, Handler, ModelError, Outcome, Task
from winnow.core.array_spec import spec_of
from winnow.learn.collect import RoundResult
from winnow.learn.ensemble.ensemble_net import LEAF_PREFIX, EnsembleNet, joined_state, leaf_states
from winnow.learn.learning_site import LearningSite
from winnow.learn.model_evaluator import batch_size
from winnow.learn.round_loop import Schedule
from winnow.learn.selection import Selection
from winnow.learn.stack import ClientSamples, ModelState, TensorData

LEAVES = "leaves"
"""The part of a task of the second stage that carries the leaves."""


class LeafOutputs:
    """Leaves of one architecture, used to make features of samples."""

    def __init__(self, net: EnsembleNet) -> None:
        self._net = deepcopy(net).eval()
        self._like = joined_state(leaf_states(self._net.state_dict()))

    def part(self, leaves: Sequence[ModelState]) -> ModelState:
        """The leaves as a task carries them."""
        return joined_state(leaves)

    def check(self, part: Arrays) -> None:
        """Refuse leaves that are not of the job's form: they come from the server."""
        if part.keys() != self._like.keys():
            raise ModelError("the task's leaves do not match the job's: there are others, or more or fewer of them")
        for name in part:
            if spec_of(part, name) != spec_of(self._like, name):
                raise ModelError(f"the task's leaves do not match the job's: {name} has a different shape or type")
            if not torch.isfinite(part[name]).all():
                raise ModelError(f"the task's leaves do not match the job's: {name} has numbers that are not finite")

    @torch.no_grad()
    def features(self, part: Arrays, x: Tensor) -> Tensor:
        """[n, features]"""
        self._net.load_state_dict(dict(part), strict=False)
        self._net.to(x.device)
        return torch.cat([self._net.features(batch) for batch in torch.split(x, batch_size(x))])


@dataclass(frozen=True, kw_only=True)
class SecondStage:
    """What a site needs to train an over-arch on so many leaves."""

    outputs: LeafOutputs
    initial: ModelState
    make_site: Callable[[ClientSamples], LearningSite]


class SecondStageSites:
    """A site's clients in the second stage: leaf outputs in the place of their samples, made once.

    Rounds up to `leaf_rounds` are the leaves'; in later ones each task carries the leaves, and how many there are.
    """

    def __init__(self, leaf_rounds: int, most_leaves: int, prepare: Callable[[int], SecondStage]) -> None:
        self.leaf_rounds, self._most, self._prepare = leaf_rounds, most_leaves, prepare
        self._stages: dict[int, SecondStage] = {}
        self._leaves: Arrays = {}
        self._site: LearningSite | None = None

    def handlers(
        self, first: Mapping[str, Handler[LearningSite]], second: Mapping[str, Handler[LearningSite]]
    ) -> dict[str, Handler[LearningSite]]:
        """The handlers of both stages: those of the `second` get a site with leaf outputs for samples, in this process
        wherever the first ones run.
        """
        return {name: partial(self._answer, handler, second[name]) for name, handler in first.items()}

    def _answer(
        self,
        first: Handler[LearningSite],
        second: Handler[LearningSite],
        tasks: Sequence[Task],
        site: LearningSite,
    ) -> Sequence[Outcome]:
        if tasks[0].round <= self.leaf_rounds:
            return first(tasks, site)
        return second(tasks, self._second(tasks[0], site))

    def stage(self, task: Task) -> SecondStage:
        """The stage of as many leaves as the task carries."""
        leaves = task.payload.get(LEAVES)
        if leaves is None:
            raise ModelError("the task of the second stage carries no leaves")
        count = len({name.removeprefix(LEAF_PREFIX).partition(".")[0] for name in leaves})
        if count > self._most:
            raise ModelError(f"the task carries {count} leaves; the job has at most {self._most}")
        if count not in self._stages:
            self._stages[count] = self._prepare(count)
        return self._stages[count]

    def _second(self, task: Task, site: LearningSite) -> LearningSite:
        stage, leaves = self.stage(task), task.payload[LEAVES]
        stage.outputs.check(leaves)
        if self._site is None or not _same(leaves, self._leaves):
            made = LeafOutputData(site.data, partial(stage.outputs.features, leaves))
            self._leaves, self._site = dict(leaves), stage.make_site(made.kept())
        return self._site


def _same(one: Arrays, other: Arrays) -> bool:
    return one is other or (one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one))


class LeafOutputData:
    """Clients' samples with features in the place of what they are; where they are loaded on demand, so are these."""

    def __init__(self, data: ClientSamples, features: Callable[[Tensor], Tensor]) -> None:
        self._data, self._features = data, features

    def kept(self) -> ClientSamples:
        """In memory, made once, where the samples are."""
        return self._changed(self._data) if isinstance(self._data, TensorData) else self

    @property
    def device(self) -> torch.device:
        return self._data.device

    def first_samples(self, samples: int) -> tuple[Tensor, Tensor]:
        x, y = self._data.first_samples(samples)
        return self._features(x), y

    def sizes(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._data.sizes(clients)

    def cohort(self, clients: NDArray[np.int64]) -> TensorData:
        return self._changed(self._data.cohort(clients))

    def blocks(self, clients: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], TensorData]]:
        return ((block, self._changed(data)) for block, data in self._data.blocks(clients))

    def _changed(self, data: TensorData) -> TensorData:
        return replace(data, x=self._features(data.x))


class OptInRounds(Schedule):
    """Every round is training at the server, on the samples of clients who opted in; nobody is asked for anything."""

    teach: Any
    """From a model and a round to the model after it."""

    def run(self, training: Any, selection: Selection, federation: Any) -> Iterator[Any]:
        while training.round < training.rounds:
            training.begin(federation)
            taught = RoundResult(
                model=self.teach(training.model, training.round),
                parts={},
                aggregated=[],
                reported=[],
                rejected=[],
                answered=[],
                valid_without_replies=True,
            )
            training.apply(taught, federation)
            yield from training.finish(taught, selection, federation)
