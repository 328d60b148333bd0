"""Custom workflows, unchanged from the simulation to processes and to a federation; messages that nobody reads."""

from pathlib import Path
from typing import Any

from broker import Broker
from disk_watch import looking_for
from talking import PROGRAM, WHISPER

from winnow.data import DataSettings
from winnow.data.split_into_site_folders import split_into_folders
from winnow.deploy.client.bundle import describe_job
from winnow.deploy.client.local_federation import local_federation
from winnow.runs.checkpoint import load_checkpoint


def simulated() -> dict[str, Any]:
    scope: dict[str, Any] = {}
    exec(compile(PROGRAM, "talk.py", "exec"), scope)
    return plain(scope["talk"].found)


def plain(found: dict[str, Any]) -> dict[str, Any]:
    """As JSON would have it."""
    return {key: _lists(value) for key, value in found.items()}


def _lists(value: Any) -> Any:
    return [_lists(each) for each in value] if isinstance(value, list | tuple) else value


def test_every_pattern_means_the_same_between_processes(tmp_path: Path, fork_server: Path) -> None:
    split_into_folders(DataSettings(name="digits", clients=6), 4, 3, tmp_path / "data")
    own = [{"folder": str(tmp_path / "data" / f"site-{i}" / "digits")} for i in (1, 2, 3)]
    broker = Broker("", own, {}, tmp_path / "job", fork_server=fork_server)
    broker.with_program("talk.py", PROGRAM, "name = 'talk'\n[data]\nname = 'digits'")
    assert broker.final_values()["found"] == simulated()


def test_messages_cross_a_federation_and_its_server_cannot_read_them(tmp_path: Path) -> None:
    program = tmp_path / "talk.py"
    program.write_text(PROGRAM)
    described = describe_job(program)
    with local_federation(described, 2, tmp_path / "federation") as federation:
        server = federation.kit("server")
        with looking_for([WHISPER, b"whispered"], server) as read:
            job = federation.connection.submit(described, min_sites=2)
            job.wait(120)
        snapshot = load_checkpoint(job.download(tmp_path / "run") / "checkpoint.safetensors").snapshot
    assert read == {b"whispered"}, "what a server may read is found, and nothing else"
    found, expected = dict(snapshot.values["found"]), simulated()
    assert (expected.pop("readable"), found.pop("readable")) == (True, False)
    assert found == expected
