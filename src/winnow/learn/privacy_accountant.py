"""The interface of privacy accountants, which `winnow.privacy` implements."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from winnow.core import Population


class PrivacyAccountant(Protocol):
    """Tracks the privacy loss of a run round by round, and says when its budget is exhausted."""

    def record_round(self, clients: NDArray[np.int64]) -> None:
        """Count a round in which these clients take part; called before it starts."""

    def spent(self) -> Mapping[str, float]:
        """The privacy loss so far, by the guarantee's name."""

    def exhausted_reason(self) -> str | None:
        """Why no further round may start; None if one may."""

    def state(self) -> Mapping[str, Any]:
        """Named arrays for a checkpoint."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint: what was spent stays spent."""


AccountantFactory: TypeAlias = Callable[[Population], PrivacyAccountant | None]


def no_accountant(population: Population) -> None:
    """For a run without a privacy guarantee."""
    return
