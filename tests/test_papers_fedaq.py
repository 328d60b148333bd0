"""winnow reproduce fedaq: rounds, bits and seconds to an accuracy, by the paper's metric."""

from html import unescape
from pathlib import Path

import pytest

from command_line import call
from support.needs import data_set
from winnow.config.resolve import resolve
from winnow.experiment.build_training_workflow import RunInputs
from winnow.experiment.run import run_experiment
from winnow.papers import PAPERS, ReproductionOptions, RunResultLine, read_lines, write_html_page, write_markdown_page
from winnow.papers.fedaq.round_time import CNN, LOGISTIC, MLP, TimedSetting, transfer_seconds
from winnow.papers.fedaq.table_rows import METHODS
from winnow.papers.fedaq.target_table import TargetTable, first_reached
from winnow.papers.result_json_lines import lines_by_key

PAPER = PAPERS["fedaq"]
TINY = [
    "--set", "data.name=digits", "--set", "data.clients=3", "--set", "data.reference=50", "--set", "local.steps=2",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def setting(name: str) -> TargetTable:
    (found,) = (item for item in PAPER.items if item.name == name)
    assert isinstance(found, TargetTable)
    return found


def test_a_setting_named_is_meant_without_its_other_split() -> None:
    assert [item.name for item in PAPER.select_items(["logistic", "cnn-dirichlet"])] == ["logistic", "cnn-dirichlet"]
    text = write_markdown_page(Path("page.md"), PAPER, {}, ["cnn"]).read_text()
    assert "## A CNN on CIFAR-10\n" in text
    assert "clients unlike" not in text


@pytest.mark.parametrize("timed", [LOGISTIC, MLP, CNN], ids=["logistic", "mlp", "cnn"])
def test_the_time_metric_gives_the_paper_s_seconds(timed: TimedSetting) -> None:
    """With two computing times a setting; bits are rounds times those of the parameters, as published."""
    for name, row in timed.published.items():
        assert timed.predicted(name) == pytest.approx(row.seconds, rel=0.02)
        sent = (2 if name.startswith(("fedac", "fedaq")) else 1) * (int(name[-1]) if name[-1] in "48" else 32)
        assert row.rounds * timed.parameters * sent == pytest.approx(row.bits, rel=0.05)
    assert timed.compute_seconds(accelerated=True) > 0


def test_a_megabyte_each_way_takes_five_seconds_and_a_third() -> None:
    assert transfer_seconds(down=1e6, up=1e6) == pytest.approx(1 / 0.75 + 1 / 0.25)


@pytest.mark.parametrize(("name", "parameters"), [("logistic", 7_850), ("mlp", 199_210), ("cnn", 672_212)])
def test_models_and_messages_weigh_what_the_paper_says(name: str, parameters: int) -> None:
    table = setting(name)
    model = table.model()
    assert sum(tensor.numel() for tensor in model.values()) == parameters == table.timed.parameters
    costs = {method.name: table.round_cost(method, model) for method in METHODS}
    for method, bits in (("fedavg", 32), ("fedpaq-8", 8), ("fedac-1", 64), ("fedaq-1-8", 16), ("fedaq-1-4", 8)):
        assert costs[method].bits == pytest.approx(bits * parameters, rel=0.025)
    assert costs["fedaq-1-4"].bits == pytest.approx(costs["fedpaq-8"].bits, rel=0.02)
    for method, row in table.timed.published.items():
        assert row.rounds * costs[method].paper_seconds == pytest.approx(row.seconds, rel=0.02)
        assert costs[method].seconds >= costs[method].paper_seconds - 0.1  # what goes down is not quantised here


def test_every_row_is_a_valid_experiment_and_differs_from_the_others() -> None:
    for name in ("logistic", "cnn-dirichlet"):
        runs = setting(name).runs(ReproductionOptions(seeds=1))
        assert [run.key for run in runs] == [(name, method.name, "0") for method in METHODS]
        assert len({run.experiment.model_dump_json() for run in runs}) == len(runs)
        assert all(run.experiment.select.cohort_size(100) == 100 for run in runs)


def line(algorithm: str, seed: int, reached: int, of: str = "logistic") -> RunResultLine:
    trace = (0.1, *[0.5] * (reached - 1), *[0.9028] * (40 - reached))
    return RunResultLine(item=of, algorithm=algorithm, seed=seed, rounds=39, best=0.9028, trace=trace)


def test_the_page_sets_rounds_bits_and_seconds_beside_the_paper_s_and_says_what_is_missing() -> None:
    lines = lines_by_key([*(line("fedaq-1-8", seed, 25 + seed) for seed in range(3)), line("fedavg", 0, 50)])
    text = write_markdown_page(Path("page.md"), PAPER, lines).read_text()
    row = next(each for each in text.splitlines() if each.startswith("| FedAQ-I, 8 bits (3)"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1:3] == ["26.0 ± 1.0", "26"]
    assert cells[3:5] == ["3.3e+06", "3.3e+06"]
    assert float(cells[6].replace(",", "")) == pytest.approx(344, rel=0.02)
    assert float(cells[5].replace(",", "")) > float(cells[6].replace(",", ""))
    assert "| FedAvg (1) | none of 1 | 217 | none of 1 |" in text
    assert "Not run: FedPAQ, 8 bits; FedCOMGATE, 8 bits; FedAC-I;" in text
    assert "Fewer than 3 seeds: FedAvg (1)." in text
    page = unescape(write_html_page(Path("page.html"), PAPER, lines).read_text())
    assert 'class="plot"' in page
    assert "no theorem speaks of them" in page
    assert "Not run: there are no records of it." in text.partition("## A CNN on CIFAR-10")[2]


def test_a_target_counts_when_it_is_first_reached() -> None:
    assert first_reached((0.1, None, 0.5, 0.7, 0.6), 0.6) == 3
    assert first_reached((0.1, 0.2), 0.6) is None


@pytest.mark.slow(part="science")
def test_fedaq_needs_less_than_half_of_fedpaq_s_rounds_and_quantisation_costs_none(data_directory: Path) -> None:
    """29 rounds against 148 on the published seeds; this one is neither published nor tuned with."""
    data_set(data_directory, "mnist")
    table, methods = setting("logistic"), {method.name: method for method in METHODS}

    def rounds_to_target(name: str, most: int) -> int | None:
        sets = (*table.settings, *methods[name].sets)
        experiment = resolve(table.preset, sets=sets, algorithm=methods[name].algorithm, seed=2_000, rounds=most)
        history = run_experiment(experiment, inputs=RunInputs(data_directory=data_directory)).history
        return next((row["round"] for row in history if row["reference.accuracy"] >= table.target), None)

    needed = rounds_to_target("fedaq-1-8", 50)
    assert needed is not None
    assert rounds_to_target("fedpaq-8", int(2.5 * needed)) is None
    unquantised = rounds_to_target("fedac-1", needed + 4)
    assert unquantised is not None
    assert unquantised > needed - 4


@pytest.mark.slow(part="papers")
def test_a_setting_is_run_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    done = call(
        capsys,
        "reproduce",
        "fedaq",
        "logistic-dirichlet",
        "--seeds",
        1,
        "--rounds",
        1,
        *TINY,
        "--quiet",
        "--out",
        "out",
    )
    assert done.code == 0, done.err
    assert {each.algorithm for each in read_lines(Path("out/results.jsonl"))} == {method.name for method in METHODS}
