"""Results that are kept with the object that they were made of: every step of a program asks for the same ones."""

from collections.abc import Callable
from typing import Generic, TypeVar

Made = TypeVar("Made")


class IdentityCache(Generic[Made]):
    def __init__(self) -> None:
        self._kept: dict[int, tuple[object, Made]] = {}

    def get(self, of: object, make: Callable[[], Made]) -> Made:
        """What `make` gave for this very object; equal ones have results of their own."""
        if id(of) not in self._kept:
            self._kept[id(of)] = of, make()  # as long as it is kept, nothing else gets its id
        return self._kept[id(of)][1]
