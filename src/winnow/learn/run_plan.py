"""What is known of a training run before it starts, and the tasks that follow from it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray

from winnow.core import Payload, Task, Work
from winnow.learn.accountant_interface import AccountantFactory, no_accountant
from winnow.learn.algorithm import Algorithm
from winnow.learn.client_round_method import TrainSettings
from winnow.learn.metrics import Metric
from winnow.learn.profile_by_class import ProfileClasses
from winnow.learn.stack import StateLayout

FLOAT_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """What is known before a run starts and does not change during it."""

    algorithm: Algorithm
    rounds: int
    seed: int
    metrics: tuple[Metric, ...]
    """What models are scored by; the first decides which is best."""
    message_bytes: int
    """What one transfer of the model weighs."""
    profile_bytes: int
    """What a profile weighs; 0 where replies carry none."""
    elements: int = 0
    """How many elements of a layer a profile has, likewise."""
    profile_classes: ProfileClasses | None = None
    """For profiles by class, those classes."""
    layout: StateLayout
    """What of the model is trained."""
    sample_shape: tuple[int, ...]
    outputs: int
    """Classes, or values of a regression."""
    built_outputs: int
    """Of a model that is built by name: one for two classes if the loss wants that."""
    classes: int | None
    """None in a regression."""
    private: frozenset[str] = frozenset()
    """The names of what stays with the clients: it is neither sent nor aggregated."""
    accountant: AccountantFactory = no_accountant
    """Opens the account of the privacy that the run costs, for a population."""
    evaluated_by: str = "reference"
    """Whose scores decide which model is best: the reference set's, the clients', or theirs after fine-tuning."""
    parameters: int = 0
    """The number of the model's parameters."""
    predicted_rows: int = 0
    """Of how many open samples clients' predictions are, where they send such."""
    layer: str | None = None
    """The layer that is profiled, if any is."""
    rounds_before: int = 0
    """How many rounds of something else went before; they are counted on."""
    constants: Payload = field(default_factory=dict)
    """Parts that every training task carries and nobody trains: the leaves below an over-arch."""
    notice: str = ""
    """What a user should know before the run starts."""

    @property
    def metric(self) -> str:
        """The metric that decides."""
        return self.metrics[0].name

    @property
    def lower_is_better(self) -> bool:
        return self.metrics[0].lower_is_better

    @property
    def private_names(self) -> tuple[str, ...]:
        """The private entries of the model's state, in its order."""
        return tuple(name for name in self.layout.names if name in self.private)

    def tasks(self, clients: Sequence[int], sizes: NDArray[np.int64], *, payload: Payload, round: int) -> list[Task]:
        """Training in a round, from what the payload holds, for each of these clients."""
        algorithm, profiled = self.algorithm, self.profile_bytes > 0
        settings = TrainSettings(
            local=algorithm.local,
            client=algorithm.client,
            seed=self.seed,
            profile=profiled,
            start_loss=algorithm.needs_start_loss,
            profile_classes=self.profile_classes,
        )

        constant_bytes = sum(array.nbytes for part in self.constants.values() for array in part.values())
        predictions = FLOAT_BYTES * self.predicted_rows * self.outputs if algorithm.client.sends_predictions else 0

        @cache
        def work(passes: float) -> Work:
            return Work(
                training_passes=passes,
                profiling_passes=float(profiled or algorithm.needs_start_loss),
                download_bytes=int(self.message_bytes * algorithm.server.download_factor)
                + predictions
                + constant_bytes,
                upload_bytes=predictions or int(self.message_bytes * algorithm.client.upload_factor),
                profile_bytes=self.profile_bytes,
            )

        return [
            Task(
                name="train",
                client=k,
                round=round,
                version=round - 1,
                payload=payload,
                settings=settings,
                work=work(algorithm.client.passes(algorithm.local, int(sizes[k]))),
            )
            for k in clients
        ]
