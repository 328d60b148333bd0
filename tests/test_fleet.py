"""The cost model against numbers worked out by hand and against the paper's own figures."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from winnow.core import Cost, Work, stream
from winnow.fleet import DeviceFleet, Devices, NormalDistribution

GAS_TURBINE = Devices(
    speed_ghz=NormalDistribution(mean=0.5, sd=0.1),
    bandwidth_mhz=NormalDistribution(mean=0.7, sd=0.1),
    snr_db=7.0,
    bits_per_sample=11 * 8 * 4,
    cycles_per_bit=300,
    message_mb=2.0,
)
CIFAR10 = Devices(
    speed_ghz=NormalDistribution(mean=3.0, sd=0.4),
    bandwidth_mhz=NormalDistribution(mean=2.0, sd=0.2),
    snr_db=10.0,
    bits_per_sample=32 * 32 * 3 * 8,
    cycles_per_bit=400,
)


def fleet_of(settings: Devices, *, speed_ghz: list[float], bandwidth_mhz: list[float]) -> DeviceFleet:
    return DeviceFleet(settings=settings, speed_ghz=np.array(speed_ghz), bandwidth_mhz=np.array(bandwidth_mhz))


def test_costs_equal_a_hand_calculation() -> None:
    """Three devices behind a link of 0 dB, where log2(1 + 1) = 1 makes a hertz a bit per second."""
    settings = Devices(snr_db=0.0, bits_per_sample=1000, cycles_per_bit=500, transmit_watts=0.75, compute_watts=0.7)
    fleet = fleet_of(settings, speed_ghz=[9.0, 0.5, 2.0], bandwidth_mhz=[9.0, 0.8, 1.6])
    work = Work(
        training_passes=2, profiling_passes=1, download_bytes=1_000_000, upload_bytes=500_000, profile_bytes=192
    )

    costs = fleet.costs(np.array([2, 1]), np.array([400, 100]), work)

    # Device 2: 8e6 bit / 1.6e6 bit/s = 5 s down, 4e6 / 0.8e6 = 5 s up; a pass is 400·1000·500 / 2e9 = 0.1 s.
    # Device 1: 8e6 bit / 0.8e6 bit/s = 10 s down, 4e6 / 0.4e6 = 10 s up; a pass is 100·1000·500 / 0.5e9 = 0.1 s.
    # A profile of 192 bytes is 1536 bit: 1.92 ms and 3.84 ms on the uplinks.
    np.testing.assert_allclose(costs.transfer_seconds, [10.0, 20.0])
    np.testing.assert_allclose(costs.training_seconds, [0.2, 0.2])
    np.testing.assert_allclose(costs.profiling_seconds, [0.10192, 0.10384])
    # Processors draw 0.7·2³ = 5.6 W and 0.7·0.5³ = 0.0875 W, transmitters 0.75 W.
    np.testing.assert_allclose(costs.transfer_joules, [7.5, 15.0])
    np.testing.assert_allclose(costs.training_joules, [1.12, 0.0175])
    np.testing.assert_allclose(costs.profiling_joules, [0.56 + 0.00144, 0.00875 + 0.00288])
    np.testing.assert_allclose(costs.seconds, [10.30192, 20.30384])
    np.testing.assert_allclose(costs.joules, [9.18144, 15.02913])


def test_gas_turbine_device_of_table_5() -> None:
    """The mean device of task 1: 7 dB is a ratio of 5.0119, so 0.7 MHz carry 1.81152 Mbit/s down and half of it up."""
    fleet = fleet_of(GAS_TURBINE, speed_ghz=[0.5], bandwidth_mhz=[0.7])
    message = GAS_TURBINE.message_bytes(10_000)
    assert message == 2_000_000

    costs = fleet.costs(
        np.array([0]), np.array([514]), Work(training_passes=2, download_bytes=message, upload_bytes=message)
    )

    assert costs.transfer_seconds[0] == pytest.approx(48 / 1.81152, rel=1e-4)
    assert costs.training_seconds[0] == pytest.approx(0.2171136)
    assert costs.joules[0] == pytest.approx(0.75 * 26.497 + 0.0875 * 0.21711, rel=1e-4)


def test_cifar_training_dominates_as_in_the_paper() -> None:
    """Task 3: six epochs of 5,000 images of 24,576 bits at 400 cycles a bit on 3 GHz take 98.304 s at 18.9 W."""
    fleet = fleet_of(CIFAR10, speed_ghz=[3.0], bandwidth_mhz=[2.0])
    costs = fleet.costs(np.array([0]), np.array([5000]), Work(training_passes=6))
    assert costs.rows()[0] == Cost(
        training_seconds=pytest.approx(98.304), training_joules=pytest.approx(1857.9456), transfer_seconds=0.0
    )


def test_fedavg_on_gas_turbine_costs_what_the_paper_reports() -> None:
    """20 ± 2 J a client-round and 35 ± 3 s a round of ten clients."""
    rounds, cohort = 500, 10
    energy, time = [], []
    for seed in range(20):
        fleet = GAS_TURBINE.draw(50, seed)
        work = Work(training_passes=2, download_bytes=2_000_000, upload_bytes=2_000_000)
        costs = fleet.costs(np.arange(50), np.full(50, 514), work)
        invited = stream(seed, "test", "invited").permuted(np.tile(np.arange(50), (rounds, 1)), axis=1)[:, :cohort]
        energy.append(costs.joules[invited].mean())
        time.append(costs.seconds[invited].max(axis=1).mean())
    assert np.mean(energy) == pytest.approx(20, abs=2)
    assert np.mean(time) == pytest.approx(35, abs=3)


def test_no_profile_no_profiling_cost() -> None:
    costs = GAS_TURBINE.draw(5, 1).costs(np.arange(5), np.full(5, 100), Work(training_passes=1))
    assert not costs.profiling_seconds.any()
    assert not costs.profiling_joules.any()


def test_a_draw_repeats_under_its_seed_and_varies_with_it() -> None:
    first, again, other = (GAS_TURBINE.draw(100, seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first.speed_ghz, again.speed_ghz)
    np.testing.assert_array_equal(first.bandwidth_mhz, again.bandwidth_mhz)
    assert (first.speed_ghz != other.speed_ghz).all()


def test_changing_the_speeds_leaves_the_links_alone() -> None:
    faster = GAS_TURBINE.model_copy(update={"speed_ghz": NormalDistribution(mean=5.0, sd=1.0)})
    np.testing.assert_array_equal(GAS_TURBINE.draw(100, 7).bandwidth_mhz, faster.draw(100, 7).bandwidth_mhz)


def test_a_million_devices() -> None:
    fleet = Devices().draw(1_000_000, 1)
    costs = fleet.costs(np.arange(len(fleet)), np.full(len(fleet), 50), Work(training_passes=1, upload_bytes=1000))
    assert fleet.speed_ghz.mean() == pytest.approx(1.0, abs=1e-3)
    assert fleet.speed_ghz.std() == pytest.approx(0.2, abs=1e-3)
    assert len(costs) == 1_000_000
    assert np.isfinite(costs.joules).all()


@given(mean=st.floats(0.01, 100), spread=st.floats(0, 5), seed=st.integers(0, 2**32))
def test_no_device_is_slower_than_a_tenth_of_the_mean(mean: float, spread: float, seed: int) -> None:
    drawn = NormalDistribution(mean=mean, sd=spread * mean).draw(200, stream(seed, "test"))
    assert drawn.min() >= 0.1 * mean
    if spread == 0:
        np.testing.assert_array_equal(drawn, mean)


@pytest.mark.parametrize(
    "wrong",
    [
        {"speed_ghz": {"mean": 0}},
        {"speed_ghz": {"mean": 1, "sd": -1}},
        {"message_mb": 0},
        {"snr_db": "inf"},
        {"snr": 7},
    ],
)
def test_impossible_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Devices.model_validate(wrong)
