"""The named models, and the user's own."""

from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from winnow.core import ModelError, Settings
from winnow.learn.local_optimiser import Adam, LocalOptimiser, Sgd
from winnow.learn.models import (
    CnnModel,
    LeNet5Model,
    LinearModel,
    LstmModel,
    MlpModel,
    ModelSettings,
    PythonModel,
    ResNet18Model,
    ShuffleNetV2Model,
    build_model,
)
from winnow.learn.stack import model_state


@pytest.mark.parametrize(
    ("settings", "shape", "parameters"),
    [
        (LinearModel(), (9,), 9 * 2 + 2),
        (MlpModel(), (9,), 9 * 64 + 64 + 64 * 32 + 32 + 32 * 2 + 2),
        (MlpModel(hidden=(4,), activation="tanh"), (2, 3), 6 * 4 + 4 + 4 * 2 + 2),
        (CnnModel(), (1, 8, 8), (9 * 8 + 8) + (9 * 8 * 16 + 16) + (16 * 4 * 32 + 32) + (32 * 2 + 2)),
        (
            LeNet5Model(),
            (1, 28, 28),
            (25 * 6 + 6) + (25 * 6 * 16 + 16) + (400 * 120 + 120) + (120 * 84 + 84) + (84 * 2 + 2),
        ),
        (
            LeNet5Model(channels=(64, 64), hidden=(120, 64)),
            (3, 32, 32),
            (75 * 64 + 64) + (25 * 64 * 64 + 64) + (1600 * 120 + 120) + (120 * 64 + 64) + (64 * 2 + 2),
        ),
        (
            LeNet5Model(),
            (3, 32, 32),
            (75 * 6 + 6) + (25 * 6 * 16 + 16) + (400 * 120 + 120) + (120 * 84 + 84) + (84 * 2 + 2),
        ),
        (
            LeNet5Model(),
            (1, 8, 8),
            (25 * 6 + 6) + (25 * 6 * 16 + 16) + (64 * 120 + 120) + (120 * 84 + 84) + (84 * 2 + 2),
        ),
        (ResNet18Model(), (3, 8, 8), 11_173_962 - (512 * 10 + 10) + (512 * 2 + 2)),
        (ShuffleNetV2Model(), (3, 8, 8), 2_278_604 - (1024 * 1000 + 1000) + (1024 * 2 + 2)),
        (ShuffleNetV2Model(width=0.5), (3, 8, 8), 1_366_792 - (1024 * 1000 + 1000) + (1024 * 2 + 2)),
        (LstmModel(hidden=4, layers=2), (5, 3), 4 * 4 * (3 + 4 + 2) + 4 * 4 * (4 + 4 + 2) + 4 * 2 + 2),
    ],
)
def test_models_have_the_published_number_of_parameters(
    settings: ModelSettings, shape: tuple[int, ...], parameters: int
) -> None:
    model = build_model(settings, shape, 2, seed=0)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert model.eval()(torch.randn(3, *shape)).shape == (3, 2)


def test_the_seed_alone_decides_the_parameters() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first, again, other = (model_state(build_model(MlpModel(), (9,), 2, seed)) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["1.weight"], other["1.weight"])


def test_shufflenets_stem_is_24_wide_at_full_resolution() -> None:
    model = build_model(ShuffleNetV2Model(), (3, 32, 32), 10, 0)
    assert model.stem(torch.randn(1, 3, 32, 32)).shape == (1, 24, 32, 32)


def test_token_models_take_identifiers() -> None:
    model = build_model(LstmModel(hidden=4, vocabulary=11), (7,), 3, 0)
    assert model(torch.randint(0, 11, (5, 7))).shape == (5, 3)


@pytest.mark.parametrize(
    ("settings", "shape", "message"),
    [
        (LeNet5Model(), (9,), "model 'lenet5' needs images [channels, height, width] of at least 8 × 8"),
        (CnnModel(), (1, 2, 2), "of at least 4 × 4; the samples have shape (1, 2, 2)"),
        (LstmModel(), (9,), "needs samples of shape [time, features]"),
        (LstmModel(vocabulary=5), (9, 2), "needs samples of shape [time] (token identifiers)"),
    ],
)
def test_samples_that_do_not_fit_are_refused_in_one_line(
    settings: ModelSettings, shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ModelError) as caught:
        build_model(settings, shape, 2, 0)
    assert message in str(caught.value)


def test_the_users_own_file_makes_a_model(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from torch import nn\n\ndef make(shape, outputs):\n    return nn.Linear(shape[0], outputs)\n")
    assert build_model(PythonModel(factory=f"{file}:make"), (4,), 2, 0)(torch.ones(3, 4)).shape == (3, 2)


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("class Net(nn.Identity):\n    def __init__(self, hidden=7): super().__init__()", 4),
        ("class Net(nn.Linear):\n    def __init__(self, shape, outputs): super().__init__(shape[0], outputs)", 2),
        ("def make(shape, outputs): return nn.Linear(shape[0], outputs)\ndef _help(): pass", 2),
        ("def make(): return nn.Linear(4, 5)", 5),
    ],
)
def test_a_file_with_one_model_needs_no_name(tmp_path: Path, text: str, shape: int) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"from torch import nn\nfrom pathlib import Path\n{text}\n")
    assert build_model(PythonModel(factory=str(file)), (4,), 2, 0)(torch.ones(3, 4)).shape == (3, shape)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class A(nn.Module): pass\nclass B(nn.Module): pass", "has A and B; say which is the model: "),
        ("x = 3", "has no function and no class of models"),
    ],
)
def test_a_file_with_none_or_several_says_what_to_write(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"from torch import nn\n{text}\n")
    with pytest.raises(ModelError, match=message):
        build_model(PythonModel(factory=str(file)), (4,), 2, 0)


@pytest.mark.parametrize(
    ("text", "function", "message"),
    [
        (None, "make", "does not exist"),
        ("make = 3", "make", "has no function 'make'"),
        ("import no_such_module", "make", "cannot be run: ModuleNotFoundError"),
        ("def make(", "make", "cannot be run: SyntaxError"),
        ("def make(shape, outputs)", "make", "cannot be run: SyntaxError, line 1: expected ':'"),
        ("def make(shape, outputs): return 3", "make", "returned int; it must return a torch.nn.Module"),
        ("def make(shape, outputs): return shape[7]", "make", "IndexError"),
    ],
)
def test_mistakes_in_the_users_file_are_one_line(tmp_path: Path, text: str | None, function: str, message: str) -> None:
    file = tmp_path / "mine.py"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ModelError) as caught:
        build_model(PythonModel(factory=f"{file}:{function}"), (4,), 2, 0)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


class Sections(Settings):
    model: ModelSettings = MlpModel()
    local: LocalOptimiser = Sgd()


def test_sections_choose_by_name() -> None:
    chosen = Sections.model_validate(
        {"model": {"name": "mlp", "hidden": [3], "activation": "tanh"}, "local": {"name": "adam", "steps": 5}}
    )
    assert chosen == Sections(model=MlpModel(hidden=(3,), activation="tanh"), local=Adam(steps=5))
    assert (chosen.local.epochs, chosen.local.steps) == (None, 5)
    assert Sections().local.epochs == 1
    assert Sections.model_validate(chosen.model_dump()) == chosen


@pytest.mark.parametrize(
    ("section", "settings", "message"),
    [
        ("local", {"name": "sgd", "epochs": 1, "steps": 2}, "set epochs or steps, not both"),
        ("local", {"name": "sgd", "nesterov": True}, "nesterov needs a momentum above 0"),
        ("local", {"name": "sgd", "learning_rate": 0}, "greater than 0"),
        ("local", {"name": "adam", "momentum": 0.9}, "Extra inputs are not permitted"),
        ("model", {"name": "shufflenet-v2", "width": 0.7}, "choose one of 0.5, 1.0"),
        ("model", {"name": "python", "factory": "mine"}, "should match pattern"),
        ("model", {"name": "mlp", "hidden": []}, "at least 1 item"),
        ("model", {"name": "mlp", "hidden": [8, 0]}, "greater than or equal to 1"),
        ("model", {"name": "mlp", "hidden": [-5]}, "greater than or equal to 1"),
        ("model", {"name": "mlp", "hidden": [10**9]}, "less than or equal to 65536"),
        ("model", {"name": "cnn", "channels": [0, 16]}, "greater than or equal to 1"),
        ("model", {"name": "cnn", "hidden": 0}, "greater than or equal to 1"),
        ("model", {"name": "lstm", "hidden": -1}, "greater than or equal to 1"),
    ],
)
def test_impossible_settings_are_refused(section: str, settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Sections.model_validate({section: settings})
