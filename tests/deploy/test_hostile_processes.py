"""What one process says to another may be anything: it ends that process or that job, in one line, and nothing else."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.torch import load_file
from test_jobs_federation import ScriptedChannel, ask, federation
from test_site_process import AGENT

from winnow.core import ConfigError, Failure, Reply
from winnow.core.message_decoding import UnreadableError, from_json, from_msgpack
from winnow.deploy.client import local_federation
from winnow.deploy.client.bundle import describe_job
from winnow.deploy.jobs.bundle_format import Bundle, read_bundle, write_bundle
from winnow.deploy.jobs.ipc_messages import CommitRound, ResultArrived, RunTask
from winnow.deploy.jobs.task_executor import SiteHandlers, TaskExecutor
from winnow.deploy.sandbox.isolation import ProcessLimits
from winnow.deploy.server.runner_process_handle import RunnerProcess
from winnow.deploy.site.worker_process_handle import WorkerExitedError, WorkerProcess
from winnow.deploy.wire.messages import Blob, ClientResult, WireTask
from winnow.deploy.wire.safetensors_files import StoredArrays, write_parts

HERE = Path(__file__).parent
LIMITS = ProcessLimits(cpus=[0], memory_mb=1024)

# Bytes ----------------------------------------------------------------------------------------------------------------


class Message(msgspec.Struct):
    text: str
    more: dict[str, list[int]] = {}


NO_MESSAGES = {
    "no UTF-8": b"\x81\xa4text\xa3\xff\xfe\xfd",
    "a name that is no UTF-8": b"\x81\xa3\xff\xfe\xfd\x01",
    "lists in lists": b"\x91" * 100_000,
    "cut": msgspec.msgpack.encode(Message("x"))[:-1],
    "nothing": b"",
    "a list": b"\x93\x01\x02\x03",
    "another type": msgspec.msgpack.encode({"text": 3}),
    "a whole number for a text": b"\xcf" + b"\xff" * 8,
}


@pytest.mark.parametrize("data", NO_MESSAGES.values(), ids=NO_MESSAGES)
def test_what_is_no_message_is_told_in_one_way(data: bytes) -> None:
    with pytest.raises(UnreadableError) as told:
        from_msgpack(data, Message)
    assert str(told.value).isprintable()
    for other in (data, b'{"text": "\xff\xfe"}', b"[" * 100_000):
        with pytest.raises(UnreadableError):
            from_json(other, Message)


# A runner to its server, a worker to its agent ------------------------------------------------------------------------

SPEAKS = """
import socket, struct, sys
line = socket.socket(fileno=int(sys.argv[1]))
data = bytes.fromhex({data!r})
line.sendall(struct.pack("<I", {length}) + data)
line.recv(1)
"""


def speaking(folder: Path, data: bytes, length: int | None = None) -> str:
    path = folder / "speaks.py"
    path.write_text(SPEAKS.format(data=data.hex(), length=len(data) if length is None else length))
    return str(path)


SAID = {
    **{name: NO_MESSAGES[name] for name in ("no UTF-8", "lists in lists", "cut", "nothing", "another type")},
    "a message of another kind": msgspec.msgpack.encode({"type": "Welcome"}),
    "an odd round": msgspec.msgpack.encode(
        CommitRound(round=-1, rounds=1, checkpoint="", lines=[], settled={}, ended_tasks={}, metrics={})
    ),
}


@pytest.mark.parametrize("data", SAID.values(), ids=SAID)
def test_a_runner_that_speaks_no_language_of_ours_is_ended(data: bytes, tmp_path: Path) -> None:
    async def heard() -> Any:
        program = speaking(tmp_path, data)
        runner = RunnerProcess(tmp_path, tmp_path / "log", limits=LIMITS, sandbox=None, program=program)
        said = await asyncio.wait_for(runner.receive(), 60)
        await runner.end()
        return said

    assert asyncio.run(heard()) is None, "it has gone, as far as the server is concerned"


@pytest.mark.parametrize("data", SAID.values(), ids=SAID)
def test_a_worker_that_speaks_no_language_of_ours_is_ended(data: bytes, tmp_path: Path) -> None:
    program = speaking(tmp_path, data)
    process = WorkerProcess(
        folder=tmp_path / "work", log=tmp_path / "log", limits=LIMITS, sandbox=None, program=program
    )
    try:
        with pytest.raises(WorkerExitedError, match="sent an invalid message"):
            assert process.receive(timeout=60)
        assert not process.alive
    finally:
        process.close()


# An author to the server and to sites ---------------------------------------------------------------------------------

CONFIGS = {
    "no TOML": "= =",
    "tables in tables": "x = " + "[" * 100_000,
    "a number of many digits": "x = " + "9" * 10_000,
    "odd plugins": 'plugins = [["a"], 3]',
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_configuration_that_is_none_is_refused_in_one_line(config: str) -> None:
    with pytest.raises(ConfigError) as told:
        read_bundle(msgspec.msgpack.encode(Bundle(config=config)))
    assert str(told.value).isprintable()


@pytest.mark.parametrize("name", ["é" * 150, "a/" + "x" * 300, "../x", "a\ud800", "a//b", "\x00"])
def test_files_that_no_folder_takes_are_refused(name: str) -> None:
    with pytest.raises((ConfigError, UnicodeEncodeError)):
        read_bundle(msgspec.msgpack.encode(Bundle(config="", files={name: b""})))


def test_a_bundle_that_was_tampered_with_is_read_or_refused() -> None:
    whole = write_bundle(Bundle(config='[data]\nname = "digits"\n', files={"a.py": b"x = 1"}, main="a.py"))
    rng, refused = np.random.default_rng(0), 0
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(int(rng.integers(1, 5))):
            data[rng.integers(len(data))] = int(rng.integers(256))
        try:
            bundle = read_bundle(bytes(data[: rng.integers(1, len(data) + 1)] if rng.random() < 0.2 else data))
            _ = bundle.own_code, bundle.named_sites, bundle.signed
        except ConfigError:
            refused += 1
    assert refused > 1000


# A site to the runner -------------------------------------------------------------------------------------------------


def answered(dispatch: Any, client: int, **more: Any) -> ResultArrived:
    path = more.pop("path", None)
    return ResultArrived(result=ClientResult(job="j", task=dispatch.task.id, client=client, **more), path=path)


def test_answers_of_strangers_and_second_answers_are_passed_over(tmp_path: Path) -> None:
    line = ScriptedChannel()
    deployed = federation(line, tmp_path)
    with deployed.dispatch([ask(0), ask(2)]) as exchange:
        at_a, at_b = line.dispatched()
        odd = ResultArrived(result=ClientResult(job="j", task="f" * 64, client=0))
        line.answers += [odd, answered(at_a, 1), answered(at_a, 99), answered(at_a, 0), answered(at_a, 0, failure="x")]
        line.answers += [answered(at_a, 2), answered(at_b, 2)]
        assert [(type(outcome), outcome.task.client) for outcome in exchange] == [(Reply, 0), (Reply, 2)]


def test_an_answer_that_cannot_be_read_is_its_clients_failure(tmp_path: Path) -> None:
    line = ScriptedChannel()
    (tmp_path / "noise").write_bytes(b"\xff" * 100)
    with federation(line, tmp_path).dispatch([ask(0), ask(1), ask(2)]) as exchange:
        at_a, at_b = line.dispatched()
        line.answers.append(answered(at_a, 0, path=str(tmp_path / "noise")))
        line.answers.append(answered(at_a, 1, peer_messages={17: b"", -4: b""}))
        line.answers.append(answered(at_b, 2, stage="a\nb" * 20_000, failure="\x1b[2J\x00" * 9_000))
        outcomes = list(exchange)
    assert all(isinstance(outcome, Failure) for outcome in outcomes)
    reasons = [outcome.reason for outcome in outcomes]
    assert "clients that are not in this job" in reasons[1]
    assert all(reason.isprintable() and len(reason) <= 500 for reason in reasons)


def test_asking_whether_an_array_is_there_does_not_read_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_parts(tmp_path / "file", {"part": {"x": np.zeros(3)}})
    stored = StoredArrays(tmp_path / "file")
    part = stored.parts()["part"]
    monkeypatch.setattr(StoredArrays, "_fill", lambda *_: pytest.fail("it was read"))
    assert "part/x" in stored
    assert "x" in part
    assert "y" not in part


# A server to a site's worker ------------------------------------------------------------------------------------------

SETTINGS = [b"", b"null", b"\xff\xfe", b"[" * 50_000, b'{"a": NaN}', b'{"x": 1e999}', b"9" * 5000, b'"text"']


@pytest.mark.parametrize("settings", SETTINGS, ids=range(len(SETTINGS)))
def test_odd_tasks_of_a_server_are_failures_of_theirs(settings: bytes, tmp_path: Path) -> None:
    def train(tasks: Any, site: Any) -> Any:
        return [
            Reply(task=task, payload={"x": {"y": task.payload["model"]["w"] + task.settings["rate"]}}) for task in tasks
        ]

    executor = TaskExecutor("j", tmp_path, SiteHandlers(site=None, handlers={"train": train}))
    (tmp_path / "part").write_bytes(b"\x09" * 40)
    parts = {"model": Blob(digest="0" * 64, size=40)}
    for name, clients in (("train", [0]), ("train", []), ("conquer", [0, 1]), ("train", [2**53])):
        task = WireTask(id="0" * 64, name=name, clients=clients, round=0, version=0, settings=settings, parts=parts)
        for paths in ({"model": str(tmp_path / "part")}, {"model": "/nowhere"}, {}):
            dids = executor.execute(RunTask(task=task, parts=paths))
            assert all(did.result.failure for did in dids)
            assert len(dids) == len(clients)


# A site that lies, between real processes -----------------------------------------------------------------------------


@pytest.mark.slow(part="attacks")
def test_a_site_that_lies_ends_nobodys_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = local_federation.start_process

    def start(folder: Path, name: str) -> "subprocess.Popen[bytes]":
        if name != "site-3":
            return honest(folder, name)
        log = local_federation.log_path(folder, name)
        kit = folder / "project" / "kits" / name
        with log.open("ab") as output:
            command = [sys.executable, "-c", AGENT, str(kit), str(HERE / "lying_worker.py")]
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )

    monkeypatch.setattr(local_federation, "start_process", start)
    sets = ["data.clients=6", "engine.execution=loop", "select.fraction=1.0", "local.epochs=1"]
    described = describe_job("demo", sets=sets, rounds=5, seed=3, algorithm="fedprof")
    with local_federation.local_federation(described, 3, tmp_path / "federation") as here:
        job = here.connection.submit(described, min_sites=3)
        state = job.wait(300)
        lines = [line.text for line in job.lines(follow=False)]
        run = job.download(tmp_path / "run")
    assert state.status == "finished", state.reason
    model = load_file(run / "last.safetensors")
    assert all(bool(tensor.isfinite().all()) for tensor in model.values())
    events = [json.loads(text) for text in (run / "events.jsonl").read_text().splitlines()]
    refused = [event for event in events if event["kind"] == "rejected"]
    assert {event["client"] for event in refused} == {4, 5}
    assert all({0, 1, 2, 3} <= {*event["aggregated"]} for event in events if event["kind"] == "round_finished")
    assert sum("reply of site-3, " in line and " rejected: " in line for line in lines) >= 5
    assert not any("reply of site-1, " in line and " rejected: " in line for line in lines)
