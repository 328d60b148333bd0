"""Noise at the clients: in updates, in profiles, in every step, and in shares of a sum."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats
from torch import nn

from winnow.config.schema import Experiment
from winnow.core import ConfigError, Failure, ModelError, Population, Reply, Task, stream, wrap
from winnow.experiment.build_simulation import prepare_run
from winnow.experiment.build_training_workflow import RunInputs
from winnow.learn.aggregation import PartialAggregation
from winnow.learn.secure_randomness import secure_stream
from winnow.privacy.concentrated_privacy import discrete_gaussian
from winnow.privacy.dp import DiscreteGaussian, DpSgd, LocalDp, NoisyProfiles
from winnow.privacy.dp.noisy_profiles import SENSITIVITY, clip_profile
from winnow.privacy.dp.site_release_limits import SiteReleaseLimits
from winnow.privacy.secagg.secure_collect import SecureAggregation
from winnow.privacy.secagg.server_round import SecureRound, TrainedCohort
from winnow.privacy.secagg.simulated_identities import SimulatedIdentities
from winnow.privacy.secagg.update_encoding_interface import EncodingParameters
from winnow.privacy.secagg.update_layout import UpdateLayout, weighted_update
from world import blobs, experiment, prepared, round_context

NOISY_SUM = ('collect.name="secure"', 'collect.encoding.name="discrete-gaussian"', "collect.encoding.clip=1.0")
MODEL = {"w": torch.zeros(40, 5), "count": torch.tensor(3)}


def models(*sets: str, **options: Any) -> list[torch.Tensor]:
    """All parameters after each of two runs with the same settings."""
    found = []
    for _ in range(2):
        with prepared(*sets, algorithm="fedavg", rounds=2, **options) as ready:
            list(ready.training.run(ready.federation))
            found.append(torch.cat([tensor.reshape(-1) for tensor in ready.training.model.values()]))
    return found


# Where noise comes from -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sets",
    [
        ('collect.name="central-dp"', "collect.noise_multiplier=1.0"),
        ('filters=[{name="local-dp",noise_multiplier=1.0,clip=1.0}]',),
        ('client.name="dp-sgd"', "client.noise_multiplier=1.0"),
        (
            'collect.name="secure"', 'collect.encoding.name="discrete-gaussian"', "collect.encoding.clip=1.0",
            "collect.encoding.noise_multiplier=1.0",
        ),
    ],
)  # fmt: skip
def test_a_simulation_repeats_its_noise(sets: tuple[str, ...]) -> None:
    one, other = models(*sets)
    assert torch.equal(one, other)


def test_a_secure_stream_does_not_repeat() -> None:
    assert stream(0, "dp-sgd", 1, 0).normal() == stream(0, "dp-sgd", 1, 0).normal()
    assert secure_stream(0, "dp-sgd", 1, 0).normal() != secure_stream(0, "dp-sgd", 1, 0).normal()


def test_noise_does_not_depend_on_who_computes_it() -> None:
    """Workers are processes of their own; their noise repeats, too."""
    sets = ('client.name="dp-sgd"', "client.noise_multiplier=1.0")
    alone, workers = models(*sets)[0], models(*sets, "engine.workers=2")[0]
    assert torch.equal(alone, workers)


# Local ----------------------------------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(hnp.arrays(np.float32, 30, elements=st.floats(-100, 100, width=32)), st.sampled_from(["gaussian", "laplace"]))
def test_any_two_updates_are_within_twice_the_bound(changes: np.ndarray, noise: str) -> None:
    quiet = LocalDp(noise_multiplier=1e-12, clip=0.5, noise=noise)  # type: ignore[arg-type]
    left = [quiet.altered(each, {}, np.random.default_rng(0)) for each in (changes, -changes)]
    order = 1 if noise == "laplace" else 2
    assert np.linalg.norm(left[0] - left[1], order) <= 2 * 0.5 * (1 + 1e-5)


@pytest.mark.parametrize(("noise", "law"), [("gaussian", "norm"), ("laplace", "laplace")])
def test_local_noise_has_its_law(noise: str, law: str) -> None:
    filtering = LocalDp(noise_multiplier=1.5, clip=2.0, noise=noise)  # type: ignore[arg-type]
    drawn = filtering.altered(np.zeros(4000, np.float32), {}, np.random.default_rng(1))
    assert stats.kstest(drawn, law, args=(0, 1.5 * 2 * 2.0)).pvalue > 1e-3


# Profiles -------------------------------------------------------------------------------------------------------------

samples = hnp.arrays(np.float64, st.tuples(st.integers(1, 6), st.just(4)), elements=st.floats(-20, 20))


@settings(max_examples=200, deadline=None)
@given(samples, samples, st.floats(0.1, 10))
def test_any_two_profiles_are_within_the_sensitivity(one: np.ndarray, other: np.ndarray, clip: float) -> None:
    points = []
    for data in (one, other):
        mean, variance = clip_profile(data.mean(0), data.var(0), clip)
        points.append(np.concatenate([mean / clip, variance / clip**2]))
    assert np.linalg.norm(points[0] - points[1]) <= SENSITIVITY * (1 + 1e-9)


def test_opposite_clients_attain_the_sensitivity() -> None:
    points = [clip_profile(sign * np.array([3.0, 4.0]), np.zeros(2), 1.0)[0] for sign in (-1, 1)]
    assert np.linalg.norm(points[0] - points[1]) == pytest.approx(SENSITIVITY)


def test_a_profile_within_the_bound_is_left_as_it_is() -> None:
    mean, variance = np.array([0.3, -0.2]), np.array([0.1, 0.2])
    found = clip_profile(mean, variance, 2.0)
    np.testing.assert_array_equal(found, (mean, variance))


def test_profile_noise_is_that_of_the_multiplier() -> None:
    matching = NoisyProfiles(noise_multiplier=3.0, clip=0.5)
    mean, variance = matching.noisy(np.zeros(5000), np.full(5000, 1e-9), np.random.default_rng(0))
    assert mean.std() == pytest.approx(2 * 3.0 * 0.5, rel=0.05)
    assert variance.min() == 0
    assert variance[variance > 0].mean() == pytest.approx(2 * 3.0 * 0.25 * np.sqrt(2 / np.pi), rel=0.05)


def test_with_little_noise_selection_is_what_it_is_without() -> None:
    def scores(*sets: str) -> np.ndarray:
        with prepared(*sets, algorithm="fedprof", rounds=1) as ready:
            return next(e.scores for e in ready.training.run(ready.federation) if e.kind == "scored")

    noisy = 'select.profile_comparison={name="noisy",clip=100.0,noise_multiplier=%s}'
    np.testing.assert_allclose(scores(noisy % "1e-9"), scores(), atol=1e-4)
    assert np.abs(scores(noisy % "1.0") - scores()).max() > 0.05


def test_holders_of_the_reference_set_would_release_more_than_is_counted() -> None:
    with pytest.raises(ConfigError, match="reference_clients"):
        prepared(
            'select.profile_comparison={name="noisy",clip=1.0,noise_multiplier=1.0}',
            "reference_clients=[0]",
            algorithm="fedprof",
        )


# DP-SGD ---------------------------------------------------------------------------------------------------------------


def moved(*sets: str) -> torch.Tensor:
    """How far the model goes in one round in which all train with full gradients."""
    common = ("local.batch_size=1000", "local.momentum=0.0", "local.epochs=3", "select.count=8")
    with prepared(*common, *sets, algorithm="fedavg", rounds=1) as ready:
        start = ready.training.model
        list(ready.training.run(ready.federation))
        return torch.cat([(ready.training.model[name] - tensor).reshape(-1) for name, tensor in start.items()])


def test_dp_sgd_without_noise_or_a_bound_that_matters_is_sgd() -> None:
    torch.testing.assert_close(moved('client={name="dp-sgd",noise_multiplier=1e-9,clip=1e6}'), moved())


def test_dp_sgd_bounds_each_samples_gradient() -> None:
    """Then no step of rate 0.1 is longer than 0.1·C, of which there are three."""
    found = moved('client={name="dp-sgd",noise_multiplier=1e-9,clip=0.01}')
    assert 0.2 * 3 * 0.1 * 0.01 < float(found.norm()) <= 3 * 0.1 * 0.01 * (1 + 1e-4)


def test_dp_sgd_adds_noise_to_every_step() -> None:
    quiet, noisy = (moved(f'client={{name="dp-sgd",noise_multiplier={z},clip=0.01}}') for z in (1e-9, 100.0))
    samples = 300 / 8  # each step's noise has 100·C over the samples of a client; three steps, the mean of 8 clients
    expected = 0.1 * 100 * 0.01 / samples * np.sqrt(3 / 8)
    assert float((noisy - quiet).std()) == pytest.approx(expected, rel=0.25)


def test_dp_sgd_tells_no_loss() -> None:
    with prepared('client={name="dp-sgd",noise_multiplier=1.0}', algorithm="fedavg", rounds=1) as ready:
        assert all(
            np.isnan(each.loss) for each in ready.training.run(ready.federation) if each.kind == "round_finished"
        )


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(8),
        nn.BatchNorm1d(8, affine=False),
        nn.BatchNorm1d(8, affine=False, track_running_stats=False),
        nn.InstanceNorm1d(8, track_running_stats=True),
    ],
)
def test_a_model_that_mixes_samples_is_refused(layer: nn.Module) -> None:
    mixing = nn.Sequential(nn.Linear(5, 8), layer, nn.ReLU(), nn.Linear(8, 3))
    with pytest.raises(ModelError, match=r'"dp-sgd" cannot train this model: \w+Norm1d \(1\) mixes'):
        DpSgd(noise_multiplier=1.0).notice(mixing)
    if isinstance(layer, nn.BatchNorm1d):
        wanted = experiment('client={name="dp-sgd",noise_multiplier=1.0}', algorithm="fedavg")
        with pytest.raises(ModelError, match="dp-sgd"):
            prepare_run(wanted, RunInputs(dataset=blobs(), module=mixing))


class Remembers(nn.Module):
    """Adds up what it sees, where no noise is added: a buffer of its own making."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen += x.detach().sum(0)
        return x


def test_a_layer_that_keeps_something_of_samples_is_refused_before_anything_leaves() -> None:
    module = nn.Sequential(Remembers(), nn.Linear(5, 3))
    wanted = experiment('client={name="dp-sgd",noise_multiplier=1.0}', "engine.execution=loop", algorithm="fedavg")
    with (
        pytest.raises(ModelError, match=r"buffer 0\.seen depends on the samples"),
        prepare_run(wanted, RunInputs(dataset=blobs(), module=module)) as ready,
    ):
        list(ready.training.run(ready.federation))


# Shares of a sum ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deviation", [0.8, 3.0, 40.5])
def test_discrete_gaussian_noise_has_its_law(deviation: float) -> None:
    drawn = discrete_gaussian(deviation, 20_000, np.random.default_rng(0))
    support = np.arange(-int(6 * deviation) - 2, int(6 * deviation) + 3)
    law = np.exp(-(support**2) / (2 * deviation**2))
    law /= law.sum()
    seen = np.array([(drawn == value).sum() for value in support])
    common = law * len(drawn) > 10
    _, p = stats.chisquare(
        np.append(seen[common], len(drawn) - seen[common].sum()),
        len(drawn) * np.append(law[common], law[~common].sum()),
    )
    assert p > 1e-3


def summed(encoding: DiscreteGaussian, changes: np.ndarray, survivors: int | None = None) -> tuple[np.ndarray, float]:
    """The decoded sum of clients' updates, without masks, and its weight."""
    members, rng = len(changes), np.random.default_rng(0)
    layout = UpdateLayout.of({"model": MODEL})
    group = encoding.group(layout, members)
    total = group.zeros()
    for change in changes[:survivors]:
        own = {"w": torch.from_numpy(change.reshape(40, 5)).float(), "count": torch.tensor(9)}
        group.add(
            total,
            encoding.encode(
                layout, weighted_update({"model": own}, MODEL, 0.5), EncodingParameters(version=1), members, rng
            ),
        )
    decoded = encoding.decode(layout, group.reduce(total), EncodingParameters(version=1), members, survivors or members)
    assert float(np.abs(decoded.sums[1])) == 0, "counters are not sent"
    return np.asarray(decoded.sums[0]).reshape(-1), float(decoded.sums[-1])


def test_a_sum_with_shares_of_noise_is_the_bounded_sum_and_enough_noise() -> None:
    encoding = DiscreteGaussian(noise_multiplier=0.5, clip=2.0)
    changes = np.random.default_rng(1).normal(0, 1, (12, 200))
    bounded = [0.5 * c * min(1, 2.0 / np.linalg.norm(0.5 * c)) for c in changes]
    for survivors in (12, 8):
        found, weight = summed(encoding, changes, survivors)
        noise = found - np.sum(bounded[:survivors], axis=0)
        assert weight == pytest.approx(0.5 * survivors)
        assert noise.std() == pytest.approx(0.5 * 2.0 * np.sqrt(survivors / 6), rel=0.15)
        assert noise.std() > 0.5 * 2.0 * 0.9, "at least the noise that is counted"


@settings(max_examples=40, deadline=None)
@given(hnp.arrays(np.float64, 50, elements=st.floats(-5, 5)), st.integers(16, 300))
def test_rounding_never_lengthens_beyond_the_sensitivity(vector: np.ndarray, levels: int) -> None:
    encoding = DiscreteGaussian(noise_multiplier=1.0, clip=1.0, levels=levels)
    rounded = encoding._rounded(vector, np.random.default_rng(0))
    assert np.linalg.norm(rounded) <= encoding.sensitivity(50)


@pytest.mark.parametrize("select", ["uniform", "poisson"])
def test_steps_too_coarse_for_the_noise_are_refused_when_settings_are_read(select: str) -> None:
    """Under Poisson sampling as many as all may come, and each one's noise is the smaller."""
    coarse = ("collect.encoding.noise_multiplier=0.05", "collect.encoding.levels=95", f"select.name={select}")
    if select == "uniform":
        prepared(*NOISY_SUM, *coarse, algorithm="fedavg")
        return
    with pytest.raises(ConfigError, match=r"collect.encoding.levels = 95 is too coarse for 8 clients"):
        prepared(*NOISY_SUM, *coarse, algorithm="fedavg")


def test_weight_bound_sum_noise_and_division_by_a_public_constant() -> None:
    """θ + Σ_k w_k·Δ_k / (K·w̄): K are invited by the settings, w̄ is the mean weight of all clients, whoever came."""
    uneven, faint = 'data.partition={name="dirichlet",alpha=0.4}', "collect.encoding.noise_multiplier=1e-4"
    many = ("collect.encoding.levels=1000000", "collect.encoding.clip=10.0", "collect.max_weight_share=1.0")
    with prepared(uneven, "select.count=4", algorithm="fedavg-rp", rounds=1) as plain:
        sizes = plain.federation.population.sizes
        start = {name: tensor.clone() for name, tensor in plain.training.model.items()}
        with plain.federation.dispatch(plain.training.tasks(range(8), sizes, round=1)) as exchange:
            trained = {reply.task.client: reply.payload["model"] for reply in exchange}
    with prepared(uneven, "select.count=4", *NOISY_SUM, faint, *many, algorithm="fedavg-rp", rounds=1) as noisy:
        events = list(noisy.training.run(noisy.federation))
        found = noisy.training.model
    (finished,) = [event for event in events if event.kind == "round_finished"]
    folded = finished.aggregated.tolist()
    by_what_came, by_a_constant = sizes[folded].sum(), 4 * sizes.mean()
    assert abs(by_what_came / by_a_constant - 1) > 0.1, "so that it shows"
    for name, tensor in start.items():
        moved = sum(sizes[k] * (trained[k][name] - tensor) for k in folded) / by_a_constant
        torch.testing.assert_close(found[name] - tensor, moved.float(), atol=3e-3, rtol=0)
    assert np.isnan(finished.loss)
    assert finished.metrics["collect"].keys() == {"overflowed"}, "how much was cut off nobody is told"


def test_what_a_client_counts_in_a_noisy_sum_does_not_depend_on_who_else_came() -> None:
    """The heaviest of all clients stays away: everybody else's weight, and so its bounded share, is what it was."""
    sizes = np.array([10, 20, 30, 40])
    found = []
    for cohort in ([0, 1, 2, 3], [0, 1, 2]):
        collect = SecureAggregation(encoding=DiscreteGaussian(noise_multiplier=1.0, clip=1.0))
        fold = PartialAggregation().start(MODEL, Population(sizes=sizes), 4, np.random.default_rng())
        replies = [Reply(task=Task(name="train", client=k, round=1, version=0)) for k in cohort]
        context = round_context({"model": MODEL}, counts=dict.fromkeys(cohort, 1), selected=4)
        trained = TrainedCohort(cohort=replies, layout=UpdateLayout(()), refused=[], answered=replies)
        held = SecureRound(collect, fold, context, trained, Population(sizes=sizes))
        found.append([held._weights[k] for k in (0, 1, 2)])
    assert found[0] == found[1] == pytest.approx([0.25, 0.5, 0.75])


# A site's own book ----------------------------------------------------------------------------------------------------


class Pages(SimulatedIdentities):
    """Remembers what has left, as an agent does."""

    def __init__(self) -> None:
        super().__init__()
        self.left: dict[tuple[int, str], list[int]] = {}

    def release(self, party: int, round: int, what: str = "update") -> int:
        rounds = self.left.setdefault((party, what), [])
        if rounds and round <= rounds[-1]:
            return 0
        rounds.append(round)
        return len(rounds)


def limits(wanted: Experiment, pages: Pages, *, held: bool) -> SiteReleaseLimits:
    return SiteReleaseLimits(
        whole=wanted.composed(), filters=wanted.filters, rounds=4, size_of=lambda k: 40, identities=pages, held=held
    )


def asked(site: SiteReleaseLimits, round: int) -> str | None:
    """Why a site lets nothing out for a task of this round; None if it does."""
    task = Task(name="train", client=0, round=round, version=round - 1)
    (outcome,) = wrap(lambda tasks, _: [Reply(task=each) for each in tasks], site.around())([task], None)
    return outcome.reason if isinstance(outcome, Failure) else None


def test_nobody_gets_beyond_a_budget_by_asking_twice_for_a_share_of_a_sum() -> None:
    noise = ("collect.encoding.noise_multiplier=2.0", "collect.encoding.epsilon=4.0")
    wanted, pages = experiment(*NOISY_SUM, *noise, algorithm="fedavg"), Pages()
    site = limits(wanted, pages, held=True)
    first = [asked(site, number) for number in (1, 1, 2, 2)]
    assert first == [None] * 4, "what is held back may be made again"
    again = [asked(site, 3), asked(site, 3), asked(limits(wanted, pages, held=True), 3)]
    assert all("epsilon = 4 does not last for 3 updates" in (reason or "") for reason in again)
    assert asked(site, 5) == "the task is for round 5; the job has rounds 1 to 4"


@pytest.mark.parametrize("held", [True, False])
def test_updates_through_the_sparse_vector_technique_are_counted_too(held: bool) -> None:
    site = limits(experiment('filters=[{name="sparse-vector",epsilon=1.0}]', algorithm="fedavg"), Pages(), held=held)
    assert asked(site, 1) is None
    again = asked(site, 1)
    assert again is None if held else "was already released" in (again or "")
    assert asked(site, 5) == "the task is for round 5; the job has rounds 1 to 4"
