"""What came of a run, by class and by client: recomputed from the model and the rows by scikit-learn."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from sklearn import metrics as sklearn
from torch import Tensor

import winnow
from test_report_page import fabricate, outline
from winnow.core import ConfigError, Rejected, RunError
from winnow.data import DataSet, Examples, FederatedData, federate, from_arrays
from winnow.experiment.prepare_clients import data_settings_for
from winnow.learn.final_evaluation import MAX_CONFUSION_CLASSES
from winnow.report import write_report
from winnow.runs import EvaluationRecord, RunFolder, SampleScores
from world import BASE, blobs, prepared

SMALL: dict[str, Any] = {**BASE, "target": None, "algorithm": "fedavg", "rounds": 3}
LOCAL = {**SMALL, "data": {**BASE["data"], "local_test": 0.25, "corruptions": []}}


def run(config: dict[str, Any] = LOCAL, data: DataSet | None = None, **given: Any) -> winnow.Result:
    return winnow.run(config, data=data or blobs(), progress=False, **given)


def spread(result: winnow.Result, data: DataSet | None = None) -> FederatedData:
    """The same rows for the same parties, once more."""
    return federate(data or blobs(), data_settings_for(result.experiment), result.experiment.seed)


def outputs(result: winnow.Result, x: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return result.model(torch.as_tensor(x)).double().numpy()


def probabilities(result: winnow.Result, x: np.ndarray) -> np.ndarray:
    powers = np.exp(outputs(result, x))
    return powers / powers.sum(axis=1, keepdims=True)


# By class and by client -----------------------------------------------------------------------------------------------


def test_by_class() -> None:
    result = run()
    test = spread(result).test
    chosen = outputs(result, test.x).argmax(axis=1)
    assert result.confusion is not None
    np.testing.assert_array_equal(result.confusion, sklearn.confusion_matrix(test.y, chosen, labels=range(3)))
    columns = sklearn.precision_recall_fscore_support(test.y, chosen, labels=range(3), zero_division=np.nan)
    for row, *expected in zip(result.per_class, *columns, strict=True):
        found = [row[name] for name in ("precision", "recall", "f1", "samples")]
        assert found == pytest.approx(expected, nan_ok=True)
    assert [row["class"] for row in result.per_class] == ["0", "1", "2"]


def test_by_client() -> None:
    result = run(metric="auc", metrics=["f1", "log-loss"])
    tests = spread(result).local_test
    assert tests is not None
    assert [row["name"] for row in result.by_client] == [f"client {k}" for k in range(8)]
    for k, row in enumerate(result.by_client):
        own = tests.client(k)
        p = probabilities(result, own.x)
        assert row["samples"] == len(own)
        assert row["log-loss"] == pytest.approx(sklearn.log_loss(own.y, p, labels=range(3)), rel=1e-5)
        assert row["f1"] == pytest.approx(sklearn.f1_score(own.y, p.argmax(axis=1), average="macro"))
        present = np.unique(own.y)
        assert row["auc"] == pytest.approx(np.mean([sklearn.roc_auc_score(own.y == c, p[:, c]) for c in present]))
        np.testing.assert_array_equal(
            row["confusion"], sklearn.confusion_matrix(own.y, p.argmax(axis=1), labels=range(3))
        )


def test_auc_and_a_confusion_matrix_by_hospital(tmp_path: Path) -> None:
    """From a file with text in it to a table by hospital, as a new user does it."""
    rng = np.random.default_rng(0)
    lines = ["age,pressure,hospital,diagnosis"]
    for age, pressure in rng.normal([50, 120], [15, 20], (400, 2)):
        ill = age + pressure / 2 + rng.normal(0, 10) > 110
        lines.append(
            f"{age:.1f},{pressure:.1f},{('north', 'south', 'east')[rng.integers(3)]},{'ill' if ill else 'well'}"
        )
    (tmp_path / "patients.csv").write_text("\n".join(lines))
    result = winnow.run(
        data=tmp_path / "patients.csv",
        targets=["diagnosis"],
        owner="hospital",
        partition={"name": "natural"},
        clients=0,
        local_test=0.3,
        metric="auc",
        rounds=8,
        progress=False,
    )
    assert {row["name"] for row in result.by_client} == {"north", "south", "east"}
    assert all(row["auc"] > 0.8 for row in result.by_client)
    assert [row["class"] for row in result.per_class] == ["ill", "well"] == list(result.classes or ())
    for row in result.by_client:
        assert np.sum(row["confusion"]) == row["samples"]
    assert result.confusion is not None
    assert result.confusion.trace() > 0.7 * result.confusion.sum()


def test_clients_with_models_of_their_own_score_those() -> None:
    result = run({**LOCAL, "algorithm": "fedrep"}, evaluation={"by": "clients"})
    tests = spread(result).local_test
    assert tests is not None
    for k, row in enumerate(result.by_client):
        own = tests.client(k)
        with torch.no_grad():
            chosen = result.personal(k)(torch.as_tensor(own.x)).argmax(dim=1).numpy()
        assert row["accuracy"] == pytest.approx(sklearn.accuracy_score(own.y, chosen))


def test_a_regression_has_no_classes() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 4)).astype(np.float32)
    data = from_arrays(x, (100 + 7 * x @ np.arange(4.0))[:, None].astype(np.float32), name="line")
    result = run(LOCAL, data, metric="rmse", metrics=["mae", "r2"])
    assert result.preprocessing.targets[0].width != 1, "the model learns scaled values"
    assert (result.confusion, result.per_class) == (None, [])
    tests = spread(result, data).local_test
    assert tests is not None
    for k, row in enumerate(result.by_client):
        own, decode = tests.client(k), result.preprocessing.decode
        y, found = decode(own.y), decode(outputs(result, own.x))
        assert row["rmse"] == pytest.approx(sklearn.mean_squared_error(y, found) ** 0.5, rel=1e-5)
        assert row["r2"] == pytest.approx(sklearn.r2_score(y, found), rel=1e-4)
        assert row["mae"] == pytest.approx(sklearn.mean_absolute_error(y, found), rel=1e-5)
        assert "confusion" not in row


def test_without_a_test_set_the_reference_set_tells() -> None:
    result = run({**SMALL, "data": {**BASE["data"], "test": 0}})
    assert result.confusion is not None
    assert result.confusion.sum() == 60
    assert result.view.evaluation is not None
    assert result.view.evaluation.overall is not None
    assert result.view.evaluation.overall.name == "reference"
    assert result.by_client == []


# Which model is best --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", ["log-loss", "brier", "calibration-error"])
def test_the_lowest_is_best_where_lower_is_better(metric: str) -> None:
    result = run({**SMALL, "rounds": 5}, metric=metric)
    values = [row[f"reference.{metric}"] for row in result.history]
    assert result.best == min(values) != max(values)
    assert result.summary.best is not None
    assert result.summary.best.round == int(np.argmin(values))
    reference = spread(result).reference
    if metric == "log-loss":
        found = sklearn.log_loss(reference.y, probabilities(result, reference.x))
        assert found == pytest.approx(min(values), rel=1e-5), "the model is the one of that round"


def test_a_target_is_reached_from_above_where_lower_is_better() -> None:
    values = [row["reference.log-loss"] for row in run({**SMALL, "rounds": 5}, metric="log-loss").history]
    target = (values[0] + min(values)) / 2
    result = run({**SMALL, "rounds": 5}, metric="log-loss", target=target)
    assert result.summary.rounds_to_target == next(k for k, value in enumerate(values) if value <= target)
    assert result.summary.rounds_to_target > 0
    assert run(SMALL, metric="log-loss", target=-1.0).summary.rounds_to_target is None


def test_a_comparison_ranks_the_lowest_first() -> None:
    given = {"metric": "log-loss", "seeds": 1, "data": blobs(), "progress": False}
    compared = winnow.compare({**SMALL, "rounds": 2}, algorithms=["fedavg", "fedavg-rp", "cyclic"], **given)
    means = [row.best.mean for row in compared.ranked().table() if row.best]
    assert means == sorted(means)


class Fading:
    """A metric that is undefined whenever the model is best."""

    def __init__(self) -> None:
        self.values = iter([math.nan, 0.3, math.nan, 0.1, 0.2, *[math.nan] * 20])

    def __call__(self, outputs: Tensor, targets: Tensor) -> float:
        return next(self.values)


def test_nan_is_never_best() -> None:
    data = {**BASE["data"], "test": 0}
    metric = winnow.Metric("fading", Fading(), lower_is_better=True)
    result = run({**SMALL, "rounds": 6, "data": data}, metric=metric)
    assert result.summary.best is not None
    assert (result.summary.best.value, result.summary.best.round) == (0.1, 3)
    assert result.view.evaluation is not None
    assert result.view.evaluation.notes == ["fading is undefined on the reference set"]


def test_one_class_is_noted_and_nothing_fails() -> None:
    rng = np.random.default_rng(0)
    data = from_arrays(rng.normal(size=(200, 4)).astype(np.float32), np.zeros(200, np.int64), name="one", classes=2)
    result = run(LOCAL, data, metric="auc", metrics=["f1", "accuracy"])
    assert result.best is None
    assert "auc is undefined on the reference set, which has one class only" in result.plan.notice
    assert "note auc is undefined" in repr(result)
    assert result.view.evaluation is not None
    assert result.view.evaluation.notes == [
        "auc is undefined on the test set, which has one class only",
        "f1 is undefined on the test set, which has one class only",
    ]
    assert all(math.isnan(row["auc"]) and math.isfinite(row["accuracy"]) for row in result.by_client)


# Functions of one's own -----------------------------------------------------------------------------------------------


def share_of_class_1(outputs: Tensor, targets: Tensor) -> float:
    return float((outputs.argmax(dim=1) == 1).float().mean())


def test_a_function_of_ones_own_beside_others(tmp_path: Path) -> None:
    cost = winnow.Metric("cost", lambda o, t: float((o.argmax(1) != t).sum()), lower_is_better=True)
    result = run(SMALL, metric=cost, metrics=["accuracy", share_of_class_1], out=tmp_path / "run")
    test = spread(result).test
    chosen = outputs(result, test.x).argmax(axis=1)
    assert result.best == min(row["reference.cost"] for row in result.history)
    assert result.summary.best_metrics["test"]["cost"] == (chosen != test.y).sum()
    assert result.summary.best_metrics["test"]["share_of_class_1"] == pytest.approx((chosen == 1).mean())
    assert f"test share_of_class_1 {(chosen == 1).mean():.4f}" in repr(result)
    label = RunFolder.open(tmp_path / "run").label
    assert (label.metric, label.lower_is_better) == ("cost", True)
    with pytest.raises(ConfigError, match=r"'cost' is unknown; .*a function of your own is passed in Python"):
        run(SMALL, metric="cost")


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"metrics": [lambda o, t: 0.0, lambda o, t: 1.0]}, "two functions are called '<lambda>'; name one"),
        ({"metric": 7}, "metric: int is not supported"),
        ({"metric": "auc", "metrics": ["f1", "auc"]}, "metrics: auc, f1, auc contains a duplicate"),
        ({"metric": lambda o, t: o}, "metric '<lambda>' returned Tensor; it must return one number"),
        ({"metric": "auc", "reference_clients": [0]}, "evaluated by clients .*; choose accuracy"),
    ],
)
def test_mistakes_are_one_line(given: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        run(SMALL, **given)


# Clients that hold the reference set ----------------------------------------------------------------------------------


def test_scores_of_reference_clients_are_those_of_all_their_samples() -> None:
    result = run(SMALL, reference_clients=[1, 4], metric="log-loss", metrics=["brier", "accuracy"])
    clients = spread(result).clients
    held = [clients.client(k) for k in (1, 4)]
    assert len(held[0]) > 0
    pooled = Examples(x=np.concatenate([own.x for own in held]), y=np.concatenate([own.y for own in held]))
    p = probabilities(result, pooled.x)
    found = result.summary.best_metrics["reference"]
    assert found["log-loss"] == pytest.approx(sklearn.log_loss(pooled.y, p), rel=1e-5)
    assert found["accuracy"] == pytest.approx(sklearn.accuracy_score(pooled.y, p.argmax(axis=1)))
    assert found["brier"] == pytest.approx(np.mean(np.sum((p - np.eye(3)[pooled.y]) ** 2, axis=1)), rel=1e-5)


def test_a_regression_at_reference_clients_is_decided_by_an_error_in_the_units_of_the_data() -> None:
    """Scaled targets are around 0, where the relative accuracy says nothing."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 4)).astype(np.float32)
    data = from_arrays(x, (100 + 7 * x @ np.arange(4.0))[:, None].astype(np.float32), name="line")
    result = run(SMALL, data, reference_clients=[1, 4])
    clients, decode = spread(result, data).clients, result.preprocessing.decode
    held = [clients.client(k) for k in (1, 4)]
    y = np.concatenate([decode(own.y) for own in held])
    found = np.concatenate([decode(outputs(result, own.x)) for own in held])
    assert (result.plan.metric, result.plan.lower_is_better) == ("rmse", True)
    assert result.best == pytest.approx(sklearn.mean_squared_error(y, found) ** 0.5, rel=1e-5)


# Liars ----------------------------------------------------------------------------------------------------------------

ONE = torch.eye(3, dtype=torch.int64)
LIES = {
    "negative": lambda counts: counts - 90 * ONE + 90 * ONE.roll(1, 0),
    "too many": lambda counts: counts + 1,
    "enormous": lambda counts: torch.full_like(counts, 2**62),
    "none": torch.zeros_like,
    "shares": lambda counts: counts.double() / counts.sum(),
    "not numbers": lambda counts: torch.full((3, 3), torch.nan),
    "more classes": lambda counts: torch.zeros(4, 4, dtype=torch.int64),
    "flat": lambda counts: counts.reshape(-1),
    "bytes": lambda counts: counts.to(torch.uint8),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_confusion_matrix_that_counts_no_samples_is_refused(lie: str) -> None:
    ready = prepared("data.local_test=0.25", "rounds=1", algorithm="fedavg")
    honest = ready.federation.handlers["evaluate-personal"]

    def lying(tasks: Any, site: Any) -> Any:
        return [
            replace(reply, payload={"confusion": {"counts": LIES[lie](reply.payload["confusion"]["counts"])}})
            if reply.task.client == 2 and reply.payload
            else reply
            for reply in honest(tasks, site)
        ]

    ready.federation.handlers["evaluate-personal"] = lying
    events = list(ready.training.run(ready.federation))
    outcome = ready.training.outcome
    assert outcome is not None
    assert sorted(outcome.by_client) == [0, 1, 3, 4, 5, 6, 7]
    assert "1 of 8 clients sent no valid scores" in outcome.notes
    assert isinstance(events[-1], Rejected)
    assert (events[-1].client, events[-1].round) == (2, 1)
    assert "the reply's confusion matrix" in events[-1].reason


@pytest.mark.parametrize(
    ("metric", "value", "refused"),
    [
        ("accuracy", 1.1, True), ("accuracy", math.nan, True), ("log-loss", -0.1, True), ("log-loss", 7.0, False),
        ("log-loss", math.inf, True), ("brier", 2.1, True), ("brier", 1.9, False), ("auc", 1.5, True),
        ("auc", -0.5, True), ("auc", math.nan, False), ("f1", math.inf, True),
    ],
)  # fmt: skip
def test_each_metric_has_its_range(metric: str, value: float, refused: bool) -> None:
    ready = prepared("data.local_test=0.25", "rounds=1", f"metric={metric}", algorithm="fedavg")
    honest = ready.federation.handlers["evaluate-personal"]

    def lying(tasks: Any, site: Any) -> Any:
        return [
            replace(reply, metrics={**reply.metrics, metric: value}) if reply.task.client == 2 else reply
            for reply in honest(tasks, site)
        ]

    ready.federation.handlers["evaluate-personal"] = lying
    events = list(ready.training.run(ready.federation))
    assert ready.training.outcome is not None
    assert (2 not in ready.training.outcome.by_client) == refused
    assert all(math.isfinite(event.metrics["clients"][metric]) for event in events if event.kind == "round_finished")


# The file and the report ----------------------------------------------------------------------------------------------


def test_the_folder_holds_it(tmp_path: Path) -> None:
    result = run(metric="auc", out=tmp_path / "run")
    again = run(metric="auc", out=tmp_path / "run", resume=True)
    for each in (again.confusion, result.confusion):
        np.testing.assert_array_equal(each, run(metric="auc").confusion)
    assert again.by_client == result.by_client
    record = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert record["overall"]["confusion"] == result.confusion.tolist()
    longer = run({**LOCAL, "rounds": 5}, metric="auc", out=tmp_path / "run", resume=True)
    assert longer.view.evaluation == run({**LOCAL, "rounds": 5}, metric="auc").view.evaluation


def beyond_its_range(outputs: Tensor, targets: Tensor) -> float:
    return 2.0 if len(targets) < 20 and targets[0] == 0 else 1.0


def test_rejections_of_the_final_evaluation_end_the_log_and_only_there(tmp_path: Path) -> None:
    """A run that is continued with more rounds has the events of one that had them from the start."""
    metric = winnow.Metric("bounded", beyond_its_range, highest=1.0)
    run(metrics=[metric], out=tmp_path / "run")
    finished = (tmp_path / "run" / "events.jsonl").read_bytes()
    last = list(RunFolder.open(tmp_path / "run").events())[-1]
    assert isinstance(last, Rejected)
    run({**LOCAL, "rounds": 5}, metrics=[metric], out=tmp_path / "run", resume=True)
    run({**LOCAL, "rounds": 5}, metrics=[metric], out=tmp_path / "whole")
    longer, whole = (tmp_path / name / "events.jsonl" for name in ("run", "whole"))
    assert longer.read_bytes() == whole.read_bytes() != finished
    assert (tmp_path / "run" / "metrics.csv").read_bytes() == (tmp_path / "whole" / "metrics.csv").read_bytes()


@pytest.mark.parametrize(
    "text",
    [
        "{", "[]", '{"schema": 2, "round": 1, "overall": null}', '{"schema": 1, "round": "x", "overall": null}',
        '{"schema": 1, "round": 1, "overall": {"name": "test", "samples": 3, "metrics": {}, "confusion": [[1, 2]]}}',
    ],
)  # fmt: skip
def test_a_damaged_file_is_one_line(text: str, tmp_path: Path) -> None:
    run({**SMALL, "rounds": 1}, out=tmp_path / "run")
    (tmp_path / "run" / "evaluation.json").write_text(text)
    with pytest.raises(RunError, match=r"evaluation.json is damaged"):
        RunFolder.open(tmp_path / "run")


def test_the_report_shows_losses_classes_and_clients(tmp_path: Path) -> None:
    page = outline(run(metric="auc", metrics=["f1"]).report(tmp_path / "report.html"))
    assert page.headings[3:7] == ["Progress", "Losses", "Classes", "Scores by client"]
    assert ["Client", "Samples", "auc", "f1", "loss"] in page.rows
    assert ["Class", "Samples", "Precision", "Recall", "F1"] in page.rows
    drawn = [[trace["name"] for trace in figure["data"] if "name" in trace] for figure in page.figures]
    assert ["training", "reference set", "test set", "clients' tests"] in drawn
    compared = winnow.compare(LOCAL, algorithms=["fedavg", "fedavg-rp"], seeds=2, data=blobs(), progress=False)
    page = outline(compared.report(tmp_path / "comparison.html"))
    assert ["Client's accuracy", "fedavg", "fedavg-rp"] in page.rows


def test_no_name_of_a_class_or_client_becomes_markup(tmp_path: Path) -> None:
    attack = "</script><script>alert(1)</script>"
    scores = SampleScores(name=attack, samples=1, metrics={attack: None}, confusion=[[1]])
    record = EvaluationRecord(round=1, overall=scores, by_client=[scores], classes=[attack], notes=[attack])
    view = fabricate("fedavg", 1, rounds=2)
    object.__setattr__(view, "evaluation", record)
    assert "<script>alert" not in write_report(tmp_path / "report.html", [view]).read_text()


def test_many_classes_have_no_matrix() -> None:
    classes = MAX_CONFUSION_CLASSES + 1
    rng = np.random.default_rng(0)
    data = from_arrays(
        rng.normal(size=(600, 4)).astype(np.float32), np.arange(600) % classes, name="many", classes=classes
    )
    result = run(LOCAL, data, metrics=["top-5"])
    assert (result.confusion, result.per_class) == (None, [])
    assert "confusion" not in result.by_client[0]
    assert "top-5" in result.by_client[0]
