"""Combinations of settings that each work, and undo one another: one rule each, and one line that says what to do."""

from collections.abc import Callable, Iterator

from winnow.config.schema import Experiment
from winnow.learn.algorithms.fedprof import ProfileSelector
from winnow.learn.selection import Selector
from winnow.learn.update_filters import TwoSidedFilter
from winnow.privacy.compress.compress_filter import Compress
from winnow.privacy.dp import CentralDp, DiscreteGaussian, DpSgd, LocalDp, NoisyProfiles, PoissonSampling
from winnow.privacy.encrypted_profile_server import EncryptedComparison
from winnow.privacy.filters import Clip, PercentilePrivacy, SparseVectorTechnique
from winnow.privacy.homomorphic.homomorphic_collect import HomomorphicAggregation
from winnow.privacy.peers.peers_collect import PeersCollect
from winnow.privacy.secagg.masking_graph import safe_degree
from winnow.privacy.secagg.scalar_quantisation import MAX_CLIENTS
from winnow.privacy.secagg.secure_collect import SecureAggregation

LOCAL_NOISE_FILTERS = (LocalDp, SparseVectorTechnique)
"""Filters after which an update is private at the client."""
NOISY_PROFILES_SETTING = 'select.profile_comparison = { name = "noisy", clip = 1.0, noise_multiplier = 1.0 }'


def privacy_warnings(experiment: Experiment) -> Iterator[str]:
    return (warning for rule in LINT_RULES if (warning := rule(experiment)) is not None)


# What leaves a client beside its update -------------------------------------------------------------------------------


def sends_profiles(experiment: Experiment) -> bool:
    return isinstance(_sampled(experiment), ProfileSelector)


def profiles_by_class(experiment: Experiment) -> bool:
    selector = _sampled(experiment)
    return isinstance(selector, ProfileSelector) and selector.profile == "by-class"


def reports_model_losses(experiment: Experiment) -> bool:
    """Whether clients tell how well the models that they are sent do on their samples."""
    return experiment.composed().needs_start_loss or experiment.select.requests_losses


def reports_training_losses(experiment: Experiment) -> bool:
    """Where noise hides clients or samples none is told, as no noise would cover it."""
    return not _adds_noise(experiment)


def adds_local_noise(experiment: Experiment) -> bool:
    """Whether updates leave the clients with noise already."""
    return isinstance(experiment.client, DpSgd) or any(
        isinstance(each, LOCAL_NOISE_FILTERS) for each in experiment.filters
    )


def _update_protection(experiment: Experiment) -> str | None:
    """The setting that keeps from the server what single updates tell, if there is one, and what it does."""
    if experiment.collect.sums_only or isinstance(experiment.collect, PeersCollect):
        return f'collect.name = "{_name(experiment.collect)}" keeps updates from the server'
    noisy = next((each for each in experiment.filters if isinstance(each, LOCAL_NOISE_FILTERS)), None)
    if noisy is not None:
        return f'filters.name = "{_name(noisy)}" hides updates in noise'
    return 'client.name = "dp-sgd" hides samples in updates' if isinstance(experiment.client, DpSgd) else None


def asks_for_units(experiment: Experiment) -> bool:
    """Whether the owners of a table tell its units before the first round."""
    return experiment.data.table is not None and experiment.data.preprocessing is None


# The rules ------------------------------------------------------------------------------------------------------------


def _losses_beside(experiment: Experiment) -> str | None:
    guard = _update_protection(experiment)
    if guard is None or not reports_training_losses(experiment):
        return None
    return (
        f"{guard}, but each client sends its training loss in the clear, which reveals whether its data differ from "
        "the others'"
    )


def _profiles_beside(experiment: Experiment) -> str | None:
    guard, matching = _update_protection(experiment), experiment.select.comparison
    if guard is None or not sends_profiles(experiment) or isinstance(matching, NoisyProfiles):
        return None
    if isinstance(matching, EncryptedComparison):
        return (
            f"{guard}, but the variances of encrypted profiles are sent in the clear; set {NOISY_PROFILES_SETTING} "
            "to protect clients' data"
        )
    return (
        f"{guard}, but clients send FedProf profiles (means over their samples) in the clear; set "
        f"{NOISY_PROFILES_SETTING}, "
        'or select.profile_comparison = "encrypted" with reference_clients = [0], or choose another select.name'
    )


def _updates_beside_encrypted_profiles(experiment: Experiment) -> str | None:
    encrypted = sends_profiles(experiment) and isinstance(experiment.select.comparison, EncryptedComparison)
    if not encrypted or _update_protection(experiment) is not None:
        return None
    return (
        "profiles are encrypted, but every update is sent in the clear and reveals more about the same data; "
        'set collect.name = "secure"'
    )


def _trusted_server(experiment: Experiment) -> str | None:
    if not isinstance(experiment.collect, CentralDp):
        return None
    return (
        'collect.name = "central-dp" protects against those who see the models, not against the server, which sees '
        'every update; collect.name = "secure" with encoding.name = "discrete-gaussian" protects against both'
    )


def _published_sample(experiment: Experiment) -> str | None:
    if not isinstance(experiment.collect, CentralDp) or not isinstance(_sampled(experiment), PoissonSampling):
        return None
    return (
        "ε assumes that only the server knows which clients Poisson sampling selected, but the run's log lists them; "
        "publish only the models, not the log"
    )


def _selection_without_noise(experiment: Experiment) -> str | None:
    """Client-level privacy refuses this when settings are read; noise at the clients cannot know."""
    by_profile = sends_profiles(experiment) and not isinstance(experiment.select.comparison, NoisyProfiles)
    if not adds_local_noise(experiment) or not (by_profile or reports_model_losses(experiment)):
        return None
    what = "plain profiles" if by_profile else "losses of the models that they are sent"
    return (
        f"clients send {what} without noise, as often as the server asks; ε covers neither these nor the selection "
        "based on them, so a server that crafts models may learn about single samples"
    )


def _scores_beside_noise(experiment: Experiment) -> str | None:
    if not (experiment.reference_clients or experiment.data.local_test) or not _adds_noise(experiment):
        return None
    return (
        "clients send scores of each model without noise, and ε does not cover them; evaluate at the server instead "
        "(without reference_clients and data.local_test)"
    )


def _bound_after_noise(experiment: Experiment) -> str | None:
    for before, after in _ordered_filter_pairs(experiment):
        if isinstance(before, LOCAL_NOISE_FILTERS) and isinstance(after, Clip | PercentilePrivacy):
            return (
                f'filters: "{_name(after)}" comes after "{_name(before)}" and clips the noise rather than the update, '
                f'which adds no privacy and biases the mean; put "{_name(after)}" first'
            )
    return None


def _largest_after_noise(experiment: Experiment) -> str | None:
    for before, after in _ordered_filter_pairs(experiment):
        if isinstance(before, LocalDp) and isinstance(after, Compress) and _name(after.sparsify) == "top-k":
            return (
                'filters: sparsify.name = "top-k" after "local-dp" keeps the values that noise made large; use '
                '"random-k", which does not depend on values'
            )
    return None


def _noise_twice(experiment: Experiment) -> str | None:
    local = any(isinstance(each, LocalDp) for each in experiment.filters)
    if not local or not isinstance(experiment.collect, SecureAggregation):
        return None
    if isinstance(experiment.collect.encoding, DiscreteGaussian):
        return 'filters.name = "local-dp" and encoding.name = "discrete-gaussian" both add noise; remove one of them'
    return (
        'filters.name = "local-dp" adds the full noise at each client; with collect.name = "secure", '
        'encoding.name = "discrete-gaussian" gives the same ε for the sum with far less noise'
    )


def _sum_of_two(experiment: Experiment) -> str | None:
    collect = experiment.collect
    if not isinstance(collect, SecureAggregation | HomomorphicAggregation) or collect.min_clients > 2:
        return None
    return (
        "collect.min_clients = 2: in a sum of two updates, each client can subtract its own and learn the other's; "
        "set it to 3 or more"
    )


def _all_the_weight(experiment: Experiment) -> str | None:
    collect = experiment.collect
    if not isinstance(collect, SecureAggregation | HomomorphicAggregation) or collect.max_weight_share < 1:
        return None
    return (
        "collect.max_weight_share = 1 lets a server give one client almost all the weight and read its update from "
        "the sum; lower it"
    )


def _few_neighbours(experiment: Experiment) -> str | None:
    collect = experiment.collect
    if not isinstance(collect, SecureAggregation) or collect.neighbours is None:
        return None
    if collect.neighbours >= safe_degree(MAX_CLIENTS):
        return None
    return (
        f"collect.neighbours = {collect.neighbours} may be too few: with fewer neighbours, fewer colluding clients can "
        "expose an update and fewer dropouts can fail a round; omit it to use a safe number (44 for 100 clients, 88 "
        "for 1,000)"
    )


def _codewords_beside_sums(experiment: Experiment) -> str | None:
    collect = experiment.collect
    if not isinstance(collect, SecureAggregation) or not collect.encoding.needs_keeper:
        return None
    return (
        f'with encoding.name = "{_name(collect.encoding)}" the mask keeper counts codewords, which reveals more than '
        'sums to the server; encoding.name = "scalar" or "random-pruning" reveals sums only'
    )


def _units_beside_noise(experiment: Experiment) -> str | None:
    if not _adds_noise(experiment) or not asks_for_units(experiment):
        return None
    return (
        "noise hides clients or samples, but the units of the table (means and deviations over all owners) are told "
        "without it and count in no ε; state data.preprocessing from a statistic with --epsilon"
    )


LINT_RULES: tuple[Callable[[Experiment], str | None], ...] = (
    _losses_beside,
    _profiles_beside,
    _updates_beside_encrypted_profiles,
    _trusted_server,
    _published_sample,
    _selection_without_noise,
    _scores_beside_noise,
    _units_beside_noise,
    _bound_after_noise,
    _largest_after_noise,
    _noise_twice,
    _sum_of_two,
    _all_the_weight,
    _few_neighbours,
    _codewords_beside_sums,
)


def _sampled(experiment: Experiment) -> Selector:
    """The selection itself, of one that goes around another."""
    inner = getattr(experiment.select, "sampled", experiment.select)
    assert isinstance(inner, Selector)
    return inner


def _adds_noise(experiment: Experiment) -> bool:
    """Whether noise hides clients or samples, so that there is an ε."""
    collect = experiment.collect
    in_sums = isinstance(collect, SecureAggregation) and collect.encoding.private
    return isinstance(collect, CentralDp) or in_sums or adds_local_noise(experiment)


def _ordered_filter_pairs(experiment: Experiment) -> Iterator[tuple[TwoSidedFilter, TwoSidedFilter]]:
    """Every filter with each of those that an update meets later."""
    filters = experiment.filters
    return ((before, after) for place, before in enumerate(filters) for after in filters[place + 1 :])


def _name(part: object) -> str:
    return str(getattr(part, "name", ""))
