"""Who may give which command to a server: `policy.toml` beside its kit, or else the policy below."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from winnow.deploy.trust.peer_identity import Peer
from winnow.deploy.trust.policy_rules import POLICY_FILE, PolicyDecision, PolicyRule, matches, read_policy
from winnow.deploy.trust.watched_file import WatchedFile

Command: TypeAlias = Literal[
    "status", "sites", "jobs", "logs", "download", "submit", "abort", "control", "audit", "applications"
]
"""`control` is to stop or restart a site's agent, `audit` to read the server's audit log, `applications` to see who
applies for a kit and to decide.
To clone a job is to download it and to submit it again.
"""

DEFAULT_SERVER_POLICY = """
[[allow]]
roles = ["admin"]
commands = ["*"]

[[allow]]
roles = ["lead", "member", "org-admin"]
commands = ["status", "sites", "jobs", "logs"]

[[allow]]
roles = ["lead"]
commands = ["submit"]

[[allow]]
roles = ["lead"]
commands = ["download"]
scope = "organisation"

[[allow]]
roles = ["lead"]
commands = ["abort"]
scope = "own"

[[allow]]
roles = ["org-admin"]
commands = ["control"]
scope = "organisation"
"""


@dataclass(frozen=True, kw_only=True)
class CommandTarget:
    """What a command is about: a job with its submitter, or a site. Nothing in particular by default."""

    name: str = ""
    organisation: str = ""
    owner: str = ""


NO_TARGET = CommandTarget()


class CommandRule(PolicyRule, frozen=True, kw_only=True, forbid_unknown_fields=True):
    commands: tuple[Command | Literal["*"], ...]
    scope: Literal["any", "organisation", "own"] = "any"
    """Whose jobs or sites: anybody's, those of the person's organisation, or the person's own."""


class ServerPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    allow: tuple[CommandRule, ...] = ()


def allows(policy: ServerPolicy, peer: Peer, command: Command, target: CommandTarget = NO_TARGET) -> PolicyDecision:
    """Whether some rule allows this person this command on this target."""
    if peer.kind != "person":
        return PolicyDecision(allowed=False, reason=f"{peer} is not a person; only persons may give commands")
    about = [rule for rule in policy.allow if rule.includes(peer) and matches(rule.commands, command)]
    if not about:
        return PolicyDecision(allowed=False, reason=f"{peer} may not {command} here")
    if not any(_reaches(rule, peer, target) for rule in about):
        return PolicyDecision(
            allowed=False, reason=f"{peer} may not {command} {target.name or 'this'}: it belongs to somebody else"
        )
    return PolicyDecision(allowed=True, reason=f"{peer} may {command}")


def watch_server_policy(folder: Path) -> WatchedFile[ServerPolicy]:
    """The policy beside a kit, as it is now. A file that cannot be understood allows nothing."""
    usual = read_policy(DEFAULT_SERVER_POLICY.encode(), ServerPolicy)

    def read(content: bytes, _: ServerPolicy) -> ServerPolicy:
        return read_policy(content, ServerPolicy)

    return WatchedFile(
        folder / POLICY_FILE, read, first=usual, on_missing=lambda _: usual, on_invalid=lambda _: ServerPolicy(allow=())
    )


def _reaches(rule: CommandRule, peer: Peer, target: CommandTarget) -> bool:
    if rule.scope == "organisation":
        return target.organisation == peer.organisation
    return rule.scope == "any" or target.owner == peer.name
