"""What a run says it has spent is what dp-accounting says of the same mechanism."""

from typing import Any

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting import pld, rdp

from winnow.core import ConfigError, RoundFinished, Stopped
from winnow.experiment.build_simulation import prepare_run
from winnow.experiment.build_training_workflow import RunInputs
from winnow.privacy.dp.privacy_loss import (
    ConcentratedRelease,
    GaussianRelease,
    LaplaceRelease,
    epsilon,
    least_noise,
)
from winnow.progress.live_display import ProgressHeader, ProgressState
from world import blobs, experiment, prepared

CENTRAL = ('collect.name="central-dp"', "collect.noise_multiplier=1.5")
NOISY = (
    'select.profile_comparison.name="noisy"',
    "select.profile_comparison.clip=4.0",
    "select.profile_comparison.noise_multiplier=5.0",
)
SECURE = ('collect.name="secure"', 'collect.encoding.name="discrete-gaussian"', "collect.encoding.clip=1.0")


def composed(*events: tuple[Any, int], delta: float = 1e-5, accountant: Any = None) -> float:
    found = accountant or pld.PLDAccountant()
    for event, times in events:
        found.compose(event, times)
    return float(found.get_epsilon(delta))


def finished(*sets: str, algorithm: str = "fedavg", **options: Any) -> list[Any]:
    with prepared(*sets, algorithm=algorithm, **options) as ready:
        return list(ready.training.run(ready.federation))


def rounds_of(events: list[Any]) -> list[RoundFinished]:
    return [event for event in events if isinstance(event, RoundFinished)]


def most_often(events: list[Any], clients: int = 8) -> list[int]:
    """After each round, how often the client took part that did so most often."""
    times, most = np.zeros(clients, int), []
    for event in events:
        if event.kind == "selected":
            times[event.clients] += 1
            most.append(int(times.max()))
    return most


def test_poisson_sampling_is_amplified() -> None:
    rounds = rounds_of(finished(*CENTRAL, 'select.name="poisson"', "select.count=2"))
    gaussian = dp.PoissonSampledDpEvent(2 / 8, dp.GaussianDpEvent(1.5))
    for number, event in enumerate(rounds, start=1):
        assert event.metrics["privacy"]["epsilon"] == pytest.approx(composed((gaussian, number)), rel=1e-3)


@pytest.mark.parametrize("adaptive", ["true", "false"])
def test_any_other_selection_is_a_composition_of_plain_gaussians(adaptive: str) -> None:
    events = finished(*CENTRAL, f"collect.adaptive_clip={adaptive}")
    for event, most in zip(rounds_of(events), most_often(events), strict=True):
        expected = composed((dp.GaussianDpEvent(1.5), most))
        assert event.metrics["privacy"]["epsilon"] == pytest.approx(expected, rel=1e-3)


BY_PROFILE = pytest.mark.parametrize("algorithm", ["fedprof", "fedprof-by-class"])


@BY_PROFILE
def test_profiles_are_in_the_budget(algorithm: str) -> None:
    events = finished(*CENTRAL, *NOISY, algorithm=algorithm)
    for event, most in zip(rounds_of(events), most_often(events), strict=True):
        expected = composed((dp.GaussianDpEvent(1.5), most), (dp.GaussianDpEvent(5.0), most + 1))
        assert event.metrics["privacy"]["epsilon"] == pytest.approx(expected, rel=1e-3)


def test_sums_with_discrete_noise_are_accounted_as_concentrated() -> None:
    events = finished(*SECURE, "collect.encoding.noise_multiplier=2.0")
    for event, most in zip(rounds_of(events), most_often(events), strict=True):
        expected = composed((dp.ZCDpEvent(1 / 8), most), accountant=rdp.RdpAccountant())
        assert event.metrics["privacy"]["epsilon"] == pytest.approx(expected, rel=1e-6)


def test_profiles_beside_sums_with_discrete_noise_are_in_the_budget() -> None:
    events = finished(*SECURE, "collect.encoding.noise_multiplier=2.0", *NOISY, algorithm="fedprof")
    for event, most in zip(rounds_of(events), most_often(events), strict=True):
        moments = rdp.RdpAccountant()
        expected = composed((dp.ZCDpEvent(1 / 8), most), (dp.GaussianDpEvent(5.0), most + 1), accountant=moments)
        assert event.metrics["privacy"]["epsilon"] == pytest.approx(expected, rel=1e-6)


def test_profiles_beside_local_noise_are_in_its_budget() -> None:
    events = finished('filters=[{name="local-dp",noise_multiplier=2.0,clip=1.0}]', *NOISY, algorithm="fedprof")
    for event, most in zip(rounds_of(events), most_often(events), strict=True):
        expected = composed((dp.GaussianDpEvent(2.0), most), (dp.GaussianDpEvent(5.0), most + 1))
        assert event.metrics["privacy"] == {"local_epsilon": pytest.approx(expected, rel=1e-3)}


def test_profiles_beside_dp_sgd_are_in_its_budget() -> None:
    private = ('client.name="dp-sgd"', "client.noise_multiplier=20.0")
    alone, beside = (
        rounds_of(finished(*private, *sets, algorithm="fedprof", rounds=1))[0].metrics["privacy"]["record_epsilon"]
        for sets in ((), NOISY)
    )
    assert beside > composed((dp.GaussianDpEvent(5.0), 2)) * 0.999 > alone


@BY_PROFILE
def test_profiles_alone_have_an_epsilon_of_their_own(algorithm: str) -> None:
    events = finished(*NOISY, "select.profile_comparison.delta=1e-4", algorithm=algorithm)
    for event, most in zip(rounds_of(events), most_often(events), strict=True):
        expected = composed((dp.GaussianDpEvent(5.0), most + 1), delta=1e-4)
        assert event.metrics["privacy"] == {"profile_epsilon": pytest.approx(expected, rel=1e-3)}
    assert "privacy" not in rounds_of(finished(algorithm=algorithm))[0].metrics


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_local_noise_counts_for_each_client(noise: str) -> None:
    events = finished(f'filters=[{{name="local-dp",noise_multiplier=2.0,clip=1.0,noise="{noise}"}}]')
    one = dp.GaussianDpEvent(2.0) if noise == "gaussian" else dp.LaplaceDpEvent(2.0)
    for event, most in zip(rounds_of(events), most_often(events), strict=True):
        assert event.metrics["privacy"]["local_epsilon"] == pytest.approx(composed((one, most)), rel=1e-3)


def test_dp_sgd_counts_each_clients_own_rate_and_steps() -> None:
    with prepared('client.name="dp-sgd"', "client.noise_multiplier=1.5", algorithm="fedavg", rounds=2) as ready:
        sizes = ready.federation.population.sizes
        events = list(ready.training.run(ready.federation))
    times = np.zeros(8, int)
    for event in events:
        if event.kind == "selected":
            times[event.clients] += 1
    each = [
        composed(
            (dp.PoissonSampledDpEvent(min(1, 8 / n), dp.GaussianDpEvent(1.5)), int(2 * -(-n // 8) * often)),
            accountant=rdp.RdpAccountant(),
        )
        for n, often in zip(sizes, times, strict=True)
        if often
    ]
    told = rounds_of(events)[-1].metrics["privacy"]["record_epsilon"]
    assert 0.8 * max(each) < told <= max(each)  # moments bound what distributions tell exactly


def test_epsilon_composes_different_kinds() -> None:
    mixed = [
        GaussianRelease(noise=3.0, times=2),
        GaussianRelease(noise=2.0, times=5, sampling_probability=0.2),
        LaplaceRelease(noise=4.0, times=3),
    ]
    expected = composed(
        (dp.GaussianDpEvent(3.0), 2),
        (dp.PoissonSampledDpEvent(0.2, dp.GaussianDpEvent(2.0)), 5),
        (dp.LaplaceDpEvent(4.0), 3),
    )
    assert epsilon(mixed, 1e-5) == pytest.approx(expected, rel=1e-3)
    assert epsilon([], 1e-5) == epsilon([GaussianRelease(noise=1.0, times=0)], 1e-5) == 0
    moments = rdp.RdpAccountant()
    expected = composed(
        (dp.ZCDpEvent(0.1), 1), (dp.GaussianDpEvent(3.0), 2), (dp.LaplaceDpEvent(4.0), 3), accountant=moments
    )
    others = [GaussianRelease(noise=3.0, times=2), LaplaceRelease(noise=4.0, times=3)]
    assert epsilon([ConcentratedRelease(rho=0.1), *others], 1e-5) == pytest.approx(expected)


def test_faint_noise_has_an_honest_epsilon() -> None:
    assert (
        epsilon([GaussianRelease(noise=1e-6, times=3, sampling_probability=0.1)], 1e-5)
        >= epsilon([GaussianRelease(noise=1e-3)], 1e-5)
        > 1e5
    )
    assert epsilon([LaplaceRelease(noise=1e-6, times=3)], 1e-5) == pytest.approx(3e6)


def test_the_noise_for_a_budget_is_the_least() -> None:
    def spent(noise: float) -> float:
        return epsilon([GaussianRelease(noise=noise, times=20, sampling_probability=0.1)], 1e-5)

    noise = least_noise(lambda noise: spent(noise) <= 3.0)
    assert noise is not None
    assert spent(noise) <= 3.0 < spent(noise / 1.01)


def test_kinds_of_noise_are_not_taken_for_one_another() -> None:
    """Their figures may be equal, and what was computed for one is kept."""
    concentrated = epsilon([ConcentratedRelease(0.5, 20)], 1e-5)
    assert epsilon([LaplaceRelease(0.5, 20)], 1e-5) != concentrated


# Budgets --------------------------------------------------------------------------------------------------------------


def test_a_run_stops_before_it_would_overspend() -> None:
    events = finished(*CENTRAL, 'select.name="poisson"', "collect.epsilon=3.5", rounds=40)
    rounds, last = rounds_of(events), events[-1]
    assert isinstance(last, Stopped)
    assert "collect.epsilon = 3.5" in last.reason
    assert last.round == len(rounds) < 40
    assert events[-2] is rounds[-1], "no round was begun that did not end"
    gaussian = dp.PoissonSampledDpEvent(3 / 8, dp.GaussianDpEvent(1.5))
    assert composed((gaussian, len(rounds))) <= 3.5 < composed((gaussian, len(rounds) + 1))


FAINT = 'select.profile_comparison={name="noisy", clip=20.0, noise_multiplier=0.003}'


@pytest.mark.parametrize(
    ("algorithm", "sets"),
    [
        ("fedavg", (*CENTRAL, "collect.epsilon=5.0", "collect.adaptive_clip=true")),
        ("fedprof-by-class", (*CENTRAL, "collect.epsilon=1e6", FAINT)),
    ],
)
def test_resuming_keeps_what_was_spent(algorithm: str, sets: tuple[str, ...]) -> None:
    whole = finished(*sets, algorithm=algorithm, rounds=30)
    with prepared(*sets, algorithm=algorithm, rounds=2) as ready:
        list(ready.training.run(ready.federation))
        snapshot = ready.snapshot()
    longer = experiment(*sets, algorithm=algorithm, rounds=30)
    with prepare_run(longer, RunInputs(dataset=blobs()), snapshot=snapshot) as ready:
        rest = list(ready.training.run(ready.federation))
    assert [e.metrics["privacy"] for e in rounds_of(rest)] == [e.metrics["privacy"] for e in rounds_of(whole)[2:]]
    assert rest[-1] == whole[-1]
    assert isinstance(rest[-1], Stopped)


def test_a_run_whose_budget_is_spent_goes_on_no_further() -> None:
    sets = (*CENTRAL, "collect.epsilon=3.0")
    with prepared(*sets, algorithm="fedavg", rounds=30) as ready:
        done = list(ready.training.run(ready.federation))
        snapshot = ready.snapshot()
    with prepare_run(
        experiment(*sets, algorithm="fedavg", rounds=40), RunInputs(dataset=blobs()), snapshot=snapshot
    ) as ready:
        again = list(ready.training.run(ready.federation))
    assert [event.kind for event in again] == ["stopped"]
    assert again[0].reason == done[-1].reason


def test_progress_and_result_tell_what_was_spent() -> None:
    import winnow

    course = ProgressState(ProgressHeader(title="private", metric="accuracy", rounds=4))
    events = finished(*CENTRAL, "collect.epsilon=4.0", rounds=40)
    for event in events:
        course.follow(event)
    spent = rounds_of(events)[-1].metrics["privacy"]["epsilon"]
    assert course.figures().endswith(f"ε {spent:.3g}")
    wanted = experiment(*CENTRAL, "collect.epsilon=4.0", algorithm="fedavg", rounds=40)
    result = winnow.run(wanted.model_dump(), data=blobs())
    assert result.summary.privacy_spent == {"epsilon": spent}
    assert result.summary.stopped == events[-1].reason
    assert f"epsilon {spent:.4g}" in repr(result)
    assert "collect.epsilon = 4" in repr(result)


@pytest.mark.parametrize(
    ("sets", "algorithm", "message"),
    [
        (("collect.noise_multiplier=0.0",), "fedavg", "noise multiplier of 0 protects nothing"),
        (("collect.epsilon=0.5",), "fedavg", "collect.epsilon = 0.5 does not last for round 1"),
        (("collect.delta=0.2",), "fedavg", "must be below 1 / 8 clients"),
        ((), "fedprof", "needs noisy profiles"),
        ((), "afl", "covers no losses"),
        ((), "oort", "covers no losses"),
        ((), "krum", "needs every update"),
        ((), "scaffold", "also sends"),
        ((), "feddyn", "tells nobody how many took part"),
        ((), "fedbuff", "requires schedule.name"),
        (("select.replacement=true",), "fedavg", "select.replacement"),
    ],
)
def test_what_is_not_private_is_refused_by_name(sets: tuple[str, ...], algorithm: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prepared(*CENTRAL, *sets, algorithm=algorithm)


def test_delta_is_held_against_what_is_hidden() -> None:
    """Eight clients have 300 samples between them."""
    for delta, refused in ((1 / 299, True), (1 / 301, False)):
        sets = ('client.name="dp-sgd"', "client.noise_multiplier=5.0", f"client.delta={delta}")
        if not refused:
            prepared(*sets, algorithm="fedavg")
            continue
        with pytest.raises(ConfigError, match="must be below 1 / 300 samples"):
            prepared(*sets, algorithm="fedavg")


@pytest.mark.parametrize("algorithm", ["fednova", "scaffold"])
def test_a_method_that_sends_more_than_a_model_is_refused_under_noisy_sums(algorithm: str) -> None:
    with pytest.raises(
        ConfigError, match=r'"discrete-gaussian" bounds the model alone, and client.name = .* also sends'
    ):
        prepared(*SECURE, "collect.encoding.noise_multiplier=1.0", algorithm=algorithm)


def test_noise_that_counts_on_more_clients_than_a_sum_has_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"collect.encoding.honest_fraction = 0.9"):
        prepared(
            *SECURE, "collect.encoding.noise_multiplier=1.0", "collect.encoding.honest_fraction=0.9", algorithm="fedavg"
        )
    with pytest.raises(ConfigError, match="needs noisy profiles"):
        prepared(*SECURE, "collect.encoding.noise_multiplier=1.0", algorithm="fedprof")
