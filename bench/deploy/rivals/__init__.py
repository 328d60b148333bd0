"""Other frameworks' own deployments on this machine, each in an environment of its own, with the same work.

Each is a server and sites as processes; what they do is in the files beside this one, which run in those environments
and append the time to a file once a round.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from winnow.deploy.client.free_port import free_port

HERE = Path(__file__).parent
LIMIT = 900.0
"""Seconds for a whole run."""
STARTING = 30.0
"""Seconds for processes that do not say when they are ready."""


class FailedError(Exception):
    """Why there is nothing to show, in one line."""


def contenders(venvs: Path, sites: int) -> dict[str, Callable[[int, int], Sequence[float]]]:
    """What each takes: given floats and rounds, the moments at which rounds passed the same point."""
    return {
        "Flower, no TLS": lambda floats, rounds: _timed(lambda log: _flower(venvs, sites, floats, rounds, log)),
        "NVFlare, TLS": lambda floats, rounds: _timed(lambda log: _nvflare(venvs, sites, floats, rounds, log)),
    }


def _timed(run: Callable[[Path], None]) -> Sequence[float]:
    with tempfile.TemporaryDirectory(prefix="winnow-bench-", ignore_cleanup_errors=True) as folder:
        log = Path(folder) / "times"
        run(log)
        moments = [float(line) for line in log.read_text().split()] if log.exists() else []
        if len(moments) < 4:
            words = log.with_name("words").read_text(errors="replace").strip().splitlines()
            raise FailedError(words[-1][:200] if words else "it said nothing")
        return moments


def _flower(venvs: Path, sites: int, floats: int, rounds: int, log: Path) -> None:
    """A SuperLink and SuperNodes, which start a process for every message they get."""
    programs, folder, port = venvs / "flower" / "bin", log.parent, free_port()
    home = folder / "home"
    home.mkdir()
    address = f"127.0.0.1:{port}"
    (home / "config.toml").write_text(f'[superlink.bench]\naddress = "{address}"\ninsecure = true\n')
    shutil.copytree(HERE / "flower", folder / "app")
    environment = {"FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0"}
    link = [programs / "flower-superlink", "--insecure", "--disable-runtime-dependency-installation", "--port", port]
    node = [programs / "flower-supernode", "--insecure", "--superlink", address]
    with ExitStack() as running:
        running.enter_context(_running(link, environment, programs, log))
        for _ in range(sites):
            running.enter_context(_running([*node, "--port", free_port()], environment, programs, log))
        time.sleep(STARTING)
        settings = f'rounds={rounds} floats={floats} log="{log}"'
        run = [programs / "flwr", "run", folder / "app", "bench", "-c", settings, "--stream"]
        _run(run, environment, programs, log)


def _nvflare(venvs: Path, sites: int, floats: int, rounds: int, log: Path) -> None:
    """A provisioned server and clients ("POC"), whose jobs are processes for as long as they run."""
    programs, folder = venvs / "nvflare" / "bin", log.parent
    environment = {"HOME": str(folder), "NVFLARE_POC_WORKSPACE": str(folder / "poc")}
    work = [HERE / "nvflare_run.py", HERE / "nvflare_client.py", sites, floats, rounds, log]
    try:
        _run([programs / "python", *work], environment, programs, log)
    finally:
        with suppress(FailedError):
            _run([programs / "nvflare", "poc", "stop"], environment, programs, log)


@contextmanager
def _running(
    command: Sequence[object], environment: Mapping[str, str], programs: Path, log: Path
) -> "Iterator[subprocess.Popen[bytes]]":
    """A process in a group of its own, all of which ends with this."""
    paths = f"{programs}{os.pathsep}{os.environ['PATH']}"
    with log.with_name("words").open("ab") as words:
        process = subprocess.Popen(
            [str(each) for each in command],
            stdout=words,
            stderr=words,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **environment, "PATH": paths},
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _run(command: Sequence[object], environment: Mapping[str, str], programs: Path, log: Path) -> None:
    with _running(command, environment, programs, log) as process:
        try:
            process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            raise FailedError(f"not done after {LIMIT:g} seconds") from None
