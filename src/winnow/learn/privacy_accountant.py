"""The book of what privacy a run costs. Who keeps it, and how, is for `winnow.privacy` to say."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from winnow.core import Population


class PrivacyAccountant(Protocol):
    """Counts releases, one round after another, and says when there may be no more."""

    def record_round(self, clients: NDArray[np.int64]) -> None:
        """A round in which these clients take part is about to be held."""

    def spent(self) -> Mapping[str, float]:
        """What has been spent, by the guarantee's name."""

    def exhausted_reason(self) -> str | None:
        """Why another round must not be held; None if it may."""

    def state(self) -> Mapping[str, Any]:
        """Named arrays for a checkpoint."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint: what was spent stays spent."""


AccountantFactory: TypeAlias = Callable[[Population], PrivacyAccountant | None]


def no_accountant(population: Population) -> None:
    """No book is kept of a run that claims no privacy."""
    return
