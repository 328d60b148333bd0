"""Code that a job brings runs at the server behind walls, too: the server's key is not for it."""

import asyncio
import os
from pathlib import Path

import pytest

from winnow.deploy.fence.confine import Limits, Sandbox, reason_against
from winnow.deploy.server.process import RunnerProcess
from winnow.deploy.work.bundle import Bundle, write_bundle
from winnow.deploy.work.orders import Begin, Finished, FromRunner, GaveUp, Said

pytestmark = pytest.mark.skipif(reason_against() is not None, reason=f"no sandbox here: {reason_against()}")

HOSTILE = """
import os, socket
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
"""


FILLING = """
import os, time
try:
    with open("large", "wb") as file:
        file.seek(65 << 20)
        file.write(b"x")
except OSError as error:
    print("large:", error.strerror)
os.unlink("large")
held = []
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
        "import ctypes; os.unlink(f'small-{number}'); m, file = ctypes.CDLL(None).mmap, held.pop();"
        " m(None, ctypes.c_size_t(1), 1, 1, file.fileno(), ctypes.c_long(0)); file.close()"
    ),
}


async def said_by(folder: Path, *, fenced: bool, disk_mb: int = 1000) -> list[FromRunner]:
    limits = Limits(memory_mb=1024, cpus=sorted(os.sched_getaffinity(0)), disk_mb=disk_mb)
    sandbox = Sandbox(read=[str(folder)], write=[str(folder)]) if fenced else None
    process = RunnerProcess(folder, folder / "log", limits=limits, sandbox=sandbox)
    process.send(
        Begin(job="j", folder=str(folder), bundle=str(folder / "bundle"), checkpoint=None, round=0, members=[], data={})
    )
    messages = []
    while (message := await asyncio.wait_for(process.receive(), 60)) is not None:
        messages.append(message)
        if isinstance(message, Finished | GaveUp):
            break
    assert process.wrote_too_much == (message is None)
    await process.end()
    return messages


@pytest.mark.parametrize("fenced", [True, False])
def test_a_job_with_code_of_its_own_cannot_reach_the_servers_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fenced: bool
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
    lines = [message.line for message in asyncio.run(said_by(folder, fenced=fenced)) if isinstance(message, Said)]
    outcome = "failed" if fenced else "succeeded"
    assert f"key {outcome}" in lines
    assert f"elsewhere {outcome}" in lines
    assert "network failed" in lines
    assert "own folder succeeded" in lines
    assert "no secret" in lines


@pytest.mark.parametrize("hiding", HIDING)
def test_a_job_that_fills_the_servers_disk_is_ended(tmp_path: Path, hiding: str) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    program = FILLING.replace("HIDE", HIDING[hiding]).encode()
    bundle = Bundle(config="[data]\nname = 'x'\n", files={"filling.py": program}, main="filling.py")
    (folder / "bundle").write_bytes(write_bundle(bundle))
    lines = [
        message.line for message in asyncio.run(said_by(folder, fenced=True, disk_mb=64)) if isinstance(message, Said)
    ]
    assert lines == ["large: File too large"]
