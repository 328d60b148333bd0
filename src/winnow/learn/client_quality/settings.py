"""What is asked of clients about their data, how often, and what follows from a verdict: `[quality]`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from pydantic import Field, field_validator

from winnow.core import Settings
from winnow.core.join_names import listed
from winnow.learn.algorithm_part import (
    ALL_EVIDENCE,
    CONTRIBUTION,
    TOLD_BY_CLIENTS,
    UPDATES,
    AlgorithmPart,
    EvidenceKind,
)

if TYPE_CHECKING:
    from winnow.learn.algorithm import Algorithm
    from winnow.learn.update_filters import TwoSidedFilter

DEFAULT_EVIDENCE: tuple[EvidenceKind, ...] = (*TOLD_BY_CLIENTS, UPDATES)
"""What is looked at unless told otherwise: all but what takes many evaluations."""

DEFAULT_ASSESSMENTS, ROUNDS_EACH = 5, 3
"""Unless told otherwise, clients are assessed so many times in a run, and at most once in so many rounds."""

FIRST_UP_TO = 10
"""A policy that acts is first applied after at most so many rounds, where there is more than one assessment."""

Policy: TypeAlias = Literal["warn", "down-weight", "exclude"]


class QualitySettings(Settings):
    """Which evidence on clients' data is gathered, and what is done with clients that it speaks against."""

    evidence: tuple[EvidenceKind, ...] | None = None
    """None is all but the contribution, where no setting keeps clients' data or updates from the server."""
    assessments: Annotated[int, Field(ge=1)] | None = None
    """How many times in a run; the last one is after the last round. None is 5, or fewer in a short run."""
    false_alarms: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """The share of honest clients that may be called suspect."""
    policy: Policy = "warn"
    keep: tuple[str, ...] = ()
    """Clients, by name, that the policy never touches."""
    min_rows: int = Field(default=5, ge=2)
    """Classes of which a client has fewer samples are not told."""
    count_step: int = Field(default=1, ge=1)
    """Counts of samples are told rounded down to a multiple of this."""

    @field_validator("evidence")
    @classmethod
    def _each_once(cls, evidence: tuple[EvidenceKind, ...] | None) -> tuple[EvidenceKind, ...] | None:
        return None if evidence is None else tuple(dict.fromkeys(evidence))

    def assessment_rounds(self, rounds: int) -> frozenset[int]:
        """The rounds after which clients are assessed, the last one among them: evenly spread; in a long run whose
        policy acts, ever further apart, so that it does not wait for long. Whole numbers: all parties must agree.
        """
        times = self._times(rounds)
        if self.policy == "warn" or times == 1 or rounds <= FIRST_UP_TO * times:
            return frozenset(-(-rounds * place // times) for place in range(1, times + 1))
        due = [FIRST_UP_TO]
        for place in range(1, times):
            due.append(max(due[-1] + 1, FIRST_UP_TO + (rounds - FIRST_UP_TO) * place**3 // (times - 1) ** 3))
        return frozenset(due)

    def _times(self, rounds: int) -> int:
        if self.assessments is not None:
            return self.assessments
        at_least = 1 if self.policy == "warn" else 2  # a policy changes nothing after the last round
        return min(DEFAULT_ASSESSMENTS, max(at_least, rounds // ROUNDS_EACH))

    def kinds(self, whole: "Algorithm", filters: Sequence["TwoSidedFilter"] = ()) -> tuple[EvidenceKind, ...]:
        """The evidence that is gathered in a run with this algorithm and these filters."""
        if self.evidence is not None:
            return self.evidence
        parts = _hiding_parts(whole, filters)
        if any(part.forbidden_evidence for part in parts):
            return ()
        return (UPDATES,) if whole.client.uses_unlabelled else DEFAULT_EVIDENCE

    def conflict(self, whole: "Algorithm", filters: Sequence["TwoSidedFilter"] = ()) -> str | None:
        """Why these settings cannot work in the experiment, as one line for a user; None if they can."""
        for part in _hiding_parts(whole, filters):
            refused = [kind for kind in self.evidence or () if kind in part.forbidden_evidence]
            if refused:
                return (
                    f"quality.evidence: {listed(refused)} would tell what {_setting(part, whole)} hides; "
                    f"remove {'it' if len(refused) == 1 else 'them'}"
                )
        if whole.client.uses_unlabelled and (told := [k for k in self.evidence or () if k in TOLD_BY_CLIENTS]):
            return (
                f"quality.evidence: {listed(told)} is told class by class, and {_setting(whole.client, whole)} has "
                f"samples without labels; remove {'it' if len(told) == 1 else 'them'}"
            )
        if self.policy == "warn":
            return None
        if not self.kinds(whole, filters):
            return f"quality.policy = {self.policy!r} {self._why_no_evidence(whole, filters)}"
        if self.policy not in whole.schedule.policies:
            name = getattr(whole.schedule, "name", "")
            return f"quality.policy = {self.policy!r} cannot be used with schedule.name = {name!r}; use 'warn'"
        if self.policy == "down-weight" and not whole.aggregate.takes_weights:
            name = getattr(whole.aggregate, "name", "")
            return (
                f"quality.policy = 'down-weight' cannot be used with aggregate.name = {name!r}, which does not let a "
                "client count less; use 'exclude' or 'warn'"
            )
        return None

    def _why_no_evidence(self, whole: "Algorithm", filters: Sequence["TwoSidedFilter"]) -> str:
        """Why a policy has nothing to go by, and what can be done about it."""
        hiding = [part for part in _hiding_parts(whole, filters) if part.forbidden_evidence]
        if not hiding:
            return "needs evidence, and quality.evidence = [] asks for none; remove it, or name what to look at"
        settings = listed([_setting(part, whole) for part in hiding])
        left = sorted(ALL_EVIDENCE.difference(*(part.forbidden_evidence for part in hiding)))
        if not left:
            return f"cannot work with {settings}, which hides clients' data and updates; remove one or the other"
        return f"needs evidence, of which {settings} leaves {listed(left)}: set quality.evidence to some of it"

    def privacy_text(self, kinds: Sequence[EvidenceKind], rounds: int) -> list[str]:
        """What each kind of evidence tells the server in a run of so many rounds, and what it costs."""
        told = [PRIVACY_TEXT[kind] for kind in kinds]
        if any(kind in TOLD_BY_CLIENTS for kind in kinds):
            step = f", rounded down to multiples of {self.count_step}" if self.count_step > 1 else ""
            times = len(self.assessment_rounds(rounds))
            often = "once" if times == 1 else f"{times} times in a run"
            told.append(
                f"evidence is asked for {often}: one download of the model and one forward pass over a client's "
                f"samples each time. With it go the numbers of its samples in each class{step}; of a class with "
                f"fewer than {self.min_rows} nothing is told. A site's policy (share_evidence) may refuse it."
            )
        return told


PRIVACY_TEXT: dict[EvidenceKind, str] = {
    "inputs": (
        "evidence on inputs: the server sees, for each client and class, the mean and variance of every element of one "
        "layer's output, and how many of its rows are copies of others."
    ),
    "columns": (
        "evidence on columns: the server sees, for each client and class, the mean and variance of every feature; of "
        "images, nine statistics such as brightness."
    ),
    "labels": (
        "evidence on labels: the server sees, for each client and class, which classes the model predicts, and its "
        "loss (of a regression its errors), as means and variances."
    ),
    UPDATES: "evidence on updates: the server compares the updates that it gets anyway; nothing more is told.",
    CONTRIBUTION: (
        "evidence on contribution: the server evaluates models made of some of a round's updates on its reference set; "
        "nothing more is told. It costs about as much as 5 rounds of training."
    ),
}


def _hiding_parts(whole: "Algorithm", filters: Sequence["TwoSidedFilter"]) -> list[AlgorithmPart]:
    return [*whole.parts, whole.select.comparison, *filters]


def _setting(part: AlgorithmPart, whole: "Algorithm") -> str:
    """How a configuration says that it has this part."""
    places = {id(each): place for place, each in vars(whole).items()} | {
        id(whole.select.comparison): "select.profile_comparison"
    }
    return f"{places.get(id(part), 'filters')}.name = {getattr(part, 'name', '')!r}"
