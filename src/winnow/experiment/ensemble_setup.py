"""An ensemble's module and both of its stages, as every party builds them from the same settings."""

from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from winnow.config.schema import Experiment
from winnow.data.client_attributes import column_mask
from winnow.experiment.build_learning_site import ModelSetup
from winnow.experiment.build_training_workflow import (
    DEFAULT_INPUTS,
    RunInputs,
    TrainingSetup,
    built_outputs,
    set_up_training,
)
from winnow.learn.aggregation import PartialAggregation
from winnow.learn.client_round_method import PlainUpdate
from winnow.learn.collect import PlainCollect
from winnow.learn.ensemble.ensemble_net import EnsembleModel, EnsembleNet, InputMask, joined_state
from winnow.learn.ensemble.ensemble_settings import EnsembleSettings, OverArch
from winnow.learn.ensemble.leaf_outputs import LeafOutputs, SecondStage, SecondStageSites
from winnow.learn.ensemble.leaf_seeds import leaf_seed
from winnow.learn.models import ModelSettings, Shape, build_model
from winnow.learn.selection import UniformSelector
from winnow.learn.server_optimiser import ReplaceModel
from winnow.learn.stack import ModelState, model_state
from winnow.privacy.dp.dp_sgd import DpSgd


class OverArchModel(ModelSettings):
    """An over-arch by itself, on leaf outputs. It is no model that a configuration can name."""

    net: EnsembleNet

    def build(self, sample_shape: Shape, outputs: int) -> nn.Module:
        over = self.net.over
        assert over is not None
        return deepcopy(over)


@dataclass(frozen=True, kw_only=True)
class EnsembleSetup:
    """An ensemble's module, and what both of its stages need, as every party builds it from the same settings."""

    setup: TrainingSetup
    """Of a leaf."""
    leaves: int
    private_inputs: NDArray[np.int64] | None
    """1 at the inputs that only the last leaf sees."""
    inputs: RunInputs = DEFAULT_INPUTS

    @property
    def experiment(self) -> Experiment:
        return self.setup.experiment

    @property
    def settings(self) -> EnsembleSettings:
        assert self.experiment.ensemble is not None
        return self.experiment.ensemble

    @property
    def over(self) -> OverArch | None:
        combine = self.settings.combine
        return combine if isinstance(combine, OverArch) else None

    @cached_property
    def model_settings(self) -> EnsembleModel:
        """What builds the combined module."""
        over, single = self.over or OverArch(), self.model.module(self.model.probe[0]).flatten(1).shape[1] == 1
        regression = self.setup.classes is None
        return EnsembleModel(
            leaf=self.experiment.model,
            leaves=self.leaves,
            combine=getattr(self.settings.combine, "name", "mean"),
            prediction="values" if regression else "sigmoid" if single else "softmax",
            hidden=over.hidden,
            last_hidden=over.last_hidden,
            masked=self.private_inputs is not None,
        )

    @property
    def model(self) -> ModelSetup:
        return self.setup.model

    @cached_property
    def net(self) -> EnsembleNet:
        """The combined module; an over-arch is drawn from the seed."""
        x, probe = self.model.probe[0], self.model.module
        outputs = int(probe(x).flatten(1).shape[1])
        leaves = [deepcopy(probe) for _ in range(self.leaves)]
        with torch.random.fork_rng([]):
            torch.manual_seed(self.experiment.seed)
            net = self.model_settings.join(leaves, tuple(x.shape[1:]), outputs)
        net.load_state_dict(joined_state([self.initial(place) for place in range(self.leaves)]), strict=False)
        return net.eval()

    def initial(self, place: int) -> ModelState:
        """The model that a leaf starts from."""
        seed, mine = leaf_seed(self.experiment.seed, place), self.model.initial
        if place and self.inputs.module is None:
            x = self.model.probe[0]
            built = build_model(
                self.experiment.model,
                tuple(x.shape[1:]),
                built_outputs(self.experiment, self.setup.classes, self.model.probe[1]),
                seed,
            )
            fresh = model_state(masked(built, tuple(x.shape[1:])) if self.private_inputs is not None else built)
            mine = {name: fresh[name].to(tensor.device) for name, tensor in mine.items()}
        if self.private_inputs is not None:
            hidden = torch.as_tensor(self.private_inputs).reshape(self.model.probe[0].shape[1:])
            kept = hidden if place == self.leaves - 1 else 1 - hidden
            mine = {name: kept.to(t.device) if name.endswith("0.kept") else t for name, t in mine.items()}
        return mine

    @cached_property
    def outputs(self) -> LeafOutputs:
        return LeafOutputs(self.net)

    @cached_property
    def over_experiment(self) -> Experiment:
        return over_experiment(self.experiment).model_copy(update={"model": OverArchModel(net=self.net)})

    @cached_property
    def over_setup(self) -> TrainingSetup:
        x, y = self.model.probe
        features = self.outputs.features(self.outputs.part([self.initial(k) for k in range(self.leaves)]), x)
        told = self.setup.preprocessing.model_copy(update={"columns": (), "array": None, "inputs": ()})
        return set_up_training(
            self.over_experiment,
            replace(self.inputs, dataset=None, module=None, own=None),
            (features, y),
            self.setup.classes,
            self.model.randomness,
            preprocessing=told,
            selection_is_public=self.setup.selection_is_public,
        )

    @property
    def stage(self) -> SecondStage:
        """What a site needs for the second stage."""
        over = self.over_setup.model
        return SecondStage(outputs=self.outputs, initial=over.initial, make_site=lambda data: over.site(data, None))


def over_experiment(whole: Experiment) -> Experiment:
    """The second stage as an experiment of its own, but for its model: the same algorithm on leaf outputs, by an
    optimiser of its own if it has one. Methods at the client know the leaves' parts, so it has the plain one.
    """
    over = whole.ensemble and whole.ensemble.combine
    assert isinstance(over, OverArch)
    update: dict[str, Any] = {
        "local": over.local or whole.local.model_copy(update={"decay": 1.0}),
        "client": whole.client if isinstance(whole.client, DpSgd) else PlainUpdate(),
        "rounds": whole.rounds + over.rounds,
        # never chosen by timing: a resumed run must go on with the same
        "engine": whole.engine.model_copy(update={"execution": "loop" if over.at == "server" else "vmap"}),
    }
    if over.at == "server":
        update |= {
            "select": UniformSelector(),
            "aggregate": PartialAggregation(),
            "collect": PlainCollect(),
            "server": ReplaceModel(),
            "client": PlainUpdate(),
            "filters": (),
        }
    return whole.model_copy(update=update)


def second_stage(setup: TrainingSetup, inputs: RunInputs) -> SecondStageSites | None:
    """What a site does in the second stage, where clients take part in one."""
    settings = setup.experiment.ensemble
    if settings is None or not isinstance(settings.combine, OverArch) or settings.combine.at == "server":
        return None
    besides = 1 if settings.private else 0
    return SecondStageSites(
        setup.experiment.rounds,
        settings.clusters.most_leaves + besides,
        lambda leaves: ensemble_setup(setup, inputs, leaves).stage,
    )


def ensemble_setup(setup: TrainingSetup, inputs: RunInputs, leaves: int) -> EnsembleSetup:
    """The ensemble of so many leaves, as every party builds it."""
    return EnsembleSetup(setup=setup, leaves=leaves, private_inputs=private_inputs(setup), inputs=inputs)


def private_inputs(setup: TrainingSetup) -> NDArray[np.int64] | None:
    """1 at the inputs of private columns; None where none are."""
    settings = setup.experiment.ensemble
    if settings is None or not settings.private:
        return None
    return column_mask(setup.preprocessing, settings.private)


def masked(module: nn.Module, shape: Shape) -> nn.Module:
    return nn.Sequential(InputMask(shape), module)
