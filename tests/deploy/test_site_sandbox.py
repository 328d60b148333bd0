"""A stranger's code at a site: it sees its data and its folder, and nothing else; the agent lives."""

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from siting import CONFIG, POLICY, SITE, Script, World, agent_at, deploy, serving, task

from support.needs import SANDBOX
from winnow.deploy.sandbox import isolation, landlock, seccomp
from winnow.deploy.sandbox.linux_syscall_wrappers import SandboxError
from winnow.deploy.site.job_processes import MAX_LINES_PER_TASK, REDACTED_FAILURE
from winnow.deploy.site.symlink_safe_move import UntrustedFileError, import_file
from winnow.deploy.wire.messages import DeployResult, SubmitResult

NUMBERS = count()
LIBC = "import ctypes; libc = ctypes.CDLL(None)"
XATTR = "ctypes.byref((ctypes.c_uint64 * 2)())"
PAIR = "import fcntl, socket; a, b = socket.socketpair()"
needs_a_sandbox = SANDBOX.unless(isolation.sandbox_unavailable_reason() is None)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "project")


@pytest.fixture
def near(world: World, script: Script) -> Iterator[Any]:
    with serving(world, script, f"memory://fences-{next(NUMBERS)}") as running:
        yield running


def hostile(world: World, other: Path) -> dict[str, str]:
    key, rows = world.kit_folder / "key.pem", world.kit_folder / "secret-place" / "rows.csv"
    return {
        "internet socket": "import socket; socket.socket()",
        "raw socket": "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
        "unix socket": "import socket; socket.socket(socket.AF_UNIX)",
        "datagram pair": "import socket; socket.socketpair(type=socket.SOCK_DGRAM)",
        "read the key": f"open({str(key)!r}).read()",
        "read the policy": f"open({str(world.kit_folder / 'policy.toml')!r}).read()",
        "read another job": f"open({str(other)!r}).read()",
        "list jobs": f"import os; os.listdir({str(world.kit_folder / 'state' / 'jobs')!r})",
        "read accounts": "open('/etc/passwd').read()",
        "read the agent's environment": "open(f'/proc/{agent}/environ').read()",
        "read the agent's memory": "open(f'/proc/{agent}/mem', 'rb').read(1)",
        "write outside": f"open({str(world.folder / 'mark')!r}, 'w')",
        "write its data": f"open({str(rows)!r}, 'a')",
        "write its bundle's folder": f"open({str(world.job_folder / 'parts' / 'x')!r}, 'w')",
        "write shared memory": "open('/dev/shm/mark', 'w')",
        "change modes": f"import os; os.chmod({str(key)!r}, 0o666)",
        "truncate": f"import os; os.truncate({str(key)!r}, 0)",
        "delete": f"import os; os.unlink({str(key)!r})",
        "link": f"import os; os.link({str(key)!r}, folder + '/mine')",
        "fork": "import os; os.fork()",
        "start a program": "import subprocess; subprocess.run(['true'], check=True)",
        "become a program": "import os; os.execv('/bin/true', ['true'])",
        "kill the agent": "import os; os.kill(agent, 9)",
        "kill everybody": "import os; os.kill(-1, 9)",
        "eat memory": "bytearray(3 << 30)",
        "eat shared memory": "import mmap; mmap.mmap(-1, 6 << 30)",
        "eat memory in files": "import os; os.memfd_create('x')",
        "use more processors": "import os; os.sched_setaffinity(0, range(64))",
        "raise a limit": "import resource as r; r.setrlimit(r.RLIMIT_AS, (r.RLIM_INFINITY,) * 2)",
        "read the agent's limits": "import resource as r; r.prlimit(agent, r.RLIMIT_NOFILE)",
        "slow the agent down": "import os; os.setpriority(os.PRIO_PROCESS, agent, 19)",
        "have the agent wait": "import os; os.sched_setscheduler(agent, os.SCHED_IDLE, os.sched_param(0))",
        "slow the agent's files": "import ctypes; assert ctypes.CDLL(None).syscall(251, 1, agent, 3 << 13) == 0",
        "a signal by a file": f"{PAIR}; fcntl.fcntl(a, fcntl.F_SETOWN, agent)",
        "a signal by a request": f"{PAIR}; import struct; fcntl.ioctl(a, 0x8902, struct.pack('i', agent))",
        "another signal": f"{PAIR}; fcntl.fcntl(a, 10, 9)",
        "cut its data": f"import os; os.open({str(rows)!r}, os.O_RDONLY | os.O_TRUNC)",
        "trace": "import ctypes; assert ctypes.CDLL(None).ptrace(16, agent, 0, 0) == 0",
        "outlive the agent": "import ctypes; assert ctypes.CDLL(None).prctl(1, 0, 0, 0, 0) == 0",
        "change the host's name": "import socket; socket.sethostname('mine')",
        "new namespaces": "import ctypes; assert ctypes.CDLL(None).unshare(0x10000000) == 0",
        "watch the key": f"{LIBC}; assert libc.inotify_add_watch(libc.inotify_init1(0), b'{key}', 32) >= 0",
        "watch the key by fanotify": f"{LIBC}; assert libc.fanotify_init(0x200, 0) >= 0",
        "watch a folder": "import fcntl as f, os; f.fcntl(os.open(folder, os.O_RDONLY), f.F_NOTIFY, f.DN_ACCESS)",
        "attributes of the key": f"import os; os.listxattr({str(key)!r})",
        "mark the key": f"{LIBC}; assert libc.syscall(463, -100, b'{key}', 0, b'user.x', {XATTR}, 16) == 0",
        "connections of the machine": "open('/proc/self/net/tcp').read()",
        "connections by a thread": "import threading as t; open(f'/proc/self/task/{t.get_native_id()}/net/tcp').read()",
        "the machine's devices": "open('/proc/net/dev').read()",
        "the machine's file systems": "open('/proc/self/mountinfo').read()",
        "the kernel's log": f"{LIBC}; assert libc.klogctl(10, None, 0) >= 0",
        "wait for the agent's end": "import os; os.pidfd_open(agent)",
        "see the agent's secrets": "import os; assert 'SECRET_OF_THE_AGENT' in os.environ",
    }


ORDINARY = {
    "its data": "import glob; open(DATA).read()",
    "its folder": "open(folder + '/mine', 'w').write('x')",
    "a temporary file": "import tempfile; tempfile.TemporaryFile().write(b'x')",
    "threads": "import threading; t = threading.Thread(target=print); t.start(); t.join()",
    "randomness": "import os; os.urandom(8)",
    "numpy": "import numpy; numpy.linalg.svd(numpy.eye(50))",
    "its limits": "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, r.getrlimit(r.RLIMIT_NOFILE))",
    "a file's flags": f"{PAIR}; fcntl.fcntl(a, fcntl.F_SETFL, 0o4000)",
    "a signal to itself": "import os; os.kill(os.getpid(), 0)",
    "a stream to itself": "import socket; a, b = socket.socketpair(); a.send(b'x'); assert b.recv(1) == b'x'",
}


@needs_a_sandbox
def test_a_strangers_code_is_shut_in(world: World, script: Script, near: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_AGENT", "x")
    other = world.job_folder.parent / "job-2" / "work" / "theirs"
    other.parent.mkdir(parents=True)
    other.write_text("theirs")
    attempts = hostile(world, other)
    rows = world.kit_folder / "secret-place" / "rows.csv"
    ordinary = {name: code.replace("DATA", repr(str(rows))) for name, code in ORDINARY.items()}
    with agent_at(world, near.url):
        script.tell(deploy(script, world.bundle(**{"mine.py": "x = 1"})), task("attempt", settings=attempts))
        done = script.wait(SubmitResult).result
        assert [name for name, succeeded in done.metrics.items() if succeeded] == []
        assert done.metrics.keys() == attempts.keys()
        script.tell(task("attempt", settings=ordinary))
        done = script.wait(SubmitResult, 2).result
        assert [name for name, succeeded in done.metrics.items() if not succeeded] == []
        script.tell(task())
        assert script.wait(SubmitResult, 3).result.failure is None
    assert oct((world.kit_folder / "key.pem").stat().st_mode & 0o777) == "0o600"


@needs_a_sandbox
def test_the_same_without_a_fence_would_succeed(world: World, script: Script, near: Any) -> None:
    """Jobs without code of their own have no fence: what is tried above is possible at all. Limits they have."""
    tried = {"socket": "import socket; socket.socket()", "key": f"open({str(world.kit_folder / 'key.pem')!r})"}
    with agent_at(world, near.url):
        script.tell(deploy(script, world.bundle()), task("attempt", settings=tried))
        assert script.wait(SubmitResult).result.metrics == {"socket": 1.0, "key": 1.0}
        script.tell(task("attempt", settings={"memory": "bytearray(3 << 30)"}))
        assert script.wait(SubmitResult, 2).result.metrics == {"memory": 0.0}


@pytest.mark.parametrize("how", ["path", "link", "folder"])
@pytest.mark.parametrize("own_code", [False, True])
def test_no_file_from_elsewhere_is_handed_over(
    world: World, script: Script, near: Any, how: str, own_code: bool
) -> None:
    target = str(world.kit_folder / "key.pem")
    files = {"mine.py": "x = 1"} if own_code else {}
    with agent_at(world, near.url):
        script.tell(deploy(script, world.bundle(**files)), task("hand-over", settings={"how": how, "path": target}))
        answer = script.wait(SubmitResult).result
        assert answer.failure is not None
        assert answer.blob is None
    assert Path(target).read_bytes() not in b"".join(script.raw)


def test_a_file_that_is_handed_over_is_plain_and_inside(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "file").write_text("x")
    import_file(folder, str(folder / "deep" / "file"), tmp_path / "taken")
    assert (tmp_path / "taken").read_text() == "x"
    (folder / "open").write_text("x")
    (folder / "open").chmod(0o666)
    import_file(folder, str(folder / "open"), tmp_path / "shut")
    assert (tmp_path / "shut").stat().st_mode & 0o777 == 0o600
    os.mkfifo(folder / "pipe")
    (folder / "one").write_text("x")
    os.link(folder / "one", folder / "two")
    for name in ("pipe", "one", "deep", "missing", "../taken", ""):
        with pytest.raises(UntrustedFileError):
            import_file(folder, str(folder / name), tmp_path / "again")
        assert not (tmp_path / "again").is_file()


@pytest.mark.parametrize("version", [0, 2])
def test_where_the_kernel_cannot_do_it_own_code_is_refused(
    world: World, script: Script, near: Any, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    monkeypatch.setattr(landlock, "version", lambda: version)
    with agent_at(world, near.url):
        script.tell(deploy(script, world.bundle(**{"mine.py": "x = 1"})))
        refused = script.wait(DeployResult)
        assert refused.reason.startswith("this site cannot sandbox the job's own code: this kernel has no Landlock")
        script.tell(deploy(script, world.bundle(), job="job-2"))
        assert script.wait(DeployResult, 2).accepted
        world.allow('sandbox = "none"\n' + POLICY)
        script.tell(deploy(script, world.bundle(**{"mine.py": "x = 1"}), job="job-3"))
        assert script.wait(DeployResult, 3).accepted


@needs_a_sandbox
def test_forced_filters_stand_outside_of_a_strangers_code(world: World, script: Script, near: Any) -> None:
    world.allow(POLICY + '[[filters]]\nname = "clip"\nnorm = 1.0\n')
    clip = [{"name": "clip", "norm": 1.0}]
    with agent_at(world, near.url):
        script.tell(deploy(script, world.bundle(**{"mine.py": "x = 1"})), task(), task("talk"))
        given = script.wait(SubmitResult)
        assert given.result.metrics == {"screened": 1.0}
        seen = script.payload(given)
        assert (seen["filters"], seen["screened"], seen["folder"]) == ([], clip, "output_filter")
        script.wait(SubmitResult, 2)
        script.tell(deploy(script, world.bundle(), job="job-2"))
        script.wait(DeployResult, 2)
    assert not any(b"reading" in each for each in script.raw)


@needs_a_sandbox
def test_a_strangers_words_are_no_way_around_the_filters(world: World, script: Script, near: Any) -> None:
    world.allow(POLICY + '[[filters]]\nname = "clip"\n')
    own = {"mine.py": "x = 1"}
    with agent_at(world, near.url):
        script.tell(deploy(script, world.bundle(CONFIG + "[lies]\n", **own)))
        assert script.wait(DeployResult, 1).data.sizes == [2, 2]
        script.tell(task("talk"), task("die", settings=9), task("messages", settings={"0": "a secret"}))
        failed = [script.wait(SubmitResult, number).result for number in (1, 2, 3)]
        assert {(each.stage, each.failure) for each in failed[:2]} == {("working", REDACTED_FAILURE)}
        assert failed[2].failure == REDACTED_FAILURE
        script.tell(deploy(script, world.bundle(CONFIG + "[cannot]\n", **own), job="job-2"))
        refused = script.wait(DeployResult, 2)
        assert (refused.accepted, refused.reason) == (False, REDACTED_FAILURE)
    for secret in (b"such column", b"SIGKILL", b"4711"):
        assert secret not in b"".join(script.raw)


def test_a_flood_of_notes_is_cut_in_the_sites_log(
    world: World, script: Script, near: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "winnow")
    with agent_at(world, near.url):
        script.tell(deploy(script, world.bundle()), task("flood", settings=3 * MAX_LINES_PER_TASK))
        assert script.wait(SubmitResult).result.failure is None
        script.tell(task("flood", settings=1, round=2))
        assert script.wait(SubmitResult, 2).result.failure is None
    lines = [record.getMessage() for record in caplog.records]
    assert len([line for line in lines if "flooded" in line]) == MAX_LINES_PER_TASK + 1, "each task may say something"
    assert len([line for line in lines if "dropped the rest" in line]) == 1
    assert max(map(len, lines)) < 1000


@pytest.mark.parametrize("deleted", [False, True])
def test_a_job_that_fills_the_disk_is_ended(tmp_path: Path, script: Script, deleted: bool) -> None:
    world = World(tmp_path / "project", site="disk_mb = 20\n" + SITE)
    much = {"files": 40, "deleted": deleted, "then": 20.0}
    with serving(world, script, f"memory://fences-{next(NUMBERS)}") as near, agent_at(world, near.url):
        script.tell(deploy(script, world.bundle()), task("fill", settings=much), task())
        failed = script.wait(SubmitResult, 1).result
        assert failed.failure == "the job's process was stopped: it wrote more than 20 MB"
        assert script.wait(SubmitResult, 2).result.failure is None
        assert sum(path.stat().st_size for path in world.job_folder.rglob("*")) < 1 << 20
        script.tell(task("fill", settings={**much, "files": 10, "then": 1.0}))
        assert script.wait(SubmitResult, 3).result.failure is None


def test_the_program_of_rules_is_the_kernels() -> None:
    """Every jump stays inside, and each path ends by returning."""
    for machine in seccomp.ARCHITECTURES:
        steps = seccomp.program(machine, 1234)
        for place, (operation, if_true, if_false, _) in enumerate(steps):
            if operation in (seccomp.JUMP_IF_EQUAL, seccomp.JUMP_IF_GREATER_EQUAL, seccomp.JUMP_IF_ANY_BIT):
                assert place + 1 + max(if_true, if_false) < len(steps)
        assert steps[-1] == (seccomp.RETURN, 0, 0, seccomp.ALLOW)
    with pytest.raises(SandboxError, match="riscv64"):
        seccomp.program("riscv64", 1)


def test_the_real_gate_lets_out_what_the_filters_allow(tmp_path: Path) -> None:
    import numpy as np
    import torch

    from winnow.config.resolve import resolve
    from winnow.deploy.jobs.ipc_messages import FilterResult, JobReady, PrepareJob, RunTask, TaskResult
    from winnow.deploy.jobs.task_settings import encode_settings
    from winnow.deploy.sandbox.child_entry_point import OUTPUT_FILTER_MODULE
    from winnow.deploy.sandbox.isolation import ProcessLimits
    from winnow.deploy.site.worker_process_handle import WorkerProcess
    from winnow.deploy.wire.messages import ClientResult
    from winnow.deploy.wire.safetensors_files import StoredArrays, write_arrays, write_parts
    from winnow.learn.client_round_method import TrainSettings

    local, plain = resolve("demo").local, resolve("demo", algorithm="fedavg").client
    settings = encode_settings(TrainSettings(local=local, client=plain, seed=1, profile=False, start_loss=False))
    sent, update = tmp_path / "model", tmp_path / "update"
    write_arrays(sent, {"w": torch.zeros(4)})
    limits = ProcessLimits(memory_mb=2000, cpus=sorted(os.sched_getaffinity(0))[:1])
    process = WorkerProcess(
        folder=tmp_path / "output_filter",
        log=tmp_path / "log",
        limits=limits,
        sandbox=None,
        program=OUTPUT_FILTER_MODULE,
    )

    def heard() -> Any:
        while (message := process.receive(30.0)) is None:
            pass
        return message

    def screened(**parts: Any) -> TaskResult:
        write_parts(update, parts)
        order = RunTask(task=msgspec.structs.replace(task("train").task, settings=settings), parts={"model": str(sent)})
        answer = ClientResult(job="job-1", task=order.task.id, client=0, metrics={"loss": 1.0})
        process.send(FilterResult(task=order, result=TaskResult(result=answer, payload=str(update))))
        did = heard()
        assert isinstance(did, TaskResult)
        return did

    try:
        filters = [{"name": "clip", "norm": 1.0}]
        process.send(
            PrepareJob(job="job-1", folder=str(tmp_path / "output_filter"), bundle="", data={}, filters=filters)
        )
        assert isinstance(heard(), JobReady), (tmp_path / "log").read_text()
        out = screened(model={"w": torch.full((4,), 3.0)})
        assert out.payload is not None, out
        with StoredArrays(Path(out.payload)) as stored:
            leaves = np.asarray(stored.parts()["model"]["w"])
        np.testing.assert_allclose(leaves, np.full(4, 0.5), rtol=1e-5)
        around = screened(model={"w": torch.zeros(4)}, stolen={"rows": torch.ones(9)})
        assert around.payload is None
        assert "'stolen'" in str(around.result.failure)
    finally:
        process.close()
