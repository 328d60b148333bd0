"""Code that a job brings runs at the server behind walls, too: the server's key is not for it."""

import asyncio
import os
from pathlib import Path
from typing import NoReturn

import pytest

from support.needs import SANDBOX
from winnow.deploy.jobs.bundle_format import Bundle, write_bundle
from winnow.deploy.jobs.ipc_messages import FromRunner, JobFailed, JobFinished, RunnerLogLine, StartJob
from winnow.deploy.sandbox.child_entry_point import RUNNER_MODULE, LaunchSpec
from winnow.deploy.sandbox.isolation import LIBRARY_MEMORY_MB, ProcessLimits, Sandbox, sandbox_unavailable_reason
from winnow.deploy.sandbox.job_process import IdleProcess, JobProcess
from winnow.deploy.server.runner_process_handle import RunnerProcess
from winnow.deploy.server.warm_runner import WarmRunner

pytestmark = SANDBOX.unless(sandbox_unavailable_reason() is None)

HOSTILE = """
import ctypes, os, resource, socket, tempfile, time
def attempt(name, act):
    try:
        act()
        print(name, "succeeded")
    except OSError as error:
        print(name, "failed")
attempt("key", lambda: open({key!r}).read())
attempt("network", lambda: socket.create_connection(("127.0.0.1", 9)))
attempt("elsewhere", lambda: open({key!r} + ".new", "w"))
attempt("own folder", lambda: open("mine.txt", "w").write("x"))
print("hides its files:", ctypes.CDLL(None).prctl(4, 0, 0, 0, 0) == 0)
print("secret" if os.environ.get("SECRET") else "no secret")
import numpy  # which starts threads
print("threads of", os.getpid())
while not os.path.exists("seen"):
    time.sleep(0.01)
print("memory", resource.getrlimit(resource.RLIMIT_DATA)[0] >> 20)
print("works in", os.getcwd(), os.environ["HOME"], tempfile.gettempdir())
"""


FILLING = """
import ctypes, os, time
from concurrent.futures import ThreadPoolExecutor
try:
    with open("large", "wb") as file:
        file.seek(65 << 20)
        file.write(b"x")
except OSError as error:
    print("large:", error.strerror)
os.unlink("large")
held, thread = [], ThreadPoolExecutor(1)
def elsewhere(number):
    ctypes.CDLL(None).syscall(436, 9999, 9999, 2)  # close_range, which gives the thread a table of its own
    held.append(open(f"small-{number}", "rb"))
for number in range(200):
    held.append(open(f"small-{number}", "w+b"))
    held[-1].write(bytes(1 << 20))
    held[-1].flush()
    HIDE
time.sleep(60)
print("nobody minds")
"""
HIDING = {
    "not at all": "pass",
    "deleted": "os.unlink(f'small-{number}')",
    "mapped": (
        "os.unlink(f'small-{number}'); m, file = ctypes.CDLL(None).mmap, held.pop();"
        " m(None, ctypes.c_size_t(1), 1, 1, file.fileno(), ctypes.c_long(0)); file.close()"
    ),
    "in the table of a thread": "held.pop(); thread.submit(elsewhere, number).result(); os.unlink(f'small-{number}')",
    "on its way to itself": (
        "import socket; os.unlink(f'small-{number}'); file = held.pop(); held.append(socket.socketpair());"
        " socket.send_fds(held[-1][0], [b'x'], [file.fileno()])"
    ),
}


async def said_by(folder: Path, *, fenced: bool, warm: bool, disk_mb: int = 1000) -> list[FromRunner]:
    fresh = IdleProcess("numpy") if warm else IdleProcess()
    if warm:
        await asyncio.to_thread(fresh.output.readline)
    limits = ProcessLimits(memory_mb=1024, cpus=sorted(os.sched_getaffinity(0)), disk_mb=disk_mb)
    sandbox = Sandbox(read=[str(folder)], write=[str(folder)]) if fenced else None
    process = RunnerProcess(
        folder, folder / "log", limits=limits, sandbox=sandbox, program=RUNNER_MODULE, launch=fresh.launch
    )
    process.send(
        StartJob(
            job="j", folder=str(folder), bundle=str(folder / "bundle"), checkpoint=None, round=0, members=[], data={}
        )
    )
    messages = []
    while (message := await asyncio.wait_for(process.receive(), 60)) is not None:
        messages.append(message)
        if isinstance(message, RunnerLogLine) and message.line.startswith("threads of "):
            statuses = [each.read_text() for each in Path("/proc", message.line.split()[-1]).glob("task/*/status")]
            fenced_all = all("Seccomp:\t2" in each for each in statuses)
            messages.append(RunnerLogLine(line=f"every thread is fenced: {fenced_all}"))
            (folder / "seen").touch()
        if isinstance(message, JobFinished | JobFailed):
            break
    assert process.exceeded_disk == (message is None)
    await process.end()
    return messages


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("fenced", [True, False])
def test_a_job_with_code_of_its_own_cannot_reach_the_servers_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fenced: bool, warm: bool
) -> None:
    monkeypatch.setenv("SECRET", "1")
    key = tmp_path / "kit" / "key.pem"
    key.parent.mkdir()
    key.write_text("the key")
    folder = tmp_path / "job"
    folder.mkdir()
    program = HOSTILE.format(key=str(key)).encode()
    bundle = Bundle(config="[data]\nname = 'x'\n", files={"hostile.py": program}, main="hostile.py")
    (folder / "bundle").write_bytes(write_bundle(bundle))
    lines = [
        message.line
        for message in asyncio.run(said_by(folder, fenced=fenced, warm=warm))
        if isinstance(message, RunnerLogLine)
    ]
    outcome = "failed" if fenced else "succeeded"
    assert f"key {outcome}" in lines
    assert f"elsewhere {outcome}" in lines
    assert "network failed" in lines
    assert "own folder succeeded" in lines
    assert f"hides its files: {not fenced}" in lines
    assert "no secret" in lines
    assert f"every thread is fenced: {fenced}" in lines
    assert f"memory {1024 + LIBRARY_MEMORY_MB}" in lines
    assert f"works in {folder} {folder} {folder}" in lines


def test_only_a_process_without_code_of_the_jobs_own_is_told_of_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are compiled kernels in it, which the next job's process loads."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    told: list[str | None] = []

    def launch(spec: LaunchSpec) -> NoReturn:
        told.append(spec.environment.get("XDG_CACHE_HOME"))
        raise OSError("that is enough")

    for sandbox in (None, Sandbox(read=[], write=[])):
        with pytest.raises(OSError, match="enough"):
            JobProcess(
                folder=tmp_path / "job",
                log=tmp_path / "log",
                limits=ProcessLimits(cpus=[0], memory_mb=100),
                sandbox=sandbox,
                program=RUNNER_MODULE,
                launch=launch,
            )
    assert told == [str(tmp_path / "cache"), None]


async def kept(spare: WarmRunner) -> IdleProcess:
    """The process in reserve, once it has loaded."""
    while not (spare._idle and spare._loaded):
        await asyncio.sleep(0.02)
    return spare._idle


@pytest.mark.parametrize("dies", [False, True])
def test_the_process_in_reserve_is_used_once_and_replaced(monkeypatch: pytest.MonkeyPatch, dies: bool) -> None:
    monkeypatch.setattr("winnow.deploy.server.warm_runner.RESTOCK_SECONDS", 0.0)

    async def use() -> None:
        spare = WarmRunner()
        spare.preload(("json",))
        early = spare.take()
        first = await kept(spare)
        if dies:
            first.process.kill()
            first.process.wait()
        taken, fresh = spare.take(), spare.take()
        second = await kept(spare)
        assert (taken is first) is not dies
        assert len({early, first, fresh, second}) == 4
        assert fresh.process.poll() is None
        for each in (early, taken, fresh):
            each.close()
        spare.close()

    asyncio.run(asyncio.wait_for(use(), 60))


@pytest.mark.parametrize(("hiding", "warm"), [*((each, False) for each in HIDING), ("deleted", True), ("mapped", True)])
def test_a_job_that_fills_the_servers_disk_is_ended(tmp_path: Path, hiding: str, warm: bool) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    program = FILLING.replace("HIDE", HIDING[hiding]).encode()
    bundle = Bundle(config="[data]\nname = 'x'\n", files={"filling.py": program}, main="filling.py")
    (folder / "bundle").write_bytes(write_bundle(bundle))
    lines = [
        message.line
        for message in asyncio.run(said_by(folder, fenced=True, warm=warm, disk_mb=64))
        if isinstance(message, RunnerLogLine)
    ]
    assert lines == ["large: File too large"]
