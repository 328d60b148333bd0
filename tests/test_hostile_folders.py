"""A run folder may come from anybody: what it calls things, and what lies in it, is shown and harms nothing."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import winnow
from command_line import call

CLEAR = "\x1b[2J"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("runs") / "run"
    x = np.random.default_rng(1).normal(size=(80, 3)).astype(np.float32)
    winnow.run(data=(x, (x.sum(1) > 0).astype(int)), clients=2, rounds=1, progress=False, out=folder)
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "checkpoint.safetensors"}


@pytest.fixture
def run(made: dict[str, bytes], tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "run"
    folder.mkdir(parents=True)
    for name, content in made.items():
        (folder / name).write_bytes(content)
    return folder


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    table = json.loads(path.read_text())
    change(table)
    path.write_text(json.dumps(table))


@pytest.mark.parametrize("name", [CLEAR, "[/bold]", "[link=https://example.org]here", "a\rb"])
def test_names_are_shown_and_not_obeyed(run: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    client = {"name": name, "samples": 1, "metrics": {name: 1.0}}
    edit(run / "evaluation.json", lambda table: table.update(classes=[name, "b"], notes=[name], by_client=[client]))
    edit(run / "run.json", lambda table: table.update(name=name, algorithm=name, metric=name))
    edit(run / "conditions.json", lambda table: table.update(labels=[name] * len(table["labels"])))
    for command in (("show", run), ("show", run.parent), ("runs", run.parent), ("report", run)):
        done = call(capsys, *command)
        assert done.code == 0, done.err
        assert not {"\x1b", "\r"} & {*done.out, *done.err}
    if name.startswith("["):
        assert name in call(capsys, "show", run).out.replace("\n", "")


def test_a_link_in_it_leads_nowhere(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is written is written beside its place first, and whoever made the folder knows under which name."""
    mine = tmp_path / "mine"
    mine.write_text("mine")
    (run / "report.html.tmp").symlink_to(mine)
    assert call(capsys, "report", run).code == 0
    assert mine.read_text() == "mine"
    assert (run / "report.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("run.json", "[" * 200_000),
        ("config.toml", "[[["),
        ("result.json", '{"rounds": 1, "best": "x"}'),
        ("result.json", '{"rounds": 1, "best": {"value": "x"}}'),
    ],
)
def test_a_damaged_run_does_not_hide_the_others(
    run: Path, made: dict[str, bytes], file: str, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    other = run.with_name("other")
    other.mkdir()
    for name, held in made.items():
        (other / name).write_bytes(held)
    (run / file).write_text(content)
    done = call(capsys, "runs", run.parent)
    assert done.code == 0
    assert "other" in done.out
    assert "damaged" in done.err


@pytest.mark.parametrize(
    "change",
    [
        {"clients": [-9], "counts": [1]},
        {"clients": [10**30], "counts": [1]},
        {"clients": [0, 1], "counts": [1, 1, 1]},
        {"at": "x"},
    ],
)
def test_a_log_of_nonsense_is_refused_in_one_line(
    run: Path, change: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    changed = [line | change if line["kind"] == "selected" else line for line in lines]
    (run / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in changed))
    done = call(capsys, "show", run)
    assert done.code == 2
    assert done.err.count("\n") == 1
