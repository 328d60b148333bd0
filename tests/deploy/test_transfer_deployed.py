"""Transfer between processes: a bank with labels, a shop without, a server that reads neither."""

import os
import runpy
import signal
from pathlib import Path

import pandas as pd
import pytest
import torch
from bench.deploy.world import working_in
from safetensors.torch import load_file
from table_world import TableWorld, running
from test_split_deployed import POLICY, SITE

from test_transfer_learning import frames
from waiting import eventually

pytestmark = pytest.mark.slow(part="deploy")

PROGRAM = """
import torch
import winnow
from torch import nn

torch.manual_seed(3)
result = winnow.transfer(
    "customers",
    encoders={"bank": nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 4)), "shop": nn.Linear(2, 4)},
    head=nn.Linear(4, 2),
    labels="bank",
    target="fraud",
    key="customer",
    parts={"bank": "bank.csv", "shop": "shop.csv"},
    epochs=4,
    learning_rate=0.01,
)
print(result)
"""


def test_the_shop_labels_its_own_rows_though_a_process_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    parts = dict(zip(("bank", "shop"), frames(), strict=True))
    for name, frame in parts.items():
        frame.to_csv(f"{name}.csv", index=False)
    Path("transfer.py").write_text(PROGRAM)
    simulated = runpy.run_path("transfer.py")["result"]
    world = TableWorld(tmp_path / "world", ["bank", "shop"])
    for name in parts:
        world.configure(name, Path(f"{name}.csv").read_text(), SITE, POLICY)
    kept = world.kit("shop") / "kept"
    with running(world) as connection:
        job = connection.submit("transfer.py", min_sites=2)
        eventually(lambda: job.state().round >= 2, "the first epoch is over")
        for worker in working_in(world.kit("bank").resolve()):
            os.kill(worker, signal.SIGKILL)
        assert job.wait(180).status == "finished", world.log
        told = "".join(line.text for line in job.lines(follow=False))
        eventually(lambda: bool(list(kept.rglob("predictions.csv"))), "the shop has its predictions")
        server = b"".join(path.read_bytes() for path in world.kit("server").rglob("*") if path.is_file())
    assert "Transfer learning over 120 common rows of bank, shop" in told
    (file,), (head,) = kept.rglob("predictions.csv"), kept.rglob("head.safetensors")
    found = pd.read_csv(file).set_index("key")["prediction"]
    expected = simulated.predict(parts["shop"][["spend", "visits"]])
    assert found.loc[parts["shop"]["customer"]].tolist() == expected.tolist()
    for name, value in load_file(head).items():
        torch.testing.assert_close(value, simulated.model[1].state_dict()[name], rtol=0, atol=1e-5)
        assert value.numpy().tobytes() not in server
    assert not list((world.kit("bank") / "kept").rglob("predictions.csv"))
