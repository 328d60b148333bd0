"""An experiment, fully described: what a configuration file says, checked by types."""

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator
from torch import nn

from winnow.core import ConfigError, ModelError, Settings
from winnow.data import DataSettings
from winnow.fleet import FleetSettings
from winnow.learn import algorithms as _  # noqa: F401  # makes the named algorithms and their parts known
from winnow.learn.aggregate import Aggregate
from winnow.learn.algorithm import Algorithm
from winnow.learn.client import ClientUpdate, Plain
from winnow.learn.collect import Collect, InTheClear
from winnow.learn.local import LocalUpdate
from winnow.learn.models import ModelSettings
from winnow.learn.pace import Pace, Rounds
from winnow.learn.select import Selector
from winnow.learn.server import Replace, ServerStep
from winnow.privacy import matching as _private  # noqa: F401  # makes encrypted matching known


class EngineSettings(Settings):
    """How the simulation computes; results do not depend on it beyond the last bits, `precision` apart."""

    execution: Literal["auto", "native", "stacked", "vmap", "loop"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    threads: int | None = Field(default=None, ge=1, le=1024)
    workers: Annotated[int, Field(ge=0, le=1024)] | Literal["ray"] = 0
    chunk: int | None = Field(default=None, ge=1)
    ray_address: str | None = None

    @field_validator("workers", mode="before")
    @classmethod
    def _processes_or_ray(cls, workers: object) -> object:
        if isinstance(workers, str) and workers != "ray":
            raise ValueError(f"{workers!r} is unknown; write a number of processes (0: none besides this) or 'ray'")
        return workers


class GivenModel(ModelSettings):
    """A module that was passed to `winnow.run` in Python. A configuration can name it but not build it."""

    name: Literal["given"] = "given"

    def build(self, sample_shape: tuple[int, ...], outputs: int) -> nn.Module:
        raise ModelError(
            "the model of this run was passed in Python; continue with winnow.run(..., model=..., out=..., resume=True)"
        )


class Experiment(Settings):
    """Data, model, algorithm, devices and what to measure."""

    name: str = "experiment"
    description: str = ""
    algorithm: str = "fedprof"
    seed: int = Field(default=0, ge=0)
    rounds: int = Field(default=50, ge=1)
    target: float | None = None
    metric: str | None = None
    loss: Literal["cross-entropy", "nll", "mse"] | None = None
    reference_clients: tuple[Annotated[int, Field(ge=0)], ...] = ()
    data: DataSettings
    model: ModelSettings
    select: Selector
    local: LocalUpdate
    aggregate: Aggregate
    client: ClientUpdate = Plain()
    collect: Collect = InTheClear()
    server: ServerStep = Replace()
    pace: Pace = Rounds()
    fleet: FleetSettings = FleetSettings()
    engine: EngineSettings = EngineSettings()

    @model_validator(mode="after")
    def _parts_go_together(self) -> Self:
        try:
            self.composed()
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    def composed(self) -> Algorithm:
        """The algorithm's parts as one value."""
        return Algorithm(
            select=self.select,
            local=self.local,
            aggregate=self.aggregate,
            client=self.client,
            collect=self.collect,
            server=self.server,
            pace=self.pace,
        )
