"""The site has the last word on jobs, whatever its server says; and what is broken stays one job's or task's affair."""

import errno
import json
import math
import re
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from papers import a_project, provision
from siting import CONFIG, POLICY, SITE, Script, World, agent_at, deploy, serving, task, wait_for

from winnow.analytics.query_rules import NoiseBudget, QueryRule
from winnow.deploy.jobs.bundle_format import read_bundle, write_bundle
from winnow.deploy.site.state_store import SiteStateStore, StateStoreError
from winnow.deploy.trust.signing import DAY, sign
from winnow.deploy.trust.site_policy import SiteQueryRule, SpendingLimit
from winnow.deploy.wire.messages import Blob, DeployResult, Hello, Resources, Settle, StopJob, SubmitResult

NUMBERS = count()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "project", site=SITE + '[data.wind]\nfile = "secret-place/rows.csv"\n')


@pytest.fixture
def near(world: World, script: Script) -> Iterator[Any]:
    with serving(world, script, f"memory://policy-{next(NUMBERS)}") as running:
        yield running


def changed(bundle: bytes, **changes: Any) -> bytes:
    return write_bundle(msgspec.structs.replace(read_bundle(bundle), **changes))


def foreign(world: World, tmp_path: Path) -> bytes:
    """Signed by a person of the same name in another project."""
    provision(tmp_path / "other", a_project("other"))
    other = World.kit.__get__(type("Elsewhere", (), {"folder": tmp_path / "other"})())("the-lead")
    plain = read_bundle(world.bundle())
    signature = sign(other, plain.signed)
    return write_bundle(msgspec.structs.replace(plain, certificate=signature.certificate, signature=signature.value))


def test_each_job_is_judged_by_its_author_data_code_and_needs(
    world: World, script: Script, near: Any, tmp_path: Path
) -> None:
    own = {"mine.py": "x = 1"}
    world.allow(POLICY.replace("own_code = true", "") + "[limits]\nmemory_mb = 900\n")
    refusals: list[tuple[bytes, dict[str, Any], str]] = [
        (
            world.bundle(author="the-member"),
            {"submitter": "the-member"},
            "member the-member of .* may not run jobs here",
        ),
        (world.bundle(author="the-member"), {}, "submitted by the-lead but signed by member the-member"),
        (world.bundle('[data]\nname = "wind"\n'), {}, "may not use data 'wind' here"),
        (world.bundle(**own), {}, "may not run custom code here"),
        (world.bundle(), {"resources": Resources(memory_mb=1000)}, "asks for 1000 memory_mb; this site allows 900"),
        (world.bundle(), {"resources": Resources(cpus=3, memory_mb=5)}, "asks for 3 CPUs; this site offers 2"),
        (changed(world.bundle(), config=CONFIG + "rounds = 9\n"), {}, "changed after signing"),
        (changed(world.bundle(), certificate=b"", signature=b""), {}, "not a valid certificate"),
        (world.bundle(ago=8 * DAY), {}, "the job was signed 8 days ago; the limit is 7 days; submit it again"),
        (world.bundle(ago=math.nan), {}, "the job was signed nan days ago"),
        (world.bundle(ago=-3600), {}, "is in the future"),
        (changed(world.bundle(ago=8 * DAY), issued=time.time()), {}, "changed after signing"),
        (foreign(world, tmp_path), {}, "not issued by the CA"),
        (world.bundle("[data]\n"), {}, "the job names no data"),
        (msgspec.msgpack.encode({"config": "[data"}), {}, "not valid TOML"),
        (b"nonsense", {}, "not a valid job bundle"),
        (msgspec.msgpack.encode({"config": CONFIG, "files": {"../x": b""}}), {}, "relative paths without"),
    ]
    with agent_at(world, near.url):
        for number, (bundle, told, reason) in enumerate(refusals, 1):
            script.tell(deploy(script, bundle, job=f"job-{number + 10}", **told))
            joined = script.wait(DeployResult, number)
            assert not joined.accepted
            assert re.search(reason, joined.reason), joined.reason
        script.tell(deploy(script, world.bundle()))
        assert script.wait(DeployResult, len(refusals) + 1).accepted
    assert (world.kit_folder / "audit.jsonl").read_text().count('"job rejected"') == len(refusals)


def test_a_job_that_runs_may_grow_old(world: World, script: Script, near: Any) -> None:
    """An agent that starts anew goes on with it; and does not begin it once it has ended, as a server might wish."""
    bundle, settings = world.bundle(), world.kit_folder / "site.toml"
    script.tell(deploy(script, bundle), task())
    with agent_at(world, near.url):
        assert script.wait(SubmitResult).result.failure is None
    settings.write_text("job_days = 1e-9\n" + settings.read_text())
    script.outstanding.append(task(round=2))
    with agent_at(world, near.url):
        assert script.wait(SubmitResult, 2).result.failure is None
        script.outstanding.clear()
        script.tell(StopJob(job="job-1"), deploy(script, bundle))
        wait_for(lambda: not script.all_of(DeployResult)[-1].accepted, "the refusal of an old job")
        assert "submit it again" in script.all_of(DeployResult)[-1].reason


def test_a_policy_that_changes_stops_a_running_job_and_lets_it_go_on(
    world: World, script: Script, near: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "winnow")
    with agent_at(world, near.url):
        script.tell(deploy(script, world.bundle()), task())
        assert script.wait(SubmitResult, 1).result.failure is None
        world.allow("")
        script.tell(task(round=2), task(round=3))
        assert script.wait(SubmitResult, 2).result.failure == "lead the-lead of Institute may not run jobs here"
        assert script.wait(SubmitResult, 3).result.stage == "admission"
        world.allow("nonsense")
        script.tell(task(round=4))
        assert "may not run jobs" in script.wait(SubmitResult, 4).result.failure
        world.allow(POLICY + '[[filters]]\nname = "clip"\n')
        script.tell(task(round=5))
        assert script.payload(script.wait(SubmitResult, 5))["filters"] == [{"name": "clip"}]
    audit = (world.kit_folder / "audit.jsonl").read_text()
    for word in ("suspended", "resumed"):
        assert caplog.text.count(f"job-1 {word}") == 1
        assert audit.count(f'"job {word}"') == 1


def test_a_damaged_blob_fails_its_task_alone(world: World, script: Script, near: Any) -> None:
    part = script.hold(b"a model")
    script.spoiled.add(part.digest)
    missing = Blob(digest="0" * 64, size=5)
    with agent_at(world, near.url):
        script.tell(deploy(script, world.bundle()), task(parts={"model": part}))
        assert "its digest does not match" in script.wait(SubmitResult, 1).result.failure
        script.tell(task(parts={"model": missing}))
        assert script.wait(SubmitResult, 2).result.stage == "preparing"
        script.spoiled.clear()
        script.tell(task(parts={"model": part}))
        assert script.payload(script.wait(SubmitResult, 3))["parts"] == {"model": "a model"}
        script.tell(deploy(script, world.bundle(), job="job-2"))
        assert script.wait(DeployResult, 2).accepted


def test_another_bundle_under_the_name_of_a_running_job_is_ignored(
    world: World, script: Script, near: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with agent_at(world, near.url):
        script.tell(deploy(script, world.bundle()))
        assert script.wait(DeployResult).accepted
        script.tell(deploy(script, world.bundle(CONFIG + "rounds = 2\n")), task())
        assert script.wait(SubmitResult).result.failure is None
    assert len(script.all_of(DeployResult)) == 1
    assert "a different bundle" in caplog.text


def test_what_was_signed_once_runs_under_one_name(world: World, script: Script, near: Any) -> None:
    bundle = world.bundle()
    with agent_at(world, near.url):
        script.tell(deploy(script, bundle))
        assert script.wait(DeployResult, 1).accepted
        script.tell(StopJob(job="job-1"), deploy(script, bundle, job="job-2"))
        assert "already ran here as job job-1" in script.wait(DeployResult, 2).reason
        script.tell(deploy(script, bundle))
        assert script.wait(DeployResult, 3).accepted
        script.tell(deploy(script, world.bundle(), job="job-3"))
        assert script.wait(DeployResult, 4).accepted


def test_the_audit_names_the_authors_own_organisation(world: World, script: Script, near: Any) -> None:
    with agent_at(world, near.url):
        script.tell(deploy(script, world.bundle()))
        assert script.wait(DeployResult).accepted
        script.tell(deploy(script, b"nonsense", job="job-2"))
        assert not script.wait(DeployResult, 2).accepted
    noted = [json.loads(line) for line in (world.kit_folder / "audit.jsonl").read_text().splitlines()]
    assert [each["organisation"] for each in noted if each["target"] in ("job-1", "job-2")] == ["Institute", ""]


def test_a_full_disk_fails_tasks_with_a_line_and_nothing_is_lost(
    world: World, script: Script, near: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = [True]

    def no_room(*_: Any) -> Any:
        if full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")

    from winnow.deploy.site import state_store, symlink_safe_move

    writing, moving = state_store.SiteStateStore.add_result, symlink_safe_move._move
    monkeypatch.setattr(symlink_safe_move, "_move", lambda *given: (no_room(), moving(*given)))
    with agent_at(world, near.url):
        script.tell(deploy(script, world.bundle()), task())
        assert "No space left on device" in script.wait(SubmitResult, 1).result.failure
        monkeypatch.setattr(symlink_safe_move, "_move", moving)

        def add(self: SiteStateStore, made: Any) -> None:
            if full[0]:
                raise StateStoreError("the site's records cannot be used: database or disk is full")
            writing(self, made)

        monkeypatch.setattr(state_store.SiteStateStore, "add_result", add)
        script.tell(task())
        assert "disk is full" in script.wait(SubmitResult, 2).result.failure
        full[0] = False
        script.tell(task())
        assert script.wait(SubmitResult, 3).result.failure is None


def test_what_is_settled_is_acknowledged_only_once_it_is_kept(
    world: World, script: Script, near: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assigned = task()
    order = Settle(job="job-1", round=1, tasks={assigned.task.id: [0]})
    failing = iter([True])
    settling = SiteStateStore.settle

    def settle(self: SiteStateStore, *given: Any) -> None:
        if next(failing, False):
            raise StateStoreError("disk I/O error")
        settling(self, *given)

    monkeypatch.setattr(SiteStateStore, "settle", settle)
    with agent_at(world, near.url):
        script.tell(deploy(script, world.bundle()), assigned)
        script.wait(SubmitResult)
        script.outstanding = [script.outstanding[0], order, task(round=2)]
        script.orders.append(order)
        assert script.payload(script.wait(SubmitResult, 2))["kept"] == [1]
    assert len(script.all_of(Hello)) == 2


def test_a_server_that_stalls_or_talks_nonsense_is_survived(world: World, script: Script, near: Any) -> None:
    broken = iter(["welcome", "poll"])
    plain = script.call

    async def call(peer: Any, request: Any) -> Any:
        answer = await plain(peer, request)
        if isinstance(request, Hello) and next(broken, "") == "welcome":
            from winnow.deploy.wire.messages import Acknowledgement

            return Acknowledgement()
        return answer

    script.call = call  # type: ignore[method-assign]
    near.faults.delay = 0.1
    with agent_at(world, near.url, now=lambda: 0.0):
        script.tell(deploy(script, world.bundle()), task())
        assert script.wait(SubmitResult).result.failure is None
        near.faults.disconnected = True
        script.tell(task(round=2))
        wait_for(lambda: True, "a moment")
        near.faults.disconnected = False
        assert script.wait(SubmitResult, 2).result.failure is None
    assert script.all_of(Hello)[0].clock == 0.0


def test_a_table_is_trained_on_only_where_a_rule_names_it_and_never_by_custom_code(
    tmp_path: Path, script: Script
) -> None:
    table = '[tables.stays]\nfile = "secret-place/rows.csv"\ncolumns = { a = "public" }\n'
    world = World(tmp_path / "project", site=SITE + table)
    wanted = '[data]\nname = "stays"\n'
    anything = '[[jobs]]\nroles = ["lead"]\ndata = ["*"]\nown_code = true\n'
    named = anything.replace("*", "stays")
    with serving(world, script, f"memory://policy-{next(NUMBERS)}") as near:
        world.allow(anything)
        with agent_at(world, near.url):
            script.tell(deploy(script, world.bundle(wanted), job="job-1"))
            assert "may not train on table 'stays' here" in script.wait(DeployResult, 1).reason
            world.allow(named)
            script.tell(deploy(script, world.bundle(wanted, **{"mine.py": "x = 1"}), job="job-2"))
            wait_for(lambda: len(script.all_of(DeployResult)) == 2, "an answer")
            assert "is a table, which jobs with custom code cannot use" in script.all_of(DeployResult)[1].reason


def test_a_federation_file_and_a_policy_have_the_same_keys_for_questions() -> None:
    """A rule is tried in a simulation, and then copied."""
    at_site = {field.name: field.default for field in msgspec.structs.fields(SiteQueryRule)}
    simulated = {name: field.default for name, field in QueryRule.model_fields.items()}
    assert at_site.keys() == simulated.keys()
    same = ("minimum", "rows", "owners", "noise")
    assert [at_site[name] for name in same] == [simulated[name] for name in same]
    limit = {field.name: field.default for field in msgspec.structs.fields(SpendingLimit)}
    assert limit.keys() == NoiseBudget.model_fields.keys()
    assert limit["delta"] == NoiseBudget.model_fields["delta"].default
