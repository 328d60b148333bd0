"""Policies: every combination of their own values, against a plain evaluation written down here."""

import itertools
import logging
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest

from winnow.deploy.trust.peer_identity import Peer, Role
from winnow.deploy.trust.server_policy import (
    DEFAULT_SERVER_POLICY,
    Command,
    CommandTarget,
    ServerPolicy,
    allows,
    watch_server_policy,
)
from winnow.deploy.trust.site_policy import DENY_ALL, JobRequest, admits, allows_control, watch_site_policy
from winnow.deploy.trust.watched_file import WatchedFile

ROLES, COMMANDS = get_args(Role), get_args(Command)
UNKNOWN = "somebody-else"

SERVER = """
[[allow]]
people = ["ana", "bo"]
commands = ["submit", "jobs"]

[[allow]]
organisations = ["Plant A"]
roles = ["lead", "org-admin"]
commands = ["abort", "download"]
scope = "organisation"

[[allow]]
roles = ["member"]
commands = ["*"]
scope = "own"
"""
SITE_POLICIES = {
    "none": "",
    "one": """
[[jobs]]
organisations = ["Plant A"]
roles = ["lead"]
data = ["turbines"]
""",
    "several": """
remote_control = true
[limits]
cpus = 4
memory_mb = 2048
gpus = 0
[[jobs]]
people = ["ana"]
data = ["*"]
[[jobs]]
roles = ["lead", "admin"]
data = ["turbines", "pumps"]
own_code = true
[[jobs]]
organisations = ["Plant B"]
data = ["pumps"]
[[filters]]
name = "clip"
norm = 1.0
""",
}


def person(name: str, organisation: str, role: str, kind: Any = "person") -> Peer:
    return Peer(name=name, kind=kind, organisation=organisation, role=role, serial=1)


def mentioned(rules: Iterable[Mapping[str, Any]], key: str) -> list[str]:
    """Every value that the rules name, and one that none does."""
    return sorted({value for rule in rules for value in rule.get(key, ()) if value != "*"} | {UNKNOWN})


def everybody(rules: list[Mapping[str, Any]]) -> list[Peer]:
    combinations = itertools.product(mentioned(rules, "people"), mentioned(rules, "organisations"), [*ROLES, ""])
    machines = [person("ana", "Plant A", "", kind) for kind in ("site", "server")]
    return [person(*each) for each in combinations] + machines


def is_about(rule: Mapping[str, Any], peer: Peer) -> bool:
    for key, value in (("people", peer.name), ("organisations", peer.organisation), ("roles", peer.role)):
        if key in rule and "*" not in rule[key] and value not in rule[key]:
            return False
    return peer.kind == "person"


def write(folder: Path, text: str) -> None:
    (folder / "policy.toml").write_text(text)


# Servers --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [DEFAULT_SERVER_POLICY, SERVER, ""], ids=["default", "own", "empty"])
def test_roles_times_commands_times_targets(text: str, tmp_path: Path) -> None:
    write(tmp_path, text)
    policy = watch_server_policy(tmp_path).current()
    rules = tomllib.loads(text).get("allow", [])
    decided = set()
    for peer in everybody(rules):
        owners, organisations = (peer.name, "nobody", ""), (peer.organisation, "Nowhere", "")
        for command, owner, organisation in itertools.product(COMMANDS, owners, organisations):
            expected = False
            for rule in rules:
                if is_about(rule, peer) and ("*" in rule["commands"] or command in rule["commands"]):
                    scope = rule.get("scope", "any")
                    expected |= scope == "any"
                    expected |= scope == "own" and owner == peer.name
                    expected |= scope == "organisation" and organisation == peer.organisation
            decision = allows(policy, peer, command, CommandTarget(name="it", organisation=organisation, owner=owner))
            assert decision.allowed == expected, (peer, command, owner, organisation)
            assert str(peer) in decision.reason
            decided.add(expected)
    assert decided == ({True, False} if rules else {False})


def test_the_default_is_what_the_documentation_says(tmp_path: Path) -> None:
    policy = watch_server_policy(tmp_path).current()
    own = CommandTarget(name="job", organisation="Institute", owner="me")
    colleagues = CommandTarget(name="job", organisation="Institute", owner="you")
    others = CommandTarget(name="job", organisation="Plant A", owner="them")
    looking = {"status", "sites", "jobs", "logs"}
    expected = {
        "admin": [set(COMMANDS)] * 3,
        "lead": [looking | {"submit", "download", "abort"}, looking | {"submit", "download"}, looking | {"submit"}],
        "member": [looking] * 3,
        "org-admin": [looking | {"control"}, looking | {"control"}, looking],
    }
    for role in ROLES:
        me = person("me", "Institute", role)
        may = [
            {command for command in COMMANDS if allows(policy, me, command, target).allowed}
            for target in (own, colleagues, others)
        ]
        assert may == expected[role], role


# Sites ----------------------------------------------------------------------------------------------------------------


def plainly_admitted(table: Mapping[str, Any], peer: Peer, job: JobRequest) -> bool:
    limits = table.get("limits", {})
    small = all(getattr(job, key) <= most for key, most in limits.items())
    return small and any(
        is_about(rule, peer)
        and all("*" in rule["data"] or name in rule["data"] for name in job.data)
        and (rule.get("own_code", False) or not job.own_code)
        for rule in table.get("jobs", [])
    )


@pytest.mark.parametrize("which", SITE_POLICIES)
def test_people_times_jobs_times_site_policies(which: str, tmp_path: Path) -> None:
    write(tmp_path, SITE_POLICIES[which])
    policy, table = watch_site_policy(tmp_path).current(), tomllib.loads(SITE_POLICIES[which])
    rules, decided = table.get("jobs", []), set()
    names = mentioned(rules, "data")
    wanted = [(), *((name,) for name in names), *itertools.combinations(names, 2)]
    sizes = [{}, {"cpus": 4.5}, {"memory_mb": 2049}, {"gpus": 1}, {"cpus": 4.0, "memory_mb": 2048}]
    for peer, data, own_code, size in itertools.product(everybody(rules), wanted, (True, False), sizes):
        job = JobRequest(data=data, own_code=own_code, **size)  # type: ignore[arg-type]
        decision = admits(policy, peer, job)
        assert decision.allowed == plainly_admitted(table, peer, job), (peer, job)
        assert decision.reason
        decided.add(decision.allowed)
    assert decided == ({True, False} if rules else {False})
    assert allows_control(policy).allowed == table.get("remote_control", False)
    assert list(policy.filters) == table.get("filters", [])


def test_what_is_no_number_is_over_the_limit(tmp_path: Path) -> None:
    write(tmp_path, SITE_POLICIES["several"])
    job = JobRequest(data=("turbines",), cpus=float("nan"))
    assert not admits(watch_site_policy(tmp_path).current(), person("ana", "Plant A", "lead"), job).allowed


def test_without_a_policy_a_site_allows_nothing(tmp_path: Path) -> None:
    assert watch_site_policy(tmp_path).current() == DENY_ALL


# Files ----------------------------------------------------------------------------------------------------------------

BROKEN = {
    "no TOML": "[[jobs",
    "an unknown key": '[[jobs]]\ndata = ["x"]\nowncode = true\n',
    "a wrong type": '[[jobs]]\ndata = "x"\n',
    "a missing key": '[[jobs]]\nroles = ["lead"]\n',
    "an impossible limit": "[limits]\ncpus = -1\n",
    "a filter without a name": "[[filters]]\nnorm = 1.0\n",
    "an unknown choice": 'sandbox = "perhaps"\n',
    "no text": "\udcff",
}


@pytest.mark.parametrize("mistake", BROKEN)
def test_a_broken_policy_denies_everything_until_it_is_mended(
    mistake: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    write(tmp_path, SITE_POLICIES["several"])
    watched = watch_site_policy(tmp_path)
    good = watched.current()
    assert good.jobs
    (tmp_path / "policy.toml").write_bytes(BROKEN[mistake].encode(errors="surrogateescape"))
    assert [watched.current() for _ in range(3)] == [DENY_ALL] * 3
    [line] = caplog.records
    assert str(tmp_path / "policy.toml") in line.getMessage()
    assert "\n" not in line.getMessage()
    write(tmp_path, SITE_POLICIES["several"])
    assert watched.current() == good
    assert "is valid again and was applied" in caplog.messages[-1]
    (tmp_path / "policy.toml").unlink()
    assert watched.current() == DENY_ALL


def test_the_documented_policies_are_understood(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "provisioning.md").read_text("utf-8")
    texts = dict(re.findall(r'title="turbines/kits/([\w-]+)/policy.toml"\n(.*?)^```', page, re.DOTALL | re.MULTILINE))
    ana = person("ana", "Institute", "lead")
    write(tmp_path, texts["server-1"])
    server = watch_server_policy(tmp_path).current()
    assert allows(server, ana, "submit", CommandTarget(name="job", organisation="Institute", owner="ana")).allowed
    assert not allows(server, ana, "control", CommandTarget(name="plant-a", organisation="Institute")).allowed
    write(tmp_path, texts["plant-a"])
    site = watch_site_policy(tmp_path).current()
    assert admits(site, ana, JobRequest(data=("pumps",), own_code=True)).allowed
    assert not admits(site, person("bo", "Institute", "lead"), JobRequest(data=("pumps",))).allowed


def test_a_policy_of_the_same_size_is_read_again(tmp_path: Path) -> None:
    write(tmp_path, "remote_control = true ")
    watched = watch_site_policy(tmp_path)
    assert watched.current().remote_control
    write(tmp_path, "remote_control = false")
    os.utime(tmp_path / "policy.toml", ns=(0, 0))
    assert not watched.current().remote_control


@pytest.mark.parametrize(
    ("watch", "text", "told"),
    [
        (watch_site_policy, "control = true\n", "the key control is now named remote_control"),
        (watch_server_policy, "[[allow]]\ncommands = ['*']\nof = 'own'\n", "the key of is now named scope"),
        (
            watch_site_policy,
            "share_evidence = ['inputs', 'label']",
            "share_evidence[1] = 'label' is unknown; did you mean 'labels'?",
        ),
        (
            watch_site_policy,
            "share_evidence = ['zzz']",
            "share_evidence[0] = 'zzz' is unknown; valid: columns, inputs, labels",
        ),
        (watch_site_policy, "share_evidenc = []", "unknown key share_evidenc; did you mean 'share_evidence'?"),
        (watch_site_policy, "[limits]\ncpu = 3", "unknown key limits.cpu; did you mean 'cpus'?"),
        (
            watch_site_policy,
            "[[jobs]]\ndata = ['*']\npeple = ['ana']",
            "unknown key jobs[0].peple; did you mean 'people'?",
        ),
        (
            watch_server_policy,
            "[[allow]]\ncommands = ['*', 'submitt']",
            "allow[0].commands[1] = 'submitt' is unknown; did you mean 'submit'?",
        ),
        (watch_site_policy, "[limits]\ncpus = -3", "Expected `float` > 0.0 - at `$.limits.cpus`"),
    ],
)
def test_a_mistake_is_answered_with_what_is_valid(
    watch: Callable[[Path], WatchedFile[Any]], text: str, told: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, text)
    watch(tmp_path).current()
    assert caplog.messages[-1].endswith(told)


@pytest.mark.parametrize("text", ["[[allow]]\ncommands = ['fly']\n", "[[allow]]\n", "allow = 1\n", "[[deny]]\n"])
def test_a_broken_policy_of_a_server_allows_nothing_rather_than_the_default(text: str, tmp_path: Path) -> None:
    watched = watch_server_policy(tmp_path)
    assert watched.current().allow
    write(tmp_path, text)
    assert watched.current() == ServerPolicy()
