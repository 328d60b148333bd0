"""What policies of servers and sites have in common. Both are lists of rules that allow; the rest is denied."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from winnow.deploy.trust.errors import PolicyError
from winnow.deploy.trust.peer_identity import Peer
from winnow.deploy.trust.policy_errors import policy_error_text

POLICY_FILE = "policy.toml"
ANY = "*"

T = TypeVar("T", bound=msgspec.Struct)


@dataclass(frozen=True, kw_only=True)
class PolicyDecision:
    """Yes or no, and why in one line, for the log, the audit and the person."""

    allowed: bool
    reason: str


class PolicyRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The persons whom a rule is about: those whom all three lists name. A star names everybody."""

    people: tuple[str, ...] = (ANY,)
    organisations: tuple[str, ...] = (ANY,)
    roles: tuple[str, ...] = (ANY,)

    def includes(self, peer: Peer) -> bool:
        return (
            peer.kind == "person"
            and matches(self.people, peer.name)
            and matches(self.organisations, peer.organisation)
            and matches(self.roles, peer.role)
        )


def matches(listed: Sequence[str], word: str) -> bool:
    return ANY in listed or word in listed


def read_policy(content: bytes, kind: type[T]) -> T:
    try:
        table = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PolicyError(f"not a valid TOML file: {error}") from error
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        raise PolicyError(policy_error_text(error, kind)) from error
