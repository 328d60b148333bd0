"""Who judges a model, and on what data.

Every version is scored on the reference set, which sits at the server or with one or several named clients, and on a
disjoint test set at the server. The same pass gives the reference profile of that version.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from winnow.core import ModelError, Outcome, Payload, Reply, Task, Work
from winnow.learn.examine import Examiner
from winnow.learn.handlers import SEED_BYTES, AssessSettings, profile_of
from winnow.learn.metrics import METRICS
from winnow.learn.profile import Profile, pool
from winnow.learn.stack import ModelState

Ask = Callable[[Sequence[Task]], list[Outcome]]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Scores by data set, and the reference profile if one is needed."""

    metrics: dict[str, dict[str, float]]
    profile: Profile | None


class Reference(Protocol):
    """The holder of the reference set."""

    def assess(self, state: ModelState, version: int, round: int, ask: Ask) -> Verdict: ...


class AtServer:
    """Examples that the server holds itself: a reference set or a test set."""

    def __init__(self, name: str, examiner: Examiner, examples: tuple[Tensor, Tensor], metric: str) -> None:
        self._name, self._examiner, self._metric = name, examiner, metric
        self._x, self._y = examples
        self._score = METRICS[metric](self._y)

    def assess(self, state: ModelState, version: int, round: int, ask: Ask) -> Verdict:
        seen = self._examiner.examine(state, self._x, self._y, self._score)
        return Verdict(metrics={self._name: {self._metric: seen.score, "loss": seen.loss}}, profile=seen.profile)


class AtClients:
    """The reference set is the data of some clients: they score and profile each version, the server only pools.

    The exchange costs them a download of the model (of the seed for version 0), one pass over their data and the upload
    of a profile.
    """

    def __init__(self, size_of: Mapping[int, int], *, metric: str, message_bytes: int, profile_bytes: int) -> None:
        self._size, self._metric = size_of, metric
        self._message_bytes, self._profile_bytes = message_bytes, profile_bytes

    def assess(self, state: ModelState, version: int, round: int, ask: Ask) -> Verdict:
        replies = [outcome for outcome in ask(self._tasks(state, version, round)) if isinstance(outcome, Reply)]
        if not replies:
            raise ModelError("none of the clients that hold the reference set answered")
        counts = [self._size[reply.task.client] for reply in replies]
        scores = {
            name: sum(n * reply.metrics[name] for n, reply in zip(counts, replies, strict=True)) / sum(counts)
            for name in (self._metric, "loss")
        }
        profiles = [profile_of(reply) for reply in replies if "profile" in reply.payload]
        return Verdict(metrics={"reference": scores}, profile=pool(profiles, counts) if profiles else None)

    def _tasks(self, state: ModelState, version: int, round: int) -> list[Task]:
        seeded = version == 0
        work = Work(
            profiling_passes=1 if self._profile_bytes else 0,
            download_bytes=SEED_BYTES if seeded else self._message_bytes,
            profile_bytes=self._profile_bytes,
        )
        settings = AssessSettings(metric=self._metric)
        payload: Payload = {} if seeded else {"model": state}
        return [
            Task(name="assess", client=k, round=round, version=version, payload=payload, settings=settings, work=work)
            for k in self._size
        ]


class Judge:
    """The reference and, beside it, a test set."""

    def __init__(self, reference: Reference, test: AtServer | None) -> None:
        self._reference, self._test = reference, test

    def assess(self, state: ModelState, version: int, round: int, ask: Ask) -> Verdict:
        verdict = self._reference.assess(state, version, round, ask)
        if self._test is None:
            return verdict
        beside = self._test.assess(state, version, round, ask)
        return Verdict(metrics=verdict.metrics | beside.metrics, profile=verdict.profile)
