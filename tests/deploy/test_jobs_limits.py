"""What a server, or a job's author, cannot get a site to do."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).parents[1]))
from test_conformance_deployed import deployed

from winnow.core import ConfigError, DataError, Failure, Reply, Task
from winnow.deploy.jobs.bundle_format import Bundle, read_bundle, write_bundle
from winnow.deploy.jobs.error_redaction import redacted_error
from winnow.deploy.jobs.ipc_messages import RunTask, TaskResult
from winnow.deploy.jobs.mandatory_filters import ALLOWED_EXTRA_PARTS, mandatory_filters, reject_unchecked_parts
from winnow.deploy.jobs.task_settings import encode_settings
from winnow.deploy.wire.messages import WireTask
from winnow.deploy.wire.safetensors_files import write_arrays
from winnow.deploy.wire.task_digest import NO_TASK_ID, with_task_id
from winnow.learn.client_round_method import TrainSettings
from winnow.learn.handlers import HANDLERS, ProfileSettings, ReferenceEvaluationSettings
from winnow.learn.local_optimiser import Sgd
from winnow.learn.profile_by_class import ProfileClasses
from winnow.learn.secure_randomness import secure_stream
from winnow.learn.stack import model_state
from winnow.privacy.secagg.simulated_identities import simulated_identities
from world import experiment, prepared


@pytest.mark.parametrize(
    "config",
    [
        "plugins = ['/elsewhere/x.py']",
        "plugins = ['../x.py']",
        "[model]\nname = 'python'\nfactory = '/elsewhere/x.py:make'",
    ],
)
def test_code_that_a_job_does_not_bring_is_not_run(config: str) -> None:
    bundle = Bundle(config=f"{config}\n")
    with pytest.raises(ConfigError, match="which is not in its bundle"):
        write_bundle(bundle)
    import msgspec

    with pytest.raises(ConfigError, match="which is not in its bundle"):
        read_bundle(msgspec.msgpack.encode(bundle))


def test_code_that_it_brings_is_own_code() -> None:
    bundle = Bundle(config="plugins = ['x.py']\n", files={"x.py": b""})
    assert read_bundle(write_bundle(bundle)).own_code


class Asked:
    """A site of a job, asked directly."""

    def __init__(self, folder: Path, algorithm: str = "fedavg-rp") -> None:
        self.wanted = experiment("engine.execution=loop", algorithm=algorithm)
        self.loopback = deployed(self.wanted, folder)
        self.folder = folder

    def ask(self, name: str, settings: Any, **parts: dict[str, torch.Tensor]) -> TaskResult:
        paths = {}
        for part, arrays in parts.items():
            write_arrays(self.folder / part, arrays)
            paths[part] = str(self.folder / part)
        task = WireTask(id=NO_TASK_ID, name=name, clients=[0], round=1, version=0, settings=encode_settings(settings))
        return self.loopback.executors[0].execute(RunTask(task=with_task_id(task), parts=paths))[0]


def test_training_is_done_as_it_was_signed(tmp_path: Path) -> None:
    site = Asked(tmp_path)
    signed = TrainSettings(
        local=site.wanted.local, client=site.wanted.client, seed=site.wanted.seed, profile=False, start_loss=False
    )
    model = model_state(prepared(algorithm="fedavg-rp").module)
    assert site.ask("train", signed, model=model).result.failure is None
    other = TrainSettings(
        local=Sgd(learning_rate=0.9), client=site.wanted.client, seed=site.wanted.seed, profile=False, start_loss=False
    )
    failure = site.ask("train", other, model=model).result.failure
    assert "differ from those the job's author signed" in (failure or "")


SIGNED = ProfileClasses(labels=(0, 1, 2), min_rows=5, count_step=1)
OTHER_CLASSES = {
    "none": None,
    "too many": ProfileClasses(labels=(0, 1, 99), min_rows=5, count_step=1),
    "too few labels": ProfileClasses(labels=(0, 1), min_rows=5, count_step=1),
    "bins of a target": ProfileClasses(edges=(0.5,), min_rows=5, count_step=1),
    "of single samples": ProfileClasses(labels=(0, 1, 2), min_rows=1, count_step=1),
    "counted by none": ProfileClasses(labels=(0, 1, 2), min_rows=5, count_step=0),
    "that changed since": ProfileClasses(labels=(0, 1, 1), min_rows=5, count_step=1),
}


def test_profiles_are_made_by_classes_as_signed_which_never_change(tmp_path: Path) -> None:
    site = Asked(tmp_path, "fedprof-by-class")
    assert site.ask("profile", ProfileSettings(classes=SIGNED)).result.failure is None
    for what, classes in OTHER_CLASSES.items():
        failure = site.ask("profile", ProfileSettings(classes=classes)).result.failure
        assert "differ from those the job's author signed" in (failure or ""), what


@pytest.mark.parametrize(
    ("name", "settings"),
    [("profile", ProfileSettings()), ("evaluate-reference", ReferenceEvaluationSettings(metrics=("accuracy",)))],
)
def test_what_the_configuration_does_not_need_is_not_answered(name: str, settings: Any, tmp_path: Path) -> None:
    assert f"this site has no handler for task {name!r}" in (Asked(tmp_path).ask(name, settings).result.failure or "")


def reply_of(**payload: dict[str, torch.Tensor]) -> Any:
    return lambda tasks, site: [Reply(task=task, payload=payload) for task in tasks]


def test_nothing_leaves_past_forced_filters() -> None:
    model = {"w": torch.ones(100)}
    bare = Task(name="train", client=0, round=1, version=0)
    (outcome,) = reject_unchecked_parts([bare], None, reply_of(model=model))
    assert isinstance(outcome, Failure)
    assert "cannot check part 'model'" in outcome.reason
    brought = replace(bare, payload={"model": model})
    profile = {"mean": torch.ones(50)}
    (outcome,) = reject_unchecked_parts(
        [brought], None, reply_of(model=model, profile=profile, steps={"n": torch.ones(1)})
    )
    assert isinstance(outcome, Reply)
    (outcome,) = reject_unchecked_parts([replace(bare, name="evaluate-personal")], None, reply_of(profile=profile))
    assert isinstance(outcome, Failure)


def test_a_task_that_forced_filters_do_not_know_is_not_done() -> None:
    done = []

    def handler(tasks: Any, site: Any) -> Any:
        done.append(tasks)
        return [Reply(task=task, metrics={"secret": 1.0}) for task in tasks]

    (outcome,) = reject_unchecked_parts([Task(name="census", client=0, round=1, version=0)], None, handler)
    assert isinstance(outcome, Failure)
    assert "'census'" in outcome.reason
    assert not done


PROTOCOLS = {
    "secure": ("fedavg", "collect={name='secure'}"),
    "a mask keeper": ("fedavg", "collect={name='secure', keeper='1'}"),
    "homomorphic": ("fedavg", "collect={name='homomorphic', key_holder=1}"),
    "encrypted": ("fedprof", "select.profile_comparison.name=encrypted", "reference_clients=[1]"),
}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_forced_filters_know_every_task_of_winnows_own(name: str) -> None:
    algorithm, *sets = PROTOCOLS[name]
    wanted = experiment(*sets, algorithm=algorithm)
    besides = wanted.collect.site_extension(secure_stream, simulated_identities()).around(
        wanted.select.comparison.site_extension(secure_stream)
    )
    assert besides.handlers
    assert besides.handlers.keys() | HANDLERS.keys() <= ALLOWED_EXTRA_PARTS.keys()


def test_a_forced_filter_that_does_not_exist_is_said_so() -> None:
    with pytest.raises(ConfigError, match="invalid mandatory filter in the site's policy"):
        mandatory_filters([{"name": "no-such-filter"}])


def test_what_a_site_tells_of_its_data_says_nothing_about_them(capsys: pytest.CaptureFixture[str]) -> None:
    for error in (DataError("there is a class 'Mrs Smith'"), ValueError("could not convert 'Mrs Smith'")):
        assert "Smith" not in redacted_error(error)
    assert "Mrs Smith" in capsys.readouterr().err
    assert redacted_error(ConfigError("select.count is too large")) == "select.count is too large"
