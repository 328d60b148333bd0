"""Frozen encoders between real processes: each site encodes its own rows once, and nothing of the encoder is sent."""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from broker import Broker, SiteStub
from msgspec import to_builtins
from safetensors.torch import load_file
from test_jobs_processes import dealt, events_of, same

from winnow.config.resolve import resolve
from winnow.config.schema import Experiment
from winnow.core import ConfigError, DataError
from winnow.deploy.client.bundle import _of_experiment, describe_job
from winnow.deploy.jobs.bundle_format import Bundle, read_bundle, write_bundle
from winnow.deploy.jobs.ipc_messages import CannotRunJob, DispatchTask, JobFinished, PrepareJob, TaskResult
from winnow.deploy.jobs.output_filter import _description
from winnow.experiment.run import run_experiment

CODE = """
from pathlib import Path

import numpy as np

WEIGHTS = np.random.default_rng(0).normal(size=(64, 24)).astype(np.float32)


def encode(samples):
    with Path("passes").open("a") as file:  # in the job's own folder
        file.write(f"{len(samples)}\\n")
    rows = np.asarray(samples).reshape(len(samples), -1) / 16
    return np.tanh(np.stack([row @ WEIGHTS for row in rows]))  # row by row: a product of all rounds by their number


def words(texts):
    return np.stack([np.cos(np.arange(24) * int(text)) for text in texts])
"""
TABLE = {
    "name": "encoded",
    "algorithm": "fedclip",
    "rounds": 3,
    "seed": 5,
    "data": {"name": "digits", "clients": 6},
    "select": {"fraction": 1.0},
    "local": {"name": "adam", "batch_size": 16},
    "engine": {"execution": "loop"},
    "quality": {"evidence": []},
}


def job(folder: Path) -> Path:
    (folder / "code.py").write_text(CODE)
    texts = ", ".join(f'"{number}"' for number in range(10))
    (folder / "job.toml").write_text(
        f'[encode]\nname = "code.py:encode"\n[model]\nname = "adapter"\ntexts = [{texts}]\n'
        'text_encoder = "code.py:words"\n'
    )
    return folder / "job.toml"


def experiment(folder: Path, scale: str = "none") -> tuple[Experiment, Any]:
    own = tomllib.loads(job(folder).read_text())
    own["encode"]["scale"] = scale
    own["encode"]["name"] = str(folder / own["encode"]["name"])
    own["model"]["text_encoder"] = str(folder / own["model"]["text_encoder"])
    wanted = resolve({**TABLE, **own})
    return wanted, _of_experiment(wanted)


def passes(folder: Path) -> int:
    counted = folder / "passes"
    return sum(map(int, counted.read_text().split())) if counted.exists() else 0


@pytest.mark.slow(part="deploy")
@pytest.mark.parametrize("scale", ["none", "standard"])
def test_processes_give_the_simulations_model_and_send_the_adapter_alone(
    tmp_path: Path, fork_server: Path, monkeypatch: pytest.MonkeyPatch, scale: str
) -> None:
    wanted, described = experiment(tmp_path, scale)
    monkeypatch.chdir(tmp_path)
    simulated = run_experiment(wanted, out=tmp_path / "simulated")
    sent: list[dict[str, Any]] = []
    do = SiteStub.do

    def logged(self: SiteStub, dispatch: DispatchTask, blobs: Path) -> list[TaskResult]:
        results = do(self, dispatch, blobs)
        paths = [blobs / blob.digest for blob in dispatch.task.parts.values()]
        paths += [Path(each.payload) for each in results if each.payload]
        sent.extend(load_file(path) for path in paths)
        return results

    monkeypatch.setattr(SiteStub, "do", logged)
    own, server = dealt(wanted, tmp_path / "data", sites=2)
    broker = Broker("", own, server, tmp_path / "job", fork_server=fork_server)
    bundle = Bundle(config=tomli_w.dumps(described.table), files=described.files)
    broker.bundle.write_bytes(write_bundle(bundle))
    try:
        assert broker.run(stop_after=1) is None
        encoded = [passes(site.folder) for site in broker.sites]
        ended = broker.run()
    finally:
        broker.close()
    assert isinstance(ended, JobFinished), ended
    assert same(load_file(ended.output["last.safetensors"]), load_file(tmp_path / "simulated" / "last.safetensors"))
    model_json = tmp_path / "simulated" / "model.json"
    rounds = [event["metrics"]["reference"] for event in events_of(broker.lines) if event["kind"] == "round_finished"]
    simulated_rounds = [event for event in simulated.view.events() if event.kind == "round_finished"]
    assert rounds == [dict(event.metrics["reference"]) for event in simulated_rounds]
    descriptions = [json.loads(path.read_text()) for path in (Path(ended.output["model.json"]), model_json)]
    assert descriptions[0].get("feature_scaling") == descriptions[1].get("feature_scaling")
    assert (descriptions[0].get("feature_scaling") is None) == (scale == "none")
    # each site has encoded its own samples once; the server its own, and none again after it was started anew
    assert [sum(site.ready.data.sizes) for site in broker.sites] == encoded
    assert [passes(site.folder) for site in broker.sites] == encoded
    held = [np.load(tmp_path / "data" / "server" / "digits" / f"{name}.npz")["x"] for name in ("reference", "test")]
    assert passes(tmp_path / "job" / "runner") == sum(map(len, held))
    # what was sent: adapters, and neither texts nor weights of the encoder nor features
    layers = {name.rpartition("/")[2] for arrays in sent for name in arrays}
    assert sent
    assert {layer.split("attention.")[-1] for layer in layers} == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert {tuple(tensor.shape) for arrays in sent for tensor in arrays.values()} == {(24, 24), (24,)}
    adapters = torch.cat([tensor.flatten() for arrays in sent for tensor in arrays.values()])
    weights = np.random.default_rng(0).normal(size=(64, 24)).astype(np.float32)
    assert not np.isin(weights.flatten(), adapters.numpy()).any()


@pytest.mark.slow(part="deploy")
def test_means_are_over_rows_without_labels_too_as_in_the_simulation(
    tmp_path: Path, fork_server: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The method learns from labels alone, and samples without any still count where features are standardised."""
    job(tmp_path)
    table = {**TABLE, "algorithm": "fedavg", "model": {"name": "linear"}}
    table["data"] = {"name": "digits", "clients": 6, "labels": {"at": "clients", "share": 0.3}}
    wanted = resolve({**table, "encode": {"name": str(tmp_path / "code.py:encode"), "scale": "standard"}})
    monkeypatch.chdir(tmp_path)
    run_experiment(wanted, out=tmp_path / "simulated")
    own, server = dealt(wanted, tmp_path / "data", sites=2)
    described = _of_experiment(wanted)
    broker = Broker("", own, server, tmp_path / "job", fork_server=fork_server)
    broker.bundle.write_bytes(write_bundle(Bundle(config=tomli_w.dumps(described.table), files=described.files)))
    try:
        ended = broker.run()
    finally:
        broker.close()
    assert isinstance(ended, JobFinished), ended
    assert same(load_file(ended.output["last.safetensors"]), load_file(tmp_path / "simulated" / "last.safetensors"))


@pytest.mark.slow(part="deploy")
@pytest.mark.parametrize("scale", ["none", "standard"])
def test_a_site_encodes_rows_that_are_learnt_from_and_others_only_for_their_means(
    tmp_path: Path, fork_server: Path, scale: str
) -> None:
    """The first half of every client's rows has no label, and the method learns from labels alone."""
    wanted, described = experiment(tmp_path, scale)
    own, server = dealt(wanted, tmp_path / "data", sites=2)
    rows, labelled = [], []
    for site in own:
        held = [path for path in Path(site["folder"]).glob("*.npz") if path.name != "index.npz"]
        y = [_without_labels(path) for path in held]
        rows.append(sum(map(len, y)))
        labelled.append(sum(int((each >= 0).sum()) for each in y))
    broker = Broker("", own, server, tmp_path / "job", fork_server=fork_server)
    broker.bundle.write_bytes(write_bundle(Bundle(config=tomli_w.dumps(described.table), files=described.files)))
    try:
        ended = broker.run()
    finally:
        broker.close()
    assert isinstance(ended, JobFinished), ended
    assert all(few < many for few, many in zip(labelled, rows, strict=True))
    assert [sum(site.ready.data.sizes) for site in broker.sites] == labelled
    assert [passes(site.folder) for site in broker.sites] == (rows if scale == "standard" else labelled)


def _without_labels(path: Path) -> np.ndarray:
    """The labels of a client's file, whose first half is taken away."""
    held = dict(np.load(path))
    held["y"][: len(held["y"]) // 2] = -1
    np.savez(path, **held)
    return held["y"]


def test_a_jobs_own_encoder_is_custom_code_and_among_its_files(tmp_path: Path) -> None:
    described = describe_job(_with_table(job(tmp_path)))
    assert described.files == {"code.py": CODE.encode()}
    assert described.table["encode"]["name"] == "code.py:encode"
    assert described.table["model"]["text_encoder"] == "code.py:words"
    config = tomli_w.dumps(described.table)
    assert read_bundle(write_bundle(Bundle(config=config, files=described.files))).own_code
    for name in ("/etc/other.py:encode", "../code.py:encode", "other.py"):
        table = {**described.table, "encode": {"name": name}}
        with pytest.raises(ConfigError, match="which is not in its bundle"):
            read_bundle(write_bundle(Bundle(config=tomli_w.dumps(table), files=described.files)))


def test_a_path_for_features_is_not_for_a_job_to_name(tmp_path: Path) -> None:
    described = describe_job(_with_table(job(tmp_path)), sets=["encode.cache=/tmp/elsewhere"])
    assert "cache" not in described.table["encode"]


def test_filters_of_a_site_do_not_describe_what_custom_code_encodes(tmp_path: Path) -> None:
    described = describe_job(_with_table(job(tmp_path)))
    bundle = tmp_path / "bundle"
    bundle.write_bytes(write_bundle(Bundle(config=tomli_w.dumps(described.table), files=described.files)))
    prepare = PrepareJob(
        job="job", folder=str(tmp_path), bundle=str(bundle), data={"folder": "x"}, filters=[{"name": "x"}]
    )
    with pytest.raises(DataError, match="encodes them first"):
        _description(prepare)


@pytest.mark.slow(part="deploy")
def test_an_encoder_that_fails_tells_nothing_of_the_samples(tmp_path: Path, fork_server: Path) -> None:
    wanted, described = experiment(tmp_path)
    code = "def encode(samples):\n    raise ValueError(f'seen {samples.sum()}')\n" + CODE[CODE.index("def words") :]
    files = {"code.py": ("import numpy as np\n" + code).encode()}
    own, server = dealt(wanted, tmp_path / "data", sites=2)
    broker = Broker("", own, server, tmp_path / "job", fork_server=fork_server)
    broker.bundle.write_bytes(write_bundle(Bundle(config=tomli_w.dumps(described.table), files=files)))
    try:
        ended = broker.run()
    finally:
        broker.close()
    assert isinstance(ended, CannotRunJob)
    assert "failed: ValueError" in ended.reason
    assert "seen" not in ended.reason


MOVED = """
import numpy as np


def encode(samples):
    rows = np.asarray(samples).reshape(len(samples), -1)
    return 5000 + 40 * np.stack([row.reshape(8, 8).sum(0) for row in rows])
"""


@pytest.mark.slow(part="deploy")
def test_no_mean_or_deviation_leaves_a_client_and_no_site_changes_what_others_scale_by(
    tmp_path: Path, fork_server: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Features have means of thousands and deviations of hundreds; nothing that sites send is as large."""
    (tmp_path / "code.py").write_text(MOVED)
    table = {
        "name": "moved",
        "algorithm": "fedavg",
        "rounds": 1,
        "data": {"name": "digits", "clients": 4},
        "model": {"name": "linear"},
        "select": {"fraction": 1.0},
        "local": {"name": "sgd", "batch_size": 16, "learning_rate": 0.01},
        "engine": {"execution": "loop"},
    }
    said: dict[str, list[Any]] = {}
    do = SiteStub.do

    def logged(self: SiteStub, dispatch: DispatchTask, blobs: Path) -> list[TaskResult]:
        answers = do(self, dispatch, blobs)
        for each in answers:
            told = to_builtins(each)
            arrays = load_file(told["payload"]) if told["payload"] else {}
            said.setdefault(self.name, []).append(({**told, "payload": None}, arrays))
        return answers

    monkeypatch.setattr(SiteStub, "do", logged)

    def deployed(scale: str, name: str, *, hostile: bool = False) -> tuple[dict[str, Any], dict[str, list[Any]]]:
        said.clear()
        wanted = resolve({**table, "encode": {"name": f"{tmp_path / 'code.py'}:encode", "scale": scale}})
        described = _of_experiment(wanted)
        own, server = dealt(wanted, tmp_path / name / "data", sites=2)
        if hostile:
            for path in Path(own[0]["folder"]).glob("[0-9]*.npz"):
                held = dict(np.load(path))
                np.savez(path, **{**held, "x": 1e3 * held["x"] ** 2})
        broker = Broker("", own, server, tmp_path / name / "job", fork_server=fork_server)
        bundle = Bundle(config=tomli_w.dumps(described.table), files=described.files)
        broker.bundle.write_bytes(write_bundle(bundle))
        try:
            ended = broker.run()
            ready = [to_builtins(site.ready) for site in broker.sites]
        finally:
            broker.close()
        assert isinstance(ended, JobFinished), ended
        told = {site: list(each) for site, each in said.items()}
        told["sites"], told["ready"] = [site.name for site in broker.sites], ready
        return json.loads(Path(ended.output["model.json"]).read_text()), told

    raw, plain = deployed("none", "plain")
    model, honest = deployed("standard", "honest")
    assert raw.get("feature_scaling") is None
    assert max(_numbers(plain)) > 4000  # evidence on data tells of features as they are
    assert min(model["feature_scaling"]["shift"]) > 4000
    assert np.median(model["feature_scaling"]["width"]) > 100
    assert max(_numbers(honest)) < 100
    attacked, hostile = deployed("standard", "hostile", hostile=True)
    assert attacked["feature_scaling"] == model["feature_scaling"]
    first, second = ([[arrays for _, arrays in said[site]] for said in (honest, hostile)] for site in plain["sites"])
    assert not all(map(same, *first))
    assert len(second[0]) == len(second[1]) > 0
    assert all(map(same, *second))  # in the round in which all begin with the same model


def _numbers(said: Any) -> Iterator[float]:
    """Whatever a number is in, its size."""
    if isinstance(said, torch.Tensor):
        yield from said.double().abs().flatten().tolist()
    elif isinstance(said, float):
        yield abs(said)
    elif isinstance(said, dict | list | tuple):
        for each in said.values() if isinstance(said, dict) else said:
            yield from _numbers(each)


def _with_table(path: Path) -> Path:
    path.write_text(tomli_w.dumps(TABLE | tomllib.loads(path.read_text())))
    return path
