"""What the opt-in samples alone give: a model trained on nothing else, or a federated model tuned on them."""

import numpy as np

from winnow.config.schema import Experiment
from winnow.experiment.build_simulation import prepare_run
from winnow.experiment.build_training_workflow import RunInputs
from winnow.experiment.ensemble_clients import opt_in_clients
from winnow.experiment.run import run_experiment
from winnow.learn.ensemble.ensemble_settings import OverArch
from winnow.learn.local_optimiser import Sgd
from winnow.learn.stack import LocalTraining, ModelState
from winnow.learn.stack.trainable_state import model_state
from winnow.learn.trial_update_on_server_samples import single_client_data
from winnow.papers.ensemble.leaf_family import Reading

ALONE, TUNED = "alone", "tuned"
TUNING_ROUNDS = 10
"""Epochs over the opt-in samples after federated training: as many as an over-arch has. Alone, as many as FL's."""


def opt_in_trace(experiment: Experiment, inputs: RunInputs, which: str, rate: float) -> list[Reading]:
    """The scores of a model that is trained at the server on the samples of those who opted in, by epoch."""
    start: ModelState | None = None
    if which == TUNED:
        start = model_state(run_experiment(experiment, inputs=inputs).model)
    epochs = TUNING_ROUNDS if which == TUNED else experiment.rounds
    with prepare_run(experiment, inputs) as prepared:
        site, evaluate = prepared.simulation.site, prepared.training.evaluator.evaluate
        count = len(prepared.simulation.population)
        data = site.data.cohort(np.arange(count))
        chosen = opt_in_clients(OverArch(), count, experiment.seed)
        rows = np.concatenate([data.rows_of(client) for client in chosen.tolist()])
        mine = single_client_data(data.x[rows], data.y[rows])
        model, trace = start or site.initial, list[Reading]()
        local = Sgd(learning_rate=rate, batch_size=64, epochs=1)
        for epoch in range(epochs + 1):
            found = evaluate(model, epoch, epoch, lambda tasks, check=None: []).metrics
            metric = prepared.plan.metric
            trace.append((found["reference"][metric], found["test"][metric]))
            training = LocalTraining(
                execution=site.execution,
                data=mine,
                clients=np.zeros(1, np.int64),
                local=local,
                round=epoch + 1,
                seed=experiment.seed,
                randomness=site.randomness,
                sent={"model": model},
                stored=({},),
            )
            model = {name: tensor[0] for name, tensor in training.train().states.items()}
    return trace
