"""Combinations that cannot work are refused in one line, before a run leaves anything behind."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import winnow
from winnow.config.resolve import resolve
from winnow.core import ConfigError, ModelError, RunError, WinnowError
from winnow.experiment.run import run_experiment
from world import BASE, blobs, experiment, prepared


@pytest.mark.parametrize(
    "change",
    [
        "local.learning_rate=inf",
        "select.alpha=nan",
        "select.alpha=-5",
        "target=nan",
        "fleet.snr_db=inf",
        'rounds="1"',
        "data.clients=true",
        'local.batch_size="4"',
        "local.name=['adam']",
        "algorithm=['fedprof']",
        "engine.threads=100000",
    ],
)
def test_wrong_types_and_impossible_numbers(change: str) -> None:
    with pytest.raises(ConfigError, match=change.split("=", maxsplit=1)[0].rsplit(".", maxsplit=1)[-1]):
        resolve(BASE, sets=[change])


def test_numbers_of_numpy_and_lists_are_welcome() -> None:
    table = {**BASE, "rounds": np.int64(3), "target": np.float32(0.5), "reference_clients": [1, 2]}
    checked = resolve(table)
    assert (checked.rounds, checked.reference_clients) == (3, (1, 2))


def test_a_class_without_an_output_is_found_at_once() -> None:
    data = blobs(classes=3)
    with pytest.raises(
        ModelError, match="the model has 2 outputs, but the data has 3 classes; give the model 3 outputs"
    ):
        winnow.run(model=nn.Linear(5, 2), data=data, rounds=1)


def test_an_output_without_a_class_is_found_at_once() -> None:
    data = blobs(classes=3)
    message = "the model has 4 outputs, but the data has 3 classes; give the model 3 outputs"
    with pytest.raises(ModelError, match=message):
        winnow.run(model=nn.Linear(5, 4), data=data, rounds=1)


def test_outputs_of_a_loss_of_ones_own_may_be_for_more_than_classes() -> None:
    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs[:, :3], targets, reduction="none")

    result = winnow.run(model=nn.Linear(5, 4), data=blobs(classes=3), rounds=1, loss=loss)
    assert result.model.out_features == 4


def test_batch_normalisation_cannot_learn_from_single_samples() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))
    with pytest.raises(ConfigError, match=r"local\.batch_size: batch normalisation"):
        winnow.run(model=model, data=blobs(), rounds=1, local={"name": "sgd", "batch_size": 1})
    with pytest.raises(ConfigError, match="every client has a single sample"):
        winnow.run(model=model, data=blobs(60), rounds=1, clients=40, reference=10, test=10)


@pytest.mark.parametrize("change", ["select.alpha=[1, 2, 3]", "select.count=100"])
def test_a_refused_run_leaves_nothing_behind(tmp_path: Path, change: str) -> None:
    with pytest.raises(WinnowError):
        run_experiment(
            resolve({**BASE, "data": {**BASE["data"], "name": "digits"}}, sets=[change]), out=tmp_path / "run"
        )
    assert not (tmp_path / "run").exists()


def test_a_run_is_resumed_with_what_it_began_with(tmp_path: Path) -> None:
    out, options = tmp_path / "run", {"rounds": 2, "clients": 5}
    winnow.run(data=blobs(), out=out, **options)
    more = {**options, "rounds": 3, "out": out, "resume": True}
    for other in (
        {"data": blobs(seed=1)},
        {"data": blobs(), "loss": lambda outputs, y: nn.functional.cross_entropy(outputs, y, reduction="none") * 2},
        {"data": blobs(), "model": nn.Linear(5, 3)},
    ):
        with pytest.raises(RunError):
            winnow.run(**{**more, **other})
    assert winnow.run(data=blobs(), **more).summary.rounds == 3


def test_the_configuration_says_what_was_chosen(tmp_path: Path) -> None:
    run_experiment(resolve({**BASE, "rounds": 1, "data": {**BASE["data"], "name": "digits"}}), out=tmp_path / "run")
    written = resolve(tmp_path / "run" / "config.toml")
    assert written.engine.execution != "auto"
    assert written.engine.device == "cpu"


def test_a_notebook_keeps_its_threads() -> None:
    before = torch.get_num_threads()
    winnow.run(data=blobs(), rounds=1, engine={"threads": before + 1})
    assert torch.get_num_threads() == before


def test_with_the_reference_at_clients_no_rows_are_set_aside() -> None:
    usual, held = prepared(), prepared("reference_clients=[1]")
    assert held.federation.population.sizes.sum() == usual.federation.population.sizes.sum() + 60


def test_assessment_by_clients_is_no_profiling_where_no_profiles_are_made() -> None:
    ready = prepared("reference_clients=[1]", "rounds=2", algorithm="fedavg")
    costs = [event.cost for event in ready.training.run(ready.federation) if event.kind == "round_finished"]
    assert all(cost.profiling_joules == 0 for cost in costs)


@pytest.mark.parametrize("algorithm", ["fedrep", "lg-fedavg"])
def test_holders_of_the_reference_set_are_not_sent_what_is_private(algorithm: str) -> None:
    ready, sent = prepared("reference_clients=[1]", "rounds=2", algorithm=algorithm), []
    answer = ready.federation.handlers["evaluate-reference"]
    ready.federation.handlers["evaluate-reference"] = lambda tasks, site: sent.extend(tasks) or answer(tasks, site)
    list(ready.training.run(ready.federation))
    models = [task.payload["model"] for task in sent if task.payload]
    assert ready.plan.private_names
    assert [set(model) for model in models] == [set(ready.training.model) - set(ready.plan.private_names)] * 2


def test_r2_cannot_be_pooled() -> None:
    rng = np.random.default_rng(0)
    data = (rng.normal(size=(200, 3)).astype(np.float32), rng.random((200, 1)).astype(np.float32))
    with pytest.raises(ConfigError, match="reference_clients"):
        winnow.run(data=data, rounds=1, metric="r2", reference_clients=[0])


def test_experiments_are_values() -> None:
    assert experiment() == experiment()
    assert experiment() != experiment(seed=1)


def test_a_key_in_the_wrong_place_is_sent_to_its_section() -> None:
    with pytest.raises(ConfigError, match=r"unknown key learning_rate; it belongs in section \[local\]"):
        resolve({**BASE, "learning_rate": 0.1})
    with pytest.raises(ConfigError, match=r"write local=\{'learning_rate': …\}"):
        winnow.run(data=blobs(), learning_rate=0.1)


def test_a_misspelt_section_is_named_before_what_follows_from_it() -> None:
    table = {key: value for key, value in BASE.items() if key != "select"}
    with pytest.raises(ConfigError, match=r"unknown key selct; did you mean 'select'\?"):
        resolve({**table, "selct": {"count": 3}})
