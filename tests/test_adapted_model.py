"""Models with several inputs, outputs in a dict, one logit, and a class at every position of a sequence."""

from collections import namedtuple
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import winnow
from winnow.core import ModelError
from winnow.data.preprocessing import InputSpec
from winnow.learn.adapted_model import AdaptedModel, adapt_model, own_module
from winnow.learn.stack import as_loss

SMALL: dict[str, Any] = {"clients": 4, "rounds": 3, "reference": 40, "test": 40, "progress": False}
SPECS = (InputSpec(name="numbers", shape=(3,)), InputSpec(name="words", shape=(2, 2), kind="token"))


class TwoInputs(nn.Module):
    """Numbers and words; root parameters and dropout, so that names and modes matter."""

    def __init__(self, form: str = "tensor") -> None:
        super().__init__()
        self.form = form
        self.words = nn.Embedding(20, 4)
        self.body = nn.Linear(7, 16)
        self.head = nn.Linear(16, 2)
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, numbers: torch.Tensor, words: torch.Tensor) -> Any:
        assert words.dtype == torch.int64
        hidden = torch.tanh(self.body(torch.cat([numbers, self.words(words.flatten(1)).mean(1)], 1)))
        logits = self.head(hidden) * self.scale
        return FORMS[self.form](hidden, logits)


@dataclass
class Answer:
    hidden: torch.Tensor
    logits: torch.Tensor


Named = namedtuple("Named", ["hidden", "logits"])
FORMS = {
    "tensor": lambda hidden, logits: logits,
    "dict": lambda hidden, logits: {"hidden": hidden, "logits": logits, "loss": logits.mean(), "none": None},
    "dataclass": Answer,
    "namedtuple": Named,
    "only": lambda hidden, logits: {"score": logits, "regulariser": hidden.mean()},
}


def network(form: str = "tensor") -> TwoInputs:
    with torch.random.fork_rng([]):
        torch.manual_seed(2)
        return TwoInputs(form)


def samples(rows: int = 240) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    numbers, words = rng.normal(size=(rows, 3)).astype(np.float32), rng.integers(0, 20, (rows, 2, 2))
    return numbers, words, (numbers.sum(1) + (words.mean((1, 2)) - 9.5) / 3 > 0).astype(np.int64)


def packed(rows: int = 6) -> torch.Tensor:
    numbers, words, _ = samples(rows)
    return torch.from_numpy(np.concatenate([numbers, words.reshape(rows, -1).astype(np.float32)], axis=1))


# The adapter ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_it_computes_what_the_module_does_under_the_modules_own_names(form: str) -> None:
    module, x = network(form), packed()
    model = adapt_model(module, SPECS, None, x)
    numbers, words, _ = samples(6)
    expected = network()(torch.from_numpy(numbers), torch.from_numpy(words))
    assert torch.equal(model(x), expected)
    assert list(model.state_dict()) == list(module.state_dict())
    assert [name for name, _ in model.named_modules() if name] == ["words", "body", "head"]
    assert own_module(model) is module


def test_a_copy_is_independent_and_modes_reach_the_module() -> None:
    model = adapt_model(network(), SPECS, None, packed())
    copied = deepcopy(model)
    copied.load_state_dict({name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()})
    assert not own_module(copied).scale.any()
    assert own_module(model).scale.all()
    assert not own_module(copied.eval()).training
    assert own_module(copied.train()).body.training
    assert next(own_module(copied.double()).parameters()).dtype == torch.float64


def test_inputs_without_names_are_passed_by_position() -> None:
    specs = tuple(spec.model_copy(update={"name": None}) for spec in SPECS)
    x = packed()
    assert torch.equal(adapt_model(network(), specs, None, x)(x), adapt_model(network(), SPECS, None, x)(x))


@pytest.mark.parametrize(
    ("form", "output", "message"),
    [
        ("tensor", "logits", "model.output = 'logits', but the model returns a single tensor; omit it"),
        (
            "dict",
            "loss",
            "model.output = 'loss' is not an output with one row per sample; the model returns: \"hidden\"",
        ),
        (
            "pair",
            None,
            'which output of the model is its prediction? One row per sample have: "0", "1"; set output="0"',
        ),
        ("text", None, "the model returned str; it must return a tensor, or tensors in a dict"),
    ],
)
def test_what_cannot_be_told_is_asked_in_one_line(
    form: str, output: str | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FORMS, "pair", lambda hidden, logits: (hidden, logits))
    monkeypatch.setitem(FORMS, "text", lambda hidden, logits: "logits")
    with pytest.raises(ModelError) as caught:
        adapt_model(network(form), SPECS, output, packed())
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_position_or_a_name_chooses_an_output() -> None:
    module = nn.Identity()
    module.forward = lambda x: (x + 1, x + 2)  # type: ignore[method-assign]
    x = torch.ones(3, 2)
    model = adapt_model(module, (), "1", x)
    assert isinstance(model, AdaptedModel)
    assert torch.equal(model(x), x + 2)


# Through winnow.run ---------------------------------------------------------------------------------------------------


def run(**settings: Any) -> Any:
    numbers, words, y = samples()
    data = ({"numbers": numbers, "words": words}, y)
    return winnow.run(**{"model": network(), "data": data, **SMALL, **settings})


def same(one: nn.Module, other: nn.Module) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_two_inputs_learn_and_the_result_has_the_users_own_class() -> None:
    result = run(rounds=8)
    assert result.best > 0.85
    assert type(result.model) is TwoInputs
    assert type(result.personal(0)) is TwoInputs
    numbers, words, y = samples()
    x = torch.from_numpy(result.preprocessing.transform({"numbers": numbers, "words": words}))
    model = adapt_model(result.model, result.preprocessing.inputs, None, x[:4])
    with torch.no_grad():
        assert (model(x).argmax(1).numpy() == y).mean() > 0.85


@pytest.mark.parametrize("form", ["dict", "dataclass", "namedtuple", "only"])
def test_the_form_of_the_output_changes_nothing(form: str) -> None:
    loop = {"execution": "loop"}
    assert same(run(model=network(form), engine=loop).model, run(engine=loop).model)


def test_inputs_by_position_and_by_name_are_the_same_run() -> None:
    numbers, words, y = samples()
    loop = {"execution": "loop"}
    assert same(run(data=((numbers, words), y), engine=loop).model, run(engine=loop).model)


@pytest.mark.parametrize("execution", ["vmap", "auto"])
def test_other_executions_agree_with_the_loop(execution: str) -> None:
    found, loop = (run(engine={"execution": each}).model.state_dict() for each in (execution, "loop"))
    for name, tensor in loop.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("algorithm", ["fedprof", "scaffold", "fedper"])
def test_a_step_gets_what_the_model_takes(algorithm: str) -> None:
    def named(model: nn.Module, batch: Any) -> torch.Tensor:
        assert type(model) is TwoInputs
        assert batch.x["words"].shape[1:] == (2, 2)
        return functional.cross_entropy(model(**batch.x)["logits"], batch.y)

    def placed(model: nn.Module, batch: Any) -> torch.Tensor:
        return functional.cross_entropy(model(*batch.x)["logits"], batch.y)

    numbers, words, y = samples()
    loop = run(model=network("dict"), engine={"execution": "loop"}, algorithm=algorithm)
    assert same(run(model=network("dict"), step=named, algorithm=algorithm).model, loop.model)
    by_place = run(model=network("dict"), step=placed, data=((numbers, words), y), algorithm=algorithm)
    assert same(by_place.model, loop.model)


def test_a_layer_is_profiled_under_its_own_name() -> None:
    assert run(select={"layer": "head"}).plan.layer == "head"
    assert run().plan.layer == "body"


def test_dp_sgd_trains_a_model_with_two_inputs() -> None:
    private = run(model=network("dict"), algorithm="fedavg", client={"name": "dp-sgd", "noise_multiplier": 0.5})
    assert private.summary.rounds == 3


def test_a_run_with_two_inputs_continues(tmp_path: Path) -> None:
    whole = run(model=network("dict"), rounds=4)
    run(model=network("dict"), rounds=2, out=tmp_path / "run")
    resumed = run(model=network("dict"), rounds=4, out=tmp_path / "run", resume=True)
    assert same(resumed.model, whole.model)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"output": "logits"}, "model.output = 'logits', but the model returns a single tensor"),
        ({"model": nn.Linear(7, 2)}, r"does not accept inputs of the shapes numbers \[3\] \(numbers\), words \[2, 2\]"),
    ],
)
def test_a_model_that_does_not_fit_is_explained_in_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(winnow.WinnowError, match=message):
        run(**settings)


class Tagger(nn.Module):
    """A small transformer that gives every word a class, in a dict like those of Hugging Face."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
        self.head = nn.Linear(16, 4)

    def forward(self, words: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.layer(self.words(words))
        return {"hidden": hidden, "logits": self.head(hidden)}


def tagged(rows: int = 240) -> tuple[np.ndarray, np.ndarray]:
    words = np.random.default_rng(0).integers(0, 20, (rows, 6))
    tags = words % 4
    tags[:, -1] = -100
    return words, tags


def test_a_transformer_with_a_dict_of_outputs_tags_sequences() -> None:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = Tagger()
    settings = SMALL | {"data": tagged(), "tokens": True, "local": {"name": "adam", "learning_rate": 0.01}}
    result = winnow.run(model=model, **settings | {"rounds": 6})
    assert type(result.model) is Tagger
    assert result.best > 0.95
    assert result.classes == tuple(range(len(result.confusion)))
    with pytest.raises(winnow.WinnowError, match="sequences as targets need outputs"):
        winnow.run(model={"name": "lstm", "vocabulary": 20}, **settings)


# Losses ---------------------------------------------------------------------------------------------------------------


def test_the_loss_of_a_sequence_is_the_mean_over_its_positions_but_the_ignored_ones() -> None:
    outputs, targets = torch.randn(3, 5, 4), torch.randint(0, 4, (3, 5))
    targets[0, 2:], targets[2] = -100, -100
    first = -torch.log_softmax(outputs[0, :2], 1)[torch.arange(2), targets[0, :2]].mean()
    second = -torch.log_softmax(outputs[1], 1)[torch.arange(5), targets[1]].mean()
    torch.testing.assert_close(
        as_loss("cross-entropy")(outputs, targets), torch.stack([first, second, torch.zeros(())])
    )
    logs = torch.log_softmax(outputs, -1)
    torch.testing.assert_close(as_loss("nll")(logs, targets), as_loss("cross-entropy")(outputs, targets))


def test_one_logit_is_the_cross_entropy_of_two() -> None:
    logit, y = torch.randn(6, 1), torch.tensor([0, 1, 1, 0, 1, 0])
    two = torch.cat([torch.zeros(6, 1), logit], 1)
    torch.testing.assert_close(as_loss("bce")(logit, y), functional.cross_entropy(two, y, reduction="none"))


def arrays() -> tuple[np.ndarray, np.ndarray]:
    numbers, _, _ = samples()
    return numbers, (numbers.sum(1) > 0).astype(np.int64)


def test_a_model_with_one_logit_learns_two_classes_by_itself(tmp_path: Path) -> None:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    settings = SMALL | {"rounds": 10, "data": arrays(), "model": model}
    alone, named = winnow.run(**settings), winnow.run(**settings, loss="bce")
    assert same(alone.model, named.model)
    assert alone.best > 0.9
    assert winnow.run(**settings | {"model": "mlp"}, loss="bce").model[-1].out_features == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": "bce", "classes": 3}, "loss: 'bce' is for two classes, but the data has 3"),
        ({"loss": "bce", "task": "regression"}, "loss: 'bce' cannot be used for regression"),
    ],
)
def test_one_logit_for_anything_else_is_refused(settings: dict[str, Any], message: str) -> None:
    x, y = arrays()
    classes = settings.pop("classes", None)
    y = y if classes is None else np.arange(len(y)) % classes
    with pytest.raises(winnow.WinnowError, match=message):
        winnow.run(**SMALL, model="mlp", data=(x, y), **settings)
