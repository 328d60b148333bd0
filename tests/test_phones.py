"""Transfer through phones: what a sample can change of what is shared is bounded and booked; nothing else leaves."""

from typing import Any

import dp_accounting
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from winnow.core import ConfigError, Reply, Task
from winnow.data import from_arrays
from winnow.experiment.build_simulation import PreparedRun
from winnow.learn.algorithms.fedper import PRIVATE_PART
from winnow.learn.client_round_method import train_clients
from winnow.learn.phone_network import PhoneTransferNet
from winnow.papers.phones.text_phones import PHONES, phone_numbers, phones_of_words
from winnow.privacy.dp.branch_update import RELEASED, clipped_sum
from world import prepared

FRAMES, BANDS, WORDS, LENGTH = 4, 3, 5, 8
SMALL = "model={name='phones', frames=4, bands=3, vocabulary=20, words=5, phones=10, width=4}"
SETS = (
    SMALL,
    "engine.execution=loop",
    "aggregate.name=partial",
    "local={name='sgd', learning_rate=1.0, momentum=0.0, batch_size=64, steps=1}",
    "data={clients=2, reference=1, test=0}",
    "select={name='uniform', fraction=1.0}",
)
CLIP = 0.5
PRIVATE = (*SETS, f"client={{name='dp-branch', noise_multiplier=1e-6, table_noise=1e-6, clip={CLIP}}}")


def rows(count: int, seed: int, *, speech: bool = True) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    frames = rng.random((count, FRAMES * BANDS)) * speech
    words = rng.integers(1, 20, (count, WORDS)) * (not speech)
    x = np.concatenate([frames, words, rng.integers(0, 10, (count, LENGTH))], axis=1).astype(np.float32)
    return x, rng.integers(0, 2, count)


def module(seed: int = 0) -> PhoneTransferNet:
    torch.manual_seed(seed)
    return PhoneTransferNet(
        frames=FRAMES,
        bands=BANDS,
        words=20,
        word_length=WORDS,
        phones=10,
        width=4,
        outputs=2,
        sounds=True,
        uses_phones=True,
    )


def towers_trained_on(net: PhoneTransferNet, x: Tensor, y: Tensor, steps: int) -> None:
    """Towers and fusion, by gradients without noise of all samples, as both schemes do."""
    private = [p for name, p in net.named_parameters() if not name.startswith("branch.")]
    optimizer = torch.optim.SGD(private, lr=5.0)
    for _ in range(steps):
        optimizer.zero_grad()
        functional.cross_entropy(net(x), y).backward()
        optimizer.step()


def clipped_gradients(net: PhoneTransferNet, x: Tensor, y: Tensor, *, joint: bool) -> Tensor:
    """Σ clip(g_i) of the shared parameters: of the branch's own loss, or of the paper's, through the fusion."""
    shared = list(net.branch.parameters())
    total = torch.zeros(sum(p.numel() for p in shared))
    for sample, label in zip(x.split(1), y.split(1), strict=True):
        outputs = net(sample) if joint else net.branch(net.branch_inputs(sample))
        found = torch.autograd.grad(functional.cross_entropy(outputs, label), shared, allow_unused=True)
        flat = torch.cat(
            [torch.zeros(p.numel()) if g is None else g.flatten() for g, p in zip(found, shared, strict=True)]
        )
        total += flat * min(1.0, CLIP / max(float(flat.norm()), 1e-12))
    return total


def moved(seed: int, *, joint: bool, steps: int = 5, count: int = 12) -> float:
    """How far clipped sums are apart for two data sets that differ by one sample, each with towers trained on it."""
    x, y = (torch.from_numpy(each) for each in rows(count, seed))
    sums = []
    for used in (slice(None), slice(1, None)):
        net = module(seed)
        towers_trained_on(net, x[used], y[used], steps)
        sums.append(clipped_gradients(net, x[used], y[used], joint=joint))
    return float((sums[0] - sums[1]).norm())


@given(seed=st.integers(0, 10_000), steps=st.integers(0, 12), count=st.integers(2, 16))
@settings(max_examples=30, deadline=None)
def test_one_sample_moves_shared_sums_by_the_clip_at_most(seed: int, steps: int, count: int) -> None:
    assert moved(seed, joint=False, steps=steps, count=count) <= CLIP * (1 + 1e-4)


def test_the_papers_joint_scheme_fails_this() -> None:
    """Towers trained on one sample less are other towers, and change every other sample's shared gradient."""
    far = [moved(seed, joint=True, steps=40, count=16) for seed in range(6)]
    assert max(far) > 2 * CLIP


def world(*sets: str, count: int = 12, seed: int = 0) -> PreparedRun:
    x, y = rows(count, seed)
    xt, yt = rows(2 * count, seed + 1, speech=False)
    owners = np.repeat([0, 1], [count, 2 * count])
    data = from_arrays(np.concatenate([x, xt]), np.concatenate([y, yt]), owners=owners, classes=2, scale="none")
    return prepared(*sets, dataset=data, algorithm="fedavg", has_owners=True)


def sent(made: PreparedRun, round: int, kept: dict[str, Any]) -> dict[str, Tensor]:
    shared = made.training.shared
    [task] = made.plan.tasks([0], made.federation.population.sizes, payload={"model": shared}, round=round)
    [reply] = train_clients([Task(**{**_fields(task), "client_state": kept})], made.federation.site)
    assert isinstance(reply, Reply)
    return dict(reply.payload["model"])


def _fields(task: Task) -> dict[str, Any]:
    return {name: getattr(task, name) for name in ("name", "client", "round", "version", "payload", "settings", "work")}


def test_what_a_client_sends_does_not_depend_on_its_towers() -> None:
    """Through the real update: the same rows and other towers give the same shared parameters, bit for bit."""
    made = world(*SETS, "client={name='branch'}")
    own = {name: t for name, t in made.training.initial.items() if not name.startswith("branch.")}
    other = {PRIVATE_PART: {name: t + torch.ones_like(t) for name, t in own.items()}}
    first, second = sent(made, 2, {}), sent(made, 2, other)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], made.training.initial[name]) for name in first), "it has learnt something"


def test_a_fusion_that_scales_phones_reads_no_more_of_a_larger_branch() -> None:
    """And the branch's own output, whose gradients are shared, is what it was."""
    x, _ = rows(6, 1, speech=False)
    plain, scaled = module(), module()
    scaled.phone_length = 2.0
    sample = torch.from_numpy(x)
    phones = scaled.branch_inputs(sample)
    assert torch.equal(plain.branch(phones), scaled.branch(phones))
    before, unscaled = scaled(sample), plain(sample)
    for net in (plain, scaled):
        with torch.no_grad():
            net.branch.convolution.weight *= 10
            net.branch.convolution.bias *= 10  # type: ignore[operator]
    assert torch.allclose(scaled(sample), before, atol=1e-5)
    assert not torch.allclose(plain(sample), unscaled, atol=0.1)


def test_no_private_name_is_in_any_message() -> None:
    made = world(*PRIVATE, "rounds=2")
    seen: list[str] = []
    inner = made.federation.handlers["train"]

    def watched(tasks: Any, site: Any) -> Any:
        outcomes = inner(tasks, site)
        for outcome in outcomes:
            assert outcome.payload.keys() == {"model"}
            assert np.isnan(outcome.metrics["loss"]), "no noise covers it"
            seen.extend(outcome.payload["model"])
        seen.extend(name for task in tasks for name in task.payload["model"])
        return outcomes

    made.federation.handlers["train"] = watched
    list(made.training.run(made.federation))
    assert seen
    assert all(name.startswith("branch.") for name in seen)


def test_the_table_leaves_once_and_with_noise() -> None:
    exact, noisy = (
        world(*SETS, client)
        for client in ("client={name='branch'}", "client={name='dp-branch', noise_multiplier=1.0, table_noise=3.0}")
    )
    whole = sent(exact, 1, {})[RELEASED]
    covered = sent(noisy, 1, {})[RELEASED]
    assert float(whole[:, -1].sum()) > 0
    assert 1.0 < float(covered.std()) < 6.0
    assert torch.equal(sent(noisy, 2, {})[RELEASED], noisy.training.initial[RELEASED]), "later it stays as it came"


@given(seed=st.integers(0, 10_000), scale=st.floats(0.01, 100), clip=st.floats(0.1, 5))
@settings(max_examples=30, deadline=None)
def test_one_row_moves_the_table_by_the_clip_at_most(seed: int, scale: float, clip: float) -> None:
    x, _ = rows(8, seed)
    parts = module().released_sums(torch.from_numpy(x)) * scale
    assert float((clipped_sum(parts, clip) - clipped_sum(parts[1:], clip)).norm()) <= clip * (1 + 1e-4)
    spoilt = torch.cat([parts, torch.full_like(parts[:1], torch.inf)])
    assert bool(clipped_sum(spoilt, clip).isfinite().all())


def test_text_has_no_part_in_the_table() -> None:
    x, _ = rows(5, 0, speech=False)
    assert not module().released_sums(torch.from_numpy(x)).any()


def test_epsilon_is_dp_accountings_with_the_table_in_it() -> None:
    made = world(
        *SETS, "client={name='dp-branch', noise_multiplier=1.5, table_noise=4.0}", "local.batch_size=4", "rounds=3"
    )
    *_, last = (event for event in made.training.run(made.federation) if type(event).__name__ == "RoundFinished")
    sizes = made.federation.population.sizes.tolist()

    def spent(size: int) -> float:
        distribution = dp_accounting.pld.privacy_loss_distribution
        steps = distribution.from_gaussian_mechanism(
            1.5, value_discretization_interval=1e-3, sampling_prob=min(1.0, 4 / size)
        )
        table = distribution.from_gaussian_mechanism(4.0, value_discretization_interval=1e-3)
        return float(steps.self_compose(3).compose(table).get_epsilon_for_delta(1e-5))

    assert last.metrics["privacy"]["record_epsilon"] == pytest.approx(max(map(spent, sizes)), abs=1e-6)


def test_a_model_without_a_branch_is_one_line() -> None:
    with pytest.raises(ConfigError, match="needs a model with a part 'branch'"):
        prepared("client={name='branch'}", algorithm="fedavg")


def test_words_are_spelt_by_the_longest_parts_that_the_lexicon_knows() -> None:
    known = {"film": ["F", "IH", "L", "M"], "s": ["Z"], "a": ["AH"]}
    assert phones_of_words(["films", "a", "xa"], known) == ["F", "IH", "L", "M", "Z", "AH", "AH"]
    numbers = phone_numbers(["SIL", "F", "+SPN+", "ZH"])
    assert numbers[:3].tolist() == [PHONES.index("F") + 1, PHONES.index("ZH") + 1, 0]
