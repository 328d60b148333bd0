"""Algorithms in files of the user's own, from the command line."""

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from command_line import call, write_tiny
from registries import restored

SERVER = '''
"""Half a step towards the aggregate."""

from typing import Literal

from winnow.learn.aggregation import PartialAggregation
from winnow.learn.algorithm import Recipe
from winnow.learn.selection import UniformSelector
from winnow.learn.server_optimiser import ServerOptimiser


class {kind}(ServerOptimiser):
    name: Literal["{name}"] = "{name}"
    share: float = 0.5

    def step(self, state, model, folded):
        return state, {{key: (1 - self.share) * old + self.share * folded.model[key] for key, old in model.items()}}


Recipe(
    name="{name}",
    summary="half steps",
    select=UniformSelector,
    aggregate=PartialAggregation,
    server={kind},
)
if "__file__" in globals():  # not where only the text is known, on a cluster
    with open(__file__.rpartition("/")[0] + "/executed.txt", "a") as file:
        file.write("once\\n")
'''


RECIPE = "from winnow.learn.algorithm import Recipe\nRecipe(name='x', summary='', "


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """What a plugin registers is known in this process: other tests must not see it."""
    with restored():
        yield


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_plugin(folder: Path, name: str) -> Path:
    """Each test has a name of its own: what a file registers stays known in this process."""
    path = folder / f"{name}.py"
    path.write_text(SERVER.format(name=name, kind=name.title()))
    return path


def fresh(*arguments: object) -> "subprocess.CompletedProcess[str]":
    """A command in a process that knows nothing of earlier ones."""
    code = "import sys; from winnow.cli import main; main(sys.argv[1:])"
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=False
    )


def test_a_file_beside_the_configuration_makes_its_algorithm_known(capsys, folder, monkeypatch):
    (folder / "beside").mkdir()
    write_plugin(folder / "beside", "halves")
    (folder / "beside" / "mine.toml").write_text(f'plugins = ["halves.py"]\n{Path(write_tiny(folder)).read_text()}')
    done = call(
        capsys, "run", "beside/mine.toml", "--algorithm", "halves", "--set", "server.share=0.25", "--out", "a", "-q"
    )  # fmt: skip
    assert done.code == 0, done.err
    stored = tomllib.loads((folder / "a" / "config.toml").read_text())
    assert stored["plugins"] == [str(folder / "beside" / "halves.py")]
    assert stored["server"] == {"name": "halves", "share": 0.25}


@pytest.mark.slow(part="deploy")
def test_an_option_serves_every_process_and_a_resumed_run(capsys, folder):
    plugin, tiny, executed = write_plugin(folder, "halved"), write_tiny(folder), folder / "executed.txt"
    done = fresh(
        "compare", tiny, "--plugin", plugin.name, "--algorithms", "halved,fedavg-rp", "--seeds", 1, "--workers", 1,
        "--out", "both", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    own, rival = (json.loads(line) for line in done.stdout.splitlines())
    assert (own["algorithm"], rival["algorithm"]) == ("halved", "fedavg-rp")
    assert own["last"] != rival["last"]
    assert executed.read_text().count("once") == 2, "in the command's process and in its worker"

    resumed = call(capsys, "run", "both/halved-seed0", "--resume", "--rounds", 4, "--quiet")

    assert resumed.code == 0, resumed.err
    call(capsys, "run", tiny, "--plugin", plugin, "--algorithm", "halved", "--rounds", 4, "--out", "whole", "--quiet")
    assert (folder / "both/halved-seed0/events.jsonl").read_bytes() == (folder / "whole/events.jsonl").read_bytes()
    assert executed.read_text().count("once") == 3, "and once in this one"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\ny = x / 0\n", "wrong.py, line 2: ZeroDivisionError: division by zero"),
        ("def f():\n    raise ValueError('no\\nway')\n\nf()\n", "wrong.py, line 2: ValueError: no"),
        ("x = 1\nclass :\n", "wrong.py, line 2: SyntaxError: invalid syntax"),
        ("import nowhere_at_all\n", "wrong.py, line 1: ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("raise SystemExit\n", "wrong.py, line 1: SystemExit"),
        (f"{RECIPE}select={{'name': 'uniform'}})", "recipe 'x': select must be a class derived from Selector"),
        (f"{RECIPE}select=Recipe)", "recipe 'x': select must be a class derived from Selector"),
        (None, "wrong.py: no such file"),
    ],
)
@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_mistake_in_a_file_is_one_line(capsys, folder, command, text, message):
    if text is not None:
        (folder / "wrong.py").write_text(text)
    done = call(capsys, command, write_tiny(folder), "--plugin", "wrong.py")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert done.err.endswith(f"{message}\n")


def test_what_is_no_list_of_python_files_is_one_line(capsys, folder):
    tiny = Path(write_tiny(folder))
    for wrong, message in (('"a.py"', "must be a list of Python files"), ('["tiny.toml"]', "not a Python file")):
        (folder / "wrong.toml").write_text(f"plugins = {wrong}\n{tiny.read_text()}")
        done = call(capsys, "run", "wrong.toml")
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert message in done.err
    assert "--plugin FILE.py" in call(capsys, "run", tiny, "--set", "plugins=['a.py']").err


def test_a_run_is_resumed_with_the_files_it_was_begun_with(capsys, folder):
    call(capsys, "run", write_tiny(folder), "--out", "a", "--quiet")
    assert "remove --plugin" in call(capsys, "run", "a", "--resume", "--plugin", "x.py").err
