"""Clients whose data are loaded or generated on demand: the same numbers as in memory, and memory for the invited."""

import threading
import tomllib
import tracemalloc
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import winnow
from command_line import call
from winnow.core import ConfigError, DataError, RunError, Selected, stream
from winnow.data import ClientData, DataSettings, FederatedData, OnDemand, federate, load
from winnow.experiment.build_simulation import prepare_run
from winnow.experiment.build_training_workflow import RunInputs
from winnow.learn.stack import LazyTensorData, TensorData
from winnow.learn.stack import flat_client_data as stack_data
from world import blobs, experiment

Model = dict[str, torch.Tensor]
CLIENTS, ROWS, WIDTH = 12, 9, 4
TWO_LAYERS: dict[str, Any] = {"name": "mlp", "hidden": [6]}


def generated(client: int) -> tuple[np.ndarray, np.ndarray]:
    """Three clouds of points, drawn anew from the client's own stream at each call."""
    rng = stream(5, "generated", client)
    labels = rng.integers(0, 3, ROWS)
    return (labels[:, None] + rng.normal(0, 0.4, (ROWS, WIDTH))).astype(np.float32), labels


def population(load: Callable[[int], Any] = generated, clients: int = CLIENTS, **changes: Any) -> OnDemand:
    held = {"reference": generated(10**6), "test": generated(10**6 + 1)}
    return OnDemand(**{"clients": clients, "sizes": ROWS, "load": load, "classes": 3, **held, **changes})


def run(data: Any, **settings: Any) -> winnow.Result:
    return winnow.run(data=data, **{"model": TWO_LAYERS, "rounds": 3, "select": {"count": 3}, **settings})


def course(*sets: str, dataset: Any, algorithm: str = "fedprof") -> tuple[list[str], Model]:
    with prepare_run(experiment(*sets, algorithm=algorithm), RunInputs(dataset=dataset)) as ready:
        events = [repr(event) for event in ready.training.run(ready.federation)]
        return events, dict(ready.training.model)


def same(one: tuple[list[str], Model], other: tuple[list[str], Model]) -> bool:
    return one[0] == other[0] and all(torch.equal(tensor, other[1][name]) for name, tensor in one[1].items())


def spread(*sets: str) -> FederatedData:
    asked = experiment(*sets)
    return federate(blobs(), asked.data, asked.seed)


def on_demand(federated: FederatedData) -> OnDemand:
    """The same clients and held-out sets, one client at a time."""
    held = federated.clients
    assert isinstance(held, ClientData)
    return OnDemand(
        clients=len(held),
        sizes=held.sizes,
        load=lambda k: (held.client(k).x, held.client(k).y),
        classes=held.classes,
        reference=(federated.reference.x, federated.reference.y),
        test=(federated.test.x, federated.test.y),
    )


# The same numbers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["fedprof", "fedavg"])
@pytest.mark.parametrize("execution", ["native", "loop", "stacked"])
def test_clients_on_demand_learn_what_clients_in_memory_learn(execution: str, algorithm: str) -> None:
    sets = (f"engine.execution={execution}", "data.partition.name=dirichlet")
    here = course(*sets, dataset=blobs(), algorithm=algorithm)
    assert same(course(*sets, dataset=on_demand(spread(*sets)), algorithm=algorithm), here)


def test_noise_in_profiles_by_class_is_the_same_whether_samples_are_in_memory_or_not() -> None:
    sets = (
        "data.partition.name=dirichlet",
        "select.profile_comparison={name='noisy', clip=5.0, noise_multiplier=0.01}",
    )
    here = course(*sets, dataset=blobs(), algorithm="fedprof-by-class")
    assert same(course(*sets, dataset=on_demand(spread(*sets[:1])), algorithm="fedprof-by-class"), here)


def test_the_reference_may_be_with_clients() -> None:
    sets = ("reference_clients=[1,6]",)
    held_out = federate(blobs(), experiment().data.model_copy(update={"reference": 0}), 0)
    given_up = on_demand(held_out)
    without = OnDemand(**{**vars(given_up), "reference": None})
    assert same(course(*sets, dataset=without), course(*sets, dataset=blobs()))


def test_worker_processes_load_for_themselves() -> None:
    data, sets = on_demand(spread()), ("engine.chunk=2", "select.count=6")
    assert same(course(*sets, "engine.workers=2", dataset=data), course(*sets, dataset=data))


def test_blocks_are_seen_as_the_whole_is(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(population(), algorithm="fedprof")
    monkeypatch.setattr(stack_data, "BLOCK_BYTES", 2 * ROWS * WIDTH * 4)
    parts = run(population(), algorithm="fedprof")
    assert parts.history == whole.history


def test_targets_may_be_numbers_and_features_words() -> None:
    def line(client: int) -> tuple[np.ndarray, np.ndarray]:
        x, _ = generated(client)
        return x, x @ np.arange(WIDTH, dtype=np.float32)

    regression = run(population(line, classes=None, reference=line(-1), test=None), rounds=8)
    assert regression.plan.metric == "r2"
    assert regression.best is not None
    assert regression.best > 0

    def words(client: int) -> tuple[np.ndarray, np.ndarray]:
        topics = stream(1, "words", client).integers(0, 2, ROWS)
        return topics[:, None] * 5 + stream(2, "words", client).integers(0, 5, (ROWS, 6)), topics

    told = population(words, classes=2, reference=words(-1), test=None, tokens=True)
    assert run(told, model={"name": "lstm", "vocabulary": 10}).best is not None


# Only what is needed -------------------------------------------------------------------------------------------------


def test_only_the_invited_are_loaded_and_a_few_at_the_start() -> None:
    loads: Counter[int] = Counter()

    def counting(client: int) -> tuple[np.ndarray, np.ndarray]:
        loads[client] += 1
        return generated(client)

    asked = experiment("select.count=20", "rounds=2", algorithm="fedavg-rp")
    with prepare_run(asked, RunInputs(dataset=population(counting, clients=1_000_000))) as ready:
        at_start = loads.copy()
        invited = Counter[int]()
        for event in ready.training.run(ready.federation):
            if isinstance(event, Selected):
                invited.update(event.clients.tolist())
    assert len(at_start) <= 8
    assert loads - at_start == invited
    assert invited.total() == 40


@pytest.mark.parametrize("clients", [400, 1600])
def test_first_profiles_take_memory_for_blocks_and_not_for_all_clients(
    monkeypatch: pytest.MonkeyPatch, clients: int
) -> None:
    rows, width = 50, 200
    monkeypatch.setattr(stack_data, "BLOCK_BYTES", 1_000_000)

    def load(client: int) -> tuple[np.ndarray, np.ndarray]:
        return np.full((rows, width), client / clients, np.float32), np.arange(rows) % 3

    data = population(load, clients=clients, sizes=rows, reference=load(0), test=None)
    with prepare_run(experiment("select.count=5", "rounds=1"), RunInputs(dataset=data)) as ready:
        tracemalloc.start()
        for event in ready.training.run(ready.federation):
            if isinstance(event, Selected):
                break
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert clients * rows * width * 4 >= 16_000_000
    assert peak < 8_000_000


@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=20), block=st.integers(1, 80), draw=st.data())
def test_a_cohort_holds_its_clients_under_their_own_numbers(sizes: list[int], block: int, draw: st.DataObject) -> None:
    flat = np.arange(sum(sizes), dtype=np.float32)[:, None]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    own = [(flat[a:b], np.full(b - a, 1)) for a, b in pairwise(starts)]
    divided = population(own.__getitem__, clients=len(sizes), sizes=sizes, reference=own[0], test=None)
    source = divided.to_federated(reference_at_clients=False).clients
    assert not isinstance(source, ClientData)
    data = LazyTensorData(loader=source, device=torch.device("cpu"))
    asked = np.array(draw.draw(st.lists(st.integers(0, len(sizes) - 1), min_size=1, unique=True)))

    def rows_are_right(held: TensorData, clients: np.ndarray) -> None:
        np.testing.assert_array_equal(held.sizes(clients), np.array(sizes)[clients])
        for client in clients.tolist():
            np.testing.assert_array_equal(held.x[held.rows_of(client)].numpy(), own[client][0])

    rows_are_right(data.cohort(asked), asked)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stack_data, "BLOCK_BYTES", 4 * block)
        blocks = list(data.blocks(asked))
    np.testing.assert_array_equal(np.concatenate([clients for clients, _ in blocks]), asked)
    for clients, held in blocks:
        rows_are_right(held, clients)
        assert len(held.x) <= block + max(sizes)


# Runs in folders -----------------------------------------------------------------------------------------------------


def test_a_run_is_resumed_as_if_never_interrupted(tmp_path: Path) -> None:
    """After which rounds clients are assessed depends on how many there are: here after all of them."""
    always = {"assessments": 4}
    whole = run(population(), rounds=4, out=tmp_path / "whole", quality=always)
    run(population(), rounds=2, out=tmp_path / "parts", quality=always)
    parts = run(population(), rounds=4, out=tmp_path / "parts", resume=True, quality=always)
    assert parts.history == whole.history
    assert all(torch.equal(a, b) for a, b in zip(parts.model.parameters(), whole.model.parameters(), strict=True))
    assert "as given" in (tmp_path / "parts" / "report.html").read_text("utf-8")
    assert tomllib.loads((tmp_path / "parts" / "config.toml").read_text())["data"]["clients"] == CLIENTS


def shorter(client: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = generated(client)
    return x[:-1], y[:-1]


def others(client: int) -> tuple[np.ndarray, np.ndarray]:
    return generated(client + 1)


@pytest.mark.parametrize(
    "changed", [{"sizes": ROWS - 1, "load": shorter}, {"reference": generated(3)}, {"load": others}]
)
def test_a_run_is_not_resumed_with_other_clients(tmp_path: Path, changed: dict[str, Any]) -> None:
    run(population(), rounds=1, out=tmp_path / "run")
    with pytest.raises(RunError, match="started with different data"):
        run(population(**changed), rounds=2, out=tmp_path / "run", resume=True)


def test_algorithms_are_compared() -> None:
    compared = winnow.compare(
        data=population(), model=TWO_LAYERS, algorithms=["fedprof", "fedavg-rp"], seeds=1, rounds=2
    )
    assert [record.algorithm for record in compared.records] == ["fedprof", "fedavg-rp"]


# Mistakes ------------------------------------------------------------------------------------------------------------

X, Y = generated(0)
FAULTS = {
    "8 rows were loaded, but sizes says 9": (X[:-1], Y[:-1]),
    "x has 9 rows but y has 8; they must match": (X, Y[:-1]),
    r"rows of x have shape \(3,\); other clients' \(4,\)": (X[:, :3], Y),
    "x must hold numbers, not object": (X.astype(object), Y),
    r"x\[2, 1\] is not a finite number; fill in or remove such rows first": (
        np.where(np.arange(ROWS * WIDTH).reshape(ROWS, WIDTH) == 2 * WIDTH + 1, np.nan, X),
        Y,
    ),
    "with classes = 3, y must hold whole numbers from 0 to 2": (X, Y + 3),
    r"load must give a pair of arrays \(x, y\), not ndarray": X,
    r"load must give a pair of arrays \(x, y\), not NoneType": None,
    "its data could not be loaded: ValueError: setting an array element.*": ([[1.0, 2.0], [3.0]], [0, 1]),
}


def failing(client: int) -> Any:
    raise OSError("the disk is gone\nand more lines")


@pytest.mark.parametrize("line", FAULTS)
def test_a_loader_that_gives_the_wrong_thing_is_told_which_client(line: str) -> None:
    with pytest.raises(DataError, match=f"^client 7: {line}$"):
        run(population(lambda k: FAULTS[line] if k == 7 else generated(k)), algorithm="fedprof")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_that_fails_is_told_which_client(workers: int) -> None:
    line = "^client 7: its data could not be loaded: OSError: the disk is gone$"
    with pytest.raises(DataError, match=line):
        run(population(lambda k: failing(k) if k == 7 else generated(k)), engine={"workers": workers})


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"clients": 0}, "on-demand: clients must be a whole number, 1 or greater, not 0"),
        ({"clients": 2.5}, "on-demand: clients must be a whole number, 1 or greater, not 2.5"),
        ({"clients": "12"}, "on-demand: clients must be a whole number, 1 or greater, not '12'"),
        ({"load": 3}, "on-demand: load must be a function that takes a client's number"),
        ({"sizes": [1, 2]}, r"on-demand: sizes must be .* 12 of them, one a client; it is int64 of shape \(2,\)"),
        ({"sizes": 2.5}, r"on-demand: sizes must be one whole number, .*; it is float64 of shape \(\)"),
        ({"sizes": [1] * 11 + [0]}, "on-demand: client 11 has size 0; remove it or give it samples"),
        ({"reference": X}, r"on-demand: reference must be a pair \(x, y\)"),
        ({"reference": (X, Y + 9)}, "on-demand, reference set: with classes = 3, y must hold .*"),
        ({"reference": None}, "on-demand: there is no reference set; pass one, or set reference_clients"),
    ],
)
def test_an_impossible_population_is_refused(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(DataError, match=f"^{line}$"):
        run(population(**changes))


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"partition": {"name": "natural"}}, "data.partition has no effect on data that are already .*; remove it"),
        ({"corruptions": [{"name": "noise", "fraction": 0.5}]}, "data.corruptions has no effect on data that are .*"),
        (
            {"reference": 20},
            "data.reference has no effect on data that are already partitioned by client; remove it",
        ),
        ({"scale": "standard"}, "data.scale has no effect on data that are already partitioned by client; .*"),
        ({"tokens": True}, "data.tokens has no effect on OnDemandData, which sets it itself; remove it"),
        ({"clients": 20}, "data.clients = 20, but the data have 12 clients; remove data.clients"),
    ],
)
def test_settings_that_divide_or_spoil_are_refused(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(DataError, match=f"^{line}$"):
        run(population(), **settings)


# A folder with a file a client -------------------------------------------------------------------------------------


def folder_of(path: Path, clients: int = CLIENTS, **without: bool) -> Path:
    path.mkdir()
    for client in range(clients):
        x, y = generated(client)
        np.savez(path / f"{client}.npz", x=x, y=y)
    for name, client in (("reference", 10**6), ("test", 10**6 + 1)):
        x, y = generated(client)
        if not without.get(name):
            np.savez(path / f"{name}.npz", x=x, y=y)
    return path


def configuration(folder: Path, **data: Any) -> Path:
    asked = {"path": str(folder), **data}
    lines = [f"{key} = {value!r}" for key, value in asked.items()]
    path = folder.parent / "own.toml"
    path.write_text(
        "rounds = 3\n[data]\n" + "\n".join(lines) + "\n[model]\nname = 'mlp'\nhidden = [6]\n"
        "[select]\ncount = 3\n"
        "[local]\nname = 'sgd'\nlearning_rate = 0.05\nmomentum = 0.9\nepochs = 2\nbatch_size = 16\n"
    )
    return path


def test_a_folder_is_what_its_clients_are_in_number_order(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "clinics")
    expected = run(population(), algorithm="fedprof").history
    assert run(folder).history == run(str(folder)).history == expected
    assert winnow.run(configuration(folder)).history == expected


@pytest.mark.slow(part="docs")
def test_the_command_line_runs_resumes_and_compares_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    own = str(configuration(folder_of(tmp_path / "clinics")))
    assert call(capsys, "run", own, "--out", "one", "--rounds", "2", "--quiet").code == 0
    assert call(capsys, "run", own, "--out", "one", "--rounds", "3", "--resume", "--quiet").code == 0
    stored = tomllib.loads(Path("one/config.toml").read_text())["data"]
    assert (stored["name"], stored["clients"]) == ("clinics", CLIENTS)
    assert call(capsys, "compare", own, "--seeds", "1", "--rounds", "1", "--out", "several").code == 0
    refused = call(capsys, "run", own, "--set", "data.clients=3", "--out", "two")
    assert "data.clients = 3, but the data have 12 clients; remove data.clients" in refused.err


def test_an_index_gives_order_sizes_and_classes(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "clinics")
    files = [f"{client}.npz" for client in reversed(range(CLIENTS))]
    np.savez(folder / "index.npz", files=files, sizes=np.full(CLIENTS, ROWS), classes=7)
    loaded = load(DataSettings(path=folder))
    assert isinstance(loaded, OnDemand)
    assert (loaded.clients, loaded.classes) == (CLIENTS, 7)
    np.testing.assert_array_equal(loaded.load(0)[0], generated(CLIENTS - 1)[0])


def test_sizes_come_from_the_heads_of_files(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "clinics", clients=3)
    x, y = generated(1)
    np.savez_compressed(folder / "1.npz", x=x[:4], y=y[:4])
    loaded = load(DataSettings(path=folder))
    assert isinstance(loaded, OnDemand)
    assert np.asarray(loaded.sizes).tolist() == [ROWS, 4, ROWS]


def _spoil(folder: Path, name: str, **arrays: Any) -> None:
    np.savez(folder / name, **arrays) if arrays else (folder / name).write_text("no archive")


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (lambda f: [p.unlink() for p in f.glob("?.npz")], "{} contains no client .npz files; add one per client, .*"),
        (lambda f: _spoil(f, "1.npz"), "{}/1.npz is not a readable .npz of plain arrays: .*"),
        (lambda f: _spoil(f, "1.npz", z=X), "{}/1.npz has no array 'x'; save x and y with np.savez"),
        (lambda f: _spoil(f, "1.npz", x=X), "client 1: {}/1.npz has no array 'y'; it holds x"),
        (lambda f: _spoil(f, "1.npz", x=X, y=Y, z=Y), "{}/1.npz holds an array 'z', which would be ignored; .*"),
        (
            lambda f: _spoil(f, "index.npz", files=["0.npz"], sizes=[ROWS], nams=["Ulm"]),
            r"{}/index.npz holds an array 'nams', which would be ignored; did you mean 'names'\? Winnow knows .*",
        ),
        (lambda f: _spoil(f, "1.npz", x=X, y=Y + 9), "client 1: with classes = 3, y must hold whole numbers .*"),
        (lambda f: (f / "reference.npz").unlink(), "clinics: there is no reference set; pass one, or set .*"),
        (lambda f: _spoil(f, "index.npz", files=["0.npz"], sizes=[1, 2]), "{}/index.npz: files must list names .*"),
        (
            lambda f: _spoil(f, "index.npz", files=["0.npz"], sizes=[1], classes=[3, 4]),
            "{}/index.npz: classes must be a single whole number.*",
        ),
        (lambda f: _spoil(f, "index.npz", files=["a.npz"], sizes=[1]), "client 0: {}/a.npz is not a readable .*"),
    ],
)
def test_a_spoilt_folder_is_one_line(tmp_path: Path, spoil: Callable[[Path], Any], line: str) -> None:
    folder = folder_of(tmp_path / "clinics", clients=3)
    spoil(folder)
    with pytest.raises(DataError, match=f"^{line.format(folder)}$"):
        run(folder)


def test_a_folder_without_anything_at_the_server_is_one_line(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "clinics", clients=3, reference=True, test=True)
    with pytest.raises(DataError, match=r"has neither reference.npz nor test.npz; put one there"):
        run(folder)


# On a cluster --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own, while it is imported and starts
        import ray

        ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.slow(part="executions")  # Ray gives a node 30 seconds to start, which a busy machine does not keep to
@pytest.mark.usefixtures("cluster")
def test_on_a_cluster_the_function_travels_or_one_line_says_why_not() -> None:
    pairs = [generated(client) for client in range(CLIENTS)]
    closure, sets = population(lambda k: pairs[k]), ("engine.chunk=2", "rounds=2")
    assert same(course(*sets, 'engine.workers="ray"', dataset=closure), course(*sets, dataset=closure))
    with pytest.raises(
        ConfigError, match=r'^engine.workers = "ray": No module named .* at a worker; install it there$'
    ):
        course('engine.workers="ray"', dataset=population())
    lock = threading.Lock()

    def guarded(client: int) -> Any:
        with lock:
            return pairs[client]

    with pytest.raises(ConfigError, match=r'^engine.workers = "ray": .* cannot be sent to workers: .*lock.*$'):
        run(population(guarded), engine={"workers": "ray"})
