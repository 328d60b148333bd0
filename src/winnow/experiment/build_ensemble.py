"""From an experiment with an [ensemble] section to its leaves, the module that combines them, and their workflow."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from winnow.config.label_checks import method_name
from winnow.config.schema import Experiment
from winnow.core import ConfigError, DataError, stream
from winnow.data import ClientsOnDemand, Examples, FederatedData
from winnow.data.client_attributes import ClientAttributes
from winnow.experiment.build_evaluator import build_final_evaluator
from winnow.experiment.build_training_workflow import (
    RunInputs,
    TrainingSetup,
)
from winnow.experiment.ensemble_setup import EnsembleSetup, ensemble_setup
from winnow.learn.ensemble.cluster_rules import Members, PublicAttributes, names_alone
from winnow.learn.ensemble.ensemble_settings import OverArch
from winnow.learn.ensemble.ensemble_workflow import EnsembleWorkflow, Leaf
from winnow.learn.ensemble.leaf_outputs import LEAVES, OptInRounds
from winnow.learn.ensemble.leaf_seeds import leaf_seed
from winnow.learn.evaluation import CombinedEvaluator, ServerEvaluator
from winnow.learn.extended_model import ExtendedModel
from winnow.learn.model_evaluator import ModelEvaluator
from winnow.learn.run_plan import TrainingPlan
from winnow.learn.stack import LocalTraining, ModelState, as_tensor
from winnow.learn.training_workflow import TrainingWorkflow
from winnow.learn.trial_update_on_server_samples import single_client_data
from winnow.privacy.dp.client_book import ClientBook, refuse_label_clusters
from winnow.privacy.dp.run_accounting import promises_privacy

PRIVATE_LEAF = "private columns"
MAX_NAMED = 12


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
    if deployed and settings.clusters.from_labels:
        raise ConfigError("ensemble.clusters by loss tell labels, and are for simulations; cluster by sites")
    if (
        deployed
        and not (settings.clusters.disjoint and not settings.private)
        and promises_privacy(whole.composed(), whole.filters)
    ):
        raise ConfigError(
            "a deployed site lets one noisy update of a client out in a round, and here clients train several leaves; "
            "choose disjoint clusters without private columns"
        )
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
        made=ensemble_setup(setup, inputs, len(clusters)),
        sizes=clients.sizes,
        names=federated.client_names,
        reference=federated.reference,
        test=federated.test,
        clusters=clusters,
        others=others,
        opt_in=opted_in,
    )


def deployed_ensemble(
    setup: TrainingSetup,
    inputs: RunInputs,
    sizes: NDArray[np.int64],
    names: Sequence[str],
    reference: Examples,
    test: Examples,
    labelled: Examples | None,
) -> EnsembleBuilder:
    """The ensemble of a deployed job, whose server knows clients by their names alone, and has the samples of those who
    opted in in a file of its own.
    """
    check_ensemble(setup.experiment, setup, inputs, deployed=True)
    clusters, others = cluster_clients(setup.experiment, names_alone(names))
    return EnsembleBuilder(
        made=ensemble_setup(setup, inputs, len(clusters)),
        sizes=sizes,
        names=names,
        reference=reference,
        test=test,
        clusters=clusters,
        others=others,
        opt_in=lambda: labelled,
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
