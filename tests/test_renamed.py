"""What Winnow 0.1 called differently is refused by a line that says the new word, wherever it is written."""

import json
from pathlib import Path

import pytest

from command_line import call
from winnow.config.renamed_settings import ALGORITHMS, CHOICES, KEYS
from winnow.config.resolve import resolve
from winnow.config.schema import Experiment
from winnow.config.schema_lookup import settings_classes
from winnow.core import ConfigError, Settings
from winnow.learn.algorithm import Recipe
from world import BASE


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("judge.by=clients", "judge is now evaluation"),
        ("pace.name=buffered", "pace is now schedule"),
        ("schedule={name='buffered', goal=3}", "schedule.goal is now schedule.buffer_size"),
        ("select.matching=encrypted", "select.matching is now select.profile_comparison"),
        ("data.own_test=0.2", "data.own_test is now data.local_test"),
        ("data.corruptions=[{name='pollution', fraction=0.1, reach=3.0}]", r"\[0\].reach is now .*\[0\].max_distance"),
        ("filters=[{name='compress', keep='top-k'}]", r"filters\[0\].keep is now filters\[0\].sparsify"),
        ("collect={name='homomorphic', holder=1}", "collect.holder is now collect.key_holder"),
        ("collect={name='secure', encoding={name='scalar', honest=0.5}}", "encoding.honest is now .*honest_fraction"),
        ("collect={name='secure', encoding='pruned'}", "encoding.name = 'pruned' is now 'random-pruning'"),
        ("client.name=own-norms", "client.name = 'own-norms' is now 'local-batch-norm'"),
        ("algorithm=clustered", "'clustered' is unknown; it is now 'clustered-sampling'"),
        ("job.deadline=3", "job.deadline is now job.task_timeout"),
    ],
)
def test_an_old_setting(change: str, line: str) -> None:
    with pytest.raises(ConfigError, match=line) as refused:
        resolve(BASE, sets=[change])
    assert "\n" not in str(refused.value)


def test_an_old_section_of_a_single_algorithm() -> None:
    with pytest.raises(ConfigError, match="judge is now evaluation"):
        resolve({**BASE, "algorithms": {"fedprof": {"judge": {"by": "clients"}}}})


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("run", "demo", "--profile"), "--profile is now --timing"),
        (("compare", "demo", "--jobs=2"), "--jobs is now --workers"),
        (("reproduce", "fedprof", "--jobs", "2"), "--jobs is now --workers"),
    ],
)
def test_an_old_option(arguments: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    done = call(capsys, *arguments)
    assert (done.code, done.err) == (2, f"winnow: error: {line}\n")


@pytest.mark.parametrize("command", [("show", "old"), ("run", "old", "--resume"), ("report", "old")])
def test_an_old_run_folder(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("old").mkdir()
    label = {"schema": 1, "name": "demo", "algorithm": "fedprof", "seed": 0, "metric": "accuracy", "judged_by": "tuned"}
    Path("old/run.json").write_text(json.dumps(label))
    Path("old/config.toml").write_text("[judge]\nby = 'tuned'\n")
    Path("old/conditions.json").write_text('{"labels": ["clean"], "of_client": [0]}')
    Path("old/events.jsonl").write_text('{"kind":"round","round":1,"at":1.0}\n')
    done = call(capsys, *command)
    assert done.code == 2
    assert "old was made by Winnow 0.1, whose log this version does not read; run it again or use 0.1" in done.err


def test_every_new_word_is_one() -> None:
    """The table would mislead if a setting were renamed again and it still named the word in between."""
    keys = {f"{section}.{key}" for section, field in Experiment.model_fields.items() for key in _keys(field.annotation)}
    keys |= Experiment.model_fields.keys()
    for old, new in KEYS.items():
        assert ".".join([*old.split(".")[:-1], new]) in keys, old
    choices = {
        f"{section}.{name}" for section, field in Experiment.model_fields.items() for name in _names(field.annotation)
    }
    for old, new in CHOICES.items():
        assert ".".join([*old.split(".")[:-1], new]) in choices, old
    assert {*ALGORITHMS.values()} <= Recipe.known.keys()


def _groups(annotation: object) -> list[type[Settings]]:
    """The settings that a key admits, with those inside them."""
    found = settings_classes(annotation)
    inner = (field.annotation for group in found for field in group.model_fields.values())
    return [*found, *(group for each in inner for group in settings_classes(each))]


def _keys(annotation: object) -> set[str]:
    return {key for group in _groups(annotation) for key in group.model_fields}


def _names(annotation: object) -> set[str]:
    return {str(group.model_fields["name"].default) for group in _groups(annotation) if "name" in group.model_fields}
