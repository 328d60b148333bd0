"""Clients of a downloaded job are called by their sites' names, whatever else a server says about them."""

import json
from pathlib import Path
from typing import Any

import pytest

from winnow.deploy.client.download import write_run_folder
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
    told = {"labels": ["as given"], "of_client": [0] * 4, "names": names}
    assert downloaded(tmp_path, json.dumps(told).encode()) == told


@pytest.mark.parametrize(
    "told",
    [
        b"",
        b"[]",
        b'{"labels": [], "of_client": [7], "names": ["a"]}',
        b'{"labels": ["x"], "of_client": [0, 0, 0], "names": [1, 2, 3]}',
        b'{"labels": ["x"], "of_client": [0], "names": ["a"]}',  # fewer than the events mention
    ],
)
def test_a_server_that_lies_about_names_costs_the_names_alone(told: bytes, tmp_path: Path) -> None:
    assert downloaded(tmp_path, told) == {"labels": ["as given"], "of_client": [0, 0, 0], "names": []}


def test_a_name_is_one_short_line(tmp_path: Path) -> None:
    told = {"labels": ["spoiled"], "of_client": [0] * 3, "names": ["a\nb\x1b[31m", "x" * 10_000, "c"]}
    found = downloaded(tmp_path, json.dumps(told).encode())
    assert found["labels"] == ["as given"], "nobody at the server knows that"
    assert all(name.isprintable() and len(name) <= 200 for name in found["names"])
