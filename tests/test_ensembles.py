"""Federated ensembles: clusters, leaves, what combines them, checkpoints, and the module that comes of it."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import winnow
from winnow.config.planned_rounds import planned_rounds
from winnow.config.resolve import resolve
from winnow.core import AnyEvent, ConfigError, RoundFinished
from winnow.experiment import run as run_module
from winnow.experiment.run import Result, run_experiment
from winnow.explain.privacy_report import make_privacy_report
from winnow.learn.ensemble.cluster_rules import ColumnClusters, HashClusters, KMeansClusters, PublicAttributes, k_means
from winnow.progress import live_display

OVER_AT_SERVER = {"name": "over-arch", "rounds": 3, "opt_in": 0.3, "hidden": [8]}
OVER_AT_CLIENTS = {"name": "over-arch", "at": "clients", "rounds": 3, "hidden": [8]}


def table(rounds: int = 3, **settings: Any) -> dict[str, Any]:
    return {
        "algorithm": "fedavg",
        "rounds": rounds,
        "select": {"fraction": 0.5},
        "local": {"name": "sgd", "learning_rate": 0.1, "batch_size": 16},
        "aggregate": {"name": "partial"},
        "data": {"name": "digits", "clients": 12},
        "model": {"name": "mlp", "hidden": [16]},
        **settings,
    }


def three(combine: Any = "mean", **clusters: Any) -> dict[str, Any]:
    return {"clusters": {"name": "random", "count": 3, **clusters}, "combine": combine}


def logged(result: Result) -> list[AnyEvent]:
    return list(result.view.events())


def test_an_ensemble_of_one_leaf_is_the_plain_training_bit_for_bit() -> None:
    plain = winnow.run(table())
    alone = winnow.run(table(ensemble={"clusters": {"name": "random", "count": 1}}))
    for mine, theirs in zip(alone.model.state_dict().values(), plain.model.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)
    assert [e.metrics for e in logged(alone) if isinstance(e, RoundFinished)] == [
        e.metrics for e in logged(plain) if isinstance(e, RoundFinished)
    ]
    assert alone.summary.best == plain.summary.best


def test_leaves_are_trained_by_their_clients_alone() -> None:
    """A leaf equals a plain training of a federation that has nobody but its clients."""
    result = winnow.run(table(ensemble=three()))
    order = winnow.run(table(ensemble=three("median")))
    ours, theirs = result.model.state_dict(), order.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours), "what combines leaves does not train them"
    assert not torch.equal(ours["leaves.0.1.weight"], ours["leaves.1.1.weight"])
    aggregated = [event.aggregated for event in logged(result) if isinstance(event, RoundFinished)]
    assert all(len(clients) == 6 for clients in aggregated), "half of each leaf's four clients"


@pytest.mark.parametrize("combine", ["mean", "median", "max"])
def test_predictions_are_combined_as_numpy_would(combine: str) -> None:
    result = winnow.run(table(ensemble=three(combine)))
    x = torch.rand(7, 1, 8, 8)
    with torch.no_grad():
        leaves = np.stack([leaf(x).softmax(1).numpy() for leaf in result.model.leaves])  # type: ignore[operator, union-attr]
        found = result.model(x).softmax(1).numpy()
    wanted = {"mean": leaves.mean(0), "median": np.median(leaves, 0), "max": leaves.max(0)}[combine]
    np.testing.assert_allclose(found, wanted / wanted.sum(1, keepdims=True), atol=1e-6)


def test_the_maximum_of_two_classes_is_that_of_the_second() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3))
    result = winnow.run(table(data=None, ensemble=three("max")) | {"data": {"clients": 12}}, data=(x, x[:, 0] > 0))
    rows = torch.rand(5, 3)
    with torch.no_grad():
        leaves = torch.stack([leaf(rows).softmax(1)[:, 1] for leaf in result.model.leaves])  # type: ignore[operator, union-attr]
        torch.testing.assert_close(result.model(rows).softmax(1)[:, 1], leaves.max(0).values)


@pytest.mark.parametrize(
    ("combine", "rounds"),
    [
        pytest.param("mean", 2, id="mean"),
        pytest.param(OVER_AT_SERVER, 4, id="server"),
        pytest.param(OVER_AT_CLIENTS, 4, id="clients"),
        pytest.param(OVER_AT_SERVER, 2, id="leaves, then server", marks=pytest.mark.slow(part="kills")),
        pytest.param(OVER_AT_CLIENTS, 2, id="leaves, then clients", marks=pytest.mark.slow(part="kills")),
    ],
)
def test_an_interrupted_run_resumes_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, combine: Any, rounds: int
) -> None:
    """Interrupted in the first stage or in the second."""
    monkeypatch.setattr(run_module, "CHECKPOINT_SECONDS", -1.0)
    monkeypatch.setattr(run_module, "CHECKPOINT_INTERVAL_FACTOR", 0)
    experiment = resolve(table(ensemble=three(combine)))

    def interrupt(event: AnyEvent) -> None:
        if isinstance(event, RoundFinished) and event.round == rounds:
            raise KeyboardInterrupt

    run_experiment(experiment, out=tmp_path / "whole", report=False)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment, out=tmp_path / "cut", report=False, on_event=interrupt)
    run_experiment(experiment, out=tmp_path / "cut", resume=True, report=False)
    for name in ("best.safetensors", "last.safetensors", "events.jsonl"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


@pytest.mark.parametrize("combine", ["mean", OVER_AT_SERVER], ids=["mean", "over-arch"])
def test_the_combined_model_is_saved_and_loaded(tmp_path: Path, combine: Any) -> None:
    result = winnow.run(table(ensemble=three(combine)), out=tmp_path / "run")
    rows = np.random.default_rng(0).uniform(0, 16, (9, 1, 8, 8))
    for folder in (result.save(tmp_path / "model"), tmp_path / "run"):
        np.testing.assert_array_equal(winnow.load(folder).predict_proba(rows), result.predict_proba(rows))


def test_an_over_arch_starts_as_the_mean_and_changes_with_its_rounds() -> None:
    mean, over = (winnow.run(table(ensemble=three(combine))) for combine in ("mean", OVER_AT_SERVER))
    assert mean.best is not None
    first = next(e for e in logged(over) if e.kind == "evaluated" and e.round == 3)
    assert first.metrics["reference"]["accuracy"] == pytest.approx(mean.best)  # type: ignore[union-attr]
    assert over.summary.rounds == 6
    assert over.best is not None
    assert over.best >= mean.best


def test_a_private_leaf_sees_private_columns_alone() -> None:
    rng = np.random.default_rng(1)
    rows = {"age": rng.uniform(20, 80, 300), "shown": rng.normal(size=300), "secret": rng.normal(size=300)}
    y = (rows["shown"] + rows["secret"] > 0).astype(int)
    ensemble = {"clusters": {"name": "column", "column": "age", "count": 2}, "private": ["secret"]}
    result = winnow.run(table(ensemble=ensemble) | {"data": {"clients": 12}}, data=(rows, y))
    x = torch.rand(6, 3)
    moved = {name: x + torch.eye(3)[place] for place, name in enumerate(("age", "shown", "secret"))}
    with torch.no_grad():
        for place, leaf in enumerate(result.model.leaves):  # type: ignore[arg-type, union-attr]
            seen = {name for name, changed in moved.items() if not torch.equal(leaf(x), leaf(changed))}
            assert seen == ({"secret"} if place == 2 else {"age", "shown"})


def test_clusters_by_column_are_those_of_the_values() -> None:
    ages, jobs = np.array([20.0, 35, 50, 64, 30]), np.array(["a", "b", "a", "c", "d"], object)
    known = PublicAttributes(
        names=[f"u{k}" for k in range(5)],
        column=lambda name: {"age": ages, "job": jobs}[name],
        features=lambda names: ages[:, None],
    )
    by_age = ColumnClusters(column="age", edges=(30.0, 60.0)).clusters(known, 0)
    assert {name: members.tolist() for name, members in by_age.items()} == {
        "age –30": [0],
        "age 30–60": [1, 2, 4],
        "age 60–": [3],
    }
    by_job = ColumnClusters(column="job", count=2).clusters(known, 0)
    assert {name: members.tolist() for name, members in by_job.items()} == {"job a": [0, 2], "job other": [1, 3, 4]}
    hashed = HashClusters(count=2).clusters(known, 0)
    assert sorted(np.concatenate(list(hashed.values())).tolist()) == list(range(5))
    grouped = KMeansClusters(count=2).clusters(known, 0)
    assert sorted(map(len, grouped.values())) == [2, 3]


def test_k_means_finds_groups_that_are_far_apart() -> None:
    rng = np.random.default_rng(3)
    rows = np.concatenate([rng.normal(centre, 0.1, (20, 2)) for centre in (0, 10, 20)])
    place = k_means(rows, 3, rng)
    assert [len(set(place[first : first + 20])) for first in (0, 20, 40)] == [1, 1, 1]
    assert len(set(place.tolist())) == 3


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"ensemble": {"clusters": {"name": "column", "column": "age", "count": 2}}}, "arrays without names"),
        ({"ensemble": {"clusters": {"name": "random", "count": 30}}}, "there are 12 clients"),
        ({"ensemble": three(), "data": {"name": "digits", "clients": 12, "local_test": 0.2}}, "data.local_test"),
        ({"ensemble": three(), "collect": {"name": "secure"}}, "numbers clients over the whole job"),
        (
            {
                "algorithm": "fedprof",
                "ensemble": three(),
                "reference_clients": [0],
                "select": {"profile_comparison": "encrypted"},
            },
            "profile_comparison = 'encrypted' has one holder",
        ),
        ({"ensemble": three(), "quality": {"policy": "exclude"}}, "acts on clients of one model"),
        ({"ensemble": three() | {"private": ["a"], "combine": "over-arch"}}, "stays with clients"),
        ({"ensemble": {"clusters": {"name": "regions"}}}, "k-means"),
        (
            {
                "ensemble": {"clusters": {"name": "loss", "count": 2}},
                "collect": {"name": "central-dp", "noise_multiplier": 1.0},
            },
            "made from labels",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        winnow.run(table(**changed))
    assert "\n" not in str(raised.value)


def test_clusters_by_the_target_are_refused() -> None:
    rows = {"age": np.arange(100.0), "bought": np.arange(100) % 2}
    ensemble = {"clusters": {"name": "column", "column": "bought", "count": 2}}
    with pytest.raises(ConfigError, match="clusters would tell labels"):
        winnow.run(table(ensemble=ensemble) | {"data": {"clients": 5, "targets": ["bought"]}}, data=rows)


def test_the_rounds_of_an_over_arch_are_counted_with_the_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_display, "SECONDS_BETWEEN_LINES", -1.0)
    told = io.StringIO()
    whole = resolve(table(rounds=2, ensemble=three(OVER_AT_CLIENTS)))
    with live_display.Progress(whole, Console(file=told, width=200)) as display:
        result = run_experiment(whole, out=tmp_path / "run", on_start=display.on_start, on_event=display.on_event)
    assert "round 5/5" in told.getvalue()
    assert result.summary.rounds == whole.all_rounds == planned_rounds(result.view.config) == 5
    assert planned_rounds(resolve(table(rounds=2, ensemble=three())).model_dump()) == 2


def test_explain_says_who_trains_which_leaf() -> None:
    def said(**settings: Any) -> str:
        return " ".join(make_privacy_report(resolve(table(**settings))).parts)

    noise = {"name": "central-dp", "noise_multiplier": 1.0, "clip": 1.0, "delta": 1e-5}
    assert "clustered by chance" in said(ensemble=three())
    assert "every leaf is trained by all clients" in said(ensemble=three(name="everybody"))
    assert "ε" not in said(ensemble=three())
    assert "evidence" in said()
    assert "evidence" not in said(ensemble=three())
    assert "composed; the worst client's ε is told" in said(ensemble=three(), collect=noise)
