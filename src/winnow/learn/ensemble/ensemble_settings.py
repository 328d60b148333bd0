"""The [ensemble] section: who trains which leaf, and what combines the leaves."""

from typing import Literal

from pydantic import Field

from winnow.core import Choice, Settings
from winnow.learn.ensemble.cluster_rules import ClusterRule
from winnow.learn.local_optimiser import LocalOptimiser
from winnow.learn.models import Width


class Combine(Choice):
    """What is made of the leaves' predictions."""

    @property
    def further_rounds(self) -> int:
        """How many rounds follow those of the leaves."""
        return 0


class MeanOfLeaves(Combine):
    """The mean of the leaves' probabilities, or of the values of a regression."""

    name: Literal["mean"] = "mean"


class MedianOfLeaves(Combine):
    """The median of the leaves' probabilities or values, class by class."""

    name: Literal["median"] = "median"


class MaxOfLeaves(Combine):
    """The highest of the leaves' probabilities: of two classes that of the second, of more of each, brought back to a
    sum of one.
    """

    name: Literal["max"] = "max"


class OverArch(Combine):
    """A network on the leaves' predictions and last hidden layers, trained once they stand. It adds to the mean of the
    leaves, and starts at 0.

    At the "server" it is trained on the samples of a share `opt_in` of the clients, who let the server have their
    labels; at "clients" in a second federated training, by `users`: the "same" who trained leaves, or "others", a share
    `others` of all who train no leaf.
    """

    name: Literal["over-arch"] = "over-arch"
    at: Literal["server", "clients"] = "server"
    opt_in: float = Field(0.1, gt=0, lt=1)
    users: Literal["same", "others"] = "same"
    others: float = Field(0.2, gt=0, lt=1)
    hidden: tuple[Width, ...] = (32,)
    last_hidden: bool = True
    rounds: int = Field(20, ge=1)
    local: LocalOptimiser | None = None

    @property
    def further_rounds(self) -> int:
        return self.rounds


class EnsembleSettings(Settings):
    """Clusters of clients, each of which trains a leaf with the experiment's algorithm, and what `combine`s the leaves.
    Columns that are `private` no leaf of a cluster sees: one more leaf, trained by everybody, sees them alone.
    """

    clusters: ClusterRule
    combine: Combine = MeanOfLeaves()
    private: tuple[str, ...] = ()
