"""Which selections go with client-level privacy.

Whom a round invites must not tell of anybody's data but through what is released with noise. Given whom it invites, one
client changes the sum by its own share and by nothing else.
"""

from winnow.learn.algorithm import Algorithm
from winnow.learn.algorithms.fedprof import ByProfile
from winnow.learn.algorithms.fedprox import BySize
from winnow.learn.select import Uniform
from winnow.privacy.dp.poisson import Poisson
from winnow.privacy.dp.profiles import NoisyProfiles

BLIND = (Uniform, BySize, Poisson)
"""These look at no data, and at no reply."""


def objection_to_selection(whole: Algorithm, by: str) -> str | None:
    """What is wrong with a selection in the eyes of a part that promises privacy to whole clients."""
    select = whole.select
    if getattr(select, "replacement", False):
        return f"{by} counts a client once in a sum; leave select.replacement out"
    if isinstance(select, ByProfile):
        if isinstance(select.matching, NoisyProfiles):
            return None
        return (
            f'{by} needs noisy profiles, which are released, too: write select.matching = {{ name = "noisy", clip = …, '
            "noise_multiplier = … }"
        )
    if whole.values_model or not isinstance(select, BLIND):
        name = getattr(select, "name", "")
        return (
            f"{by} covers no losses or other reports, by which select.name = {name!r} invites clients; "
            'write "poisson", "uniform", "size", or "profile" with noisy profiles'
        )
    return None
