"""Client quality between organisations: what a site tells of its data, and what it does not, whoever asks."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import loopback
import numpy as np
import pytest
from loopback import Loopback, StoppedError
from test_conformance_deployed import deployed

sys.path.insert(0, str(Path(__file__).parents[1]))
from winnow.config.resolve import resolve
from winnow.config.schema import Experiment
from winnow.core import Assessed, Failure, Outcome, PolicyApplied, Reply, Task, wrap
from winnow.data import ClientData, Preprocessing
from winnow.deploy.jobs.client_quality_sharing_limits import MOVED_BINS, NOT_SHARED, NOT_SIGNED
from winnow.deploy.jobs.mandatory_filters import mandatory_filters
from winnow.deploy.jobs.party_data import SiteData
from winnow.deploy.jobs.site_training import training_handlers
from winnow.deploy.jobs.task_executor import SiteHandlers
from winnow.deploy.trust.errors import PolicyError
from winnow.deploy.trust.policy_rules import read_policy
from winnow.deploy.trust.site_policy import SitePolicy
from winnow.experiment.build_simulation import prepare_run
from winnow.experiment.build_training_workflow import DEFAULT_INPUTS, RunInputs
from winnow.learn.client_quality.assess_handler import AssessmentSettings
from winnow.learn.client_quality.reference_source import SummarySettings
from winnow.privacy.secagg.simulated_identities import simulated_identities
from world import BASE, blobs

BLOCKS = ("representation", "columns", "outcomes")


def settings(*sets: str) -> Experiment:
    base = {key: value for key, value in BASE.items() if key != "quality"}
    return resolve(base, sets=("engine.execution=loop", "rounds=2", "quality.assessments=5", *sets), algorithm="fedavg")


def judged(log: Any) -> list[Any]:
    """Verdicts and evidence, and scores as a log keeps them; and what followed."""
    return [
        (event.round, event.verdicts, event.evidence, [float(f"{score:.6g}") for score in event.scores])
        if isinstance(event, Assessed)
        else (event.round, event.client, event.action, event.reason)
        for event in log
        if isinstance(event, Assessed | PolicyApplied)
    ]


def test_a_deployed_run_judges_as_the_simulation_does_interrupted_or_not(tmp_path: Path) -> None:
    wanted = settings("quality.policy=exclude")
    run = prepare_run(wanted, RunInputs(dataset=blobs()))
    expected = judged(run.training.run(run.federation))
    assert len(expected) > 2
    job = deployed(wanted, tmp_path)
    with pytest.raises(StoppedError):
        job.run(1)
    assert str(judged(job.run().view.events())) == str(expected)


@pytest.mark.parametrize("shared", [[], ["columns"]])
def test_a_site_tells_what_its_policy_shares(
    shared: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first site's clients have their own policy; the others share everything."""

    def handlers(wanted: Experiment, inputs: Any, data: SiteData, first: int, identities: Any) -> SiteHandlers:
        policy: dict[str, Any] = {} if first else {"share_evidence": shared}
        return training_handlers(wanted, inputs, data, first, identities, **policy)

    monkeypatch.setattr(loopback, "training_handlers", handlers)
    job = deployed(settings("rounds=1"), tmp_path)
    (event,) = [event for event in job.run().view.events() if isinstance(event, Assessed)]
    own = len(job.sites[0].clients)
    if shared:
        assert np.isfinite(event.scores).all()
        return
    assert set(event.evidence[:own]) == {NOT_SHARED}
    assert set(event.verdicts[:own]) == {"cannot tell"}
    assert np.isfinite(event.scores[own:]).all()
    assert not [event for event in job.run().view.events() if event.kind == "rejected"], "to decline is no fault"


def site_of(wanted: Experiment, data: SiteData, **policy: Any) -> SiteHandlers:
    return training_handlers(wanted, DEFAULT_INPUTS, data, 0, simulated_identities(), **policy)


def small_site(classes: int | None = 3, seed: int = 0) -> SiteData:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(60, 5)).astype(np.float32)
    y = rng.integers(0, 3, 60) if classes else x[:, :2].copy()
    clients = ClientData(x=x, y=y, rows=np.arange(60), offsets=np.array([0, 30, 60]), classes=classes)
    return SiteData(clients=clients, local_test=None, preprocessing=Preprocessing(), tokens=False)


def answer(
    service: SiteHandlers, name: str, asked: Any, *, round: int = 1, filters: Any = (), model: Any = None
) -> Outcome:
    handler = wrap(service.handlers[name], (*service.outer_filters, *filters, *service.filters))
    payload = {"model": service.site.initial if model is None else model}
    task = Task(name=name, client=0, round=round, version=round, payload=payload, settings=asked)
    return handler([task], service.site)[0]


ASKED = AssessmentSettings(blocks=BLOCKS, classes=3, edges=(), min_rows=5, count_step=1, distinct_rows=True)


@pytest.mark.parametrize(
    ("lie", "round"),
    [
        ({"min_rows": 1}, 1),
        ({"count_step": 2}, 1),
        ({"classes": 4}, 1),
        ({"classes": 10**9}, 1),
        ({"edges": (0.5,)}, 1),
        ({"blocks": ("outcomes",)}, 1),
        ({"blocks": ("gradients",)}, 1),
        ({"distinct_rows": True, "blocks": ("columns",)}, 1),
        ({}, 2),
        ({}, 7),
    ],
)
def test_a_server_learns_nothing_that_the_author_did_not_sign(lie: dict[str, Any], round: int) -> None:
    signed = settings("rounds=5", "quality.assessments=2", "quality.evidence=['columns']")
    service = site_of(signed, small_site())
    honest = replace(ASKED, blocks=("columns",), distinct_rows=False)
    assert isinstance(answer(service, "assess", honest, round=3), Reply)
    outcome = answer(service, "assess", replace(honest, **lie), round=3 if lie else round)
    assert isinstance(outcome, Failure)
    assert outcome.reason == NOT_SIGNED


def test_a_site_knows_when_a_policy_that_acts_has_clients_assessed() -> None:
    service = site_of(settings("rounds=3000", "quality.policy=exclude"), small_site())
    assert isinstance(answer(service, "assess", ASKED, round=10), Reply)
    outcome = answer(service, "assess", ASKED, round=600)
    assert isinstance(outcome, Failure)
    assert outcome.reason == NOT_SIGNED


def test_bins_of_a_regression_stay_where_they_were() -> None:
    service = site_of(settings("local.learning_rate=0.01"), small_site(classes=None))
    asked = replace(ASKED, classes=3, edges=(-0.5, 0.5))
    assert isinstance(answer(service, "assess", asked), Reply)
    assert isinstance(answer(service, "assess", asked, round=2), Reply)
    for edges, reason in {
        (-0.5, 0.51): MOVED_BINS,
        (0.5, -0.5): NOT_SIGNED,
        (float("nan"), 0.5): NOT_SIGNED,
        tuple(np.linspace(-1, 1, 20)): NOT_SIGNED,
    }.items():
        outcome = answer(service, "assess", replace(asked, classes=len(edges) + 1, edges=edges))
        assert isinstance(outcome, Failure)
        assert outcome.reason == reason


def test_where_data_are_hidden_or_nobody_is_to_be_assessed_a_site_has_no_such_handler() -> None:
    for sets in (("quality.evidence=['updates']",), ("quality.evidence=[]",), ("collect.name=secure",)):
        assert "assess" not in site_of(settings(*sets), small_site()).handlers
    assert "summarise-reference" not in site_of(settings(), small_site()).handlers


def test_only_clients_that_the_author_named_summarise_their_data_as_a_reference() -> None:
    asked = SummarySettings(blocks=BLOCKS, classes=3, edges=(), seed=settings().seed, min_rows=5)
    named, others = (site_of(settings(f"reference_clients=[{k}]"), small_site()) for k in (0, 1))
    assert isinstance(answer(named, "summarise-reference", asked), Reply)
    refused = answer(others, "summarise-reference", asked)
    assert isinstance(refused, Failure)
    assert refused.reason == NOT_SIGNED
    part = answer(
        site_of(settings("reference_clients=[0]"), small_site(), share_evidence=["labels"]),
        "summarise-reference",
        asked,
    )
    assert isinstance(part, Failure)
    assert part.reason == NOT_SHARED


@pytest.mark.parametrize("share", [[], ["inputs"], ["columns", "labels"]])
def test_evidence_leaves_past_mandatory_filters_only_as_the_policy_says(share: list[str]) -> None:
    forced = mandatory_filters([{"name": "clip", "norm": 1.0}])
    outcome = answer(site_of(settings(), small_site(), share_evidence=share), "assess", ASKED, filters=forced)
    if not share:
        assert isinstance(outcome, Failure)
        return
    assert isinstance(outcome, Reply)
    wanted = {"inputs": {"representation", "rows"}, "columns": {"columns"}, "labels": {"outcomes"}}
    assert outcome.payload.keys() == set().union(*(wanted[kind] for kind in share))


def test_a_policy_shares_everything_unless_it_says_otherwise_or_forces_filters() -> None:
    def read(text: bytes) -> SitePolicy:
        return read_policy(text, SitePolicy)

    assert read(b"").shared_evidence == ("inputs", "columns", "labels")
    assert read(b"share_evidence = []").shared_evidence == ()
    assert read(b'share_evidence = ["labels"]').shared_evidence == ("labels",)
    assert read(b'[[filters]]\nname = "clip"').shared_evidence == ()
    assert read(b'share_evidence = ["labels"]\n[[filters]]\nname = "clip"').shared_evidence == ("labels",)
    with pytest.raises(PolicyError):
        read(b'share_evidence = ["rows"]')


class WithoutReference(Loopback):
    """The server has no samples of its own."""

    def __init__(self, wanted: Experiment, sites: list[SiteData], server: dict[str, Any], folder: Path) -> None:
        super().__init__(wanted, sites, {}, folder)


def test_sites_that_hold_the_reference_summarise_it(tmp_path: Path) -> None:
    wanted = settings("rounds=1", "reference_clients=[1, 2]")
    kept = settings("rounds=1", "data.reference=60")
    sites = deployed(kept, tmp_path / "data").sites
    job = WithoutReference(wanted, list(sites), {}, tmp_path / "job")
    (event,) = [event for event in job.run().view.events() if isinstance(event, Assessed)]
    assert np.isfinite(event.scores).all()
