"""One client that sends anything ends nobody's run: its reply is refused, and the others' are folded.

Every kind of reply is made odd in every way of the catalogue (`hostile.py`), against every algorithm and every way of
collecting. Whatever a run meets, it ends with a model that is finite. In a simulation nothing but the check of a single
reply is forgiven: an exception anywhere else fails the test.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hostile import CREDIBLE, LIES, Files, Lying
from winnow.core import AnyEvent, Federation, Population, Rejected, Reply, RoundFinished, Task
from winnow.core.scatter_gather import CyclicTransfer, ScatterAndGather
from winnow.experiment.build_simulation import PreparedRun
from winnow.fleet import Devices
from winnow.learn.algorithm import Recipe
from winnow.learn.collect import fold_finite
from winnow.learn.selection import SelectedClients, Selection
from winnow.learn.update_filters import FilteredFederation
from winnow.simulate import SimulatedFederation
from world import NEEDED, blobs, prepared

CLIENTS = 6
WORLD = (
    *(f"data.clients={CLIENTS}", "data.reference=10", "data.test=6", "data.corruptions=[]", "data.local_test=0.2"),
    *("rounds=2", "model.hidden=[3]", "select.count=5", "local.epochs=1", "engine.execution=loop"),
)
DATA = blobs(90)
LIAR = 2


@dataclass(frozen=True)
class Way:
    """An algorithm, settings, and how much time a run of it takes, compared with a plain one."""

    algorithm: str
    sets: tuple[str, ...] = ()
    weight: float = 1.0

    @property
    def name(self) -> str:
        return " ".join((self.algorithm, *self.sets))


EVIDENCE = "quality.evidence=['inputs', 'columns', 'labels', 'updates']"
SECURE = "collect.name=secure"
NO_LOCAL_TEST = ("data.local_test=0.0",)
"""Where labels are at the server, clients have none to test with."""
HOMOMORPHIC = ("collect.name=homomorphic", "collect.key_holder=2")
DP = ("collect.name=central-dp", "collect.noise_multiplier=0.5")
WAYS = [
    *(Way(name, NO_LOCAL_TEST if name in NEEDED else ()) for name in sorted(Recipe.known)),
    *(Way(name, ("reference_clients=[2, 4]",)) for name in ("fedprof", "fedavg", "srpfl-fedprof", "safa", "fedbuff")),
    *(Way(name, ("reference_clients=[2]",)) for name in ("fedprof", "fedprof-full", "fedprof-by-class", "oort")),
    *(Way(name, ("evaluation.by=clients",)) for name in ("fedper", "fedavg", "ditto", "fedrep")),
    Way("fedrep", ("evaluation.by=tuned", "evaluation.tune_epochs=1", "evaluation.tune_every=1")),
    Way("fedprof", ("select.divergence=normalised", "select.replacement=true")),
    Way("fedavg", (EVIDENCE, "quality.policy=exclude"), 3),
    Way("fedprof", (EVIDENCE, "reference_clients=[2, 4]"), 3),
    Way("tifl", ("select.count=1", "select.interval=1")),
    Way("power-of-choice", ("select.count=2",)),
    Way("afl", ("select.count=2", "select.alpha1=0.2")),
    Way("oort", ("select.count=2", "select.exploration=0.2")),
    Way("qfedavg", ("aggregate.q=0.5",)),
    Way("cyclic", ("schedule.order=shuffled",)),
    *(
        Way(name, (SECURE,), 3)
        for name in ("fedavg", "fedavg-rp", "fedprof", "scaffold", "fednova", "fedadam", "feddyn", "fedrep", "tifl")
    ),
    Way("fedavg", (SECURE, "collect.graph=ring", "collect.neighbours=2"), 3),
    Way("fedavg", (SECURE, "collect.keeper=true"), 3),
    Way("scaffold", (SECURE, "collect.keeper=true"), 3),
    Way("fedavg", (SECURE, "collect.keeper=true", 'collect.encoding={name = "product-quantisation"}'), 4),
    Way("fedavg", (SECURE, 'collect.encoding={name = "random-pruning"}'), 4),
    Way(
        "fedavg-rp",
        (SECURE, 'collect.encoding={name = "discrete-gaussian", noise_multiplier = 1.0, clip = 1.0}'),
        4,
    ),
    *(Way(name, HOMOMORPHIC, 8) for name in ("fedavg", "fednova")),
    *(Way(name, DP) for name in ("fedavg-rp", "fedprox", "fedavg")),
    Way("fedavg-rp", (*DP, "select.name=poisson")),
    Way("fedavg", ('filters=[{name = "compress", sparsify = {name = "top-k", fraction = 0.3}}]',)),
    Way("scaffold", ('filters=[{name = "compress", quantise = {name = "qsgd"}, entropy_coding = "zstd"}]',)),
    Way("fednova", ('filters=[{name = "compress", sparsify = {name = "random-k", fraction = 0.3}}]',)),
    Way("safa", ('filters=[{name = "compress", quantise = {name = "float16"}}]',)),
    Way("fedprof", ('filters=[{name = "sparse-vector", epsilon = 5.0}]',)),
    Way("fedbuff", ('filters=[{name = "clip", norm = 1.0}]',)),
    Way("fedavg", ('filters=[{name = "local-dp", noise_multiplier = 1.0, clip = 1.0}]',)),
    *(
        Way(name, ("select.profile_comparison=encrypted", "reference_clients=[2]"), 60)
        for name in ("fedprof", "fedprof-by-class")
    ),
]


def liar(seed: int) -> int:
    """The one who holds keys and the reference set where somebody does, or the first of all to be looked at."""
    return LIAR if seed % 2 else 0


def lied_to(
    way: Way, lies: tuple[str, ...], seed: int, often: float = 1.0
) -> tuple[PreparedRun, list[AnyEvent], Lying]:
    """A run in which one client tells these lies."""
    ready = prepared(*WORLD, *way.sets, algorithm=way.algorithm, dataset=DATA)
    lying = Lying(ready.simulation, frozenset({liar(seed)}), lies, np.random.default_rng(seed), often)
    filters = ready.experiment.filters
    events = list(ready.training.run(FilteredFederation(lying, filters) if filters else lying))
    return ready, events, lying


def check(way: Way, lies: tuple[str, ...], seed: int, often: float = 1.0) -> int:
    """Hold such a run to what it must keep; how many replies were refused."""
    try:
        ready, events, lying = lied_to(way, lies, seed, often)
    except Exception as error:
        error.add_note(f"{way.name}; lies {lies}; seed {seed}")
        raise
    rounds = [event for event in events if isinstance(event, RoundFinished)]
    refused = [event for event in events if isinstance(event, Rejected)]
    why = f"{way.name}; lies {lies}; seed {seed}"
    assert len(rounds) == 2, why
    for model in (ready.training.model, ready.training.best):
        assert all(bool(t.isfinite().all()) for t in model.values() if t.is_floating_point()), why
    assert all(event.reason.isprintable() and 0 < len(event.reason) <= 600 for event in refused), why
    assert all(np.isfinite(tuple(event.cost)).all() for event in rounds), why
    if not {lie for lie, _ in lying.told} & CREDIBLE and not ready.experiment.collect.sums_only:
        assert {event.client for event in refused} <= {liar(seed)}, why
        assert all(set(event.aggregated.tolist()) - {liar(seed)} for event in rounds), why
    return len(refused)


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Files, "folder", tmp_path)


def chosen(runs: int, seed: int) -> list[tuple[Way, tuple[str, ...], int, float]]:
    """So many runs: every lie and every way in turn, slow ways less often."""
    rng = np.random.default_rng(seed)
    shares = np.array([1 / way.weight for way in WAYS])
    names, found = [*LIES], []
    for number in range(runs):
        place = number if number < len(WAYS) else rng.choice(len(WAYS), p=shares / shares.sum())
        first = names[number % len(names)]
        more = rng.choice(names, int(rng.integers(0, 3))).tolist()
        found.append((WAYS[place], (first, *more), int(rng.integers(2**31)), float(rng.choice([1.0, 1.0, 0.5]))))
    return found


REASONS = {
    "a part too many": "an unexpected part 'surplus'",
    "no parts": "carries no model",
    "all arrays of bfloat16": "wrong shape or type",
    "arrays by other names": "tensor names differ",
    "a terabyte of F32 in a file": "wrong shape or type",
    "a part that is none": "the reply cannot be read (AttributeError",
    "a metric that is text": "is not a number",
    "a surplus metric": "an unexpected metric 'secret'",
    "seconds that are negative": "an impossible cost",
    "values that are not a number": "not finite or too large",
    "a failure of many lines": "failed (train ing): one two ?[2J?three",
}


@pytest.mark.parametrize(("lie", "reason"), REASONS.items())
def test_a_refusal_says_whose_reply_it_was_and_why(lie: str, reason: str) -> None:
    _, events, lying = lied_to(Way("fedavg-rp"), (lie,), seed=0)
    refused = [event for event in events if isinstance(event, Rejected) and reason in event.reason]
    assert lying.told
    assert {event.client for event in refused} == {0}
    assert len(refused) >= sum(task.name == "train" for _, task in lying.told)


QUICK = 150
BLOCKS = 50


def fuzz(runs: list[tuple[Way, tuple[str, ...], int, float]]) -> None:
    refused = sum(check(*run) for run in runs)
    print(f"{len(runs)} runs, {refused} replies refused")
    assert refused > len(runs) / 4


def test_no_reply_of_one_client_ends_a_run() -> None:
    assert max(len(LIES), len(WAYS)) <= QUICK
    fuzz([run for run in chosen(QUICK, seed=0) if run[0].weight < 50])


FOUND = [
    (Way("rscfed"), ("values that are -1e18", "values that are 1e30"), 864438283),
    (Way("fednova", HOMOMORPHIC), ("an array that is none",), 738239895),
    (Way("fednova", HOMOMORPHIC), ("a part that is none",), 738239895),
]


@pytest.mark.parametrize(("way", "lies", "seed"), FOUND)
def test_what_once_ended_a_run_is_refused(way: Way, lies: tuple[str, ...], seed: int) -> None:
    assert check(way, lies, seed)


@pytest.mark.slow(part="attacks")
@pytest.mark.parametrize("block", range(BLOCKS))
def test_no_reply_of_one_client_ends_any_of_5000_runs(block: int) -> None:
    fuzz(chosen(5000, seed=1)[block::BLOCKS])


# Where the check at the door does not help ----------------------------------------------------------------------------


class Elsewhere:
    """A federation whose clients are not in this process, and may lie."""

    simulated = False

    def __init__(self, federation: Federation) -> None:
        self._federation = federation

    def __getattr__(self, name: str) -> Any:
        return getattr(self._federation, name)


@pytest.mark.parametrize("fails", [KeyError, RuntimeError, RecursionError])
def test_a_selection_that_fails_over_a_reply_passes_over_it(fails: type[Exception]) -> None:
    ready = prepared(*WORLD, algorithm="oort", dataset=DATA)
    seen: list[int] = []

    class Picky(Selection):
        def propose(self, context):
            return SelectedClients(clients=np.arange(4), counts=np.ones(4, np.int64))

        def observe(self, context, replies):
            for reply in replies:
                if reply.task.client == LIAR:
                    raise fails("of all replies this one")
                seen.append(reply.task.client)

    ready.training.algorithm.select.__dict__["start"] = lambda population: Picky()
    events = list(ready.training.run(Elsewhere(ready.federation)))
    refused = [event for event in events if isinstance(event, Rejected)]
    assert {(event.client, fails.__name__ in event.reason) for event in refused} == {(LIAR, True)}
    assert {0, 1, 3} <= {*seen}


def test_an_aggregation_that_fails_over_a_reply_refuses_it_and_folds_the_others() -> None:
    replies, refused = [an_update(client) for client in range(4)], []

    class Picky:
        def __init__(self):
            self.folded = []

        def add(self, update):
            if update.client == LIAR:
                raise ZeroDivisionError("of all replies this one")
            self.folded.append(update.client)

        def finish(self):
            return {"w": torch.full((3,), float(len(self.folded)))}

    folded, model, _ = fold_finite(replies, refused, dict.fromkeys(range(4), 1), Picky, simulated=False)
    assert [reply.task.client for reply in folded] == [0, 1, 3]
    assert model["w"].tolist() == [3, 3, 3]
    ((client, reason),) = [(each.client, each.reason) for each in refused]
    assert client == LIAR
    assert "ZeroDivisionError: of all replies this one" in reason
    with pytest.raises(ZeroDivisionError):  # in a simulation it can only be a bug
        fold_finite(replies, [], dict.fromkeys(range(4), 1), Picky, simulated=True)


MODEL = {"w": torch.zeros(3)}


def an_update(client: int) -> Reply:
    task = Task(name="train", client=client, round=1, version=0, payload={"model": MODEL})
    return Reply(task=task, payload={"model": {"w": torch.ones(3)}})


@pytest.mark.parametrize("workflow", [ScatterAndGather, CyclicTransfer])
@pytest.mark.parametrize("lie", [lie for lie in LIES if not any(word in lie for word in ("file", "numpy"))])
def test_the_workflows_to_start_from_pass_over_a_liar(workflow: type, lie: str) -> None:
    def answer(tasks, _):
        return [Reply(task=task, payload={"model": {"x": task.payload["model"]["x"] * 0.5}}) for task in tasks]

    population = Population(sizes=np.array([3, 1, 4, 1, 5]))
    inside = SimulatedFederation(
        site=None, handlers={"halve": answer}, population=population, fleet=Devices().draw(5, seed=1)
    )
    work = workflow("halve", {"x": torch.ones(4, dtype=torch.float64)}, rounds=2)
    events = list(work.run(Lying(inside, frozenset({LIAR}), (lie,), np.random.default_rng(0))))
    rounds = [event for event in events if isinstance(event, RoundFinished)]
    assert all({0, 1, 3, 4} <= {*event.aggregated.tolist()} for event in rounds)
    assert bool(work.arrays["x"].isfinite().all())
    assert np.isfinite(tuple(rounds[-1].cost)).all()
