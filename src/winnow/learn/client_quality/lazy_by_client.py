"""Numbers or words by client that are worked out when they are asked for: for most clients they are not."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TypeVar

T = TypeVar("T")


class LazyByClient(Mapping[int, T]):
    """Of these clients, by a function."""

    def __init__(self, of_client: Callable[[int], T], clients: Collection[int]) -> None:
        self._of_client, self._clients = of_client, clients

    def __getitem__(self, client: int) -> T:
        if client not in self._clients:
            raise KeyError(client)
        return self._of_client(client)

    def __iter__(self) -> Iterator[int]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)
