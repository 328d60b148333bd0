"""Clients are called by their sites' names, whatever else a site says of its own or a server of all of them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from winnow.core import AnyEvent, Assessed, Federation, PolicyApplied, Rejected, Snapshot, Workflow
from winnow.deploy.client.download import write_run_folder
from winnow.deploy.jobs.client_names import client_names
from winnow.deploy.jobs.deployed_run import DeployedRun
from winnow.deploy.jobs.ipc_messages import JobSite, StartJob
from winnow.deploy.jobs.party_data import load_site_data
from winnow.deploy.jobs.snapshot_file import save_snapshot
from winnow.deploy.wire.messages import DataDescription
from winnow.runs import RunView
from winnow.runs.file_names import CONDITIONS

EVENTS = '{"kind":"selected","round":1,"at":0.0,"version":0,"clients":[0,2],"counts":[1,1]}\n'


def downloaded(folder: Path, told: bytes) -> dict[str, Any]:
    (folder / "events").write_text(EVENTS)
    (folder / "told").write_bytes(told)
    files = {"events": folder / "events", CONDITIONS: folder / "told"}
    write_run_folder(folder / "run", "name = 'job'\nalgorithm = 'fedavg'\n", files, submitted=0.0, finished=False)
    return dict(RunView.read(folder / "run").conditions)


def test_names_are_taken_over_also_of_clients_that_no_event_mentions(tmp_path: Path) -> None:
    names = ["clinic, client 0", "clinic, client 1", "institute", "ward"]
    told = {"labels": ["as given"], "of_client": [0] * 4, "names": names, "sizes": [3, 4, 5, 6]}
    assert downloaded(tmp_path, json.dumps(told).encode()) == told


@pytest.mark.parametrize(
    "told",
    [
        b"",
        b"[]",
        b'{"labels": [], "of_client": [7], "names": ["a"]}',
        b'{"labels": ["x"], "of_client": [0, 0, 0], "names": [1, 2, 3]}',
        b'{"labels": ["x"], "of_client": [0], "names": ["a"]}',  # fewer than the events mention
        b'{"labels": ["x"], "of_client": [0, 0, 0], "names": [], "sizes": [1, -1, 1]}',
    ],
)
def test_a_server_that_lies_about_names_costs_the_names_alone(told: bytes, tmp_path: Path) -> None:
    assert downloaded(tmp_path, told) == {
        "labels": ["as given"],
        "of_client": [0, 0, 0],
        "names": [],
        "sizes": [],
    }


def test_a_name_is_one_short_line(tmp_path: Path) -> None:
    told = {"labels": ["spoiled"], "of_client": [0] * 3, "names": ["a\nb\x1b[31m", "x" * 10_000, "c"]}
    found = downloaded(tmp_path, json.dumps(told).encode())
    assert found["labels"] == ["as given"], "nobody at the server knows that"
    assert all(name.isprintable() and len(name) <= 200 for name in found["names"])


@pytest.mark.parametrize(
    ("clients", "names"),
    [
        (
            {"labels": ["as given"], "of_client": [0] * 3, "names": ["a", "b\x1b", "c"], "sizes": [1, 2, 3]},
            ["a", "b?", "c"],
        ),
        ({"labels": ["as given"], "of_client": [0] * 2, "names": ["a", "b"]}, []),  # fewer than the events mention
        ("all of them", []),
        (None, []),
    ],
)
def test_names_of_a_job_that_goes_on_come_with_its_checkpoint(clients: Any, names: list[str], tmp_path: Path) -> None:
    (tmp_path / "events").write_text(EVENTS)
    arrays = {"model/weight": np.zeros(2, np.float32)}
    save_snapshot(tmp_path / "checkpoint", Snapshot(arrays=arrays, values={"now": 0.0, "clients": clients}))
    files = {"events": tmp_path / "events", "checkpoint": tmp_path / "checkpoint"}
    write_run_folder(tmp_path / "run", "name = 'job'\n", files, submitted=0.0, finished=False)
    assert RunView.read(tmp_path / "run").conditions["names"] == names


def member(site: str, sizes: list[int], names: list[str]) -> JobSite:
    return JobSite(site=site, first_client=0, data=DataDescription(sizes=sizes, client_names=names))


def test_what_a_site_calls_its_clients_stands_behind_its_own_name() -> None:
    """A site that calls its client like another site blames nobody but itself."""
    members = [
        member("clinic", [5], []),
        member("liar", [5, 5], ["clinic", "a\x1b[31m\n" + "x" * 150]),
        member("ward", [5, 5], ["one name for two"]),
    ]
    clinic, blamed, long, *unnamed = client_names(members)
    assert (clinic, blamed) == ("clinic", "liar, clinic")
    assert long.isprintable()
    assert unnamed == ["ward, client 0", "ward, client 1"]


def test_a_name_that_is_too_long_is_no_message() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"sizes": [1], "client_names": ["x" * 201]}, DataDescription)


@pytest.mark.parametrize("told", [{}, {"client_names": False}, {"client_names": True}])
def test_a_site_tells_its_owners_names_only_if_its_configuration_says_so(told: dict[str, bool], tmp_path: Path) -> None:
    rows = "".join(f"{number},{number % 2},{'north' if number % 3 else 'south'}\n" for number in range(12))
    (tmp_path / "wards.csv").write_text(f"age,outcome,ward\n{rows}")
    source = {"file": str(tmp_path / "wards.csv"), "targets": ["outcome"], "owner": "ward", "classes": 2, **told}
    told_names = load_site_data("wards", source, seed=0).description().client_names
    assert told_names == (["north", "south"] if told.get("client_names") else [])


def test_files_of_a_folder_are_names_unless_they_are_numbers(tmp_path: Path) -> None:
    for folder, files in (("named", ("eastgate", "st-mary")), ("numbered", ("0", "1"))):
        (tmp_path / folder).mkdir()
        for file in files:
            np.savez(tmp_path / folder / file, x=np.zeros((4, 2), np.float32), y=np.array([0, 1, 0, 1]))
    source = {"classes": 2, "client_names": True}
    named = load_site_data("d", {"folder": str(tmp_path / "named"), **source}, seed=0)
    numbered = load_site_data("d", {"folder": str(tmp_path / "numbered"), **source}, seed=0)
    assert named.client_names == ("eastgate", "st-mary")
    assert numbered.client_names == ()


class Recorder:
    """Stands where a runner's channel to its server is."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def send(self, message: Any) -> None:
        self.lines.append(message.line)


class Scripted(Workflow):
    """Says what a workflow would say, and asks nobody."""

    def __init__(self, events: list[AnyEvent]) -> None:
        self._events = events

    def run(self, federation: Federation) -> Iterator[AnyEvent]:
        return iter(self._events)

    def snapshot(self) -> Snapshot:
        raise NotImplementedError

    def restore(self, state: Snapshot) -> None:
        raise NotImplementedError


def assessed(number: int, *verdicts: str) -> Assessed:
    places = np.arange(len(verdicts))
    why = tuple("column income: 12 times larger" for _ in verdicts)
    return Assessed(
        round=number, at=0.0, version=0, clients=places, scores=places * 1.0, verdicts=verdicts, evidence=why
    )


def test_a_jobs_log_names_who_looks_bad_and_what_was_done_but_tells_nothing_of_the_data(tmp_path: Path) -> None:
    members = [member("clinic", [5], []), member("ward", [5, 5], ["north", "south"])]
    events: list[AnyEvent] = [
        assessed(1, "fine", "fine", "fine"),
        assessed(2, "suspect", "fine", "harmful"),
        assessed(3, "suspect", "fine", "harmful"),
        PolicyApplied(round=3, at=0.0, client=2, action="exclude", reason="column income: 12 times larger"),
        Rejected(round=3, at=0.0, client=1, reason="no answer"),
        assessed(4, "fine", "fine", "fine"),
    ]
    start = StartJob(job="job", folder=str(tmp_path), bundle="", checkpoint=None, round=0, members=members, data={})
    channel = Recorder()
    DeployedRun(channel, start).execute(Scripted(events), lambda event: None)  # type: ignore[arg-type]
    assert channel.lines == [
        "round 2: 2 of 3 clients look bad: clinic (suspect); ward, south (harmful)",
        "round 3: excluded: ward, south",
        "round 3: reply of ward, north rejected: no answer",
        "round 4: no client looks bad",
    ]
