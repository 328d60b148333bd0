"""Clients by what users call them."""

from collections.abc import Sequence


def client_key(number: int) -> str:
    """What a client is called that has no name, and may be called in any case."""
    return f"client {number}"


def numbers_by_name(names: Sequence[str]) -> dict[str, int]:
    """The number of each client, by its name and as `client 3`."""
    return {client_key(k): k for k in range(len(names))} | {name: k for k, name in enumerate(names)}
