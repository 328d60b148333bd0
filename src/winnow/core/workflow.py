"""A workflow drives a federation and says what happens.

It is suspended whenever it yields. After a `RoundFinished` its `snapshot` is a complete, consistent checkpoint: a new
workflow that restores it goes on exactly as the first one would have.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from winnow.core.events import AnyEvent
from winnow.core.federation import Federation


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """State that survives the process: named arrays, and plain values that JSON can hold."""

    arrays: Mapping[str, Any]
    values: Mapping[str, Any]


class Workflow(Protocol):
    """Anything that hands out tasks and folds replies."""

    def run(self, federation: Federation) -> Iterator[AnyEvent]: ...

    def snapshot(self) -> Snapshot: ...

    def restore(self, snapshot: Snapshot) -> None: ...
