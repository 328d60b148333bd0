"""Figures 3, 4, 9 and 10: how representations are distributed during training (section 3.2, appendix B.1).

Training is central: one client that holds everything, so that a round is an epoch.
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from winnow.config.resolve import resolve
from winnow.config.schema import Experiment
from winnow.core import RoundFinished, stream
from winnow.data import ClientData, DataSet, Examples, federate, load
from winnow.data.types import Features
from winnow.experiment.build_simulation import prepare_run
from winnow.experiment.build_training_workflow import RunInputs
from winnow.learn.profiled_layer import fuse_outputs
from winnow.papers.fedprof.read_bundled_toml import read_package_toml
from winnow.papers.normality_measures import describe
from winnow.papers.paper import ReproductionOptions
from winnow.papers.result_json_lines import DistributionResultLine

SAMPLES = 5_000
"""So many samples of the training data are looked at."""
BATCH = 250
CORRUPTION_CLIENTS = 100
"""Data are spoiled by the clients: so many hold them before they are put together again."""

NOISY_IMAGES = (
    "data.corruptions = [{ name = 'blur', fraction = 0.3 },"
    " { name = 'salt-and-pepper', fraction = 0.3, density = 0.3 }]"
)
"""60 % of the images, as in the paper."""


def convolution_and_block(wanted: ReproductionOptions) -> Iterator[DistributionResultLine]:
    """Figure 3: channels of a plain convolution and of a residual block of ResNet-18, trained till convergence."""
    setup = setup_of("fig3", wanted)
    data = _together(setup, wanted)
    layers = {"convolution": "stem", "residual block": "stages.0.1"}
    for _, module in _epochs(setup, data, wanted, {setup.rounds}):
        for row, layer in layers.items():
            values = representations(module, layer, _some(data.x))
            yield from _columns("fig3", row, data.name, "channel", values[:, :10])


def dense_layer(wanted: ReproductionOptions) -> Iterator[DistributionResultLine]:
    """Figure 4: neurons of LeNet-5's first dense layer after 1, 6 and 10 epochs, on clean and on noisy images."""
    for series, sets in (("clean", ()), ("noisy", (NOISY_IMAGES,))):
        setup = setup_of("fig4", wanted, *sets)
        data = _together(setup, wanted)
        for epoch, module in _epochs(setup, data, wanted, {1, 6, setup.rounds}):
            row = f"after {epoch} epoch{'s' if epoch > 1 else ''}"
            yield from _columns("fig4", row, series, "neuron", representations(module, "fc1", _some(data.x))[:, :5])


def small_network(wanted: ReproductionOptions) -> Iterator[DistributionResultLine]:
    """Figure 9: neurons of both hidden layers of a small network on Boston housing, training set and test set."""
    setup = setup_of("fig9", wanted)
    training, test = _divided(setup, wanted, clients=1)
    parts = {"training set": training.x, "test set": test.x}
    for _, module in _epochs(setup, None, wanted, {setup.rounds}):
        hidden = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)][:-1]
        for number, layer in enumerate(hidden, start=1):
            for series, x in parts.items():
                values = representations(module, layer, x)
                yield from _columns("fig9", f"layer {number}", series, "neuron", values[:, :8])


def raw_features(wanted: ReproductionOptions) -> Iterator[DistributionResultLine]:
    """Figure 10: the features of Boston housing as they are."""
    data = _data(setup_of("fig9", wanted, "data.scale = 'none'"), wanted)
    half = (data.x.shape[1] + 1) // 2
    for start in (0, half):
        part = data.x[:, start : start + half].astype(np.float64)
        yield from _columns("fig10", f"features from {start + 1}", "all samples", "feature", part, start)


@torch.no_grad()
def representations(module: nn.Module, layer: str, x: Features) -> NDArray[np.float64]:
    """A layer's output before activation, [n, q]; convolutions and blocks are summed by channel (equation 24)."""
    device = next(module.parameters()).device
    with _seen(module, layer) as seen:
        for start in range(0, len(x), BATCH):
            module(torch.from_numpy(x[start : start + BATCH]).to(device))
    return torch.cat(seen).double().cpu().numpy()


@contextmanager
def _seen(module: nn.Module, layer: str) -> Iterator[list[Tensor]]:
    """What a layer gives out while the context lasts."""
    found, wanted = list[Tensor](), module.get_submodule(layer)
    handle = wanted.register_forward_hook(lambda own, inputs, output: found.append(fuse_outputs(output, own)))
    try:
        yield found
    finally:
        handle.remove()


def setup_of(name: str, wanted: ReproductionOptions, *sets: str) -> Experiment:
    return resolve(read_package_toml("setups.toml")[name], sets=(*sets, *wanted.sets), rounds=wanted.rounds)


def _data(setup: Experiment, wanted: ReproductionOptions) -> DataSet:
    data = load(setup.data, wanted.data_directory)
    assert isinstance(data, DataSet), "figures are about whole sets"
    return data


def _together(setup: Experiment, wanted: ReproductionOptions) -> DataSet:
    """The training data of all, spoiled as the settings say, as one set."""
    clients, _ = _divided(setup, wanted, clients=CORRUPTION_CLIENTS)
    return DataSet(name=setup.data.name, x=clients.x, y=clients.y, classes=clients.classes)


def _divided(setup: Experiment, wanted: ReproductionOptions, clients: int) -> tuple[ClientData, Examples]:
    """What so many clients hold, and what is held out."""
    spread = federate(_data(setup, wanted), setup.data.model_copy(update={"clients": clients}), setup.seed)
    assert isinstance(spread.clients, ClientData), "figures are about whole sets"
    return spread.clients, spread.reference


def _epochs(
    setup: Experiment, data: DataSet | None, wanted: ReproductionOptions, epochs: Collection[int]
) -> Iterator[tuple[int, nn.Module]]:
    """Train; the model after each of these epochs."""
    plain = setup.model_copy(update={"data": setup.data.model_copy(update={"corruptions": ()})})
    with prepare_run(plain, RunInputs(dataset=data)) as prepared:
        for event in prepared.training.run(prepared.federation):
            if isinstance(event, RoundFinished) and event.round in epochs:
                module = deepcopy(prepared.module)
                module.load_state_dict(prepared.training.model)
                yield event.round, module.eval()


def _some(x: Features) -> Features:
    rows = stream(0, "reproduce", "samples").permutation(len(x))[:SAMPLES]
    return x[np.sort(rows)]


def _columns(
    item: str, row: str, series: str, noun: str, values: NDArray[np.float64], first: int = 0
) -> Iterable[DistributionResultLine]:
    for place, column in enumerate(values.T, start=first + 1):
        yield describe(column, item=item, row=row, column=f"{noun} {place}", series=series)
