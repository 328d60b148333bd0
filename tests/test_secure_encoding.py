"""Scalar quantisation in the group: sums decode to sums, and what was cut off or went over is counted."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from winnow.core import ConfigError
from winnow.privacy.secagg.errors import ProtocolError
from winnow.privacy.secagg.scalar_quantisation import FINE_STEP, WIDE_STEP, ScalarQuantisation
from winnow.privacy.secagg.update_encoding_interface import DecodedSum, EncodingParameters
from winnow.privacy.secagg.update_layout import (
    TensorSpec,
    UpdateLayout,
    layout_mismatch,
    mean_update,
    public_update,
    weighted_update,
)

MODEL = {
    "layer.weight": torch.linspace(-1, 1, 60).reshape(6, 10),
    "layer.bias": torch.linspace(-0.1, 0.1, 6),
    "norm.steps": torch.tensor(40),
}
PARTS = {"model": MODEL, "effective_steps": {"weighted": torch.tensor(0.0)}}
LAYOUT = UpdateLayout.of(PARTS)


def update(seed: int, size: float = 0.05) -> dict[str, dict[str, torch.Tensor]]:
    rng = np.random.default_rng(seed)
    moved = {
        "layer.weight": MODEL["layer.weight"] + torch.tensor(rng.normal(0, size, (6, 10)), dtype=torch.float32),
        "layer.bias": MODEL["layer.bias"] + torch.tensor(rng.normal(0, size, 6), dtype=torch.float32),
        "norm.steps": MODEL["norm.steps"] + int(rng.integers(1, 9)),
    }
    return {"model": moved, "effective_steps": {"weighted": torch.tensor(float(rng.integers(1, 10**6)))}}


def summed(
    code: ScalarQuantisation, parameters: EncodingParameters, weights: list[float], size: float = 0.05
) -> DecodedSum:
    """What comes out for so many clients, summed in the group without masks."""
    members = len(weights) + 2  # two have dropped out
    group = code.group(LAYOUT, members)
    total = group.zeros()
    for client, weight in enumerate(weights):
        values = weighted_update(update(client, size), MODEL, weight)
        vector = code.encode(LAYOUT, values, parameters, members, np.random.default_rng(client))
        group.check(vector)
        group.add(total, vector)
    return code.decode(LAYOUT, group.reduce(total), parameters, members, len(weights))


def first(code: ScalarQuantisation) -> EncodingParameters:
    return code.first(LAYOUT, public_update(LAYOUT, {"model": MODEL}), 1)


@settings(max_examples=40, deadline=None)
@given(bits=st.integers(6, 24), weights=st.lists(st.integers(1, 2**24), min_size=1, max_size=9))
def test_a_sum_decodes_to_the_sum_within_a_step_a_client(bits: int, weights: list[int]) -> None:
    code, shares = ScalarQuantisation(bits=bits), [weight * FINE_STEP for weight in weights]
    parameters = first(code)
    decoded = summed(code, parameters, shares)
    expected = [
        sum(each) for each in zip(*(weighted_update(update(k), MODEL, w) for k, w in enumerate(shares)), strict=True)
    ]
    steps = [parameters.arrays["scale"][0], FINE_STEP, WIDE_STEP, WIDE_STEP, FINE_STEP]
    for found, right, step in zip(decoded.sums, expected, steps, strict=True):
        assert np.abs(found - right).max() <= len(weights) * step * (1 + 1e-6)
    assert decoded.sums[-1] == pytest.approx(sum(shares), abs=1e-12)
    assert decoded.clipped == decoded.overflowed == 0


def test_means_are_weighted_for_the_model_and_plain_for_other_parts() -> None:
    code, weights = ScalarQuantisation(bits=24), [1.0, 0.5, 0.25]
    parts, weight = mean_update(LAYOUT, summed(code, first(code), weights).sums, MODEL, 3)
    updates = [update(k) for k in range(3)]
    assert weight == pytest.approx(1.75)
    for name in ("layer.weight", "layer.bias"):
        right = sum(w * own["model"][name].double() for w, own in zip(weights, updates, strict=True)) / 1.75
        torch.testing.assert_close(parts["model"][name].double(), right, rtol=0, atol=1e-4)
    assert parts["model"]["norm.steps"].dtype == torch.int64
    mean = sum(float(own["effective_steps"]["weighted"]) for own in updates) / 3
    assert float(parts["effective_steps"]["weighted"]) == pytest.approx(mean, rel=1e-6)


def test_rounding_by_chance_is_right_on_average() -> None:
    code = ScalarQuantisation(bits=4)
    parameters = first(code)
    values = weighted_update(update(0, 0.01), MODEL, 1.0)
    found = np.zeros((6, 10))
    for seed in range(400):
        vector = code.encode(LAYOUT, values, parameters, 1, np.random.default_rng(seed))
        found += code.decode(LAYOUT, vector, parameters, 1, 1).sums[0] / 400
    step = parameters.arrays["scale"][0]
    assert np.abs(found - values[0]).max() < 5 * step / 2 / np.sqrt(400)
    assert step > 10 * np.abs(values[0]).max() / 3


def test_what_is_cut_off_is_counted_and_the_range_grows() -> None:
    code = ScalarQuantisation(bits=8, spread=4.0)
    parameters = first(code)
    decoded = summed(code, parameters, [1.0] * 4, size=1.0)
    values = [np.abs(weighted_update(update(k, 1.0), MODEL, 1.0)[0]) for k in range(4)]
    share = np.mean([value > parameters.arrays["scale"][0] * 127.5 for value in values])
    assert decoded.clipped == pytest.approx(share, abs=0.02)
    assert decoded.clipped > 0.1
    following = code.refresh(LAYOUT, parameters, decoded, 2)
    assert following.version == 2
    assert following.arrays["scale"][0] == pytest.approx(2 * parameters.arrays["scale"][0])


def test_ranges_follow_the_clients_values_down_and_stay_between_refreshes() -> None:
    code = ScalarQuantisation(bits=8, spread=5.0, refresh_every=3)
    parameters = first(code)
    decoded = summed(code, parameters, [1.0] * 4, size=0.05)
    assert code.refresh(LAYOUT, parameters, decoded, 2) is parameters
    following = code.refresh(LAYOUT, parameters, decoded, 4)
    assert following.version == 4
    assert following.arrays["scale"][0] == parameters.arrays["scale"][0] / 2  # never less than half
    for number in range(7, 20, 3):
        following = code.refresh(LAYOUT, following, summed(code, following, [1.0] * 4, size=0.05), number)
    assert following.arrays["scale"][0] * 127 == pytest.approx(5 * 0.05, rel=0.2)


@pytest.mark.parametrize(("margin", "goes_over"), [(None, False), (3, False), (0, True)])
def test_sums_that_go_over_the_top_are_noticed(margin: int | None, goes_over: bool) -> None:
    code = ScalarQuantisation(bits=6, margin=margin, spread=1.0)
    group = code.group(LAYOUT, 8)
    assert group.segments[0].bits == 6 + (3 if margin is None else margin)
    parameters, total = first(code), group.zeros()
    values = [np.abs(value) + 0.2 for value in weighted_update(update(0), MODEL, 1.0)]
    for client in range(8):
        group.add(total, code.encode(LAYOUT, values, parameters, 8, np.random.default_rng(client)))
    assert (code.decode(LAYOUT, group.reduce(total), parameters, 8, 8).overflowed > 0) is goes_over


def test_a_narrow_margin_still_serves_sums_that_stay_near_zero() -> None:
    """Sums are read as the numbers nearest to zero, so what counts is their size, not the clients' number."""
    narrow, wide = ScalarQuantisation(bits=8, margin=2, spread=16.0), ScalarQuantisation(bits=8, spread=16.0)
    weights = [1.0] * 30
    one, other = (summed(code, first(code), weights) for code in (narrow, wide))
    assert one.overflowed == 0
    assert all(np.array_equal(a, b) for a, b in zip(one.sums, other.sums, strict=True))


def test_parameters_that_do_not_fit_are_refused() -> None:
    code = ScalarQuantisation()
    for arrays in ({}, {"scale": np.ones(2), "zero": np.ones(2)}, {"scale": -np.ones(1), "zero": np.ones(1)}):
        with pytest.raises(ProtocolError, match="do not fit an update with 1 tensors to quantise"):
            code.encode(
                LAYOUT, weighted_update(update(0), MODEL, 1.0), EncodingParameters(version=1, arrays=arrays), 3, None
            )
    with pytest.raises(ProtocolError, match="no version"):
        EncodingParameters.of({"scale": np.ones(1)})


@pytest.mark.parametrize("entry", [TensorSpec("model", "w", (-1,), "float32"), TensorSpec("model", "w", (1,), "load")])
def test_a_form_that_cannot_be_is_refused(entry: TensorSpec) -> None:
    with pytest.raises(ProtocolError, match="invalid shapes or types"):
        UpdateLayout.read(UpdateLayout((entry,)).write())


def test_more_clients_than_a_group_can_hold_are_refused() -> None:
    with pytest.raises(ConfigError, match="at most 4,096 clients"):
        ScalarQuantisation().group(LAYOUT, 5_000)


@pytest.mark.parametrize(
    ("parts", "reply_parts", "reason"),
    [
        (PARTS, ("model", "effective_steps"), None),
        ({"effective_steps": PARTS["effective_steps"]}, ("model",), "the update has no part 'model'"),
        (PARTS, ("model",), "a part 'effective_steps' that nobody asked for"),
        (
            {"model": MODEL, "effective_steps": {"w": torch.empty(10**6)}},
            ("model", "effective_steps"),
            "much larger than the model",
        ),
        ({"model": {**MODEL, "layer.bias": torch.zeros(7)}}, ("model",), "other tensors, shapes or types"),
        ({"model": {**MODEL, "layer.bias": torch.zeros(6).double()}}, ("model",), "other tensors, shapes or types"),
    ],
)
def test_an_updates_form_is_compared_with_the_models(parts, reply_parts: tuple[str, ...], reason: str | None) -> None:
    found = layout_mismatch(UpdateLayout.read(UpdateLayout.of(parts).write()), {"model": MODEL}, reply_parts)
    assert found is None if reason is None else reason in str(found)
