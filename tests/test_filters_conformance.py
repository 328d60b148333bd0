"""Laws that every filter keeps. A new one must be listed here, and is then tested."""

import json
import tomllib

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from winnow.config.resolve import experiment_from_table, to_toml
from winnow.core import ConfigError, Reply, RoundFinished, stream, wrap
from winnow.experiment.build_simulation import prepare_run
from winnow.experiment.build_training_workflow import RunInputs
from winnow.learn.client_round_method import TrainSettings
from winnow.learn.secure_randomness import secure_stream
from winnow.learn.update_filters import FilteredFederation, TwoSidedFilter
from winnow.runs.event_log import encode_event
from winnow.simulate import SimulatedFederation
from world import blobs, experiment, prepared

FILTERS = {
    "clip": [{"name": "clip", "norm": 0.5}],
    "exclude": [{"name": "exclude", "variables": ["*.bias"]}],
    "percentile": [{"name": "percentile", "percentile": 50.0, "gamma": 0.05}],
    "sparse-vector": [{"name": "sparse-vector", "epsilon": 5000.0, "gamma": 0.05}],
    "local-dp": [{"name": "local-dp", "noise_multiplier": 0.001, "clip": 1.0}],
    "compress": [{"name": "compress", "quantise": "qsgd"}],
    "min-max": [{"name": "compress", "quantise": {"name": "min-max", "bits": 4}}],
    "top-k": [{"name": "compress", "sparsify": {"name": "top-k", "fraction": 0.1}, "quantise": "float16"}],
    "random-k": [
        {
            "name": "compress",
            "sparsify": {"name": "random-k", "fraction": 0.2, "error_feedback": True},
            "entropy_coding": "zstd",
        }
    ],
    "many": [
        {"name": "exclude", "variables": ["*.bias"]},
        {"name": "clip", "norm": 1.0},
        {
            "name": "compress",
            "sparsify": {"name": "top-k", "fraction": 0.3},
            "quantise": "qsgd",
            "entropy_coding": "zstd",
        },
    ],
}
ALGORITHMS = ["fedavg", "fedprof", "scaffold", "fedac", "fednova", "fedbuff", "fedper", "krum"]
NEEDS_ROUNDS, WITHOUT_ROUNDS = {"local-dp"}, {"fedbuff", "safa"}
CASES = pytest.mark.parametrize("filters", FILTERS.values(), ids=FILTERS.keys())


def pairs_with(algorithms: list[str]) -> pytest.MarkDecorator:
    """Every filter with each of these algorithms, except those that an algorithm without rounds cannot have."""
    pairs = [
        pytest.param(filters, algorithm, id=f"{name}-{algorithm}")
        for name, filters in FILTERS.items()
        for algorithm in algorithms
        if not (name in NEEDS_ROUNDS and algorithm in WITHOUT_ROUNDS)
    ]
    return pytest.mark.parametrize(("filters", "algorithm"), pairs)


def asked(filters: list[dict]) -> str:
    """The option that has these filters."""
    inner = ", ".join(
        "{" + ", ".join(f"{key} = {_toml(value)}" for key, value in each.items()) + "}" for each in filters
    )
    return f"filters=[{inner}]"


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + "}"
    return json.dumps(value)


def log_of(ready) -> list[bytes]:
    return [encode_event(event) for event in ready.training.run(ready.federation)]


def test_every_filter_is_listed() -> None:
    assert {each["name"] for filters in FILTERS.values() for each in filters} == set(TwoSidedFilter.members)


@pairs_with(ALGORITHMS)
def test_a_filter_goes_with_any_algorithm(filters: list[dict], algorithm: str) -> None:
    count = ["select.count=5"] if algorithm == "krum" else []
    ready = prepared(asked(filters), "rounds=2", *count, algorithm=algorithm)
    before = {name: (tensor.shape, tensor.dtype) for name, tensor in ready.training.model.items()}
    events = list(ready.training.run(ready.federation))
    assert not [event for event in events if event.kind == "rejected"]
    assert {name: (tensor.shape, tensor.dtype) for name, tensor in ready.training.model.items()} == before
    assert all(torch.isfinite(tensor).all() for tensor in ready.training.model.values())


@pairs_with(["scaffold", "fedbuff", "safa"])
def test_resuming_equals_no_interruption(filters: list[dict], algorithm: str) -> None:
    whole = prepared(asked(filters), algorithm=algorithm)
    log = log_of(whole)
    first, begun = prepared(asked(filters), algorithm=algorithm), []
    for event in first.training.run(first.federation):
        begun.append(encode_event(event))
        if isinstance(event, RoundFinished) and event.round == 2:
            break
    snapshot = first.snapshot()
    second = prepare_run(experiment(asked(filters), algorithm=algorithm), RunInputs(dataset=blobs()), snapshot=snapshot)
    assert begun + log_of(second) == log
    assert all(torch.equal(tensor, second.training.model[name]) for name, tensor in whole.training.model.items())
    kept, again = whole.simulation.store.state(), second.simulation.store.state()
    assert kept.keys() == again.keys()
    assert all(np.array_equal(np.asarray(kept[name]), np.asarray(again[name])) for name in kept)


@pytest.mark.parametrize("name", sorted(NEEDS_ROUNDS))
@pytest.mark.parametrize("algorithm", sorted(WITHOUT_ROUNDS))
def test_a_filter_that_counts_rounds_is_refused_without_them(name: str, algorithm: str) -> None:
    with pytest.raises(ConfigError, match=r'write schedule\.name = "rounds"'):
        experiment(asked(FILTERS[name]), algorithm=algorithm)


@CASES
class TestEveryFilter:
    def test_shapes_types_and_order_are_kept_with_batch_statistics(self, filters: list[dict]) -> None:
        module = torch.nn.Sequential(
            torch.nn.Linear(5, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
        )
        made = experiment(asked(filters), "rounds=2", "model.name=in-memory", algorithm="fedavg")
        ready = prepare_run(made, RunInputs(dataset=blobs(), module=module))
        before = {name: (tensor.shape, tensor.dtype) for name, tensor in ready.training.model.items()}
        events = list(ready.training.run(ready.federation))
        assert not [event for event in events if event.kind == "rejected"]
        assert {name: (tensor.shape, tensor.dtype) for name, tensor in ready.training.model.items()} == before

    def test_a_seed_repeats_bit_for_bit(self, filters: list[dict]) -> None:
        one, two, other = (prepared(asked(filters), algorithm="scaffold", seed=seed) for seed in (0, 0, 1))
        assert log_of(one) == log_of(two) != log_of(other)
        assert all(torch.equal(one.training.model[name], two.training.model[name]) for name in one.training.model)

    def test_it_does_something(self, filters: list[dict]) -> None:
        with_filter, without = prepared(asked(filters), algorithm="fedavg"), prepared(algorithm="fedavg")
        log_of(with_filter), log_of(without)
        assert any(not torch.equal(t, without.training.model[n]) for n, t in with_filter.training.model.items())

    def test_workers_make_no_difference(self, filters: list[dict]) -> None:
        alone, helped = (prepared(asked(filters), "engine.chunk=2", f"engine.workers={w}", "rounds=2") for w in (0, 2))
        with helped:
            assert log_of(alone) == log_of(helped)

    def test_the_resolved_file_gives_it_again(self, filters: list[dict]) -> None:
        made = experiment(asked(filters))
        assert experiment_from_table(tomllib.loads(to_toml(made)), "again").filters == made.filters

    def test_it_says_what_it_does(self, filters: list[dict]) -> None:
        for each in experiment(asked(filters)).filters:
            said = each.privacy_text()
            assert said.startswith(f"{each.name}: ")
            assert "server" in said
            assert "\n" not in said

    def test_what_is_not_training_passes_untouched(self, filters: list[dict]) -> None:
        """Profiles, losses and scores leave as they did: the filters are about updates."""
        ready = prepared(asked(filters), "reference_clients=[1, 4]", algorithm="fedprof")
        plain = prepared("reference_clients=[1, 4]", algorithm="fedprof")
        one, two = (next(iter(each.training.run(each.federation))) for each in (ready, plain))
        assert encode_event(one) == encode_event(two)

    def test_what_is_not_finite_leaves_as_no_change_and_is_not_told(self, filters: list[dict]) -> None:
        """A server that chose the model would have an exact answer otherwise, whatever the noise."""
        ready = prepared(asked(filters), "rounds=1", algorithm="fedavg")
        events = list(ready.training.run(spoilt(ready)))
        assert not [event for event in events if event.kind == "rejected"]
        (finished,) = [event for event in events if event.kind == "round_finished"]
        assert len(finished.aggregated) == 3
        assert all(bool(tensor.isfinite().all()) for tensor in ready.training.model.values())

    def test_the_system_can_give_the_randomness(self, filters: list[dict]) -> None:
        """In deployment nobody can foresee it, and replies are as sound."""
        ready = prepared(asked(filters), algorithm="fedavg")
        chance = [each.at_site(secure_stream) for each in reversed(ready.experiment.filters)]
        handlers = {"train": wrap(prepared(algorithm="fedavg").simulation.handlers["train"], chance)}
        federation = FilteredFederation(rebuilt(ready, handlers), ready.experiment.filters)
        tasks = ready.training.tasks([0, 1], ready.federation.population.sizes, round=1)
        with federation.dispatch(tasks) as exchange:
            replies = list(exchange)
        assert all(isinstance(reply, Reply) for reply in replies)
        assert all(reply.payload["model"].keys() == ready.training.model.keys() for reply in replies)


def rebuilt(ready, handlers) -> SimulatedFederation:
    inner = ready.simulation
    return SimulatedFederation(site=inner.site, handlers=handlers, population=inner.population, fleet=inner.fleet)


def spoilt(ready) -> FilteredFederation:
    """The same federation, whose first client of a cohort trains to nothing."""
    bare = prepared(algorithm="fedavg").simulation.handlers["train"]

    def train(tasks, site):
        first, *others = bare(tasks, site)
        model = {name: tensor * float("nan") for name, tensor in first.payload["model"].items()}
        return [replace(first, payload={**first.payload, "model": model}), *others]

    wrapped = wrap(train, [each.at_site(stream) for each in reversed(ready.experiment.filters)])
    return FilteredFederation(rebuilt(ready, {"train": wrapped}), ready.experiment.filters)


def test_the_order_is_that_of_the_file() -> None:
    """Clipping before dropping biases leaves a shorter update than the other way round."""
    clip, exclude = FILTERS["clip"], FILTERS["exclude"]
    norms = []
    for filters in (clip + exclude, exclude + clip):
        ready = prepared(asked(filters), "rounds=1", algorithm="fedavg")
        tasks = ready.training.tasks([0], ready.federation.population.sizes, round=1)
        assert isinstance(tasks[0].settings, TrainSettings)
        with ready.federation.dispatch(tasks) as exchange:
            (reply,) = exchange
        moved = [reply.payload["model"][name] - tensor for name, tensor in ready.training.model.items()]
        norms.append(float(torch.cat([each.reshape(-1) for each in moved]).norm()))
    assert norms[0] < 0.499
    assert norms[1] == pytest.approx(0.5, rel=1e-4)


def test_no_filters_is_no_layer() -> None:
    ready = prepared()
    assert ready.federation is ready.simulation
