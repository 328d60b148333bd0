"""What an ensemble's tasks may ask of a site: which model and settings go with a task, by the job as signed."""

import torch

from winnow.core import Arrays, ModelError, Task
from winnow.experiment.build_training_workflow import TrainingSetup
from winnow.experiment.ensemble_setup import over_experiment, private_inputs
from winnow.learn.client_round_method import TrainSettings
from winnow.learn.ensemble.ensemble_settings import OverArch
from winnow.learn.ensemble.leaf_outputs import SecondStageSites
from winnow.learn.ensemble.leaf_seeds import leaf_seed


class EnsembleTerms:
    """Rounds of leaves have a leaf's model and a leaf's seed; later ones the over-arch's, on leaves that come along.
    Without an ensemble there is one model.
    """

    def __init__(self, setup: TrainingSetup, second: SecondStageSites | None) -> None:
        self._setup, self._second = setup, second
        experiment = setup.experiment
        self._training = TrainSettings(
            local=experiment.local,
            client=experiment.client,
            seed=experiment.seed,
            profile=setup.model.layer is not None,
            start_loss=experiment.composed().needs_start_loss,
        )
        ensemble = experiment.ensemble
        leaves = 1 if ensemble is None else ensemble.clusters.most_leaves + bool(ensemble.private)
        self._seeds = {leaf_seed(experiment.seed, place) for place in range(leaves)}
        hidden = private_inputs(setup)
        self._masks = [] if hidden is None else [torch.as_tensor(hidden), torch.as_tensor(1 - hidden)]

    def model_of(self, task: Task) -> Arrays:
        """What a model that comes with the task must look like."""
        if self._second is None or task.round <= self._second.leaf_rounds:
            return self._setup.model.initial
        return self._second.stage(task).initial

    def check_columns(self, task: Task) -> None:
        """A leaf sees private columns alone, or none of them: never both."""
        for part in task.payload.values() if self._masks else ():
            for name, kept in part.items():
                if name.endswith("0.kept") and not any(torch.equal(kept.flatten().cpu(), m) for m in self._masks):
                    raise ModelError("the task's leaf sees private columns beside others; the job keeps them apart")

    def training_of(self, task: Task, asked: TrainSettings) -> TrainSettings:
        """What a training task may ask for; leaves differ in their seeds."""
        experiment = self._setup.experiment
        if self._second is not None and task.round > self._second.leaf_rounds:
            over = over_experiment(experiment)
            return TrainSettings(
                local=over.local,
                client=over.client,
                seed=experiment.seed,
                profile=self._training.profile,
                start_loss=self._training.start_loss,
            )
        seed = asked.seed if asked.seed in self._seeds else self._training.seed
        return TrainSettings(
            local=self._training.local,
            client=self._training.client,
            seed=seed,
            profile=self._training.profile,
            start_loss=self._training.start_loss,
        )


def total_rounds(setup: TrainingSetup) -> int:
    """The rounds in which clients may be asked to train."""
    experiment = setup.experiment
    combine = None if experiment.ensemble is None else experiment.ensemble.combine
    return experiment.rounds + (combine.rounds if isinstance(combine, OverArch) and combine.at == "clients" else 0)
