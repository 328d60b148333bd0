"""Split learning between processes: a bank with features, an insurer with labels, a server that reads neither."""

import os
import runpy
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from bench.deploy.world import working_in
from safetensors.torch import load_file
from table_world import TableWorld, running

from test_split_learning import frames
from waiting import eventually
from winnow.core import RoundFinished
from winnow.runs import RunFolder

pytestmark = pytest.mark.slow(part="deploy")

POLICY = '[[jobs]]\npeople = ["ana"]\ndata = ["customers"]\nown_code = true\n'
SITE = 'results = "kept"\n[data.customers]\nfile = "stays.csv"\nkey = "customer"\n'
PROGRAM = """
import torch
import winnow
from torch import nn

torch.manual_seed(3)
result = winnow.split(
    "customers",
    bottoms={"bank": nn.Sequential(nn.Linear(4, 8), nn.ReLU())},
    top=nn.Linear(8, 2),
    labels="insurer",
    target="fraud",
    key="customer",
    parts={"bank": "bank.csv", "insurer": "insurer.csv"},
    epochs=4,
    batch_size=16,
    momentum=0.9,
)
print(result)
"""


@pytest.fixture
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The same program, run where both files are."""
    monkeypatch.chdir(tmp_path)
    for name, frame in zip(("bank", "insurer"), frames(), strict=True):
        frame.to_csv(f"{name}.csv", index=False)
    Path("towers.py").write_text(PROGRAM)
    return runpy.run_path("towers.py")["result"]


def test_two_owners_and_a_server_give_what_a_simulation_gives_though_a_process_is_killed(
    simulated: Any, tmp_path: Path
) -> None:
    world = TableWorld(tmp_path / "world", ["bank", "insurer"])
    for name in ("bank", "insurer"):
        world.configure(name, Path(f"{name}.csv").read_text(), SITE, POLICY)
    kept = world.kit("bank") / "kept"
    with running(world) as connection:
        job = connection.submit("towers.py", min_sites=2)
        eventually(lambda: job.state().round >= 2, "the first epoch is over")
        for worker in working_in(world.kit("bank").resolve()):
            os.kill(worker, signal.SIGKILL)
        assert job.wait(180).status == "finished", world.log
        log = RunFolder.open(job.download(tmp_path / "run")).log
        told = "".join(line.text for line in job.lines(follow=False))
        eventually(lambda: bool(list(kept.rglob("bottom.safetensors"))), "the bank has its module")
        server = b"".join(path.read_bytes() for path in world.kit("server").rglob("*") if path.is_file())
    ends = [event for event in log if isinstance(event, RoundFinished) and event.metrics]
    assert [event.metrics["reference"]["accuracy"] for event in ends] == pytest.approx(
        [row["accuracy"] for row in simulated.history], abs=1e-6
    )
    assert "Labels inferred from gradients" in told
    (module,) = kept.rglob("bottom.safetensors")
    weights = load_file(module)
    for key, value in simulated.modules["bank"].state_dict().items():
        torch.testing.assert_close(weights[key], value, rtol=0, atol=1e-5)
        assert weights[key].numpy().tobytes() not in server
    assert not list(kept.rglob("top.safetensors"))
