"""Differential privacy: what is released is bounded, made noisy, and counted against a budget."""

from winnow.privacy.dp.branch_update import BranchUpdate, PrivateBranchUpdate
from winnow.privacy.dp.budget_forecast import forecast
from winnow.privacy.dp.central import CentralDp
from winnow.privacy.dp.distributed_discrete_gaussian import DiscreteGaussian
from winnow.privacy.dp.dp_sgd import DpSgd
from winnow.privacy.dp.local import LocalDp
from winnow.privacy.dp.noisy_profiles import NoisyProfiles
from winnow.privacy.dp.poisson_sampling import PoissonSampling
from winnow.privacy.dp.run_accounting import accountant_for

__all__ = [
    "BranchUpdate",
    "CentralDp",
    "DiscreteGaussian",
    "DpSgd",
    "LocalDp",
    "NoisyProfiles",
    "PoissonSampling",
    "PrivateBranchUpdate",
    "accountant_for",
    "forecast",
]
