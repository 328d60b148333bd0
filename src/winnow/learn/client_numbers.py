"""Clients by what users call them."""

from collections.abc import Mapping, Sequence
from typing import Annotated, TypeAlias

from pydantic import Field

from winnow.core import ConfigError, suggest
from winnow.core.join_names import listed

TrustByName: TypeAlias = dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]]
"""How far each client is trusted, such as truth discovery finds it."""
MAX_NAMED = 10
"""Clients that one line names."""


def client_key(number: int) -> str:
    """What a client is called that has no name, and may be called in any case."""
    return f"client {number}"


def numbers_by_name(names: Sequence[str]) -> dict[str, int]:
    """The number of each client, by its name and as `client 3`."""
    return {client_key(k): k for k in range(len(names))} | {name: k for k, name in enumerate(names)}


def trust_by_key(trust: Mapping[str, float], names: Sequence[str], setting: str) -> TrustByName:
    """The same trust by `client_key`, where clients are called so: every one of them is named, and nobody else."""
    number_of = numbers_by_name(names)
    for name in trust:
        if name not in number_of:
            raise ConfigError(f"{setting}: there is no client {name!r}; {suggest(name, list(number_of))}")
    found = {number_of[name]: value for name, value in trust.items()}
    if len(found) < len(trust):
        raise ConfigError(f"{setting} names a client twice, by its name and by its number; leave one of them out")
    if absent := [name for number, name in enumerate(names) if number not in found]:
        raise ConfigError(f"{setting} does not name {listed(absent, MAX_NAMED)}; a client that must not count has 0")
    if not any(found.values()):
        raise ConfigError(f"{setting} is 0 for all clients; one of them has to count")
    return {client_key(number): found[number] for number in sorted(found)}
