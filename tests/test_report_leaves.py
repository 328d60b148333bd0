"""The section about an ensemble's leaves, from runs that were written by hand."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from bench.ui import CONFIG, finished_round

from winnow.report.leaves_section import DRAWN_UP_TO, leaf_names, leaves_section
from winnow.report.markup import setting_cell
from winnow.report.plot_data import Groups
from winnow.report.run_groups import group_by_experiment
from winnow.runs import RunFolder, RunLabel


def ensemble(path: Path, leaves: dict[str, list[float]], *, lower: bool = False) -> Groups:
    """A run whose leaves have these accuracies, and which goes on for a round without them."""
    label = RunLabel(name="made", algorithm="fedavg", seed=0, metric="accuracy", lower_is_better=lower)
    config = CONFIG.format(rounds=9, seed=0, algorithm="fedavg", rate=0.1)
    with RunFolder.create(path, config, {"labels": ["clean"], "of_client": [0] * 100}, label) as folder:
        for number, values in enumerate(zip(*leaves.values(), strict=True), start=1):
            event = finished_round(number, 0)
            told = {name: {"accuracy": value, "loss": 1.0} for name, value in zip(leaves, values, strict=True)}
            folder.record(replace(event, metrics={**event.metrics, **told, "privacy": {"epsilon": 1.0}}))
        folder.record(finished_round(9, 0))
        return group_by_experiment([folder.view()])


def test_each_leaf_has_its_best_and_last_score_and_a_line(tmp_path: Path) -> None:
    groups = ensemble(tmp_path / "run", {"north": [0.5, 0.25], "<b>": [0.125, 0.75]})
    assert leaf_names(next(iter(groups.values()))[0]) == ["north", "<b>"]
    text = leaves_section(groups)
    cells = [re.findall(r">([^<>]+)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", text)[1:]]
    assert cells == [["north", "0.5000", "0.2500"], ["&lt;b&gt;", "0.7500", "0.7500"]]
    assert "<b>" not in text
    assert '"meta":"north.accuracy"' in text, "so that its line grows while the run goes on"
    assert '"name":"together"' in text


def test_where_lower_is_better_the_least_is_best(tmp_path: Path) -> None:
    text = leaves_section(ensemble(tmp_path / "run", {"north": [0.5, 0.25, 0.375]}, lower=True))
    assert re.search(r"north</th><td>0.2500</td><td>0.3750</td>", text)


@pytest.mark.parametrize("more", [0, 1])
def test_of_many_leaves_there_is_the_table_alone(tmp_path: Path, more: int) -> None:
    leaves = {f"group {number}": [0.5] for number in range(DRAWN_UP_TO + more)}
    text = leaves_section(ensemble(tmp_path / "run", leaves))
    assert ("<figure>" in text) is not bool(more)
    assert text.count("<tr>") == 1 + len(leaves)


def test_other_runs_have_no_such_section(tmp_path: Path) -> None:
    assert leaves_section(ensemble(tmp_path / "run", {})) == ""


def test_a_settings_name_breaks_behind_dots_and_underscores_alone() -> None:
    assert setting_cell("local.batch_size").html == "local.<wbr>batch_<wbr>size"
    assert "<i" not in setting_cell("<i>.x").html
