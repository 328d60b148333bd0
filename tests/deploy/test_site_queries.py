"""A server asks exact questions: it makes up a model whose training overflows if a client has a certain sample.

Where noise is to hide that, the answer must be the same but for the noise, and so must what the site notes of it.
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_conformance_deployed import deployed
from test_secure_deployed import Notebook
from test_site_training import as_signed

sys.path.insert(0, str(Path(__file__).parents[1]))
from winnow.config.schema import Experiment
from winnow.core import Failure, ModelError, Outcome, Reply, Task, wrap
from winnow.deploy.jobs.site_training import training_handlers
from winnow.deploy.jobs.task_executor import SiteHandlers
from winnow.experiment.build_training_workflow import DEFAULT_INPUTS
from winnow.learn.handlers import ProfileSettings
from winnow.learn.party_signing_interface import UPDATE
from winnow.learn.profile_by_class import ProfileClasses
from world import experiment

NOISE = "noise_multiplier=5.0"
WAYS = {
    "local-dp": (f"filters=[{{name='local-dp', clip=1.0, {NOISE}}}]",),
    "after a clip": (f"filters=[{{name='clip', norm=1.0}}, {{name='local-dp', clip=1.0, {NOISE}}}]",),
    "sparse-vector": ("filters=[{name='sparse-vector', epsilon=0.1}]",),
    "dp-sgd": (f"client={{name='dp-sgd', {NOISE}}}",),
    "discrete-gaussian": (
        "collect.name=secure",
        f"collect.encoding={{name='discrete-gaussian', clip=1.0, {NOISE}}}",
    ),
}
FAILED = "the task failed; see the site's log for the reason"


class Book(Notebook):
    """What was noted, in its order."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.lines: list[tuple[int, int, str]] = []

    def release(self, party: int, round: int, what: str = UPDATE, note: bytes = b"", instead_of: bytes = b"") -> int:
        self.lines.append((party, round, what))
        return super().release(party, round, what, note, instead_of)


class Site:
    """A site whose first client has a sample that nobody else has, or does not have it."""

    def __init__(self, folder: Path, present: bool, *sets: str, algorithm: str = "fedavg") -> None:
        self.wanted: Experiment = experiment(
            "engine.execution=loop", "local.batch_size=1000", *sets, algorithm=algorithm
        )
        data = deployed(self.wanted, folder).sites[0]
        x = np.array(data.clients.x)
        x[:, 0] = 0.0
        if present:
            x[data.clients.rows[0], 0] = 1e27
        self.book = Book(folder)
        self.service: SiteHandlers = training_handlers(
            self.wanted, DEFAULT_INPUTS, replace(data, clients=replace(data.clients, x=x)), 0, self.book
        )

    def asked(self, name: str, settings: Any, model: Any) -> Outcome:
        handler = wrap(self.service.handlers[name], (*self.service.outer_filters, *self.service.filters))
        task = Task(name=name, client=0, round=1, version=0, payload={"model": model}, settings=settings)
        (outcome,) = handler([task], self.service.site)
        return outcome

    def question(self) -> dict[str, torch.Tensor]:
        """The job's model, but its first layer overflows for the sample in question."""
        model = {name: tensor.clone() for name, tensor in self.service.site.initial.items()}
        first = next(name for name, tensor in model.items() if tensor.shape[-1:] == (5,))
        model[first][:, 0] = 1e12
        return model


def shapes(outcome: Outcome) -> Any:
    """All that can be seen of an outcome but the numbers of its update."""
    assert isinstance(outcome, Reply), outcome
    payload = {
        part: {name: tuple(each.shape) for name, each in named.items()} for part, named in outcome.payload.items()
    }
    return payload, {name: value for name, value in outcome.metrics.items() if not np.isnan(value)}


@pytest.mark.parametrize("way", WAYS)
def test_whether_a_sample_is_there_is_not_to_be_seen(way: str, tmp_path: Path) -> None:
    sites = [Site(tmp_path / str(present), present, *WAYS[way]) for present in (False, True)]
    one, other = (site.asked("train", as_signed(site.wanted), site.question()) for site in sites)
    assert shapes(one) == shapes(other)
    for outcome in (one, other):
        assert isinstance(outcome, Reply)
        for part in outcome.payload.values():
            assert all(np.isfinite(np.asarray(each)).all() for each in part.values())
    assert sites[0].book.lines == sites[1].book.lines
    assert len(sites[0].book.lines) == 1


def test_the_question_is_a_real_one(tmp_path: Path) -> None:
    """So that the test above could fail: without noise the sample is seen."""
    sites = [Site(tmp_path / str(present), present) for present in (False, True)]
    outcomes = [site.asked("train", as_signed(site.wanted), site.question()) for site in sites]
    finite = [
        all(bool(tensor.isfinite().all()) for tensor in outcome.payload["model"].values())
        for outcome in outcomes
        if isinstance(outcome, Reply)
    ]
    assert finite == [True, False]


def test_noisy_profiles_tell_no_more(tmp_path: Path) -> None:
    noisy = f"select.profile_comparison={{name='noisy', clip=5.0, {NOISE}}}"
    sites = [Site(tmp_path / str(present), present, noisy, algorithm="fedprof") for present in (False, True)]
    for site in sites:
        outcome = site.asked("profile", ProfileSettings(), site.question())
        assert isinstance(outcome, Reply)
        profile = outcome.payload["profile"]
        assert all(np.isfinite(np.asarray(profile[name])).all() for name in ("mean", "variance"))
        assert np.asarray(profile["mean"]).std() == pytest.approx(2 * 5.0 * 5.0, rel=0.9), "there is noise"
        assert site.book.lines == [(0, 1, "first profile")]


@pytest.mark.parametrize("multiplier", [0.01, 5.0])
def test_noisy_profiles_by_class_tell_no_more(multiplier: float, tmp_path: Path) -> None:
    noisy = f"select.profile_comparison={{name='noisy', clip=5.0, noise_multiplier={multiplier}}}"
    sites = [Site(tmp_path / str(present), present, noisy, algorithm="fedprof-by-class") for present in (False, True)]
    classes = ProfileClasses(labels=(0, 1, 2), min_rows=5, count_step=1)
    for site in sites:
        first, again = (site.asked("profile", ProfileSettings(classes=classes), site.question()) for _ in range(2))
        assert isinstance(first, Reply)
        counts, mean, variance = (np.asarray(first.payload["profile"][name]) for name in ("counts", "mean", "variance"))
        assert np.isfinite(mean).all()
        assert np.isfinite(variance).all()
        if multiplier < 1:  # large noise hides how large anything is
            size = counts / counts.sum() @ ((mean**2).sum(1) + variance.sum(1))
            assert size < 2 * 25, "a sample that overflows is bounded like any other"
        assert isinstance(again, Failure)
        assert "a noisy first profile of this round or a later one was already released" in again.reason


@pytest.mark.parametrize("error", [ValueError("row 7 is odd"), IndexError("17 of 12"), RuntimeError("out of memory")])
def test_all_failures_are_told_in_the_same_words_and_noted(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(tmp_path, True, *WAYS["local-dp"])

    def fail(tasks: Any, here: Any) -> Any:
        raise error

    monkeypatch.setitem(site.service.handlers, "train", fail)  # type: ignore[arg-type]
    outcome = site.asked("train", as_signed(site.wanted), site.question())
    assert isinstance(outcome, Failure)
    assert (outcome.stage, outcome.reason) == ("answering", FAILED)
    assert str(error) in caplog.text, "for the site itself"
    assert site.book.lines == [(0, 1, "update")]


@pytest.mark.parametrize("wrong", ["shape", "type", "name"])
def test_a_model_that_is_not_the_jobs_is_refused_before_it_meets_a_sample(wrong: str, tmp_path: Path) -> None:
    """An embedding that is cut short would fail for those alone who have a word beyond its end."""
    site = Site(tmp_path, True, *WAYS["local-dp"])
    name, tensor = next(iter(site.question().items()))
    odd = {"shape": {name: tensor[:-1]}, "type": {name: tensor.double()}, "name": {f"{name}.more": tensor}}[wrong]
    with pytest.raises(ModelError, match="does not match the job's"):
        site.asked("train", as_signed(site.wanted), {**site.question(), **odd})
    assert site.book.lines == []


def test_an_update_is_noted_before_it_is_made(tmp_path: Path) -> None:
    site = Site(tmp_path, False, *WAYS["dp-sgd"])
    noted: list[int] = []
    train = site.service.handlers["train"]
    site.service.handlers["train"] = lambda tasks, here: noted.append(len(site.book.lines)) or train(tasks, here)  # type: ignore[index]
    assert isinstance(site.asked("train", as_signed(site.wanted), site.question()), Reply)
    assert noted == [1]
    again = site.asked("train", as_signed(site.wanted), site.question())
    assert isinstance(again, Failure)
    assert noted == [1], "what may not leave is not made"
