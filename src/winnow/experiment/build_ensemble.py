"""From an experiment with an [ensemble] section to its leaves, the module that combines them, and their workflow."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from winnow.core import ConfigError
from winnow.data import ClientsOnDemand, Examples, FederatedData
from winnow.data.client_attributes import ClientAttributes
from winnow.experiment.build_evaluator import build_final_evaluator
from winnow.experiment.build_over_arch import OverArchBuilder
from winnow.experiment.build_training_workflow import RunInputs, TrainingSetup
from winnow.experiment.ensemble_clients import check_ensemble, cluster_clients, opt_in_clients
from winnow.experiment.ensemble_setup import EnsembleSetup, ensemble_setup
from winnow.learn.ensemble.cluster_rules import Members, PublicAttributes, names_alone
from winnow.learn.ensemble.ensemble_settings import OverArch
from winnow.learn.ensemble.ensemble_workflow import EnsembleWorkflow
from winnow.learn.ensemble.leaf import Leaf
from winnow.learn.ensemble.leaf_seeds import leaf_seed
from winnow.learn.evaluation import CombinedEvaluator, ServerEvaluator
from winnow.learn.model_evaluator import ModelEvaluator
from winnow.learn.run_plan import TrainingPlan
from winnow.privacy.dp.client_book import ClientBook

MAX_NAMED = 12


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
            None if over is None else self._over_arch(over, book).training,
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

    def _over_arch(self, over: OverArch, book: ClientBook) -> OverArchBuilder:
        members = self.over_members
        return OverArchBuilder(
            made=self.made,
            at_server=over.at == "server",
            book=book,
            members=members,
            sizes=self.sizes[members],
            names=[self.names[client] for client in members.tolist()],
            reference=self.reference,
            test=self.test,
            opt_in=self.opt_in,
        )


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
