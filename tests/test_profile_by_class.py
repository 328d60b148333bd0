"""Profiles by class: what they see and what they do not, against an independent calculation; and lies in them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from winnow.core import ConfigError, Outcome, Rejected, Reply, RoundFinished, Selected, Task
from winnow.data import DataSet, from_arrays
from winnow.learn.handlers import ProfileSettings, profile_clients
from winnow.learn.profile_by_class import (
    MAX_CLASSES,
    ClassProfile,
    ProfileClasses,
    class_divergence,
    label_classes,
    target_edges,
)
from winnow.learn.representation_profile import Profile, StreamingMoments, divergence
from world import blobs, prepared

WHOLE = {"min_rows": 1, "count_step": 1}


def profile_of(values: np.ndarray, classes: np.ndarray, count: int, **told: int) -> ClassProfile:
    """As a client makes it: streamed."""
    moments = StreamingMoments(count)
    moments.add(torch.from_numpy(values.astype(np.float32)), torch.from_numpy(classes))
    return ProfileClasses(labels=tuple(range(count)), **{**WHOLE, **told}).told(moments)[0]


def clouds(rng: np.random.Generator, rows: np.ndarray, elements: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """So many samples of each class, each class around a point of its own."""
    centres = np.random.default_rng(7).normal(0, 3, (len(rows), elements))
    classes = np.repeat(np.arange(len(rows)), rows)
    return centres[classes] + rng.normal(0, 1, (len(classes), elements)), classes


@given(seed=st.integers(0, 200))
@settings(deadline=None, max_examples=20)
def test_the_divergence_is_that_of_each_class_weighted_by_its_samples(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ours, theirs = rng.integers(0, 9, 4), rng.integers(0, 9, 4)
    ours[0] = theirs[0] = 5
    (x, c), (x0, c0) = clouds(rng, ours), clouds(rng, theirs)
    floor = 0.01 * np.mean([x0[c0 == k].var(0) for k in range(4) if theirs[k]])
    total = weight = 0.0
    for k in range(4):
        if ours[k] and theirs[k]:
            a, b = x[c == k], x0[c0 == k]
            v, v0 = np.maximum(a.var(0), floor), np.maximum(b.var(0), floor)
            kl = np.log(np.sqrt(v0 / v)) + (v + (a.mean(0) - b.mean(0)) ** 2) / (2 * v0) - 0.5
            total += ours[k] * (kl.mean() - 1 / ours[k] - 1 / theirs[k])
            weight += ours[k]
    found = class_divergence([profile_of(x, c, 4)], profile_of(x0, c0, 4))
    assert found[0] == pytest.approx(total / weight, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("rows", [12, 30, 120])
def test_small_honest_clients_do_not_look_worse_than_large_ones(rows: int) -> None:
    """By chance the divergence of n rows is about 1/n, which is taken off."""
    rng = np.random.default_rng(rows)
    reference = profile_of(*clouds(rng, np.full(3, 4000)), 3)
    honest = [profile_of(*clouds(rng, np.full(3, rows)), 3) for _ in range(150)]
    assert abs(class_divergence(honest, reference).mean()) < 0.25 / rows


def test_wrong_labels_count_and_another_mix_of_classes_does_not() -> None:
    rng = np.random.default_rng(0)
    x0, c0 = clouds(rng, np.full(3, 300))
    x, c = clouds(rng, np.array([150, 10, 3]))
    wrong_x, wrong = x0[::3], rng.permutation(c0[::3])
    mixed, mislabelled = class_divergence([profile_of(x, c, 3), profile_of(wrong_x, wrong, 3)], profile_of(x0, c0, 3))
    assert mixed < 0.02
    assert mislabelled > 0.5
    *marginal, reference = (
        Profile(mean=values.mean(0).astype(np.float32), variance=values.var(0).astype(np.float32))
        for values in (x, wrong_x, x0)
    )
    seen = divergence(marginal, reference)
    assert seen[0] > 10 * seen[1]  # a marginal profile has it the other way round


def test_a_client_without_a_class_to_compare_has_no_divergence() -> None:
    rng = np.random.default_rng(0)
    reference = profile_of(*clouds(rng, np.array([50, 50, 0])), 3)
    other, shared = (profile_of(*clouds(rng, np.array(rows)), 3) for rows in ([0, 0, 9], [0, 9, 9]))
    assert np.isnan(class_divergence([other, shared], reference)).tolist() == [True, False]


def test_pooled_profiles_are_those_of_the_pooled_data() -> None:
    rng = np.random.default_rng(0)
    parts = [clouds(rng, np.array(rows)) for rows in ([20, 0, 5], [7, 0, 30])]
    pooled = ClassProfile.pooled([profile_of(*part, 3) for part in parts])
    together = profile_of(*(np.concatenate(each) for each in zip(*parts, strict=True)), 3)
    assert pooled.counts.tolist() == [27, 0, 35]
    np.testing.assert_allclose(pooled.mean, together.mean, rtol=1e-5)
    np.testing.assert_allclose(pooled.variance, together.variance, rtol=1e-4)


def test_few_samples_are_not_told_and_counts_are_rounded_down() -> None:
    made = profile_of(*clouds(np.random.default_rng(0), np.array([4, 9, 25])), 3, min_rows=5, count_step=10)
    assert made.counts.tolist() == [0, 0, 20]
    assert not made.mean[:2].any()
    assert not made.variance[:2].any()
    assert made.mean[2].all()


def test_frequent_labels_share_a_class_with_rare_ones_only() -> None:
    counts = np.arange(120)[::-1].copy()
    classes = np.array(label_classes(120, counts))
    assert np.bincount(classes).tolist() == [3] * 20 + [2] * 30
    assert len({*classes[:MAX_CLASSES]}) == MAX_CLASSES
    assert label_classes(10, counts[:10]) == tuple(range(10))


def test_targets_fall_between_quantiles_of_the_reference() -> None:
    targets = np.random.default_rng(0).gamma(1.0, size=(1000, 2)).astype(np.float32)
    classes = ProfileClasses(edges=target_edges(targets), **WHOLE)
    found = classes.of(torch.from_numpy(targets))
    assert torch.bincount(found).tolist() == [200] * 5
    assert found.tolist() == np.searchsorted(np.quantile(targets[:, 0], [0.2, 0.4, 0.6, 0.8]), targets[:, 0]).tolist()
    assert ProfileClasses(edges=target_edges(np.ones((9, 1), np.float32)), **WHOLE).count == 2


# In a run -------------------------------------------------------------------------------------------------------------

SPOILED = 'data.corruptions=[{name = "flipped-labels", fraction = 0.5, share = 1.0}]'


def invitations(algorithm: str, *sets: str, dataset: DataSet) -> tuple[float, Any]:
    """The share of invitations that went to clients with wrong labels."""
    ready = prepared(
        SPOILED, "data.clients=20", "select.count=4", "rounds=6", *sets, algorithm=algorithm, dataset=dataset
    )
    selected = np.zeros(20)
    for event in ready.training.run(ready.federation):
        if isinstance(event, Selected):
            selected[event.clients] += 1
    return float(selected[ready.conditions.of_client > 0].sum() / selected.sum()), ready


def test_clients_with_wrong_labels_are_rarely_selected() -> None:
    dataset = blobs(900)
    assert invitations("fedprof", dataset=dataset)[0] > 0.3
    assert invitations("fedprof-by-class", dataset=dataset)[0] < 0.05


def sums(rows: int = 900) -> DataSet:
    x = np.random.default_rng(0).normal(size=(rows, 4)).astype(np.float32)
    return from_arrays(x, (x @ [1.0, -2.0, 0.5, 1.0])[:, None].astype(np.float32), name="sums")


def test_a_regression_is_compared_by_bins_of_its_target() -> None:
    marginal, _ = invitations("fedprof", "metric=mae", dataset=sums())
    by_class, ready = invitations("fedprof-by-class", "metric=mae", dataset=sums())
    assert len(ready.plan.profile_classes.edges) == 4
    assert by_class < 0.1
    assert marginal > 0.3


def test_what_a_client_sends_is_made_of_its_own_samples() -> None:
    ready = prepared("data.corruptions=[]", algorithm="fedprof-by-class", dataset=blobs())
    site, classes = ready.simulation.site, ready.plan.profile_classes
    tasks = [
        Task(name="profile", client=k, round=1, version=0, settings=ProfileSettings(classes=classes)) for k in (1, 5)
    ]
    first, width = ready.module.get_submodule(ready.plan.layer), ready.plan.elements
    for reply in profile_clients(tasks, site):
        data = site.data.cohort(np.array([reply.task.client]))
        rows = torch.as_tensor(data.rows_of(reply.task.client))
        seen, labels = first(data.x[rows]).detach().numpy(), data.y[rows].numpy()
        made = reply.payload["profile"]
        assert made["mean"].shape == (3, width)
        assert ready.plan.profile_bytes == sum(array.nbytes for array in made.values())
        for k in range(3):
            told = np.count_nonzero(labels == k) >= 5
            assert made["counts"][k] == (np.count_nonzero(labels == k) if told else 0)
            if told:
                np.testing.assert_allclose(made["mean"][k], seen[labels == k].mean(0), rtol=1e-4, atol=1e-5)
                np.testing.assert_allclose(made["variance"][k], seen[labels == k].var(0), rtol=1e-4, atol=1e-5)


def test_bins_of_a_regression_need_a_reference_at_the_server() -> None:
    with pytest.raises(ConfigError, match="by quantiles of the reference set, which the server must hold"):
        target_edges(np.zeros((0, 1), np.float32))


def test_sequences_of_labels_are_refused_in_one_line() -> None:
    from winnow.learn.algorithms.fedprof import ProfileSelector

    with pytest.raises(ConfigError, match="one label per sample, but these samples are sequences"):
        ProfileSelector(profile="by-class").profile_classes(7, np.zeros((3, 4), np.int64), sequences=True)


# Liars ----------------------------------------------------------------------------------------------------------------


def counted(*counts: int) -> Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    return lambda part: {**part, "counts": np.array(counts, np.int64)}


LIES: dict[str, tuple[Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]], str]] = {
    "a marginal profile": (lambda p: {"mean": p["mean"][0], "variance": p["variance"][0]}, "wrong shape or type"),
    "no counts": (lambda p: {"mean": p["mean"], "variance": p["variance"]}, "counts have the wrong length or type"),
    "a class too many": (lambda p: {k: np.concatenate([v, v[:1]]) for k, v in p.items()}, "wrong shape or type"),
    "counts that are real": (lambda p: {**p, "counts": p["counts"].astype(np.float64)}, "wrong length or type"),
    "negative counts": (counted(-1, 3, 3), "negative, or more than the client's"),
    "counts above the samples": (counted(10_000, 0, 0), "negative, or more than the client's"),
    "counts that overflow": (counted(2**62, 2**62, 2**62), "negative, or more than the client's"),
    "means that are no number": (lambda p: {**p, "mean": p["mean"] * np.float32("nan")}, "not finite"),
    "negative variances": (lambda p: {**p, "variance": -1 - p["variance"]}, "negative variances"),
    "infinite variances": (lambda p: {**p, "variance": p["variance"] + np.float32("inf")}, "not finite"),
}


@pytest.mark.parametrize(("name", "holders"), [*((name, "[]") for name in LIES), ("negative counts", "[0, 1]")])
def test_a_lie_is_refused_with_its_reason_and_the_run_goes_on(name: str, holders: str) -> None:
    lie, reason = LIES[name]
    world = ("rounds=2", "select.count=8", "engine.execution=stacked", f"reference_clients={holders}")
    ready = prepared(*world, algorithm="fedprof-by-class")
    events = list(ready.training.run(Liar(ready.simulation, lie)))
    refused = [event for event in events if isinstance(event, Rejected)]
    assert {event.client for event in refused} == {0}
    assert all(reason in event.reason and "\n" not in event.reason for event in refused)
    assert len(refused) >= 3  # the first profile, and one in each round
    rounds = [event for event in events if isinstance(event, RoundFinished)]
    assert [event.aggregated.tolist() for event in rounds] == [[1, 2, 3, 4, 5, 6, 7]] * 2


class Liar:
    """A federation whose client 0 lies about its profile."""

    def __init__(self, federation: Any, lie: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]) -> None:
        self._federation, self._lie = federation, lie

    def __getattr__(self, name: str) -> Any:
        return getattr(self._federation, name)

    @contextmanager
    def dispatch(self, *given: Any) -> Iterator[Iterator[Outcome]]:
        with self._federation.dispatch(*given) as exchange:
            yield (self._told(outcome) for outcome in exchange)

    def _told(self, outcome: Outcome) -> Outcome:
        if not isinstance(outcome, Reply) or outcome.task.client != 0 or "profile" not in outcome.payload:
            return outcome
        return replace(outcome, payload={**outcome.payload, "profile": self._lie(dict(outcome.payload["profile"]))})
