"""From an experiment with an [ensemble] section to its leaves, the module that combines them, and their workflow."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from winnow.config.label_checks import method_name
from winnow.config.schema import Experiment
from winnow.core import ConfigError, DataError, stream
from winnow.data import ClientsOnDemand, Examples, FederatedData
from winnow.data.client_attributes import ClientAttributes
from winnow.experiment.build_evaluator import build_final_evaluator
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
from winnow.learn.ensemble.cluster_rules import Members, PublicAttributes
from winnow.learn.ensemble.ensemble_net import EnsembleModel, EnsembleNet, InputMask, joined_state
from winnow.learn.ensemble.ensemble_settings import EnsembleSettings, OverArch
from winnow.learn.ensemble.ensemble_workflow import EnsembleWorkflow, Leaf
from winnow.learn.ensemble.leaf_outputs import LEAVES, LeafOutputs, OptInRounds, SecondStageSites
from winnow.learn.ensemble.leaf_seeds import leaf_seed
from winnow.learn.evaluation import CombinedEvaluator, ServerEvaluator
from winnow.learn.extended_model import ExtendedModel
from winnow.learn.model_evaluator import ModelEvaluator
from winnow.learn.models import ModelSettings, Shape, build_model
from winnow.learn.run_plan import TrainingPlan
from winnow.learn.selection import UniformSelector
from winnow.learn.server_optimiser import ReplaceModel
from winnow.learn.stack import LocalTraining, ModelState, as_tensor, model_state
from winnow.learn.training_workflow import TrainingWorkflow
from winnow.learn.trial_update_on_server_samples import single_client_data
from winnow.privacy.dp.client_book import ClientBook, refuse_label_clusters
from winnow.privacy.dp.dp_sgd import DpSgd

PRIVATE_LEAF = "private columns"
MAX_NAMED = 12


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
        """The second stage as an experiment of its own: the same algorithm on leaf outputs, by an optimiser of its own
        if it has one. Methods at the client know the leaves' parts, so it has the plain one.
        """
        over, whole = self.over, self.experiment
        assert over is not None
        update = {
            "model": OverArchModel(net=self.net),
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

    def second_stage(self) -> SecondStageSites | None:
        """What a site needs for the second stage, where clients take part in one."""
        if self.over is None or self.over.at == "server":
            return None
        return SecondStageSites(
            self.experiment.rounds, self.outputs, lambda data: self.over_setup.model.site(data, None)
        )


def masked(module: nn.Module, shape: Shape) -> nn.Module:
    return nn.Sequential(InputMask(shape), module)


def check_ensemble(experiment: Experiment, setup: TrainingSetup, inputs: RunInputs, *, deployed: bool) -> None:
    """Refuse what an ensemble cannot do with this model, or here."""
    whole, settings = experiment, experiment.ensemble
    assert settings is not None
    if inputs.estimator is not None or setup.preprocessing.inputs or isinstance(setup.model.module, ExtendedModel):
        raise ConfigError(
            "an ensemble's leaves are modules with one input and without further heads: no scikit-learn estimators, "
            f"no data with several inputs, and not {method_name(whole.client)} with heads of its own"
        )
    if settings.clusters.from_labels:
        refuse_label_clusters(whole.composed(), whole.filters, getattr(settings.clusters, "name", ""))
    if deployed and settings.clusters.by_attributes:
        raise ConfigError(
            f"ensemble.clusters: sites tell nothing of their clients' {settings.clusters.text}; cluster by "
            '{ name = "sites", groups = … }, "hash" or "random"'
        )


@dataclass(frozen=True, kw_only=True)
class EnsembleBuilder:
    """Puts an ensemble's workflow together over a population."""

    made: EnsembleSetup
    sizes: NDArray[np.int64]
    names: Sequence[str]
    reference: Examples
    test: Examples
    clusters: dict[str, Members]
    others: Members
    """Who trains no leaf."""
    opt_in: Callable[[], Examples | None]
    """The samples of those who opted in, where the server has them."""

    def workflow(self) -> EnsembleWorkflow:
        made, plan = self.made, self.plan
        setup, over = made.setup, made.over
        book = ClientBook(self.sizes, selection_is_public=setup.selection_is_public)
        leaves = [self._leaf(place, name, book) for place, name in enumerate(self.clusters)]
        evaluator = ModelEvaluator(made.net, made.model.loss, None)
        held, tested = setup.tensors(self.reference), setup.tensors(self.test)
        beside = [ServerEvaluator("test", evaluator, tested, plan.metrics)] if len(self.test) else []
        final = build_final_evaluator(
            made.experiment,
            plan,
            evaluator,
            classes=setup.classes,
            local_test_sizes=None,
            reference=held,
            test=tested,
        )
        return EnsembleWorkflow(
            plan,
            leaves,
            CombinedEvaluator(ServerEvaluator("reference", evaluator, held, plan.metrics), *beside),
            final,
            None if over is None else partial(self._over_training, over, book),
            self.over_members,
            over_initial={} if over is None else made.over_setup.model.initial,
            further_rounds=made.settings.combine.further_rounds,
            by_loss=made.settings.clusters.from_labels,
        )

    @cached_property
    def plan(self) -> TrainingPlan:
        """The whole ensemble's, whose rounds are the leaves'."""
        first = self._leaf_plan(0)
        leaves = ", ".join(f"{name} ({len(members)})" for name, members in list(self.clusters.items())[:MAX_NAMED])
        more = len(self.clusters) - MAX_NAMED
        notice = f"{len(self.clusters)} leaves, by clients: {leaves}" + (f" and {more} more" if more > 0 else "")
        return replace(
            first,
            parameters=sum(each.numel() for each in self.made.net.parameters()),
            notice="; ".join(filter(None, (first.notice, notice))),
        )

    @property
    def over_members(self) -> Members:
        """Who may take part in the second stage."""
        over = self.made.over
        return self.others if over is not None and over.users == "others" else np.arange(len(self.sizes))

    def _leaf_plan(self, place: int) -> TrainingPlan:
        members = list(self.clusters.values())[place]
        try:
            plan = self.made.setup.plan(
                self.sizes[members], self.reference, [self.names[client] for client in members.tolist()]
            )
        except ConfigError as error:
            raise ConfigError(f"leaf {list(self.clusters)[place]!r}, {len(members)} clients: {error}") from error
        return replace(plan, seed=leaf_seed(self.made.experiment.seed, place))

    def _leaf(self, place: int, name: str, book: ClientBook) -> Leaf:
        made, members = self.made, self.clusters[name]
        plan = self._leaf_plan(place)
        training = made.setup.workflow(
            replace(plan, accountant=book.page(plan.algorithm, made.experiment.filters, members)),
            sizes=self.sizes[members],
            local_test_sizes=None,
            reference=self.reference,
            test=self.test,
            store=None,
            names=[self.names[client] for client in members.tolist()],
            initial=made.initial(place),
            alone=False,
        )
        return Leaf(name=name, training=training, members=members)

    def _over_training(self, over: OverArch, book: ClientBook, leaves: Sequence[ModelState]) -> TrainingWorkflow:
        """The second stage on leaves that stand: their outputs on the server's samples are made here, once."""
        made = self.made
        setup, part = made.over_setup, made.outputs.part(leaves)
        reference, test = (_with_outputs(made, part, examples) for examples in (self.reference, self.test))
        members = self.over_members
        plan = setup.plan(self.sizes[members], reference, [self.names[client] for client in members.tolist()])
        if over.at == "server":
            algorithm = replace(plan.algorithm, schedule=OptInRounds(teach=self._teacher(part)))
            plan = replace(plan, algorithm=algorithm, accountant=book.still_page())
        else:
            page = book.page(plan.algorithm, made.over_experiment.filters, members)
            plan = replace(plan, accountant=page, constants={LEAVES: part})
        return setup.workflow(
            replace(plan, rounds_before=made.experiment.rounds),
            sizes=self.sizes[members],
            local_test_sizes=None,
            reference=reference,
            test=test,
            store=None,
            names=[self.names[client] for client in members.tolist()],
            alone=False,
        )

    def _teacher(self, part: ModelState) -> Callable[[ModelState, int], ModelState]:
        """Training at the server, on leaf outputs of the samples of those who opted in."""
        made, given = self.made, self.opt_in()
        if given is None or not len(given):
            raise DataError(
                "an over-arch at the server needs labelled samples there, of clients who opted in; the server has none"
            )
        examples, setup = _with_outputs(made, part, given), made.over_setup
        x, y = setup.tensors(examples)
        data, before = single_client_data(x, y), made.experiment.rounds

        def teach(model: ModelState, round: int) -> ModelState:
            training = LocalTraining(
                execution=setup.model.execution,
                data=data,
                clients=np.zeros(1, np.int64),
                local=made.over_experiment.local,
                round=round - before,
                seed=made.experiment.seed,
                randomness=setup.model.randomness,
                sent={"model": model},
                stored=({},),
            )
            return {name: tensor[0] for name, tensor in training.train().states.items()}

        return teach


def _with_outputs(made: EnsembleSetup, part: ModelState, examples: Examples) -> Examples:
    if not len(examples):
        return examples
    x = as_tensor(examples.x, made.model.probe[0].device)
    return Examples(x=made.outputs.features(part, x).cpu().numpy(), y=examples.y)


def simulated_ensemble(setup: TrainingSetup, federated: FederatedData, inputs: RunInputs) -> EnsembleBuilder:
    """The ensemble of a simulation, where clients' inputs are public, and the server has the samples of those who opted
    in.
    """
    experiment, clients = setup.experiment, federated.clients
    settings = experiment.ensemble
    assert settings is not None
    check_ensemble(experiment, setup, inputs, deployed=False)
    known = ClientAttributes(clients, federated.preprocessing)
    public = PublicAttributes(names=federated.client_names, column=known.column, features=known.features)
    clusters, others = cluster_clients(experiment, public)
    over = settings.combine

    def opted_in() -> Examples | None:
        assert isinstance(over, OverArch)
        chosen = opt_in_clients(over, len(clients), experiment.seed)
        if isinstance(clients, ClientsOnDemand):
            given = clients.gather(chosen)
            return Examples(x=given.x, y=given.y)
        rows = np.concatenate([clients.rows_of(client) for client in chosen.tolist()])
        return Examples(x=clients.x[rows], y=clients.y[rows])

    return EnsembleBuilder(
        made=EnsembleSetup(
            setup=setup,
            leaves=len(clusters),
            private_inputs=known.mask(settings.private) if settings.private else None,
            inputs=inputs,
        ),
        sizes=clients.sizes,
        names=federated.client_names,
        reference=federated.reference,
        test=federated.test,
        clusters=clusters,
        others=others,
        opt_in=opted_in,
    )


def cluster_clients(experiment: Experiment, attributes: PublicAttributes) -> tuple[dict[str, Members], Members]:
    """Each leaf's clients, and those who train no leaf because the over-arch is theirs."""
    settings = experiment.ensemble
    assert settings is not None
    everybody, others = np.arange(len(attributes)), np.zeros(0, np.int64)
    over = settings.combine
    found = settings.clusters.clusters(attributes, experiment.seed)
    if isinstance(over, OverArch) and over.at == "clients" and over.users == "others":
        order = stream(experiment.seed, "ensemble", "over-arch users").permutation(everybody)
        others = np.sort(order[: max(1, round(over.others * len(everybody)))])
        found = {name: np.setdiff1d(members, others) for name, members in found.items()}
        if empty := [name for name, members in found.items() if not len(members)]:
            raise ConfigError(f"ensemble: all clients of leaf {empty[0]!r} train the over-arch; lower combine.others")
    if settings.private:
        found = {**found, PRIVATE_LEAF: np.setdiff1d(everybody, others)}
    return found, others


def opt_in_clients(over: OverArch, clients: int, seed: int) -> Members:
    """Whose samples the server may have."""
    order = stream(seed, "ensemble", "opt-in").permutation(clients)
    return np.sort(order[: max(1, round(over.opt_in * clients))])
