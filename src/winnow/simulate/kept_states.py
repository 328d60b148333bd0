"""What simulated clients keep from round to round, where nothing else is said: whatever each proposed last."""

from typing import Protocol

from winnow.core import Payload


class KeptStates(Protocol):
    """`winnow.learn.client_store.ClientStore` is one, for many clients that keep tensors of the same shapes."""

    @property
    def empty(self) -> bool: ...

    def read(self, client: int) -> Payload: ...

    def write(self, client: int, payload: Payload) -> None: ...


class StatesByClient:
    """One state a client, of any form."""

    def __init__(self) -> None:
        self._states: dict[int, Payload] = {}

    @property
    def empty(self) -> bool:
        return not self._states

    def read(self, client: int) -> Payload:
        return self._states.get(client, {})

    def write(self, client: int, payload: Payload) -> None:
        self._states[client] = payload
