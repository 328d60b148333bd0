"""Differential privacy: what is released is bounded, made noisy, and counted against a budget."""

from winnow.privacy.dp.central import CentralDp
from winnow.privacy.dp.dp_sgd import DpSgd
from winnow.privacy.dp.forecast import forecast
from winnow.privacy.dp.ledger import ledger_for
from winnow.privacy.dp.local import LocalDp
from winnow.privacy.dp.poisson import Poisson
from winnow.privacy.dp.profiles import NoisyProfiles
from winnow.privacy.dp.summed import DiscreteGaussian

__all__ = ["CentralDp", "DiscreteGaussian", "DpSgd", "LocalDp", "NoisyProfiles", "Poisson", "forecast", "ledger_for"]
