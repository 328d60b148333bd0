"""Lists, versions, help and completion."""

import json
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

from command_line import call
from winnow.cli.options import algorithm_names, complete_algorithms, complete_source, preset_names
from winnow.core import ConfigError
from winnow.experiment.resolve import presets, resolve
from winnow.learn.algorithm import Recipe

HELP_FOR_ALL = """
import sys
from winnow.cli import main
for command in ([], ["run"], ["compare"], ["presets"], ["show"], ["report"], ["data"], ["data", "get"], ["algorithms"]):
    try:
        main([*command, "--help"])
    except SystemExit as left:
        assert not left.code, command
heavy = {"torch", "plotly", "numpy", "sklearn", "winnow.experiment.schema"} & sys.modules.keys()
sys.exit(f"--help imports {heavy}" if heavy else 0)
"""


def test_help_imports_nothing_heavy():
    done = subprocess.run([sys.executable, "-c", HELP_FOR_ALL], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "winnow run runs/mine --resume" in done.stdout


def test_completion_knows_what_there_is_without_importing_it():
    assert preset_names() == sorted(presets())
    assert algorithm_names() == sorted(Recipe.known)
    assert "gas-turbine" in complete_source("gas")
    assert complete_algorithms("fedprof,fedavg-") == ["fedprof,fedavg-rp"]


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
    """But for SCAFFOLD, whose rule is one for SGD, where the preset trains by Adam."""
    refused = []
    for preset in presets():
        for algorithm in Recipe.known:
            try:
                assert resolve(preset, algorithm=algorithm).algorithm == algorithm
            except ConfigError as error:
                refused.append((preset, algorithm, "needs local.name = 'sgd'" in str(error)))
    assert refused == [("gas-turbine", "scaffold", True)]


def test_algorithms_are_listed(capsys):
    listed = json.loads(call(capsys, "algorithms", "--json").out)
    assert [each["name"] for each in listed] == sorted(Recipe.known)
    assert all(each["summary"] in call(capsys, "algorithms").out for each in listed)


def test_data_sets_are_listed(capsys, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("WINNOW_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    listed = {each["name"]: each for each in json.loads(call(capsys, "data", "list", "--json").out)}
    assert listed["digits"]["present"] is True
    assert listed["mnist"]["present"] is False
    assert "to fetch" in call(capsys, "data", "list").out


def test_version(capsys):
    for way in ("version", "--version"):
        said = call(capsys, way)
        assert (said.code, said.out) == (0, f"winnow {version('winnow')}\n")
