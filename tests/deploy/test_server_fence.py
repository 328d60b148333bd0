"""Code that a job brings runs at the server behind walls, too: the server's key is not for it."""

import asyncio
import os
from pathlib import Path

import pytest

from winnow.deploy.fence.confine import LIBRARIES_MB, Limits, Sandbox, reason_against
from winnow.deploy.server.process import RunnerProcess
from winnow.deploy.server.spare import Spare, Unassigned
from winnow.deploy.work.bundle import Bundle, write_bundle
from winnow.deploy.work.orders import Begin, Finished, FromRunner, GaveUp, Said

pytestmark = pytest.mark.skipif(reason_against() is not None, reason=f"no sandbox here: {reason_against()}")

HOSTILE = """
import os, resource, socket, tempfile
from pathlib import Path
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
print("secret" if os.environ.get("SECRET") else "no secret")
import numpy  # which starts threads
statuses = [each.joinpath("status").read_text() for each in Path("/proc/self/task").iterdir()]
print("every thread is fenced:", all("Seccomp:\t2" in each for each in statuses))
print("memory", resource.getrlimit(resource.RLIMIT_DATA)[0] >> 20)
print("works in", os.getcwd(), os.environ["HOME"], tempfile.gettempdir())
"""


async def said_by(folder: Path, *, fenced: bool, warm: bool) -> list[FromRunner]:
    fresh = Unassigned("numpy") if warm else Unassigned()
    if warm:
        await asyncio.to_thread(fresh.output.readline)
    limits = Limits(memory_mb=1024, cpus=sorted(os.sched_getaffinity(0)))
    sandbox = Sandbox(read=[str(folder)], write=[str(folder)]) if fenced else None
    process = RunnerProcess(folder, folder / "log", limits=limits, sandbox=sandbox, start=lambda: fresh)
    process.send(
        Begin(job="j", folder=str(folder), bundle=str(folder / "bundle"), checkpoint=None, round=0, members=[], data={})
    )
    messages = []
    while (message := await asyncio.wait_for(process.receive(), 60)) is not None:
        messages.append(message)
        if isinstance(message, Finished | GaveUp):
            break
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
        message.line for message in asyncio.run(said_by(folder, fenced=fenced, warm=warm)) if isinstance(message, Said)
    ]
    outcome = "failed" if fenced else "succeeded"
    assert f"key {outcome}" in lines
    assert f"elsewhere {outcome}" in lines
    assert "network failed" in lines
    assert "own folder succeeded" in lines
    assert "no secret" in lines
    assert f"every thread is fenced: {fenced}" in lines
    assert f"memory {1024 + LIBRARIES_MB}" in lines
    assert f"works in {folder} {folder} {folder}" in lines


async def kept(spare: Spare) -> Unassigned:
    """The process in reserve, once it has loaded."""
    while not (spare._kept and spare._loaded):
        await asyncio.sleep(0.02)
    return spare._kept


@pytest.mark.parametrize("dies", [False, True])
def test_the_process_in_reserve_is_used_once_and_replaced(monkeypatch: pytest.MonkeyPatch, dies: bool) -> None:
    monkeypatch.setattr("winnow.deploy.server.spare.REST", 0.0)

    async def use() -> None:
        spare = Spare()
        spare.keep(("json",))
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
            each.end()
        spare.close()

    asyncio.run(asyncio.wait_for(use(), 60))
