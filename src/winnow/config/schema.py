"""An experiment, fully described: what a configuration file says, checked by types."""

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator
from torch import nn

from winnow.config.ensemble_checks import ensemble_conflict
from winnow.config.job_settings import JobSettings
from winnow.config.label_checks import label_conflict, method_name
from winnow.core import ConfigError, ModelError, Settings
from winnow.data import DataSettings
from winnow.fleet import Devices, FleetSettings
from winnow.learn import algorithms as _  # noqa: F401  # makes the named algorithms and their parts known
from winnow.learn.aggregation import AggregationRule
from winnow.learn.algorithm import Algorithm
from winnow.learn.client_quality.settings import QualitySettings
from winnow.learn.client_round_method import ClientUpdate, PlainUpdate
from winnow.learn.collect import Collect, PlainCollect
from winnow.learn.encoders import EncodeSettings
from winnow.learn.ensemble import ensemble_net as _ensembles  # noqa: F401  # makes the model "ensemble" known
from winnow.learn.ensemble.ensemble_settings import EnsembleSettings
from winnow.learn.local_optimiser import LocalOptimiser
from winnow.learn.models import ModelSettings
from winnow.learn.round_loop import Schedule, SynchronousRounds
from winnow.learn.selection import Selector
from winnow.learn.server_optimiser import ReplaceModel, ServerOptimiser
from winnow.learn.update_filters import TwoSidedFilter, filter_conflict
from winnow.privacy import compress as _compress  # noqa: F401  # makes compression known
from winnow.privacy import dp as _dp  # noqa: F401  # makes differential privacy known
from winnow.privacy import encrypted_profile_server as _private  # noqa: F401  # makes encrypted matching known
from winnow.privacy import filters as _filters  # noqa: F401  # makes the filters known
from winnow.privacy.homomorphic import homomorphic_collect as _homomorphic  # noqa: F401  # makes homomorphic aggregation known
from winnow.privacy.peers import peers_collect as _peers  # noqa: F401  # makes averaging among peers known
from winnow.privacy.secagg import secure_collect as _secure  # noqa: F401  # makes secure aggregation known
from winnow.tracking import Tracker


class EngineSettings(Settings):
    """How the simulation computes; results do not depend on it beyond the last bits, `precision` apart."""

    execution: Literal["auto", "native", "stacked", "vmap", "loop"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    compile: bool = False
    threads: int | None = Field(default=None, ge=1, le=1024)
    workers: Annotated[int, Field(ge=0, le=1024)] | Literal["ray"] = 0
    chunk: int | None = Field(default=None, ge=1)
    ray_address: str | None = None

    @field_validator("workers", mode="before")
    @classmethod
    def _processes_or_ray(cls, workers: object) -> object:
        if isinstance(workers, str) and workers != "ray":
            raise ValueError(
                f"{workers!r} is unknown; use a number of worker processes (0: run in this process) or 'ray'"
            )
        return workers


class EvaluationSettings(Settings):
    """Whose scores decide, and whether clients also evaluate models that they have first fine-tuned. With a `probe`, a
    model's last layer is fitted at the server before it is evaluated there; methods that train no last layer have it.
    """

    by: Literal["reference", "clients", "tuned"] = "reference"
    probe: Literal["none", "linear"] | None = None
    tune_epochs: int = Field(default=0, ge=0)
    tune_every: int = Field(default=10, ge=1)
    tune_from: Literal["own", "average"] = "own"

    def conflict(self, whole: "Experiment") -> str | None:
        """Why these settings cannot work in the experiment, as one line for a user; None if they can."""
        local_test, rounds = whole.data.local_test, whole.rounds
        if (conflict := self._probe_conflict(whole)) is not None:
            return conflict
        if self.by == "tuned" and not self.tune_epochs:
            return "evaluation.by = 'tuned' needs evaluation.tune_epochs: for how long clients tune a model"
        if self.by == "clients" and not local_test:
            return "evaluation.by = 'clients' needs data.local_test: the share of its samples that each client tests on"
        if self.tune_epochs and not local_test:
            return "evaluation.tune_epochs needs data.local_test: the share of its samples that each client tests on"
        if self.tune_epochs and self.tune_every > rounds:
            return f"evaluation.tune_every = {self.tune_every}, but there are {rounds} rounds; lower it"
        return None

    def _probe_conflict(self, whole: "Experiment") -> str | None:
        method = method_name(whole.client)
        if whole.client.learns_features and self.probe == "none":
            return f"{method} trains no last layer, so evaluation.probe = 'none' would score nothing; remove it"
        if not whole.probes:
            return None
        if whole.reference_clients:
            return "a linear probe needs samples at the server, and reference_clients hold them; remove one of the two"
        if whole.loss not in (None, "cross-entropy"):
            return f"a linear probe has one output per class, which loss = {whole.loss!r} has not; remove loss"
        if whole.data.local_test:
            return "a linear probe stays at the server, so clients cannot test by it; remove data.local_test"
        return None


class InMemoryModel(ModelSettings):
    """A module that was passed to `winnow.run` in Python. A configuration can name it but not build it."""

    name: Literal["in-memory"] = "in-memory"

    def build(self, sample_shape: tuple[int, ...], outputs: int) -> nn.Module:
        raise ModelError(
            "the model of this run was passed in Python; continue with winnow.run(..., model=..., out=..., resume=True)"
        )


class Experiment(Settings):
    """Data, model, algorithm, devices and what to measure."""

    name: str = "experiment"
    description: str = ""
    algorithm: str = "fedprof"
    base: str | None = None
    plugins: tuple[str, ...] = ()
    seed: int = Field(default=0, ge=0)
    rounds: int = Field(default=50, ge=1)
    target: float | None = None
    metric: str | None = None
    metrics: tuple[str, ...] = ()
    loss: Literal["cross-entropy", "nll", "mse", "bce"] | None = None
    reference_clients: tuple[Annotated[int, Field(ge=0)], ...] = ()
    data: DataSettings
    encode: EncodeSettings | None = None
    model: ModelSettings
    select: Selector
    local: LocalOptimiser
    aggregate: AggregationRule
    client: ClientUpdate = PlainUpdate()
    collect: Collect = PlainCollect()
    server: ServerOptimiser = ReplaceModel()
    schedule: Schedule = SynchronousRounds()
    filters: tuple[TwoSidedFilter, ...] = ()
    ensemble: EnsembleSettings | None = None
    evaluation: EvaluationSettings = EvaluationSettings()
    quality: QualitySettings = QualitySettings()
    fleet: FleetSettings = Devices()
    engine: EngineSettings = EngineSettings()
    job: JobSettings = JobSettings()
    tracking: tuple[Tracker, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _cosine_lasts_as_long_as_the_run(cls, settings: object) -> object:
        if not isinstance(settings, dict):
            return settings
        local = settings.get("local")
        if not isinstance(local, dict) or local.get("decay") != "cosine" or local.get("decay_rounds") is not None:
            return settings
        rounds = settings.get("rounds", cls.model_fields["rounds"].default)
        return {**settings, "local": {**local, "decay_rounds": rounds}}

    @model_validator(mode="after")
    def _parts_go_together(self) -> Self:
        try:
            whole = self.composed()
        except ConfigError as error:
            raise ValueError(str(error)) from None
        conflict = (
            filter_conflict(self.filters, whole)
            or label_conflict(self)
            or self._decay_conflict()
            or self._scale_conflict()
            or self.evaluation.conflict(self)
            or ensemble_conflict(self)
            or self.quality.conflict(whole, self.filters)
        )
        if conflict is not None:
            raise ValueError(conflict)
        return self

    def _decay_conflict(self) -> str | None:
        lasts = self.local.decay_rounds
        if lasts is None or lasts >= self.rounds:
            return None
        return (
            f"local.decay_rounds = {lasts}, but there are {self.rounds} rounds; after a cosine the learning rate is 0, "
            "so raise it"
        )

    def _scale_conflict(self) -> str | None:
        if self.encode is None or self.encode.scale == "none" or not self.client.bounds_samples:
            return None
        return (
            f"{method_name(self.client)} hides each sample, and with encode.scale = {self.encode.scale!r} a sample "
            "changes the features of all others of its client, which no ε would count; set encode.scale = 'none'"
        )

    @property
    def all_rounds(self) -> int:
        """With those of an ensemble's over-arch."""
        return self.rounds + (0 if self.ensemble is None else self.ensemble.combine.further_rounds)

    @property
    def probes(self) -> bool:
        """Whether models are scored by a linear probe of their features."""
        return self.evaluation.probe == "linear" or (self.evaluation.probe is None and self.client.learns_features)

    def composed(self) -> Algorithm:
        """The algorithm's parts as one value."""
        return Algorithm(
            select=self.select,
            local=self.local,
            aggregate=self.aggregate,
            client=self.client,
            collect=self.collect,
            server=self.server,
            schedule=self.schedule,
        )
