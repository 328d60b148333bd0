"""Programs with a training of their own, run by real processes: they give the simulation's model, and their errors
tell the place in the code but nothing of the data.
"""

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from broker import Broker
from safetensors.torch import load_file
from test_jobs_processes import dealt, same
from torch import Tensor, nn

import winnow
from winnow.core import ModelError
from winnow.deploy.jobs.error_redaction import redacted_error
from winnow.deploy.jobs.ipc_messages import JobFinished

HEAD = """
import torch
import winnow
from torch import nn
from torch.nn import functional

torch.manual_seed(3)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.Tanh(), nn.Linear(24, 10))
settings = dict(data="digits", clients=9, seed=5, rounds=2, select={"fraction": 0.5})

def step(model, batch):
    return functional.cross_entropy(model(batch.x), batch.y, label_smoothing=0.1)

def train(model, batches, context):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for batch in batches:
        optimizer.zero_grad()
        step(model, batch).backward()
        optimizer.step()

def leak(model, batch):
    raise ValueError(f"seen {batch.x.sum()} here")

def leak_later(model, batches, context):
    for batch in batches:
        leak(model, batch)
"""
RUNS = {
    "train": "model=model, train=train",
    "step": "model=model, step=step, algorithm='scaffold'",
    "estimator": "model=__import__('sklearn.linear_model').linear_model.SGDClassifier()",
}


def program(arguments: str) -> str:
    return f"{HEAD}\nresult = winnow.run('demo', {arguments}, **settings)\n"


def ended(text: str, experiment: Any, folder: Path, fork_server: Path) -> Any:
    (folder / "program.py").write_text(text)
    broker = Broker("", *dealt(experiment, folder / "data"), folder / "job", fork_server=fork_server)
    broker.with_program("program.py", text, "name = 'mine'")
    try:
        return broker.run(), broker
    finally:
        broker.close()


@pytest.mark.slow(part="deploy")  # a training step between organisations is also tried by test_new_user
@pytest.mark.parametrize("arguments", RUNS.values(), ids=RUNS)
def test_it_gives_the_simulations_model(arguments: str, tmp_path: Path, fork_server: Path) -> None:
    scope: dict[str, Any] = {}
    exec(compile(program(arguments), "program.py", "exec"), scope)
    simulated = scope["result"]
    done, _ = ended(program(arguments), simulated.experiment, tmp_path, fork_server)
    assert isinstance(done, JobFinished), done
    assert same(load_file(done.output["best.safetensors"]), dict(simulated.model.state_dict()))


def test_an_error_at_a_site_tells_its_place_and_nothing_of_the_data(tmp_path: Path, fork_server: Path) -> None:
    scope: dict[str, Any] = {}
    exec(compile(program(RUNS["train"]), "program.py", "exec"), scope)
    text = program("model=model, train=leak_later")
    done, broker = ended(text, scope["result"].experiment, tmp_path, fork_server)
    assert isinstance(done, JobFinished), done
    told = "\n".join(broker.lines)
    raised = next(number for number, each in enumerate(text.splitlines(), 1) if "raise ValueError" in each)
    assert f"failed (train): train (program.py, line {raised}): ValueError; see the site's log" in told
    assert "seen " not in told
    assert any("ValueError: seen " in note for site in broker.sites for note in site.notes)


class Leak(nn.Sequential):
    def __init__(self, *, training: bool) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 10))
        self.only_training = training

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() or not self.only_training:
            raise ValueError(f"seen {x.sum()} here")
        return cast(Tensor, super().forward(x))


@pytest.mark.parametrize("training", [False, True])
def test_an_error_in_a_model_of_ones_own_tells_nothing_of_the_data(training: bool) -> None:
    """A site tries a model on its own samples before it trains."""
    with pytest.raises(ModelError, match="seen ") as raised:
        winnow.run("demo", model=Leak(training=training), progress=False)
    told = redacted_error(raised.value)
    assert told.startswith("the model ")
    assert told.endswith(": ValueError; see the site's log")
