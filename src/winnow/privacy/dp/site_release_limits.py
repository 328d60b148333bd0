"""A site's own limits to what it lets out with noise. The server counts, too, but need not be believed.

Whoever gets the same numbers under other noise, again and again, takes the noise off by averaging.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from winnow.core import Failure, Filter, Handler, Outcome, Task
from winnow.learn.algorithm import Algorithm
from winnow.learn.party_signing_interface import UPDATE, PartyIdentities
from winnow.learn.update_filters import TwoSidedFilter, hide_failure_reasons
from winnow.privacy.dp.noisy_profiles import NoisyProfiles
from winnow.privacy.dp.run_accounting import Guarantee, site_guarantees
from winnow.privacy.filters.sparse_vector_technique import SparseVectorTechnique

PROFILE, FIRST_PROFILE, SUM_CONTRIBUTION = "profile", "first profile", "share of a sum"


@dataclass(frozen=True, kw_only=True)
class SiteReleaseLimits:
    """Of a job, as its author signed it: so many `rounds`, in each of which a client's noisy update leaves once, and
    its noisy profile once; a first profile leaves once in all. No client spends more than the job's budget.

    Updates that are `held` back for sums may be made again in a round: that they leave once is seen to elsewhere.
    """

    whole: Algorithm
    filters: Sequence[TwoSidedFilter]
    rounds: int
    size_of: Callable[[int], int]
    identities: PartyIdentities
    held: bool
    _counted: dict[int, int] = field(default_factory=dict)
    """How many shares of sums each client has made that this process knows of."""

    def around(self) -> tuple[Filter[Any], ...]:
        return (self._limited,) if self._leaving("train") else ()

    def _limited(self, tasks: Sequence[Task], site: Any, call_next: Handler[Any]) -> list[Outcome]:
        """What may leave is noted before it is made: that it could not be made tells something, too."""
        outcomes: dict[int, Outcome] = {}
        for place, task in enumerate(tasks):
            if (reason := self._reason_against(task)) is not None:
                outcomes[place] = Failure(task=task, stage="letting it out", reason=reason)
        left = [place for place in range(len(tasks)) if place not in outcomes]
        if left:
            made = hide_failure_reasons([tasks[place] for place in left], site, call_next)
            outcomes.update(zip(left, made, strict=True))
        return [outcomes[place] for place in range(len(tasks))]

    def _reason_against(self, task: Task) -> str | None:
        """Why what is asked for must not leave; None if it may, which is then noted."""
        if task.round > self.rounds or (task.name == "train" and task.round < 1):
            return f"the task is for round {task.round}; the job has rounds 1 to {self.rounds}"
        for what in self._leaving(task.name):
            times = self.identities.release(task.client, task.round, what)
            if (not times and what != SUM_CONTRIBUTION) or (what == FIRST_PROFILE and times > 1):
                return f"a noisy {what} of this round or a later one was already released"
            if what == SUM_CONTRIBUTION:
                times = self._shares(task, times)
            if what in (UPDATE, SUM_CONTRIBUTION) and (reason := self._overspent(task.client, times)):
                return reason
        return None

    def _shares(self, task: Task, times: int) -> int:
        """The count that holds for a share that is made again in its round: the one that it had, or the largest that
        can be, so that nobody gets beyond the budget by asking twice.
        """
        self._counted[task.client] = times or self._counted.get(task.client, task.round)
        return self._counted[task.client]

    def _leaving(self, task: str) -> list[str]:
        """What leaves with noise in the answer to such a task."""
        noisy_profile = isinstance(self.whole.select.comparison, NoisyProfiles)
        if task == "train":
            sparse = any(isinstance(each, SparseVectorTechnique) for each in self.filters)
            noisy_update = sparse or bool(self._guarantees(1))
            return [SUM_CONTRIBUTION if self.held else UPDATE] * noisy_update + [PROFILE] * noisy_profile
        return [FIRST_PROFILE] if task == "profile" and noisy_profile else []

    def _overspent(self, client: int, times: int) -> str | None:
        for each in self._guarantees(self.size_of(client)):
            if each.budget is not None and each.spent(times, np.array([times])) > each.budget:
                return f"{each.setting}.epsilon = {each.budget:g} does not last for {times} updates of this client"
        return None

    def _guarantees(self, size: int) -> list[Guarantee]:
        return site_guarantees(self.whole, self.filters, size)
