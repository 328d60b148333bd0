"""The examples in docs/data.md work as written, and its tables name every choice."""

import re
import tomllib
from pathlib import Path

import pytest

from winnow.data import Corruption, DataSettings, Partition, catalogue

PAGE = (Path(__file__).parents[1] / "docs" / "data.md").read_text(encoding="utf-8")


def snippets(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.parametrize("snippet", snippets("toml"))
def test_configurations_are_valid(snippet):
    DataSettings.model_validate(tomllib.loads(snippet)["data"])


@pytest.mark.parametrize("snippet", snippets("python")[:1])
def test_programs_run(snippet, capsys):
    exec(compile(snippet, "docs/data.md", "exec"), {})
    assert capsys.readouterr().out == "50 1400 180 180\n"


def test_tables_name_every_set_partition_and_corruption():
    documented = set(re.findall(r"^\| `([^`]+)`", PAGE, flags=re.MULTILINE))
    assert {each.name for each in catalogue()} | set(Partition.members) | set(Corruption.members) == documented
