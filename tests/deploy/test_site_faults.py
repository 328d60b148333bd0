"""Sites as real processes are killed, stopped, revoked, run out of disk and get other data while a job runs."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench.deploy.world import working_in
from serving import eventually

from command_line import call
from support.needs import MOUNTS
from winnow.deploy.client import local_federation
from winnow.deploy.client.bundle import describe_job
from winnow.deploy.client.local_federation import LocalFederation, log_path, start_process
from winnow.deploy.client.unsigned_requests import SubmittedJob
from winnow.deploy.trust.peer_identity import utc_now
from winnow.deploy.trust.project_file import Project, ProjectPerson, ProjectServer, ProjectSite
from winnow.deploy.trust.provisioning import open_provisioner

pytestmark = pytest.mark.slow(part="kills")

LONG = 120.0
SETS = ["data.clients=6", "local.epochs=1", "job.site_timeout=5", "job.min_sites=1"]
CHANGED = "the data changed since the job started; restore them at the site, or submit the job again"


class Faults:
    """A federation of three sites and a job on all of them that lasts as long as the test."""

    def __init__(self, federation: LocalFederation) -> None:
        self._federation = federation
        self.job: SubmittedJob = federation.connection.submit("demo", sets=SETS, rounds=100_000)
        eventually(lambda: self.job.state().status == "running")
        assert self.job.state().sites == ["site-1", "site-2", "site-3"]
        self.goes_on()

    def agent(self, site: str) -> "subprocess.Popen[bytes]":
        return self._federation.processes[site]

    def kit(self, name: str) -> Path:
        return self._federation.kit(name)

    def log(self, site: str) -> str:
        return log_path(self._federation.folder, site).read_text()

    def kill(self, site: str) -> None:
        self.agent(site).kill()
        self.agent(site).wait()

    def start(self, site: str) -> None:
        self._federation.processes[site] = start_process(self._federation.folder, site)

    def data(self, site: str) -> Path:
        return sorted((self._federation.folder / "data" / site / "digits").glob("*.npz"))[0]

    def out(self) -> dict[str, str]:
        return {each.site: each.reason for each in self.job.state().absent_sites}

    def left_out(self, site: str, reason: str = "") -> None:
        eventually(lambda: reason in self.out().get(site, "-"), lambda: f"{self.job.state()}")
        self.goes_on()

    def taken_back(self, site: str) -> None:
        eventually(lambda: site not in self.out(), lambda: f"{self.job.state()} {self.log(site)}")
        self.goes_on()

    def goes_on(self) -> None:
        reached = self.job.state().round
        eventually(lambda: self.job.state().round > reached + 1, lambda: f"{self.job.state()}")

    def said(self, site: str) -> list[str]:
        """Who takes part and who does not, in the job's log."""
        lines = [line for line in self.job.lines(follow=False) if line.source == "server" and line.kind != "event"]
        return [line.text for line in lines if line.text.startswith(f"site {site} ")]

    def workers(self, site: str) -> list[int]:
        """The processes of the site's jobs."""
        return working_in(self.kit(site).resolve())


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFederation]:
    configure = local_federation._configure

    def impatiently(folder: Path, *rest: Any, **more: Any) -> None:
        configure(folder, *rest, **more)
        file = folder / "project" / "kits" / "server" / "server.toml"
        file.write_text(f"heartbeat = 1.0\n{file.read_text()}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_federation, "_configure", impatiently)
        folder = tmp_path_factory.mktemp("federation")
        with local_federation.local_federation(describe_job("demo", sets=SETS), 3, folder) as federation:
            yield federation


@pytest.fixture
def faults(federation: LocalFederation) -> Iterator[Faults]:
    faults = Faults(federation)
    yield faults
    faults.job.abort("the test is over")


def test_a_site_that_is_killed_is_left_out_in_time_and_taken_back(
    faults: Faults, capsys: pytest.CaptureFixture[str]
) -> None:
    faults.kill("site-2")
    begun = time.monotonic()
    faults.left_out("site-2", "no contact for 5 s")
    assert time.monotonic() - begun < 60
    shown = call(capsys, "jobs", "--kit", faults.kit("me"), "--json").out
    assert '"site":"site-2"' in shown
    status = call(capsys, "status", "--kit", faults.kit("me")).out.splitlines()
    assert f"job {faults.job.name}: site-2 has been excluded since 20" in status[-1]
    faults.start("site-2")
    faults.taken_back("site-2")
    assert faults.said("site-2")[-2:] == [
        "site site-2 is excluded: no contact for 5 s; it rejoins when it reconnects",
        "site site-2 rejoined the job",
    ]


def test_a_site_that_hangs_is_left_out_in_time_and_taken_back(faults: Faults) -> None:
    faults.agent("site-3").send_signal(signal.SIGSTOP)
    try:
        faults.left_out("site-3", "no contact for 5 s")
    finally:
        faults.agent("site-3").send_signal(signal.SIGCONT)
    faults.taken_back("site-3")


def test_a_site_whose_worker_is_killed_as_it_rejoins_is_asked_again(faults: Faults) -> None:
    faults.kill("site-2")
    faults.start("site-2")

    def refused() -> bool:
        for worker in faults.workers("site-2"):
            os.kill(worker, signal.SIGKILL)
        return "the job's process was ended by SIGKILL; it will be asked again" in faults.out().get("site-2", "")

    eventually(refused, lambda: f"{faults.job.state()} {faults.log('site-2')}")
    faults.taken_back("site-2")


def test_a_site_whose_disk_is_full_for_a_moment_is_asked_again(faults: Faults) -> None:
    files = faults.kit("site-2") / "state" / "jobs"
    faults.kill("site-2")
    mount = ["mount", "-t", "tmpfs", "-o", "size=32m", "none", str(files)]
    mounted = subprocess.run(mount, capture_output=True, check=False)
    try:
        if mounted.returncode:
            MOUNTS.skip(mounted.stderr.decode().strip())
        fill(files / "filler")
        faults.start("site-2")
        faults.left_out("site-2", "No space left on device; it will be asked again")
        (files / "filler").unlink()
        faults.taken_back("site-2")
    finally:
        if not mounted.returncode:
            faults.kill("site-2")
            subprocess.run(["umount", "-l", str(files)], check=True)
        faults.start("site-2")
    faults.taken_back("site-2")


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            return


def relabel(path: Path) -> None:
    with np.load(path) as arrays:
        changed = {**arrays, "y": np.roll(arrays["y"], 1)}
    np.savez(path, **changed)


def truncate(path: Path) -> None:
    with np.load(path) as arrays:
        changed = {name: array[:-1] for name, array in arrays.items()}
    np.savez(path, **changed)


@pytest.mark.parametrize("change", [relabel, truncate])
def test_a_site_whose_data_change_while_it_works_stops_and_says_so_once(
    change: Callable[[Path], None], faults: Faults, tmp_path: Path
) -> None:
    path = faults.data("site-1")
    shutil.copy(path, tmp_path / "before")
    change(path)
    try:
        faults.left_out("site-1", CHANGED)
        eventually(lambda: not faults.workers("site-1"))
        told = len(faults.said("site-1"))
        asked = time.monotonic()
        while time.monotonic() < asked + 8:  # it is asked again meanwhile
            assert not faults.workers("site-1"), "no process is started in vain"
            time.sleep(0.05)
        assert len(faults.said("site-1")) == told
        assert faults.log("site-1").count(f"job {faults.job.name} rejected: {CHANGED}") == 1
    finally:
        shutil.copy(tmp_path / "before", path)
    faults.taken_back("site-1")


@pytest.mark.parametrize("change", [relabel, truncate])
def test_a_site_whose_data_changed_while_it_was_down_does_not_rejoin(
    change: Callable[[Path], None], faults: Faults, tmp_path: Path
) -> None:
    path = faults.data("site-1")
    shutil.copy(path, tmp_path / "before")
    faults.kill("site-1")
    change(path)
    faults.start("site-1")
    try:
        faults.left_out("site-1", CHANGED)
        assert not faults.workers("site-1")
    finally:
        shutil.copy(tmp_path / "before", path)
    faults.taken_back("site-1")


def test_a_site_that_is_revoked_is_expelled_at_once(faults: Faults, federation: LocalFederation) -> None:
    here = "this machine"
    port = int(federation.connection.kit.endpoints[0].rpartition(":")[2])
    project = Project(
        name="local",
        servers=(ProjectServer(name="server", organisation=here, hosts=("127.0.0.1",), port=port),),
        sites=tuple(ProjectSite(name=f"site-{number}", organisation=here) for number in (1, 2, 3)),
        people=(ProjectPerson(name="me", organisation=here, role="admin"),),
        validity_days=7,
    )
    with open_provisioner(federation.folder / "project", project, None, utc_now()) as workshop:
        list(workshop.revoke("site-3"))
    faults.left_out("site-3", "its certificate was revoked")
    assert not [each for each in federation.connection.sites() if each.site == "site-3" and each.connected]
