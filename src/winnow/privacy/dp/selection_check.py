"""Which selections go with client-level privacy.

Whom a round selects must not tell of anybody's data but through what is released with noise. Given whom it selects, one
client changes the sum by its own share and by nothing else.
"""

from winnow.learn.algorithm import Algorithm
from winnow.learn.algorithms.fedprof import ProfileSelector
from winnow.learn.algorithms.fedprox import SizeSelector
from winnow.learn.selection import UniformSelector
from winnow.privacy.dp.noisy_profiles import NoisyProfiles
from winnow.privacy.dp.poisson_sampling import PoissonSampling

DATA_INDEPENDENT = (UniformSelector, SizeSelector, PoissonSampling)
"""These look at no data, and at no reply."""


def selection_fault(whole: Algorithm, by: str) -> str | None:
    """What is wrong with a selection in the eyes of a part that promises privacy to whole clients."""
    select = whole.select
    if getattr(select, "replacement", False):
        return f"{by} counts a client once in a sum; leave select.replacement out"
    if isinstance(select, ProfileSelector):
        if isinstance(select.profile_comparison, NoisyProfiles):
            return None
        return (
            f'{by} needs noisy profiles, which are released, too: write select.profile_comparison = {{ name = "noisy", '
            "clip = …, noise_multiplier = … }"
        )
    if whole.needs_start_loss or not isinstance(select, DATA_INDEPENDENT):
        name = getattr(select, "name", "")
        return (
            f"{by} covers no losses or other reports, by which select.name = {name!r} selects clients; "
            'write "poisson", "uniform", "size", or "profile" with noisy profiles'
        )
    return None
