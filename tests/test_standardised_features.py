"""`encode.scale = "standard"`: features one by one to mean 0 and deviation 1, by whoever holds them alone."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import winnow
from command_line import call
from winnow.config.resolve import resolve
from winnow.core import ConfigError, DataError, ModelError, RunError
from winnow.data import DataSettings, FederatedData, OnDemand, federate, from_arrays
from winnow.data.hidden_labels import LabelSettings
from winnow.deploy.jobs.encode_party_data import encode_server_data, encode_site_data
from winnow.deploy.jobs.party_data import ServerData, SiteData
from winnow.experiment.build_training_workflow import RunInputs
from winnow.experiment.encode_data import SampleEncoder, encode_federated
from winnow.experiment.run import run_experiment
from winnow.experiment.saved_model import load_model
from winnow.explain.privacy_report import make_privacy_report
from winnow.learn.encoders import EncodeSettings

CODE = """
from pathlib import Path
import numpy as np

def encode(samples):
    with (Path(__file__).parent / "passes").open("a") as file:
        file.write(f"{len(samples)}\\n")
    x = np.asarray(samples)
    return np.concatenate([x**2, x[:, :1] * x[:, 1:2], np.full((len(x), 1), 7.0)], 1)
"""
NESTED = "[" * 900 + "]" * 900


@pytest.fixture
def own(tmp_path: Path) -> str:
    path = tmp_path / "own.py"
    path.write_text(CODE)
    return f"{path}:encode"


def encoded_by_hand(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    return np.concatenate([x**2, x[:, :1] * x[:, 1:2], np.full((len(x), 1), 7.0)], 1)


def by_hand(x: np.ndarray, of: np.ndarray) -> np.ndarray:
    """Σ x/n and √(Σ (x − mean)²/n), column by column; a constant column is 0."""
    mean = of.sum(0) / len(of)
    deviation = (((of - mean) ** 2).sum(0) / len(of)) ** 0.5
    return (x - mean) / np.where(deviation == 0, 1, deviation)


def styles(rows: int = 400) -> winnow.data.DataSet:
    """Two classes; the second of four owners has everything moved and stretched."""
    rng = np.random.default_rng(5)
    labels, owners = rng.integers(0, 2, rows), np.arange(rows) % 4
    x = rng.normal(0, 1, (rows, 3)) + np.where(labels[:, None] == 1, 2.5, 1.0)
    x = np.where(owners[:, None] == 1, 3 * x + 4, x).astype(np.float32)
    data = from_arrays(x, labels, name="styles", scale="none")
    return winnow.data.DataSet(
        name="styles",
        x=data.x,
        y=data.y,
        classes=2,
        owners=owners,
        owner_names=("a", "moved", "b", "c"),
        preprocessing=data.preprocessing,
    )


def data_settings(**changed) -> DataSettings:
    return DataSettings(
        **{"clients": 0, "partition": {"name": "natural"}, "reference": 60, "test": 40, "local_test": 0.2} | changed
    )


def encoder(own: str, federated: FederatedData, scale: str = "standard") -> SampleEncoder:
    return SampleEncoder(EncodeSettings(name=own, scale=scale), federated.preprocessing, torch.device("cpu"))


def experiment(own: str, *sets: str, algorithm: str = "fedavg", **data):
    table = {
        "name": "standardised",
        "rounds": 6,
        "data": {"clients": 0, "partition": {"name": "natural"}, "test_owners": ["b"], "reference": 60, "test": 20}
        | data,
        "encode": {"name": own, "scale": "standard"},
        "model": {"name": "linear"},
        "select": {"fraction": 1.0},
        "local": {"name": "sgd", "batch_size": 8, "learning_rate": 0.1},
        "quality": {"evidence": []},
    }
    return resolve(table, sets=sets, algorithm=algorithm)


def run(wanted, out: Path | None = None):
    return run_experiment(wanted, inputs=RunInputs(dataset=styles()), out=out)


def test_each_client_s_features_are_scaled_by_its_own_samples_for_training(own: str) -> None:
    spread = federate(styles(), data_settings(), seed=3)
    encoded = encode_federated(spread, encoder(own, spread))
    assert spread.local_test is not None
    assert encoded.local_test is not None
    for client in range(4):
        raw = encoded_by_hand(spread.clients.client(client).x)
        held_out = encoded_by_hand(spread.local_test.client(client).x)
        assert np.allclose(encoded.clients.client(client).x, by_hand(raw, raw), atol=1e-4)
        assert np.allclose(encoded.local_test.client(client).x, by_hand(held_out, raw), atol=1e-4)
        assert encoded.clients.client(client).y.tolist() == spread.clients.client(client).y.tolist()


def test_the_server_scales_by_its_reference_set_and_takes_nothing_from_the_test_set(own: str) -> None:
    wanted = data_settings(labels=LabelSettings(at="server", rows=40), open=30, local_test=0)
    spread = federate(styles(), wanted, seed=3)
    encoded = encode_federated(spread, encoder(own, spread))
    reference, test = encoded_by_hand(spread.reference.x), encoded_by_hand(spread.test.x)
    assert np.allclose(encoded.reference.x, by_hand(reference, reference), atol=1e-4)
    assert np.allclose(encoded.test.x, by_hand(test, reference), atol=1e-4)
    assert spread.server_labelled is not None
    assert encoded.server_labelled is not None
    labelled, shown = encoded_by_hand(spread.server_labelled.x), encoded_by_hand(spread.open)
    assert np.allclose(encoded.server_labelled.x, by_hand(labelled, labelled), atol=1e-4)
    assert np.allclose(encoded.open, by_hand(shown, shown), atol=1e-4)


def test_nothing_of_one_party_and_no_label_changes_what_another_has(own: str) -> None:
    spread = federate(styles(), data_settings(), seed=3)
    before = encode_federated(spread, encoder(own, spread))
    again = federate(styles(), data_settings(), seed=3)
    again.clients.x[again.clients.rows_of(2)] *= -5
    again.test.x[:] += 9
    again.clients.y[:] = 1 - again.clients.y
    after = encode_federated(again, encoder(own, again))
    for client in (0, 1, 3):
        assert np.array_equal(before.clients.client(client).x, after.clients.client(client).x)
    assert np.array_equal(before.reference.x, after.reference.x)
    assert not np.array_equal(before.test.x, after.test.x)


def test_sites_and_server_have_the_features_of_the_simulation(own: str, tmp_path: Path) -> None:
    wanted = experiment(own)
    spread = federate(styles(), data_settings(open=30), seed=3)
    simulated = encode_federated(spread, encoder(own, spread))
    site = SiteData(
        clients=spread.clients,
        local_test=spread.local_test,
        tokens=False,
        preprocessing=spread.preprocessing,
        open=spread.open,
    )
    server = ServerData(
        reference=spread.reference,
        test=spread.test,
        labelled=None,
        open=spread.open,
        preprocessing=spread.preprocessing,
    )
    site = encode_site_data(wanted, site, tmp_path / "site", print)
    server = encode_server_data(wanted, server, tmp_path / "server", print)
    for client in range(4):
        assert np.array_equal(site.clients.client(client).x, simulated.clients.client(client).x)
        assert np.array_equal(site.local_test.client(client).x, simulated.local_test.client(client).x)
    assert np.array_equal(site.open, simulated.open)
    for name in ("reference", "test"):
        assert np.array_equal(getattr(server, name).x, getattr(simulated, name).x)
    assert np.array_equal(server.open, simulated.open)
    assert server.feature_scaling == simulated.feature_scaling


def test_clients_that_are_loaded_on_demand_are_scaled_when_they_are(own: str) -> None:
    rng = np.random.default_rng(0)
    rows = [rng.normal(client, 1 + client, (5, 3)).astype(np.float32) for client in range(3)]
    held = OnDemand(
        clients=3,
        sizes=5,
        load=lambda client: (rows[client], np.zeros(5, np.int64)),
        classes=2,
        reference=(rows[0], np.zeros(5, np.int64)),
        name="few",
    ).to_federated(reference_at_clients=False)
    encoded = encode_federated(held, encoder(own, held))
    for client in range(3):
        raw = encoded_by_hand(rows[client])
        assert np.allclose(encoded.clients.load(client).x, by_hand(raw, raw), atol=1e-4)


def test_features_are_kept_as_the_encoder_gives_them(own: str, tmp_path: Path) -> None:
    for scale in ("standard", "none"):
        run(experiment(own, f"encode.cache={tmp_path / 'shared'}", f"encode.scale={scale}"))
    assert sum(map(int, (tmp_path / "passes").read_text().split())) == 400


def test_an_owner_whose_features_are_moved_is_understood(own: str) -> None:
    """The labels of three owners, and samples of the fourth to score."""
    scores = {}
    for scale in ("none", "standard"):
        moved = {"test_owners": ["moved"], "labels": {"at": "some", "without": ["moved"]}}
        wanted = experiment(own, f"encode.scale={scale}", **moved)
        scores[scale] = run(wanted).history[-1]["reference.accuracy"]
    assert scores["standard"] > scores["none"] + 0.15
    assert scores["standard"] > 0.8


def test_a_saved_model_takes_raw_rows_and_scores_them_as_the_run_did(own: str, tmp_path: Path) -> None:
    wanted = experiment(own)
    result = run(wanted, tmp_path / "run")
    reference = federate(styles(), wanted.data, wanted.seed).reference
    saved = load_model(tmp_path / "run", encoder=own)
    for model in (result, saved):
        assert (model.predict(reference.x) == reference.y).mean() == pytest.approx(result.summary.best.value)
    raw = encoded_by_hand(reference.x)
    weight, bias = (tensor.detach().double().numpy() for tensor in saved.model.parameters())
    outputs = by_hand(raw, raw) @ weight.T + bias
    shares = np.exp(outputs) / np.exp(outputs).sum(1, keepdims=True)
    assert np.allclose(saved.predict_proba(reference.x), shares, atol=1e-4)
    # one row alone is scaled by the same numbers
    assert saved.predict_proba(reference.x[:1])[0] == pytest.approx(shares[0], abs=1e-4)


def test_an_encoder_of_another_width_is_told_in_one_line(own: str, tmp_path: Path) -> None:
    run(experiment(own), tmp_path / "run")
    (tmp_path / "other.py").write_text("def encode(samples):\n    return samples[:, :2]\n")
    saved = load_model(tmp_path / "run", encoder=f"{tmp_path / 'other.py'}:encode")
    with pytest.raises(DataError, match=r"samples have shape \(2,\); the model was trained on \(5,\)"):
        saved.predict(styles().x[:3])


def test_an_encoder_whose_width_depends_on_the_batch_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("import numpy as np\ndef encode(x):\n    return np.ones((len(x), len(x)))\n")
    with pytest.raises(ModelError, match=r"for all samples, in any batch: it returned 128, and then \d+$") as caught:
        run(experiment(f"{tmp_path / 'other.py'}:encode"), tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_the_command_line_takes_an_encoder_of_one_s_own(
    own: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(experiment(own), tmp_path / "run")
    x = styles().x[:4]
    np.savez(tmp_path / "rows.npz", x=x)
    expected = load_model(tmp_path / "run", encoder=own).predict(x)
    done = call(capsys, "predict", tmp_path / "run", tmp_path / "rows.npz", "--encoder", own)
    assert done.out.split() == ["prediction", *map(str, expected)]
    assert "(--encoder)" in call(capsys, "predict", tmp_path / "run", tmp_path / "rows.npz").err
    # an export has no encoder, and a check compares rows as they are: both say so
    done = call(capsys, "export", tmp_path / "run", "--onnx", tmp_path / "model.onnx", "--encoder", own)
    assert "which no exported file can hold" in done.err
    np.savez(tmp_path / "mine.npz", x=x, y=np.arange(4) % 2)
    done = call(capsys, "check", tmp_path / "run", tmp_path / "mine.npz")
    assert "this model takes an encoder's features" in done.err
    assert call(capsys, "export", tmp_path / "run", "--folder", tmp_path / "copy", "--encoder", own).code == 0
    assert np.array_equal(load_model(tmp_path / "copy", encoder=own).predict(x), expected)


def test_an_owner_can_use_the_model_by_its_own_numbers(own: str, tmp_path: Path) -> None:
    result = run(experiment(own), tmp_path / "run")
    saved = load_model(tmp_path / "run", encoder=own)
    rng = np.random.default_rng(11)
    labels = rng.integers(0, 2, 300)
    x = 3 * (rng.normal(0, 1, (300, 3)) + np.where(labels[:, None] == 1, 2.5, 1.0)) + 4
    x = x.astype(np.float32)
    theirs = saved.standardised_by(x)
    raw = encoded_by_hand(x)
    weight, bias = (tensor.detach().double().numpy() for tensor in saved.model.parameters())
    expected = (by_hand(raw, raw) @ weight.T + bias).argmax(1)
    assert (theirs.predict(x) == expected).mean() > 0.99
    assert (theirs.predict(x) == labels).mean() > (saved.predict(x) == labels).mean() + 0.1
    theirs.save(tmp_path / "theirs")
    again = load_model(tmp_path / "theirs", encoder=own)
    assert np.array_equal(again.predict_proba(x), theirs.predict_proba(x))
    assert result.summary.rounds == 6
    with pytest.raises(DataError, match=r"the owner has 1 sample.*; pass more rows"):
        saved.standardised_by(x[:1])
    assert saved.predict(x[:0]).shape == theirs.predict(x[:0]).shape == (0,)
    with pytest.raises(ModelError, match=r"takes these features, standardised by model\.feature_scaling"):
        saved.export_torchscript(tmp_path / "model.pt")
    plain = run(experiment(own, "encode.scale=none"), tmp_path / "plain")
    assert plain.summary.rounds == 6
    with pytest.raises(ModelError, match="takes no standardised features"):
        load_model(tmp_path / "plain", encoder=own).standardised_by(x)


def test_without_a_reference_set_the_model_asks_for_the_owner_s_rows(own: str, tmp_path: Path) -> None:
    wanted = experiment(own, "reference_clients=[0]", test=0, test_owners=[])
    run(wanted, tmp_path / "run")
    saved = load_model(tmp_path / "run", encoder=own)
    x = styles().x[:50]
    with pytest.raises(ModelError, match=r"model\.standardised_by\(rows\)"):
        saved.predict(x)
    assert len(saved.standardised_by(x).predict(x)) == 50


@pytest.mark.parametrize(
    "numbers",
    [
        {"shift": [0.0] * 4, "width": [1.0] * 4},
        {"shift": [0.0] * 5, "width": [1.0] * 4},
        {"shift": [0.0] * 5, "width": [1.0] * 4 + [0.0]},
        {"shift": [0.0] * 5, "width": [1.0] * 4 + [-1.0]},
        {"shift": [0.0] * 4 + ["x"], "width": [1.0] * 5},
        {"shift": [0.0] * 5, "width": [1.0] * 5, "more": 1},
        {"shift": [0.0] * 4 + [1e39], "width": [1.0] * 5},
        {"shift": [0.0] * 5, "width": [1.0] * 4 + [1e39]},
        {"shift": [0.0] * 5, "width": [1.0] * 4 + [1e-320]},
        {"shift": "nested", "width": [1.0] * 5},
        {},
    ],
)
def test_a_stranger_s_numbers_are_checked(own: str, tmp_path: Path, numbers: dict) -> None:
    run(experiment(own), tmp_path / "run")
    path = tmp_path / "run" / "model.json"
    text = json.dumps({**json.loads(path.read_text()), "feature_scaling": numbers})
    path.write_text(text.replace('"nested"', NESTED))
    with pytest.raises(RunError, match=r"model\.json is damaged") as caught:
        load_model(tmp_path / "run", encoder=own)
    assert "\n" not in str(caught.value)


def test_a_stranger_s_numbers_are_refused_where_nothing_is_standardised(own: str, tmp_path: Path) -> None:
    run(experiment(own), tmp_path / "run")
    path = tmp_path / "run" / "model.json"
    said = json.loads(path.read_text())
    path.write_text(json.dumps({**said, "encode": {**said["encode"], "scale": "none"}}))
    with pytest.raises(RunError, match="takes none that are standardised"):
        load_model(tmp_path / "run", encoder=own)


@pytest.mark.parametrize(("section", "key"), [("encode", "align"), ("encode", "more"), ("model", "name")])
def test_a_stranger_s_settings_in_one_another_are_told_in_one_line(
    own: str, tmp_path: Path, section: str, key: str
) -> None:
    run(experiment(own), tmp_path / "run")
    path = tmp_path / "run" / "model.json"
    said = json.loads(path.read_text())
    path.write_text(json.dumps({**said, section: {**said[section], key: "nested"}}).replace('"nested"', NESTED))
    with pytest.raises(RunError, match=r"model\.json") as caught:
        load_model(tmp_path / "run", encoder=own)
    assert "\n" not in str(caught.value)


def test_a_client_with_one_sample_is_told_in_one_line(own: str) -> None:
    data = styles(8)
    spread = federate(data, data_settings(reference=2, test=2, local_test=0), seed=0)
    assert 1 in spread.clients.sizes
    with pytest.raises(
        DataError, match=r"(a|moved|b|c) has 1 sample, and encode\.scale = 'standard' takes means"
    ) as caught:
        encode_federated(spread, encoder(own, spread))
    assert "\n" not in str(caught.value)
    x, y = np.zeros((1, 3), np.float32), np.zeros(1, np.int64)
    held = OnDemand(clients=2, sizes=[1, 1], load=lambda client: (x, y), classes=2, reference=(x, y), name="one")
    federated = held.to_federated(reference_at_clients=False)
    with pytest.raises(DataError, match="client 0 has 1 sample"):
        encode_federated(federated, encoder(own, federated))


def test_what_does_not_go_together_is_told_in_one_line(own: str) -> None:
    with pytest.raises(ConfigError, match=r"encode\.scale"):
        experiment(own, "encode.scale=minmax")
    private = ("client={name='dp-sgd', clip=1.0, noise_multiplier=1.0}",)
    assert experiment(own, *private, "encode.scale=none")
    with pytest.raises(ConfigError, match="changes the features of all others of its client") as caught:
        experiment(own, *private)
    assert "\n" not in str(caught.value)


def test_explain_says_who_computes_the_numbers_and_who_gets_them(own: str) -> None:
    told, plain = make_privacy_report(experiment(own)), make_privacy_report(experiment(own, "encode.scale=none"))
    assert any("by means and deviations of its own, which stay there" in part for part in told.parts)
    assert not any("deviations" in part for part in plain.parts)
    [learnt] = {line for party in told.parties for line in party.learns} - {
        line for party in plain.parties for line in party.learns
    }
    assert learnt.startswith("means and deviations of the reference set's features")
    for test, told_of in ((20, "the test set's features"), (0, None)):
        at_clients = make_privacy_report(experiment(own, "reference_clients=[0]", test=test, test_owners=[]))
        said = [line for party in at_clients.parties for line in party.learns if "means and deviations of" in line]
        assert [told_of in line for line in said] == ([] if told_of is None else [True])
