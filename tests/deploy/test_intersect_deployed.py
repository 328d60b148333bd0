"""Set intersection as a program that is submitted: sites in processes of their own give what a simulation gives."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from broker import Broker

from waiting import eventually
from winnow.data import DataSettings
from winnow.data.split_into_site_folders import split_into_folders
from winnow.deploy.client import local_federation
from winnow.deploy.client.bundle import describe_job
from winnow.runs import RunFolder

PROGRAM = """
from pathlib import Path

import winnow
from winnow.privacy.set_intersection import SetIntersection, SetIntersectionSite


def identifiers(site, client):
    return [f"sum {int(row.sum())}" for row in site.examples(client).x]


def keep(client, common):
    found[client] = common
    Path("results").mkdir(exist_ok=True)
    Path("results", f"common-{client}.txt").write_text("\\n".join(common))


found = {}
workflow = SetIntersection()
winnow.run_workflow(
    workflow,
    SetIntersectionSite(identifiers, keep, share=True).handlers(),
    data={"name": "digits", "clients": 3},
    seed=4,
)
"""
SITES = 3


@pytest.fixture
def expected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a simulation finds that all sites have in common."""
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}
    exec(compile(PROGRAM, "intersect.py", "exec"), scope)
    found = scope["found"]
    assert found.keys() == {0, 1, 2}
    assert json.dumps(found[0]) == json.dumps(found[1]) == json.dumps(found[2])
    assert found[0]
    return list(found[0])


def test_sites_in_processes_of_their_own_find_as_many_as_a_simulation(
    expected: list[str], tmp_path: Path, fork_server: Path
) -> None:
    split_into_folders(DataSettings(name="digits", clients=SITES), 4, SITES, tmp_path / "data")
    own = [{"folder": str(tmp_path / "data" / f"site-{i}" / "digits")} for i in (1, 2, 3)]
    broker = Broker("", own, {}, tmp_path / "job", fork_server=fork_server)
    broker.with_program("intersect.py", PROGRAM, "name = 'intersect'\n[data]\nname = 'digits'")
    assert broker.final_values()["size"] == len(expected)


def keeping_results(configure: Callable[..., None]) -> Callable[..., None]:
    """Sites whose site.toml says where results are to be kept."""

    def configured(folder: Path, names: list[str], *more: Any, **options: Any) -> None:
        configure(folder, names, *more, **options)
        for name in names:
            path = folder / "project" / "kits" / name / "site.toml"
            path.write_text(f'results = "found"\n{path.read_text()}')

    return configured


def test_a_federations_sites_keep_what_they_found_and_its_server_learns_the_size(
    expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Own code behind the fence, messages over gRPC with mutual TLS."""
    (tmp_path / "intersect.py").write_text(PROGRAM)
    monkeypatch.setattr(local_federation, "_configure", keeping_results(local_federation._configure))
    described = describe_job(str(tmp_path / "intersect.py"))
    with local_federation.local_federation(described, SITES, tmp_path / "federation") as federation:
        job = federation.connection.submit(str(tmp_path / "intersect.py"), min_sites=SITES)
        job.wait(120)
        log = RunFolder.open(job.download(tmp_path / "run")).log
        kits = [federation.kit(f"site-{i}") for i in (1, 2, 3)]
        server = federation.kit("server")
        eventually(
            lambda: all(list((kit / "found").glob("*/common-*.txt")) for kit in kits), "sites heard that it is over"
        )
    assert [event.metrics for event in log] == [{"intersection": {"size": float(len(expected))}}]
    for number, kit in enumerate(kits):
        kept = list((kit / "found").glob("*/common-*.txt"))
        assert [path.name for path in kept] == [f"common-{number}.txt"]
        assert kept[0].read_text().split("\n") == expected
    told = b"".join(path.read_bytes() for path in server.rglob("*") if path.is_file())
    assert told
    assert not [each for each in expected if each.encode() in told]
