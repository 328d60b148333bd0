"""Scores by client between organisations: whose they are, and what a site lets out."""

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import loopback
import numpy as np
import pytest
from loopback import Loopback
from test_conformance_deployed import deployed

sys.path.insert(0, str(Path(__file__).parents[1]))
from winnow.core import Failure, Outcome, Reply, Task, wrap
from winnow.data import ClientData
from winnow.data.federate import split_local_tests
from winnow.deploy.client.download import write_run_folder
from winnow.deploy.jobs.party_data import SiteData
from winnow.deploy.jobs.site_training import training_handlers
from winnow.deploy.trust.policy_rules import read_policy
from winnow.deploy.trust.site_policy import SitePolicy
from winnow.experiment.build_training_workflow import DEFAULT_INPUTS
from winnow.learn.handlers import PersonalEvaluationSettings
from winnow.privacy.secagg.simulated_identities import simulated_identities
from winnow.runs import RunFolder
from world import experiment

SETTINGS = ("engine.execution=loop", "rounds=2", "metric=auc", "metrics=['accuracy']")


class WithLocalTests(Loopback):
    """Sites whose clients keep a third of their samples for a test; the last site's keep none."""

    def __init__(self, wanted: Any, sites: list[SiteData], server: dict[str, Any], folder: Path) -> None:
        super().__init__(wanted, [*map(_tested, sites[:-1]), sites[-1]], server, folder)


def _tested(site: SiteData) -> SiteData:
    assert isinstance(site.clients, ClientData)
    clients, local_test = split_local_tests(site.clients, 0.34, 0)
    return replace(site, clients=clients, local_test=local_test)


@pytest.mark.parametrize("allowed", [True, False])
def test_scores_come_by_site_and_matrices_by_policy(
    allowed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers = partial(training_handlers, confusion_matrix=allowed)
    monkeypatch.setattr(loopback, "training_handlers", handlers)
    job = deployed(experiment(*SETTINGS, algorithm="fedavg"), tmp_path, WithLocalTests)
    result = job.run()
    tested = [name for number, site in enumerate(job.sites[:-1]) for name in _names(number, len(site.clients))]
    assert [row["name"] for row in result.by_client] == tested
    assert all(0 <= row["auc"] <= 1 and 0 <= row["accuracy"] <= 1 for row in result.by_client)
    assert result.confusion is not None, "the server's own test set is nobody's secret"
    sizes = [size for site in job.sites[:-1] if site.local_test for size in site.local_test.sizes]
    assert [row["samples"] for row in result.by_client] == sizes
    if allowed:
        for row in result.by_client:
            counts = np.array(row["confusion"])
            assert counts.trace() / counts.sum() == pytest.approx(row["accuracy"])
    else:
        assert all("confusion" not in row for row in result.by_client)
        assert result.view.evaluation is not None
        assert result.view.evaluation.notes[0].endswith(
            "clients sent no confusion matrix (a site's policy must allow it: confusion_matrix = true)"
        )


def _names(site: int, clients: int) -> list[str]:
    return [str(site)] if clients == 1 else [f"{site}, client {place}" for place in range(clients)]


def test_a_download_has_the_evaluation(tmp_path: Path) -> None:
    job = deployed(experiment(*SETTINGS, algorithm="fedavg"), tmp_path, WithLocalTests)
    result = job.run()
    files = {name: tmp_path / "job" / name for name in ("run.json", "result.json", "evaluation.json")}
    files["events"] = tmp_path / "job" / "events.jsonl"
    files["events"].write_text("".join(f"{line}\n" for line in job.lines))
    folder = write_run_folder(tmp_path / "run", result.view.config_text, files, finished=True, submitted=0.0)
    view = RunFolder.open(folder)
    assert view.evaluation == result.view.evaluation
    assert "Scores by client" in (folder / "report.html").read_text()
    assert json.loads((folder / "result.json").read_text())["metric"] == "auc"


def test_an_unfinished_job_is_labelled_by_what_decides(tmp_path: Path) -> None:
    job = deployed(experiment(*SETTINGS[:2], "metric=log-loss", "metrics=['accuracy']", algorithm="fedavg"), tmp_path)
    result = job.run()
    events = tmp_path / "events"
    events.write_text("".join(f"{line}\n" for line in job.lines))
    config = result.view.config_text
    view = RunFolder.open(write_run_folder(tmp_path / "run", config, {"events": events}, finished=False, submitted=0.0))
    assert (view.label.metric, view.label.lower_is_better) == ("log-loss", True)
    assert view.summary().best == result.summary.best


def test_a_policy_lets_no_matrix_out_unless_it_says_so() -> None:
    assert not read_policy(b"", SitePolicy).confusion_matrix
    assert read_policy(b"confusion_matrix = true", SitePolicy).confusion_matrix


@pytest.mark.parametrize(
    ("asked_for", "signed"),
    [
        ({}, True),
        ({"metrics": ("auc",)}, True),
        ({"metrics": ("auc", "log-loss")}, False),
        ({"metrics": ("no such metric",)}, False),
        ({"confusion_classes": 3}, True),
        ({"confusion_classes": 4}, False),
        ({"confusion_classes": 10**9}, False),
    ],
)
def test_a_server_learns_no_scores_that_the_author_did_not_sign(
    asked_for: dict[str, Any], signed: bool, tmp_path: Path
) -> None:
    wanted = experiment(*SETTINGS, algorithm="fedavg")
    site = deployed(wanted, tmp_path, WithLocalTests).sites[0]
    settings = PersonalEvaluationSettings(**{"client": wanted.client, "metrics": ("accuracy",), **asked_for})
    for allowed in (True, False):
        service = training_handlers(wanted, DEFAULT_INPUTS, site, 0, simulated_identities(), confusion_matrix=allowed)
        handler = wrap(service.handlers["evaluate-personal"], (*service.outer_filters, *service.filters))
        task = Task(
            name="evaluate-personal",
            client=0,
            round=1,
            version=0,
            payload={"model": service.site.initial},
            settings=settings,
        )
        outcome: Outcome = handler([task], service.site)[0]
        assert isinstance(outcome, Reply if signed else Failure)
        if isinstance(outcome, Reply):
            assert set(outcome.metrics) == {*settings.metrics, "loss"}
            assert ("confusion" in outcome.payload) == (allowed and settings.confusion_classes > 0)
