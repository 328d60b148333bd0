"""The rows of the tables: algorithms with their quantisers, and what a message of each weighs."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from winnow.privacy.compress import QSGD, Compress, Float32, MinMax
from winnow.privacy.compress.quantise import Quantiser

UNQUANTISED = Float32()


@dataclass(frozen=True, kw_only=True)
class Method:
    """A row. `models` says how many lists of parameters go each way."""

    name: str
    title: str
    algorithm: str
    quantise: Quantiser = UNQUANTISED
    conditions: str = ""
    """The condition set of an accelerated algorithm."""
    models: int = 1
    settings: tuple[str, ...] = ()

    @property
    def sets(self) -> tuple[str, ...]:
        """Settings of an experiment."""
        conditions = (f"local.conditions={self.conditions}",) if self.conditions else ()
        return (*self.settings, *conditions, *self._filters)

    @property
    def _filters(self) -> tuple[str, ...]:
        if isinstance(self.quantise, Float32):
            return ()
        given = ", ".join(f"{key} = {_toml(value)}" for key, value in self.quantise.model_dump().items())
        return (f"filters=[{{name = 'compress', quantise = {{{given}}}}}]",)

    def uplink_bytes(self, model: Mapping[str, Tensor]) -> int:
        """What a client sends in a round."""
        if isinstance(self.quantise, Float32):
            return self.downlink_bytes(model)
        return self.models * Compress(quantise=self.quantise).format.nbytes(model, model)

    def downlink_bytes(self, model: Mapping[str, Tensor]) -> int:
        """What a client is sent in a round: nothing compresses it."""
        return self.models * sum(tensor.nbytes for tensor in model.values())


def _toml(value: object) -> str:
    return f"'{value}'" if isinstance(value, str) else str(value)


EIGHT, FOUR = QSGD(levels=127), QSGD(levels=7)
"""With the sign, 8 and 4 bits a change."""
AS_EQUALS = ("aggregate.weights=uniform",)
"""All clients count alike, as in the paper, where they have equally many samples."""

METHODS = (
    Method(name="fedavg", title="FedAvg", algorithm="fedavg-rp", settings=AS_EQUALS),
    Method(name="fedpaq-8", title="FedPAQ, 8 bits", algorithm="fedpaq", quantise=EIGHT),
    Method(name="fedcomgate-8", title="FedCOMGATE, 8 bits", algorithm="fedcomgate", quantise=EIGHT),
    Method(name="fedac-1", title="FedAC-I", algorithm="fedac", conditions="I", models=2),
    Method(name="fedaq-1-8", title="FedAQ-I, 8 bits", algorithm="fedaq", conditions="I", models=2, quantise=EIGHT),
    Method(name="fedaq-1-4", title="FedAQ-I, 4 bits", algorithm="fedaq", conditions="I", models=2, quantise=FOUR),
    Method(name="fedac-2", title="FedAC-II", algorithm="fedac", conditions="II", models=2),
    Method(name="fedaq-2-8", title="FedAQ-II, 8 bits", algorithm="fedaq", conditions="II", models=2, quantise=EIGHT),
    Method(name="fedaq-2-4", title="FedAQ-II, 4 bits", algorithm="fedaq", conditions="II", models=2, quantise=FOUR),
    Method(name="scaffold", title="SCAFFOLD", algorithm="scaffold", models=2),
    Method(name="fedavgm", title="Server momentum (FedAvgM)", algorithm="fedavgm", settings=AS_EQUALS),
    Method(name="fedavgm-8", title="Server momentum, 8 bits", algorithm="fedavgm", settings=AS_EQUALS, quantise=EIGHT),
    Method(
        name="fedaq-1-8-min-max",
        title="FedAQ-I, 8 bits, min–max",
        algorithm="fedaq",
        conditions="I",
        models=2,
        quantise=MinMax(bits=8),
    ),
    Method(
        name="fedaq-1-4-min-max",
        title="FedAQ-I, 4 bits, min–max",
        algorithm="fedaq",
        conditions="I",
        models=2,
        quantise=MinMax(bits=4),
    ),
)
