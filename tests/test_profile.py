"""Profiles (equation 8), divergences (equations 9 and 10), and what happens to data that are no data."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from torch import nn

from winnow.core import ModelError
from winnow.learn.model_evaluator import ModelEvaluator
from winnow.learn.models import ModelSettings, build_model
from winnow.learn.profiled_layer import check_layer, default_layer, fuse_outputs
from winnow.learn.representation_profile import OUTPUT_LIMIT, Profile, StreamingMoments, divergence, pool_profiles
from winnow.learn.stack import as_loss, model_state


def profile(mean: list[float], variance: list[float]) -> Profile:
    return Profile(mean=np.array(mean, np.float32), variance=np.array(variance, np.float32))


def numerical_kl(m: float, s: float, m0: float, s0: float) -> float:
    p, q = stats.norm(m, s), stats.norm(m0, s0)
    value, _ = integrate.quad(lambda h: p.pdf(h) * (p.logpdf(h) - q.logpdf(h)), m - 12 * s, m + 12 * s, limit=200)
    return float(value)


@settings(max_examples=40, deadline=None)
@given(
    st.floats(-3, 3),
    st.floats(0.2, 3),
    st.floats(-3, 3),
    st.floats(0.2, 3),
)
def test_the_divergence_is_the_integral(m: float, s: float, m0: float, s0: float) -> None:
    computed = divergence([profile([m], [s**2])], profile([m0], [s0**2]))[0]
    assert computed == pytest.approx(numerical_kl(m, s, m0, s0), rel=1e-4, abs=1e-5)


def test_the_divergence_is_the_mean_over_elements() -> None:
    client, reference = profile([0.0, 1.0], [1.0, 4.0]), profile([0.5, 1.0], [2.0, 1.0])
    expected = (numerical_kl(0, 1, 0.5, 2**0.5) + numerical_kl(1, 2, 1, 1)) / 2
    assert divergence([client], reference)[0] == pytest.approx(expected, rel=1e-5)


def test_a_profile_does_not_diverge_from_itself() -> None:
    one = profile([0.0, 3.0, 0.0], [1.0, 0.0, 1e30])
    assert divergence([one], one)[0] == 0.0


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    batch=st.integers(1, 17),
    offset=st.sampled_from([0.0, 1e4]),
)
@settings(deadline=None)
def test_streamed_moments_are_exact_for_any_batch_size(sizes: list[int], batch: int, offset: float) -> None:
    rng = np.random.default_rng(sum(sizes) + batch)
    values = torch.from_numpy(rng.normal(offset, 2.0, (sum(sizes), 3)).astype(np.float32))
    owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    moments = StreamingMoments(len(sizes))
    for start in range(0, len(values), batch):
        moments.add(values[start : start + batch], owner[start : start + batch])
    for k, made in enumerate(moments.profiles()):
        own = values[owner == k].numpy().astype(np.float64)
        np.testing.assert_allclose(made.mean, own.mean(0), rtol=1e-6)
        np.testing.assert_allclose(made.variance, own.var(0), rtol=1e-5, atol=1e-9)
        assert made.nbytes == 3 * 8


@given(batch=st.integers(1, 40), groups=st.integers(1, 12), offset=st.sampled_from([0.0, 1e4]))
@settings(deadline=None)
def test_groups_may_come_in_any_order_and_some_not_at_all(batch: int, groups: int, offset: float) -> None:
    rng = np.random.default_rng(100 * batch + groups)
    group = rng.choice(rng.permutation(groups)[: 1 + groups // 2], 60)
    values = rng.normal(offset * group[:, None], 2.0, (60, 3)).astype(np.float32)
    moments = StreamingMoments(groups)
    for start in range(0, 60, batch):
        part = slice(start, start + batch)
        moments.add(torch.from_numpy(values[part]), torch.from_numpy(group[part]))
    counts, mean, variance = moments.moments()
    assert counts.tolist() == np.bincount(group, minlength=groups).tolist()
    for k in range(groups):
        own = values[group == k].astype(np.float64) if counts[k] else np.zeros((1, 3))
        np.testing.assert_allclose(mean[k], own.mean(0), rtol=1e-6)
        np.testing.assert_allclose(variance[k], own.var(0), rtol=1e-5, atol=1e-9)


def test_a_lone_sample_among_large_values_keeps_its_value() -> None:
    moments = StreamingMoments(2)
    moments.add(torch.tensor([[1e17], [3.25], [-1e17]]), torch.tensor([1, 0, 1]))
    counts, mean, variance = moments.moments()
    assert (counts.tolist(), mean[0].tolist(), variance[0].tolist()) == ([1, 2], [3.25], [0.0])


def test_pooled_profiles_are_the_profile_of_the_pooled_data() -> None:
    rng = np.random.default_rng(0)
    parts = [rng.normal(k, 1 + k, (5 + 3 * k, 4)) for k in range(3)]
    made = pool_profiles([profile(list(p.mean(0)), list(p.var(0))) for p in parts], [len(p) for p in parts])
    together = np.concatenate(parts)
    np.testing.assert_allclose(made.mean, together.mean(0), rtol=1e-5)
    np.testing.assert_allclose(made.variance, together.var(0), rtol=1e-5)


@pytest.mark.parametrize(
    "rows",
    [
        torch.full((6, 4), float("nan")),
        torch.full((6, 4), float("inf")),
        torch.tensor([[float("inf")] * 4, [float("-inf")] * 4]),
        torch.full((6, 4), 1e30),
        torch.zeros(1, 4),
        torch.zeros(6, 4),
        torch.cat([torch.randn(5, 4, generator=torch.Generator().manual_seed(0)), torch.full((1, 4), float("nan"))]),
    ],
    ids=["nan", "inf", "both infinities", "huge", "one sample", "constant", "one bad sample"],
)
def test_bad_data_give_a_finite_profile_far_from_the_reference(rows: torch.Tensor) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    evaluator = ModelEvaluator(module, as_loss("mse"), "0")
    clean = torch.randn(400, 4)
    data = torch.cat([clean, rows])
    owner = torch.tensor([0] * 200 + [1] * 200 + [2] * len(rows))
    reference, sound, bad = evaluator.profiles(model_state(module), data, torch.arange(len(data)), owner, 3)
    assert np.isfinite(bad.mean).all()
    assert np.isfinite(bad.variance).all()
    assert np.abs(bad.mean).max() <= np.float32(OUTPUT_LIMIT)
    near, far = divergence([sound, bad], reference)
    assert np.isfinite(far)
    assert far > 5 * near


def test_a_dead_neuron_of_the_reference_leaves_the_divergence_finite() -> None:
    reference, client = profile([0.0, 0.0], [1.0, 0.0]), profile([0.1, 0.2], [1.1, 0.5])
    assert np.isfinite(divergence([client], reference)).all()
    assert np.isfinite(divergence([reference], client)).all()


def test_convolutions_are_fused_by_channel() -> None:
    layer, images = nn.Conv2d(3, 5, 3), torch.randn(7, 3, 8, 8)
    output = layer(images)
    torch.testing.assert_close(fuse_outputs(output, layer), output.sum(dim=(2, 3)))


def test_recurrent_layers_are_fused_over_their_final_state() -> None:
    layer = nn.LSTM(4, 6, num_layers=2, batch_first=True)
    output = layer(torch.randn(5, 9, 4))
    fused = fuse_outputs(output, layer)
    assert fused.shape == (5, 1)
    torch.testing.assert_close(fused[:, 0], output[0][:, -1].sum(dim=1))


def test_both_directions_of_a_recurrent_layer_count() -> None:
    layer = nn.GRU(4, 6, batch_first=True, bidirectional=True)
    outputs, last = layer(sequences := torch.randn(5, 9, 4))
    torch.testing.assert_close(fuse_outputs(layer(sequences), layer)[:, 0], last.sum(dim=(0, 2)))
    torch.testing.assert_close(last[0], outputs[:, -1, :6])


def test_dense_layers_on_sequences_keep_their_units() -> None:
    layer = nn.Linear(4, 6)
    output = layer(torch.randn(5, 9, 4))
    torch.testing.assert_close(fuse_outputs(output, layer), output.sum(dim=1))


@pytest.mark.parametrize(
    ("name", "shape", "width"),
    [
        ("mlp", (9,), 64),
        ("lenet5", (1, 28, 28), 120),
        ("shufflenet-v2", (3, 32, 32), 24),
        ("resnet18", (3, 32, 32), 64),
    ],
)
def test_every_model_has_a_sensible_default_layer(name: str, shape: tuple[int, ...], width: int) -> None:
    module = build_model(ModelSettings.members[name](), shape, 10, 0)
    evaluator = ModelEvaluator(module, as_loss("cross-entropy"), default_layer(module, torch.randn(2, *shape)))
    seen = evaluator.evaluate(model_state(module), torch.randn(3, *shape), torch.zeros(3, dtype=torch.int64), ())
    assert seen.profile is not None
    assert len(seen.profile) == width


def test_a_residual_block_can_be_profiled() -> None:
    module = build_model(ModelSettings.members["resnet18"](), (3, 32, 32), 10, 0)
    block = next(name for name, part in module.named_modules() if type(part).__name__.endswith("Block"))
    seen = ModelEvaluator(module, as_loss("cross-entropy"), block).evaluate(
        model_state(module), torch.randn(3, 3, 32, 32), torch.zeros(3, dtype=torch.int64), ()
    )
    assert seen.profile is not None
    assert len(seen.profile) == 64


def test_an_unknown_layer_is_one_line() -> None:
    with pytest.raises(ModelError, match=r"no layer 'fc9'; valid: '0', '1'"):
        check_layer(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), "fc9")


def test_a_single_layer_can_be_profiled() -> None:
    module = nn.Linear(4, 3)
    evaluator = ModelEvaluator(module, as_loss("mse"), default_layer(module, torch.randn(1, 4)))
    assert evaluator.profile_elements(torch.randn(1, 4)) == 3


def test_a_model_without_layers_to_profile_is_one_line() -> None:
    with pytest.raises(ModelError, match=r"select\.layer"):
        default_layer(nn.Sequential(nn.ReLU()), torch.randn(1, 4))


class Detour(nn.Module):
    """Has a layer that it never runs, and one that it runs on something else than samples."""

    def __init__(self) -> None:
        super().__init__()
        self.unused, self.flat, self.hidden, self.out = (
            nn.Linear(3, 3),
            nn.Linear(2, 2),
            nn.Linear(4, 5),
            nn.Linear(5, 2),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.hidden(self.flat(x.reshape(-1, 2)).reshape(x.shape))))


def test_the_default_layer_is_one_that_runs() -> None:
    assert default_layer(Detour(), torch.randn(2, 4)) == "flat"
    attention = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    assert default_layer(attention, torch.randn(2, 3, 8)) == "linear1"


@pytest.mark.parametrize(("layer", "line"), [("unused", "does not use this layer"), ("flat", "6 rows for 3 samples")])
def test_a_layer_that_gives_no_row_a_sample_is_refused(layer: str, line: str) -> None:
    module = Detour()
    evaluator = ModelEvaluator(module, as_loss("mse"), layer)
    with pytest.raises(ModelError, match=line):
        evaluator.profiles(model_state(module), torch.randn(3, 4), torch.arange(3), torch.zeros(3).long(), 1)


@pytest.mark.parametrize("activation", [nn.ReLU(inplace=True), nn.ReLU()])
def test_evaluation_and_profiling_see_the_same_representation(activation: nn.Module) -> None:
    """An activation in place must not turn the reference into another quantity than the clients' profiles."""
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(4, 6), activation, nn.Linear(6, 2)), torch.randn(50, 4)
    evaluator = ModelEvaluator(module, as_loss("cross-entropy"), "0")
    seen = evaluator.evaluate(model_state(module), x, torch.zeros(50).long(), ())
    (own,) = evaluator.profiles(model_state(module), x, torch.arange(50), torch.zeros(50).long(), 1)
    np.testing.assert_allclose(seen.profile.mean, own.mean, rtol=1e-6)
    assert divergence([own], seen.profile)[0] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("offset", [0.0, 1e8, 1e10, 1e20, float("nan")])
def test_a_profile_does_not_depend_on_who_shares_a_batch(offset: float) -> None:
    rng = torch.Generator().manual_seed(0)
    clean, mate = torch.randn(20, 3, generator=rng), torch.randn(5, 3, generator=rng) + offset
    alone, together = StreamingMoments(1), StreamingMoments(2)
    alone.add(clean, torch.zeros(20).long())
    together.add(torch.cat([mate, clean]), torch.tensor([0] * 5 + [1] * 20))
    np.testing.assert_allclose(together.profiles()[1].variance, alone.profiles()[0].variance, rtol=1e-6)
    np.testing.assert_allclose(together.profiles()[1].mean, alone.profiles()[0].mean, rtol=1e-6)
