"""Ensembles and averaging among peers between a real server and real sites, over gRPC."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from disk_watch import looking_for
from safetensors.torch import load_file
from test_secure_deployed import SETS, SITES, updates_of

from winnow.config.resolve import resolve
from winnow.deploy.client.bundle import describe_job
from winnow.deploy.client.local_federation import LocalFederation, local_federation
from winnow.experiment.run import run_experiment

pytestmark = pytest.mark.slow(part="deploy")

PEERS = ("collect={name='peers', average_to_server=true}", "aggregate={name='partial', weights='size'}")
SITE_GROUPS = {"north": ["site-1", "site-2"], "south": ["site-3", "site-4"]}
CLIENT_GROUPS = {
    "north": [f"client {number}" for number in range(4)],
    "south": [f"client {number}" for number in range(4, 8)],
}


def over_arch(groups: dict[str, list[str]]) -> list[str]:
    named = ", ".join(f"{name} = {members}" for name, members in groups.items())
    combine = "{name = 'over-arch', at = 'clients', rounds = 2, hidden = [4]}"
    clusters = f"{{name = 'sites', groups = {{{named}}}}}"
    return [*SETS, "quality.evidence=[]", f"ensemble={{clusters = {clusters}, combine = {combine}}}"]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFederation]:
    with local_federation(
        describe_job("demo", sets=SETS, seed=5), SITES, tmp_path_factory.mktemp("federation")
    ) as running:
        yield running


def deployed(federation: LocalFederation, folder: Path, sets: list[str]) -> dict[str, torch.Tensor]:
    job = federation.connection.submit("demo", sets=sets, min_sites=SITES, seed=5, rounds=2, algorithm="fedavg")
    assert job.wait(300).status == "finished"
    return load_file(job.download(folder / "deployed") / "best.safetensors")


def simulated(folder: Path, sets: list[str]) -> dict[str, torch.Tensor]:
    wanted = resolve("demo", sets=sets, seed=5, rounds=2, algorithm="fedavg")
    run_experiment(wanted, out=folder / "simulated")
    return load_file(folder / "simulated" / "best.safetensors")


def test_peers_have_the_simulations_average_and_their_server_no_update(
    federation: LocalFederation, tmp_path: Path
) -> None:
    sets = [*SETS, "quality.evidence=[]", *PEERS]
    with looking_for(updates_of(), federation.kit("server")) as found:
        ours = deployed(federation, tmp_path, sets)
    assert not found
    theirs = simulated(tmp_path, sets)
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-5, atol=1e-6)


def test_leaves_by_site_and_their_over_arch_are_the_simulations(federation: LocalFederation, tmp_path: Path) -> None:
    ours = deployed(federation, tmp_path, over_arch(SITE_GROUPS))
    theirs = simulated(tmp_path, over_arch(CLIENT_GROUPS))
    assert ours.keys() == theirs.keys()
    assert any(name.startswith("leaves.1.") for name in ours)
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-5, atol=1e-6)
