"""Winnow in Python: own models, own data, nothing on disk unless asked for."""

import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import winnow
from winnow.data import from_arrays
from winnow.learn.aggregation import PartialAggregation
from winnow.learn.local_optimiser import Sgd
from winnow.learn.selection import UniformSelector

SMALL = {"clients": 6, "rounds": 3, "reference": 60, "test": 40, "progress": False}


def blobs(rows: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """Two clouds of points that a line parts."""
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 2, rows)
    points = rng.normal(size=(rows, 3)) + 3.0 * labels[:, None]
    return points.astype(np.float32), labels


def network() -> nn.Module:
    with torch.random.fork_rng([]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))


def test_importing_winnow_imports_no_torch():
    code = "import sys, winnow; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_data_needs_no_import_of_its_own():
    code = "import winnow; print(winnow.data.from_arrays([[1.0], [2.0]], ['a', 'b']).preprocessing.classes)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "('a', 'b')\n"


def test_the_public_names_are_there():
    assert set(winnow.__all__) <= set(dir(winnow))
    for name in winnow.__all__:
        assert getattr(winnow, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'rnu'"):
        winnow.rnu  # noqa: B018


def test_a_module_on_arrays_learns_and_touches_nothing_else(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module, (x, y) = network(), blobs()
    before, generator = deepcopy(module.state_dict()), torch.get_rng_state()
    result = winnow.run(model=module, data=(x, y), **SMALL | {"rounds": 30})
    assert result.best is not None
    assert result.best > 0.95
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)
    assert list(tmp_path.iterdir()) == []
    with torch.no_grad():
        outputs = result.model(torch.from_numpy(result.preprocessing.transform(x)))
        accuracy = (result.preprocessing.decode(outputs) == y).mean()
    assert accuracy > 0.95


def test_all_forms_of_the_same_data_give_the_same_run(tmp_path: Path):
    x, y = blobs()
    tensors = torch.from_numpy(x), torch.from_numpy(y)
    np.savez(tmp_path / "own.npz", x=x, y=y)
    forms = [(x, y), tensors, TensorDataset(*tensors), from_arrays(x, y), tmp_path / "own.npz"]
    histories = [winnow.run(model=network(), data=form, **SMALL).history for form in forms]
    for history in histories[1:]:
        np.testing.assert_equal(history, histories[0])


def test_task_and_scale_apply_to_every_form_of_data():
    x, y = blobs()
    line = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    dataset = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    for form in ((x, y), dataset):
        result = winnow.run(model=line, data=form, task="regression", **SMALL)
        assert result.plan.metric == "r2"
    minmax = from_arrays(x, y, scale="minmax")
    narrow = (x - x.min(axis=0)) / np.ptp(x, axis=0)
    by_hand = winnow.run(model=network(), data=(narrow, y), scale="none", **SMALL).history
    for form in ({"data": (x, y), "scale": "minmax"}, {"data": dataset, "scale": "minmax"}, {"data": minmax}):
        scaled = winnow.run(model=network(), **form, **SMALL).history
        assert scaled[-1]["reference.loss"] == pytest.approx(by_hand[-1]["reference.loss"], rel=1e-4)


def test_the_resolved_settings_name_the_data(tmp_path: Path):
    x, y = blobs()
    np.savez(tmp_path / "mine.npz", x=x, y=y)
    assert winnow.run(model=network(), data=tmp_path / "mine.npz", **SMALL).experiment.data.name == "mine"
    assert winnow.run("demo", model=network(), data=tmp_path / "mine.npz", **SMALL).experiment.data.name == "mine"
    assert winnow.run(model=network(), data=(x, y), **SMALL).experiment.data.name == "arrays"


def test_data_that_are_passed_take_the_place_of_a_file(tmp_path: Path):
    x, y = blobs()
    np.savez(tmp_path / "mine.npz", x=x + 9, y=y)
    config = {"data": {"path": str(tmp_path / "mine.npz"), "clients": 6}, "model": {"name": "linear"}}
    config |= {"select": {"fraction": 0.5}, "local": {"name": "sgd"}, "rounds": 1}
    assert winnow.run(config, progress=False).experiment.data.name == "mine"
    for data, name in (((x, y), "arrays"), ("digits", "digits")):
        settings = winnow.run(config, data=data, progress=False).experiment.data
        assert (settings.name, settings.path) == (name, None)


def sentences(rows: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Ten tokens of twenty; the class is whether the tokens below ten are in the majority."""
    tokens = np.random.default_rng(2).integers(0, 20, (rows, 10))
    return tokens, (np.median(tokens, axis=1) < 9.5).astype(int)


def bag_of_words() -> nn.Module:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(20, 8), nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.embedding(x).mean(dim=1))

    with torch.random.fork_rng([]):
        torch.manual_seed(3)
        return Words()


LSTM = {"name": "lstm", "vocabulary": 20, "hidden": 16}


@pytest.mark.parametrize("model", [LSTM, bag_of_words()], ids=["lstm", "own"])
@pytest.mark.parametrize("form", ["arrays", "file"])
def test_models_of_tokens_learn(model, form, tmp_path: Path):
    x, y = sentences()
    np.savez(tmp_path / "text.npz", x=x, y=y)
    data = (x, y) if form == "arrays" else tmp_path / "text.npz"
    flipped = [{"name": "flipped-labels", "fraction": 0.2}]
    settings = {"tokens": True, "corruptions": flipped, "clients": 5, "reference": 80, "test": 0}
    parts = {"select": {"count": 4}, "local": {"name": "adam", "learning_rate": 0.02, "epochs": 4}}
    result = winnow.run(model=model, data=data, rounds=8, progress=False, **settings, **parts)
    assert result.best is not None
    assert result.best > 0.8


def test_the_seed_alone_decides():
    first, again, other = (winnow.run(model=network(), data=blobs(), seed=s, **SMALL) for s in (4, 4, 5))
    np.testing.assert_equal(first.history, again.history)
    assert first.history != other.history


def test_the_history_is_one_row_a_round():
    result = winnow.run(model=network(), data=blobs(), target=0.0, **SMALL)
    assert [row["round"] for row in result.history] == [0, 1, 2, 3]
    assert max(row["reference.accuracy"] for row in result.history) == result.best
    seconds = [row["seconds"] for row in result.history]
    assert seconds == sorted(seconds)
    assert "target 0" in str(result)
    assert f"{result.best:.4f}" in result._repr_html_()


def test_settings_are_merged_into_the_configuration():
    given = {"clients": 8, "partition": {"name": "dirichlet", "alpha": 0.2}, "local": {"epochs": 2}, "model": "linear"}
    result = winnow.run("demo", rounds=1, progress=False, select={"alpha": 3.0}, metric="accuracy", **given)
    experiment = result.experiment
    assert (experiment.data.clients, experiment.data.partition.alpha) == (8, 0.2)
    assert (experiment.local.epochs, experiment.local.batch_size) == (2, 8)
    assert (experiment.select.alpha, experiment.select.fraction) == (3.0, 0.2)
    assert experiment.model.name == "linear"
    again = winnow.run(experiment, progress=False)
    np.testing.assert_equal(again.history, result.history)


def test_a_composed_algorithm_runs_under_its_own_name():
    algorithm = winnow.Algorithm(
        select=UniformSelector(count=2), local=Sgd(learning_rate=0.1), aggregate=PartialAggregation()
    )
    result = winnow.run(model=network(), data=blobs(), algorithm=algorithm, **SMALL)
    assert result.experiment.algorithm == "custom"
    assert result.experiment.composed() == algorithm


def test_a_loss_of_ones_own_is_used():
    def hinge(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.multi_margin_loss(outputs, targets, reduction="none")

    own = winnow.run(model=network(), data=blobs(), loss=hinge, **SMALL)
    usual = winnow.run(model=network(), data=blobs(), loss="cross-entropy", **SMALL)
    assert own.history[0]["reference.loss"] != usual.history[0]["reference.loss"]
    assert own.history[0]["reference.accuracy"] == usual.history[0]["reference.accuracy"]


def test_a_run_in_a_folder_can_be_continued(tmp_path: Path):
    """After which rounds clients are assessed depends on how many there are: here after all of them."""
    short = SMALL | {"quality": {"assessments": 5}}
    at_once = winnow.run(model=network(), data=blobs(), out=tmp_path / "a", **short | {"rounds": 5})
    winnow.run(model=network(), data=blobs(), out=tmp_path / "b", **short)
    continued = winnow.run(model=network(), data=blobs(), out=tmp_path / "b", resume=True, **short | {"rounds": 5})
    np.testing.assert_equal(continued.history, at_once.history)
    assert continued.report(tmp_path / "own.html").is_file()


def test_a_finished_run_is_only_read(tmp_path: Path):
    first = winnow.run(model=network(), data=blobs(), out=tmp_path / "a", **SMALL)
    written = {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in (tmp_path / "a").iterdir()}
    again = winnow.run(model=network(), data=blobs(), out=tmp_path / "a", resume=True, **SMALL)
    assert {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in (tmp_path / "a").iterdir()} == written
    np.testing.assert_equal(again.history, first.history)
    assert (again.best, again.plan, again.summary) == (first.best, first.plan, first.summary)
    for name, value in first.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], value)


SCRIPT = """
import torch, winnow

model = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
result = winnow.run(model=model, data="own.csv", targets=["y"], task="regression", clients=10, rounds=30)
print(result.best)
"""


def test_own_model_on_own_csv_in_a_few_lines(tmp_path: Path):
    x, _ = blobs()
    table = np.column_stack([x, x @ [1.0, 2.0, -1.0]])
    np.savetxt(tmp_path / "own.csv", table, delimiter=",", header="a,b,c,y", comments="")
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert float(done.stdout) > 0.5
    assert len(SCRIPT.strip().splitlines()) <= 15


def test_a_comparison_starts_every_run_from_the_same_weights(tmp_path: Path):
    compared = winnow.compare(model=network(), data=blobs(), seeds=[1, 2], target=0.5, out=tmp_path, **SMALL)
    alone = winnow.run(model=network(), data=blobs(), algorithm="fedavg-rp", seed=2, target=0.5, **SMALL)
    assert [(each.algorithm, each.seed) for each in compared.records][-1] == ("fedavg-rp", 2)
    assert compared.records[-1].best == alone.best
    assert (tmp_path / "fedavg-rp-seed2" / "result.json").is_file()


NOISE = {"name": "noise", "fraction": 0.5}


@pytest.mark.parametrize("algorithms", ["fedavg", "fedavg, fedavg-rp"])
def test_algorithms_may_be_one_text(algorithms):
    compared = winnow.compare(model=network(), data=blobs(), algorithms=algorithms, seeds=1, **SMALL)
    assert [each.algorithm for each in compared.records] == algorithms.split(", ")


def test_a_composed_algorithm_can_be_compared():
    own = winnow.Algorithm(
        select=UniformSelector(count=2), local=Sgd(learning_rate=0.1), aggregate=PartialAggregation()
    )
    compared = winnow.compare(model=network(), data=blobs(), algorithms=["fedavg", own], seeds=1, **SMALL)
    alone = winnow.run(model=network(), data=blobs(), algorithm=own, **SMALL)
    assert [each.algorithm for each in compared.records] == ["fedavg", "custom"]
    assert compared.records[1].best == alone.best


MISTAKES = {
    "keyword": ({"lokal": {}}, "unknown setting 'lokal'; did you mean 'local'?"),
    "key of a section": ({"local": {"epoch": 2}}, "unknown key local.epoch; did you mean 'epochs'?"),
    "data": ({"data": [1, 2]}, "data: list is not supported"),
    "known set": ({"data": "digts"}, "did you mean 'digits'?"),
    "file": ({"data": "none.csv", "targets": ["y"]}, "there is no file"),
    "file of no known kind": ({"data": "none.xlsx"}, "unknown data set 'none.xlsx'; valid: "),
    "columns of arrays": (
        {"data": blobs(), "targets": ["y"]},
        "data.targets has no effect on data without named columns",
    ),
    "task of a DataSet": ({"data": from_arrays(*blobs()), "task": "regression"}, "no effect on a DataSet"),
    "scale of a DataSet": ({"data": from_arrays(*blobs()), "scale": "none"}, "no effect on a DataSet"),
    "frame without targets": ({"data": {"a": [1, 2], "b": [3, 4]}}, 'say which column to predict: targets=["…"]'),
    "columns that make more features": (
        {
            "model": network(),
            "data": {"a": ["u", "v"] * 20, "b": [0.5] * 40, "y": [0, 1] * 20},
            "targets": "y",
            "clients": 2,
        },
        "2 columns of the data make 4 features (a = u, a = v, a = other, b)",
    ),
    "prices": ({"data": (blobs()[0], np.arange(300))}, 'data.task = "classification" or "regression"'),
    "share": ({"reference": 1.0}, "data.reference: 1.0 is neither a number of rows such as 500 nor a share"),
    "width": ({"model": {"name": "mlp", "hidden": [0]}}, "model.hidden[0] = 0: must be at least 1"),
    "class": ({"model": nn.Flatten}, "model: Flatten is a class; pass an instance: Flatten()"),
    "no model": ({"model": network}, "model: function is not supported; pass an nn.Module, a scikit-learn"),
    "noise on tokens": (
        {"data": (np.ones((99, 3), int), np.arange(99) % 2), "tokens": True, "corruptions": [NOISE]},
        "corruption noise needs numeric features, not tokens",
    ),
    "preset": ({"config": "dmo"}, "no preset 'dmo'"),
    "resume": ({"resume": True}, "give the run folder to continue with out="),
    "model": (
        {"model": nn.Sequential(nn.Linear(7, 4), nn.Linear(4, 2)), "data": blobs()},
        "the model does not accept a batch of shape",
    ),
}


@pytest.mark.parametrize(("arguments", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_one_line(arguments, message):
    with pytest.raises(winnow.WinnowError) as refused:
        winnow.run(**{"rounds": 1, "progress": False} | arguments)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
