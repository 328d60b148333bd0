"""Lists, versions, help and completion."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from command_line import call
from registries import restored
from winnow.cli.app import app
from winnow.cli.options import builtin_algorithms, complete_source, preset_names
from winnow.config.resolve import presets, resolve
from winnow.core import ConfigError
from winnow.core.installed_package import installed_version
from winnow.learn.algorithm import Recipe

AT_SERVER_ALONE = {"semifl", "server-only"}
"""Algorithms that need labels at the server."""
FEATURES = {"fed-byol", "fedu", "fedema", "orchestra"}
"""Algorithms that learn features, which are scored at the server."""

HELP_FOR_ALL = """
import sys
from winnow.cli import main
for command in ([], ["run"], ["compare"], ["presets"], ["show"], ["report"], ["data"], ["data", "get"], ["algorithms"]):
    try:
        main([*command, "--help"])
    except SystemExit as left:
        assert not left.code, command
heavy = {"torch", "plotly", "numpy", "sklearn", "winnow.config.schema"} & sys.modules.keys()
sys.exit(f"--help imports {heavy}" if heavy else 0)
"""


def test_help_imports_nothing_heavy():
    done = subprocess.run([sys.executable, "-c", HELP_FOR_ALL], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "winnow run runs/mine --resume" in done.stdout


ALGORITHMS = """
import sys
from winnow.cli import main
try:
    main(["algorithms"])
except SystemExit as left:
    assert not left.code
heavy = {"torch", "numpy", "winnow.config.schema"} & sys.modules.keys()
sys.exit(f"algorithms imports {heavy}" if heavy else 0)
"""


def test_algorithms_are_listed_without_importing_them():
    done = subprocess.run([sys.executable, "-c", ALGORITHMS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "selection by profile, partial aggregation" in done.stdout


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, group
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*path, name))


COMMANDS = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_says_what_an_option_takes_and_names_no_python_type(capsys, path):
    shown = call(capsys, *path, "--help").out
    assert not re.search(r"<[a-z]", shown), shown
    valued = [each for each in COMMANDS[path].params if each.param_type_name == "option" and not each.is_flag]
    assert all(each.metavar for each in valued), [each.opts for each in valued if not each.metavar]


def test_completion_knows_what_there_is_without_importing_it():
    assert preset_names() == sorted(presets())
    assert builtin_algorithms() == {name: recipe.summary for name, recipe in sorted(Recipe.known.items())}
    assert "gas-turbine" in complete_source("gas")
    assert completed("winnow compare demo --algorithms fedprof,fedavg-") == ["fedprof,fedavg-rp"]


def completed(typed: str) -> list[str]:
    """What a shell offers after these words."""
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split(" ")) - 1), "_WINNOW_COMPLETE": "complete_bash"}
    code = "from winnow.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env={**os.environ, **words}
    )
    return done.stdout.split()


VARIANTS = """
plugins = ["own.py"]
[algorithms.gentle]
base = "fedprox"
client.mu = 0.001
[algorithms.fedprof.select]
alpha = 5.0
"""
PLUGIN = """
from winnow.learn.algorithm import Recipe
from winnow.learn.aggregation import FullAggregation
from winnow.learn.selection import UniformSelector
Recipe(name="{name}", summary="{name} of the file", select=UniformSelector, aggregate=FullAggregation)
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch) -> Iterator[None]:
    """A file with a variant and a plugin, and another plugin beside it; what they register is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(VARIANTS)
    Path("own.py").write_text(PLUGIN.format(name="gentle-one"))
    Path("more.py").write_text(PLUGIN.format(name="gentle-two"))
    with restored():
        yield


@pytest.mark.usefixtures("own")
def test_completion_knows_variants_and_plugins():
    assert completed("winnow compare mine.toml --algorithms fedavg,gen") == ["fedavg,gentle", "fedavg,gentle-one"]
    assert completed("winnow run mine.toml --plugin more.py --algorithm gentle-") == ["gentle-one", "gentle-two"]
    assert completed("winnow run demo --plugin more.py --algorithm gen") == ["gentle-two"]
    Path("own.py").write_text("not Python")
    assert completed("winnow run mine.toml --algorithm gen") == ["gentle"]
    assert completed("winnow run missing.toml --algorithm fedavg-") == ["fedavg-rp"]


@pytest.mark.usefixtures("own")
def test_algorithms_of_a_file_and_of_plugins_are_listed(capsys):
    listed = {each["name"]: each for each in json.loads(call(capsys, "algorithms", "mine.toml", "--json").out)}
    assert listed["gentle"]["base"] == "fedprox"
    assert listed["gentle"]["changes"] == {"client.mu": 0.001}
    assert listed["gentle"]["parts"] == Recipe.known["fedprox"].table()
    assert listed["gentle-one"]["summary"] == "gentle-one of the file"
    assert "gentle-two" not in listed
    shown = call(capsys, "algorithms", "--plugin", "more.py").out
    assert "gentle-two of the file" in shown
    assert "fedprox with client.mu = 0.001" not in shown
    assert "fedprox with client.mu = 0.001" in call(capsys, "algorithms", "mine.toml").out
    assert "nope.py: no such file" in call(capsys, "algorithms", "--plugin", "nope.py").err


def test_completion_offers_files_and_run_folders(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text("")
    Path("mine.csv").write_text("")
    Path("mines").mkdir()
    assert sorted(complete_source("mi")) == ["mine.toml", "mines"]
    assert complete_source(str(tmp_path / "mine.")) == [str(tmp_path / "mine.toml")]


def test_presets_are_listed_and_shown(capsys):
    listed = {each["name"]: each for each in json.loads(call(capsys, "presets", "--json").out)}
    assert set(listed) == set(presets())
    assert listed["gas-turbine"]["clients"] == 50
    assert all(name in call(capsys, "presets").out for name in listed)
    assert tomllib.loads(call(capsys, "presets", "show", "demo").out) == presets()["demo"]


def test_every_preset_suits_every_algorithm():
    """But for SCAFFOLD and FedCOMGATE, whose rules are ones for SGD, where the preset trains by Adam; and for methods
    that need labels at the server where there are none, or cannot do with them where there are no others; and for those
    that learn features where clients are to test them.
    """
    refused, reasons = set(), []
    for preset in presets():
        for algorithm in Recipe.known:
            try:
                assert resolve(preset, algorithm=algorithm).algorithm == algorithm
            except ConfigError as error:
                refused.add((preset, algorithm))
                reasons.append(str(error))
    few, everything = {"few-labels-mnist", "few-labels-cifar10", "few-labels-features"}, set(presets())
    unlabelled = {
        (preset, name)
        for preset in few
        for name in Recipe.known.keys() - {*AT_SERVER_ALONE, *FEATURES, "fixmatch", "fedmatch"}
    }
    labelled = {(preset, name) for preset in everything - few for name in AT_SERVER_ALONE}
    by_adam = {
        (preset, name)
        for preset in ("gas-turbine", "fedclip-pacs", "secagg-sent140")
        for name in ("fedcomgate", "fedmatch", "scaffold")
    }
    tested = {name for name in presets() if resolve(name).data.local_test or resolve(name).ensemble}
    probed = {(preset, name) for preset in tested for name in FEATURES}
    assert refused == unlabelled | labelled | by_adam | probed
    assert all(
        re.search(r"requires local.name = 'sgd'|data\.labels|linear probe|evaluation\.probe", reason)
        for reason in reasons
    )


def test_algorithms_are_listed(capsys):
    listed = json.loads(call(capsys, "algorithms", "--json").out)
    assert [each["name"] for each in listed] == sorted(Recipe.known)
    shown = call(capsys, "algorithms").out
    assert all(each["summary"] in shown for each in listed)


def test_data_sets_are_listed(capsys, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("WINNOW_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    listed = {each["name"]: each for each in json.loads(call(capsys, "data", "list", "--json").out)}
    assert listed["digits"]["present"] is True
    assert listed["mnist"]["present"] is False
    assert "not downloaded" in call(capsys, "data", "list").out


def test_a_command_ends_without_a_word_of_what_duckdb_finds_left():
    code = "import duckdb; from winnow.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "version"], capture_output=True, text=True, check=True)
    assert (done.stdout[:6], done.stderr) == ("winnow", "")


def test_version(capsys):
    for way in ("version", "--version"):
        said = call(capsys, way)
        assert said.code == 0
        assert re.fullmatch(
            rf"winnow {re.escape(installed_version())}( \(commit [0-9a-f]{{7,40}}(-dirty)?\))?\n", said.out
        )
