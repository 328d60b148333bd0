"""The second stage of an ensemble: an over-arch on leaves that stand, at the server or by clients."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from winnow.core import DataError
from winnow.data import Examples
from winnow.experiment.ensemble_setup import EnsembleSetup
from winnow.learn.ensemble.cluster_rules import Members
from winnow.learn.ensemble.leaf_outputs import LEAVES, OptInRounds
from winnow.learn.stack import LocalTraining, ModelState, as_tensor
from winnow.learn.training_workflow import TrainingWorkflow
from winnow.learn.trial_update_on_server_samples import single_client_data
from winnow.privacy.dp.client_book import ClientBook


@dataclass(frozen=True, kw_only=True)
class OverArchBuilder:
    """Puts the second stage together for the clients who may take part in it."""

    made: EnsembleSetup
    at_server: bool
    book: ClientBook
    members: Members
    sizes: NDArray[np.int64]
    names: Sequence[str]
    reference: Examples
    test: Examples
    opt_in: Callable[[], Examples | None]
    """The samples of those who opted in, where the server has them."""

    def training(self, leaves: Sequence[ModelState]) -> TrainingWorkflow:
        """The second stage on leaves that stand: their outputs on the server's samples are made here, once."""
        made = self.made
        setup, part = made.over_setup, made.outputs.part(leaves)
        reference, test = (_with_outputs(made, part, examples) for examples in (self.reference, self.test))
        plan = setup.plan(self.sizes, reference, self.names)
        if self.at_server:
            algorithm = replace(plan.algorithm, schedule=OptInRounds(teach=self._teacher(part)))
            plan = replace(plan, algorithm=algorithm, accountant=self.book.still_page())
        else:
            page = self.book.page(plan.algorithm, made.over_experiment.filters, self.members)
            plan = replace(plan, accountant=page, constants={LEAVES: part})
        return setup.workflow(
            replace(plan, rounds_before=made.experiment.rounds),
            sizes=self.sizes,
            local_test_sizes=None,
            reference=reference,
            test=test,
            store=None,
            names=self.names,
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
