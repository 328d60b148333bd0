"""Compiled training: results of a plain loop, whatever the number of threads; and no harm where it is missing."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from cohort_training import train
from test_stack_training import CLASSES, MODELS, MOMENTUM, assert_same_as_plain, make_data
from winnow.core import ModelError
from winnow.learn.local_optimiser import Adam, LocalOptimiser, Sgd
from winnow.learn.metrics import METRICS
from winnow.learn.model_evaluator import ModelEvaluator
from winnow.learn.stack import (
    LOSSES,
    CohortTrainingResult,
    LocalStart,
    StepBenchmark,
    TensorData,
    choose_execution,
    model_state,
)
from winnow.learn.stack.native import load_or_compile_kernels

CROSS_ENTROPY = LOSSES["cross-entropy"]


def in_single_precision(data: TensorData) -> TensorData:
    return TensorData(x=data.x.float(), y=data.y, rows=data.rows, offsets=data.offsets)


def trained_natively(
    model: nn.Module, data: TensorData, clients: list[int], local: LocalOptimiser = MOMENTUM, threads: int = 1
) -> CohortTrainingResult:
    execution = choose_execution(model, data.x[:4], data.y[:4], CROSS_ENTROPY, "native", threads)
    return train(execution, LocalStart.shared(model_state(model)), local, data, np.array(clients), round=1, seed=1)


# What it computes -----------------------------------------------------------------------------------------------------

OPTIMISERS = {
    "momentum": Sgd(epochs=2, batch_size=4, learning_rate=0.05, momentum=0.9, weight_decay=0.01),
    "nesterov": MOMENTUM,
    "plain": Sgd(epochs=2, batch_size=5, learning_rate=0.05, weight_decay=0.1),
    "adam": Adam(epochs=2, batch_size=4, beta1=0.8, beta2=0.95, epsilon=1e-6, weight_decay=0.1),
    "steps": Sgd(steps=5, batch_size=4, learning_rate=0.1),
    "large": Sgd(epochs=3, batch_size=100, learning_rate=0.1, momentum=0.5),
    "single": Sgd(epochs=1, batch_size=1, learning_rate=0.01),
}


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("name", ["mlp", "lenet5", "cnn"])
def test_a_round_equals_a_plain_loop(name: str, optimiser: str) -> None:
    make, shape = MODELS[name]
    assert_same_as_plain(make(), make_data(shape), OPTIMISERS[optimiser], "native", (2, 0, 3, 1, 4))


LINES = {
    "a single layer": nn.Linear(48, CLASSES),
    "no biases": nn.Sequential(nn.Linear(48, 7, bias=False), nn.Tanh(), nn.Linear(7, CLASSES, bias=False)),
    "activations in a row": nn.Sequential(nn.Linear(48, 9), nn.ReLU(inplace=True), nn.Sigmoid(), nn.Linear(9, CLASSES)),
    "an activation first": nn.Sequential(nn.Tanh(), nn.Flatten(), nn.Identity(), nn.Linear(48, CLASSES)),
    "an activation last": nn.Sequential(nn.Linear(48, CLASSES), nn.Sigmoid()),
    "strides": nn.Sequential(
        nn.Conv2d(3, 5, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(5, 4, 2, stride=2), nn.Flatten(), nn.Linear(4, 4)
    ),
    "pool before activation": nn.Sequential(
        nn.Conv2d(3, 7, (1, 3), padding=(0, 2)), nn.MaxPool2d(2), nn.Tanh(), nn.Flatten(), nn.Linear(42, CLASSES)
    ),
    "overlapping pools": nn.Sequential(
        nn.Conv2d(3, 2, 1, bias=False), nn.AvgPool2d(2, 1), nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(8, CLASSES)
    ),
    "convolution last": nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, CLASSES, 4), nn.Flatten()),
}


@pytest.mark.parametrize("name", LINES)
def test_any_line_of_known_layers_equals_a_plain_loop(name: str) -> None:
    shape = (3, 4, 4) if any(isinstance(part, nn.Flatten) for part in LINES[name].modules()) else (48,)
    assert_same_as_plain(LINES[name].double(), make_data(shape), MOMENTUM, "native", (0, 1, 2, 3, 4))


@settings(max_examples=40)
@given(
    channels=st.tuples(st.integers(1, 4), st.integers(1, 9)),
    image=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    samples=st.integers(1, 19),
)
def test_convolutions_of_any_geometry_have_torchs_gradients(
    channels: tuple[int, int],
    image: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    samples: int,
) -> None:
    assume(all(p < k and side + 2 * p >= k for p, k, side in zip(padding, kernel, image, strict=True)))
    torch.manual_seed(0)
    body = nn.Sequential(
        nn.Conv2d(2, channels[0], 1), nn.Tanh(), nn.Conv2d(*channels, kernel, stride, padding), nn.Tanh(), nn.Flatten()
    )
    x, y = torch.randn(samples, 2, *image), torch.randint(0, 3, (samples,))
    model = nn.Sequential(*body, nn.Linear(body(x).shape[1], 3)).double()
    data = TensorData(x=x.double(), y=y, rows=np.arange(samples), offsets=np.array([0, samples]))
    trained = trained_natively(model, data, [0], Sgd(batch_size=samples, learning_rate=1.0))
    nn.functional.cross_entropy(model(data.x), y).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.detach() - trained.states[name][0], parameter.grad)


@pytest.mark.parametrize("loss", ["mse", "cross-entropy"])
@pytest.mark.parametrize("name", ["mlp", "lenet5"])
def test_single_precision_differs_from_a_loop_only_by_rounding(name: str, loss: str) -> None:
    make, shape = MODELS[name]
    model, data = make().float(), in_single_precision(make_data(shape))
    if loss == "mse":
        data = TensorData(x=data.x, y=torch.randn(len(data.x), CLASSES), rows=data.rows, offsets=data.offsets)
    native, loop = (
        train(
            choose_execution(model, data.x[:4], data.y[:4], LOSSES[loss], force),
            LocalStart.shared(model_state(model)),
            MOMENTUM,
            data,
            np.arange(5),
            round=1,
            seed=1,
        )
        for force in ("native", "loop")
    )
    torch.testing.assert_close(native.loss, loop.loss, rtol=1e-5, atol=1e-6)
    for key, tensor in loop.states.items():
        torch.testing.assert_close(native.states[key], tensor, rtol=1e-4, atol=1e-6)


def test_an_optimiser_that_compiled_code_does_not_know_is_torchs_own() -> None:
    class Sign(LocalOptimiser):
        def initial_state(self, parameters: list[Tensor]) -> list[list[Tensor]]:
            return []

        def step(self, parameters: list[Tensor], gradients: list[Tensor], *_: object, rate: float, number: int) -> None:
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.sub_(gradient.sign(), alpha=rate)

    make, shape = MODELS["mlp"]
    model, data, local = make(), make_data(shape), Sign(batch_size=4, learning_rate=0.01)
    native, loop = (
        train(
            choose_execution(model, data.x, data.y, CROSS_ENTROPY, force),
            LocalStart.shared(model_state(model)),
            local,
            data,
            np.arange(5),
            round=1,
            seed=1,
        )
        for force in ("native", "loop")
    )
    for key, tensor in loop.states.items():
        torch.testing.assert_close(native.states[key], tensor)


# On what it does not depend -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlp", "cnn"])
@pytest.mark.parametrize("batch_size", [4, 30])
def test_results_are_bitwise_the_same_for_any_threads_and_cohort(name: str, batch_size: int) -> None:
    make, shape = MODELS[name]
    model, data = make().float(), in_single_precision(make_data(shape))
    local = MOMENTUM.model_copy(update={"batch_size": batch_size})
    everyone = trained_natively(model, data, [0, 1, 2, 3, 4], local)
    for threads, cohort in itertools.product((1, 2, 3), ([0, 1, 2, 3, 4], [4, 2, 0], [3], [1, 0])):
        some = trained_natively(model, data, cohort, local, threads)
        assert torch.equal(some.loss, everyone.loss[cohort])
        for key, tensor in some.states.items():
            assert torch.equal(tensor, everyone.states[key][cohort])


@pytest.mark.parametrize("name", ["mlp", "cnn"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_polluted_client_spoils_nobody_else(name: str, value: float) -> None:
    make, shape = MODELS[name]
    model, data = make().float(), in_single_precision(make_data(shape))
    clean = trained_natively(model, data, [0, 1, 2])
    data.x[data.rows[data.offsets[1]]] = value
    spoilt = trained_natively(model, data, [0, 1, 2], threads=2)
    finite = torch.stack([rows.flatten(1).isfinite().all(1) for rows in spoilt.states.values()]).all(0)
    assert finite.tolist() == [True, False, True]
    for key, tensor in clean.states.items():
        assert torch.equal(spoilt.states[key][[0, 2]], tensor[[0, 2]])


def test_a_client_without_samples_keeps_the_start() -> None:
    make, shape = MODELS["mlp"]
    model, data = make(), make_data(shape, sizes=(3, 0))
    trained = trained_natively(model, data, [1, 0])
    assert trained.loss.isnan().tolist() == [True, False]
    for key, tensor in model_state(model).items():
        assert torch.equal(trained.states[key][0], tensor)


# Looking at data ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "layer"), [("mlp", "1"), ("lenet5", "fc1"), ("lenet5", "conv1"), ("cnn", "conv2")])
def test_compiled_examination_equals_the_models_own(name: str, layer: str) -> None:
    make, shape = MODELS[name]
    model, data = make().float(), in_single_precision(make_data(shape, sizes=(100, 37)))
    execution = choose_execution(model, data.x[:4], data.y[:4], CROSS_ENTROPY, "native")
    plain, compiled = (ModelEvaluator(model, CROSS_ENTROPY, layer, how) for how in (None, execution))
    rows, owner = torch.from_numpy(data.rows), torch.repeat_interleave(torch.arange(2), torch.tensor([100, 37]))
    state, metrics = model_state(model), [METRICS["accuracy"]]
    expected, found = (each.evaluate(state, data.x, data.y, metrics) for each in (plain, compiled))
    assert found.metrics["accuracy"] == expected.metrics["accuracy"]
    assert found.metrics["loss"] == pytest.approx(expected.metrics["loss"], rel=1e-5)
    profiles = zip(*(each.profiles(state, data.x, rows, owner, 2) for each in (plain, compiled)), strict=True)
    for one, other in [(expected.profile, found.profile), *profiles]:
        np.testing.assert_allclose(other.mean, one.mean, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(other.variance, one.variance, rtol=1e-4, atol=1e-5)


# When it is chosen ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlp", "lenet5", "cnn"])
def test_lines_of_known_layers_are_trained_natively(name: str) -> None:
    make, shape = MODELS[name]
    data = make_data(shape)
    assert choose_execution(make(), data.x, data.y, CROSS_ENTROPY).name == "native"


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, CLASSES)),
        nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.5), nn.Linear(4, CLASSES)),
        nn.Sequential(nn.Linear(5, 4), nn.GELU(), nn.Linear(4, CLASSES)),
    ],
)
def test_what_has_no_compiled_form_is_stacked_without_a_word(model: nn.Module) -> None:
    data = in_single_precision(make_data((5,)))
    execution = choose_execution(model, data.x, data.y, CROSS_ENTROPY)
    assert (execution.name, execution.notice) == ("stacked", "")
    with pytest.raises(
        ModelError,
        match="execution 'native' cannot train this model: native execution supports only sequences of dense",
    ):
        choose_execution(model, data.x, data.y, CROSS_ENTROPY, "native")


def test_frozen_and_shared_parameters_are_left_to_the_others() -> None:
    frozen, shared = (nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)) for _ in range(2))
    frozen[0].weight.requires_grad_(False)
    shared[2].weight = shared[0].weight
    for model in (frozen, shared):
        assert choose_execution(model, torch.randn(4, 4), torch.randint(0, 4, (4,)), CROSS_ENTROPY).name != "native"


def test_a_class_that_the_model_does_not_have_is_refused_in_one_line() -> None:
    make, shape = MODELS["mlp"]
    data = make_data(shape)
    data.y[data.rows[-1]] = CLASSES
    with pytest.raises(ModelError, match="is outside the model's outputs"):
        trained_natively(make(), data, [3, 4])


def test_a_loop_is_taken_where_it_is_clearly_faster_and_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model, data = nn.Sequential(nn.Linear(5, 4), nn.GELU(), nn.Linear(4, CLASSES)), in_single_precision(make_data((5,)))

    def chosen(*durations: float) -> tuple[str, str]:
        """The choice if steps take so many seconds, three stacked and then three in a loop."""
        moments = iter([moment for duration in durations for moment in (0.0, duration)])
        pace = StepBenchmark(clock=lambda: next(moments), batch_size=3)
        execution = choose_execution(model, data.x, data.y, CROSS_ENTROPY, benchmark=pace)
        return execution.name, execution.notice

    slower = "training clients with loop: on this machine stacked takes 2.0 times as long"
    assert chosen(0.4, 0.2, 0.3, 0.1, 0.1, 0.1) == ("loop", slower)
    assert chosen() == ("loop", slower)
    model = nn.Sequential(nn.Linear(5, 6), nn.GELU(), nn.Linear(6, CLASSES))
    assert chosen(0.105, 0.105, 0.105, 0.1, 0.1, 0.1) == ("stacked", "")


def test_native_is_not_taken_where_it_is_clearly_slower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    data = in_single_precision(make_data((5,)))

    def chosen(batch_size: int, *durations: float) -> tuple[str, str]:
        """The choice if steps take so many seconds, three native and then three stacked."""
        moments = iter([moment for duration in durations for moment in (0.0, duration)])
        pace = StepBenchmark(clock=lambda: next(moments), batch_size=batch_size)
        model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, CLASSES))
        execution = choose_execution(model, data.x, data.y, CROSS_ENTROPY, benchmark=pace)
        return execution.name, execution.notice

    slower = "training clients with stacked: on this machine native takes 3.0 times as long"
    assert chosen(1, 0.5, 0.3, 0.4, 0.1, 0.2, 0.1) == ("stacked", slower)
    assert chosen(1) == ("stacked", slower)
    assert chosen(2, 0.1, 0.1, 0.1, 0.2, 0.2, 0.2)[0] == "native"
    assert chosen(32)[0] == "native"  # a small model and batches that fill vectors: nobody looks at the clock


# Building it ----------------------------------------------------------------------------------------------------------

CHOOSE = """
import sys
import torch
from torch import nn
from winnow.learn.stack import LOSSES, choose_execution
from winnow.learn.stack.native import load_or_compile_kernels
if "without a compiler" in sys.argv:
    load_or_compile_kernels.find_compiler = lambda: None
execution = choose_execution(nn.Linear(3, 2), torch.randn(4, 3), torch.tensor([0, 1, 0, 1]), LOSSES["cross-entropy"])
print(execution.name, "|", execution.notice)
"""

BUILD = """
import sys
from pathlib import Path
from winnow.learn.stack.native import load_or_compile_kernels
load_or_compile_kernels.SOURCE = Path(sys.argv[1])
print({library.answer() for library in load_or_compile_kernels.load_kernels("float").libraries.values()})
"""


def python(code: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True)


def small_source(folder: Path, code: str = 'extern "C" int answer() { return 42; }') -> Path:
    source = folder / "source"
    source.mkdir()
    (source / "native.cpp").write_text(code)
    return source


def test_without_a_compiler_clients_are_trained_stacked_and_the_user_is_told(tmp_path: Path) -> None:
    output, _ = python(CHOOSE, "without a compiler", XDG_CACHE_HOME=str(tmp_path)).communicate()
    assert output.startswith("stacked | training clients with stacked (not native: no C++ compiler found")
    assert output.count("\n") == 1


def test_it_can_be_switched_off() -> None:
    output, _ = python(CHOOSE, WINNOW_NATIVE="0").communicate()
    assert output == "stacked | \n"


def test_without_a_system_compiler_the_package_s_is_used(
    fresh_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module takes the place of the package: it notes how it was called, and runs the compiler that is here."""
    compiler = load_or_compile_kernels.find_compiler()
    assert compiler is not None
    package = tmp_path / "packages" / "ziglang"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    called = tmp_path / "called"
    (package / "__main__.py").write_text(
        "import os, pathlib, subprocess, sys\n"
        "del os.environ['PYTHONPATH']  # the compiler that is here may be the real package\n"
        f"pathlib.Path({str(called)!r}).write_text(sys.argv[1])\n"
        f"sys.exit(subprocess.call([*{compiler!r}, *sys.argv[2:]]))\n"
    )
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.setattr(load_or_compile_kernels, "COMPILERS", ("no-such-compiler",))
    loaded = load_or_compile_kernels.load_kernels("float")
    assert {library.answer() for library in loaded.libraries.values()} == {42}
    assert called.read_text() == "c++"


def test_a_file_of_the_working_folder_does_not_stand_in_for_the_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ziglang.py").write_text("open('called', 'w').close()")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    monkeypatch.setattr(load_or_compile_kernels, "COMPILERS", ("no-such-compiler",))
    compiler = load_or_compile_kernels.find_compiler()
    assert compiler is not None
    subprocess.run(compiler, check=False, capture_output=True)
    assert not Path("called").exists()


@pytest.mark.slow(part="executions")
def test_several_processes_may_build_at_once(tmp_path: Path) -> None:
    source = small_source(tmp_path)
    started = [python(BUILD, str(source), XDG_CACHE_HOME=str(tmp_path)) for _ in range(3)]
    assert [process.communicate()[0] for process in started] == ["{42}\n"] * 3
    assert {path.suffix for path in (tmp_path / "winnow" / "native").iterdir()} == {".so"}


@pytest.fixture
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder and a small source; nothing of this stays loaded."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(load_or_compile_kernels, "SOURCE", small_source(tmp_path))
    monkeypatch.setattr(load_or_compile_kernels, "load_kernels", load_or_compile_kernels.load_kernels.__wrapped__)
    return tmp_path / "winnow" / "native"


def test_it_is_built_once(fresh_cache: Path) -> None:
    assert [load_or_compile_kernels.load_kernels("float").newly_built for _ in range(2)] == [True, False]


def test_a_failed_build_is_one_line_and_leaves_nothing(fresh_cache: Path) -> None:
    (load_or_compile_kernels.SOURCE / "native.cpp").write_text("no code\n at all")
    with pytest.raises(load_or_compile_kernels.NativeUnavailableError, match="failed: ") as caught:
        load_or_compile_kernels.load_kernels("float")
    assert "\n" not in str(caught.value)
    assert list(fresh_cache.iterdir()) == []


def test_a_damaged_library_is_built_again(fresh_cache: Path) -> None:
    python(BUILD, str(load_or_compile_kernels.SOURCE), XDG_CACHE_HOME=str(fresh_cache.parents[1])).communicate()
    for library in fresh_cache.iterdir():
        library.write_bytes(b"no library")
    rebuilt = load_or_compile_kernels.load_kernels("float")
    assert rebuilt.newly_built
    assert {library.answer() for library in rebuilt.libraries.values()} == {42}


@pytest.mark.parametrize("of", ["folder", "file"])
def test_code_that_others_could_have_written_is_not_loaded(fresh_cache: Path, of: str) -> None:
    load_or_compile_kernels.load_kernels("float")
    (fresh_cache if of == "folder" else next(fresh_cache.iterdir())).chmod(0o777)
    with pytest.raises(load_or_compile_kernels.NativeUnavailableError, match="is writable by, another user"):
        load_or_compile_kernels.load_kernels("float")
