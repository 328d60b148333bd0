"""winnow reproduce srpfl: runs with a clock, one for every cost of communication, and the linear case."""

from html import unescape
from pathlib import Path

import numpy as np
import pytest

from command_line import call
from winnow.config.resolve import resolve
from winnow.core import ConfigError
from winnow.papers import (
    PAPERS,
    LinearCaseResultLine,
    ReproductionOptions,
    RunResultLine,
    plan_reproduction,
    read_lines,
    write_html_page,
    write_lines,
)
from winnow.papers.result_json_lines import linear_case_result_lines, lines_by_key
from winnow.papers.srpfl import DATA_CASES, FIGURES
from winnow.papers.srpfl.linear_figure import LinearFigure, fit_ratios
from winnow.papers.srpfl.methods import FEDREP, METHODS, SRPFL, mean_speedup
from winnow.papers.srpfl.score_trace import elapsed_seconds
from winnow.runs import RunFolder
from winnow.runs.changed_communication_cost import with_communication_cost

PAPER = PAPERS["srpfl"]
TINY = [
    "--set", "data.name=digits", "--set", "data.clients=10", "--set", "data.local_test=0.3",
    "--set", "data.reference=50", "--set", "data.test=50", "--set", "model.hidden=[8, 8, 8]", "--set", "local.epochs=1",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run_line(algorithm: str, seed: int = 0, **more: object) -> RunResultLine:
    values = {"rounds": 2, "trace": (0.1, 0.8, 0.97), "seconds": (0.0, 1.0, 3.0)}
    return RunResultLine(item="fig3-small", algorithm=algorithm, seed=seed, **(values | more))  # type: ignore[arg-type]


def page_of(lines: list[RunResultLine | LinearCaseResultLine]) -> str:
    return unescape(write_html_page(Path("page.html"), PAPER, lines_by_key(lines)).read_text())


@pytest.mark.slow(part="papers")
def test_a_figure_is_run_on_one_clock_and_shown_for_three(capsys):
    done = call(capsys, "reproduce", "srpfl", "fig3-small", "--seeds", 1, "--rounds", 2, *TINY, "--quiet")
    assert done.code == 0, done.err
    lines = {line.algorithm: line for line in read_lines(Path("runs/srpfl/results.jsonl"))}
    assert set(lines) == {method.algorithm for method in METHODS}
    for name, line in lines.items():
        assert len(line.trace) == len(line.seconds) == 3
        assert line.seconds[0] == 0 < line.seconds[1] < line.seconds[2]
        folder = RunFolder.open(Path(f"runs/srpfl/runs/fig3-small/{name}-seed0"))
        dearer = with_communication_cost(folder, 100.0).summary()
        assert elapsed_seconds(line, 100)[-1] == pytest.approx(dearer.seconds, abs=1e-3)
    assert lines["srpfl"].seconds[-1] < lines["fedrep"].seconds[-1]  # nine of ten are not waited for
    assert lines["lg-fedavg"].tuned == ()
    assert lines["fedavg-rp"].tuned[-1] is not None
    section = (
        Path("runs/srpfl/index.html").read_text().split("<h2>Figure 3: srpfl-mnist-small")[1].split("</section>")[0]
    )
    assert 'class="plot"' in section
    assert "FedAvg-FT (1)" in section


def test_times_to_a_target_and_their_ratio_by_hand():
    lines = lines_by_key(
        [
            run_line("srpfl"),
            run_line("srpfl", 1, trace=(0.1, 0.96, 0.97)),
            run_line("fedrep", seconds=(0.0, 5.0, 9.0)),
            run_line("fedrep", 1, trace=(0.1, 0.2, 0.3)),
        ]
    )
    first = SRPFL.runs(lines, "fig3-small")[0]
    assert [SRPFL.seconds_to(0.95, first, cost) for cost in (0, 10)] == [3.0, 23.0]
    gain = mean_speedup(SRPFL, FEDREP, 0.95, 10, lines, "fig3-small")
    assert gain is not None
    assert (gain.mean, gain.count) == (pytest.approx(29 / 23), 1)  # seed 1 of FedRep never gets there
    text = page_of(list(lines.values()))
    row = text.split("fig3-small: SRPFL and FedRep")[1].split("</tr>")[0]
    assert "2 ± 1 and 9 (1 of 2): 3.00 ×" in row
    assert "<td>12 ± 8" not in row
    assert "fig3-small: LG-SRPFL" not in text


def test_a_tuned_curve_has_gaps_and_no_tuned_curve_is_no_curve():
    text = page_of([run_line("flanp", tuned=(0.2, None, 0.9)), run_line("fedrep", tuned=(None, None, 0.5))])
    assert "FLANP-FT (1)" in text
    assert "0.900" in text.split("FLANP-FT (1)")[1].split("</tr>")[0]
    assert "<td>0.500</td>" in text.split("FedRep, heads reset and tuned (1)")[1].split("</tr>")[0]
    assert "HF-MAML (" not in text.split("<h2>Figure 3: srpfl-mnist-small")[1].split("</section>")[0]


def test_figures_differ_in_speeds_and_participation_only():
    wanted = ReproductionOptions(seeds=1)
    by_name = {figure.name: figure for figure in FIGURES}
    assert len(by_name) == 16
    three, four, five, six = (
        {run.algorithm: run.experiment for run in by_name[f"fig{number}-mnist"].runs(wanted)} for number in (3, 4, 5, 6)
    )
    assert (three["srpfl"].fleet.speeds, four["srpfl"].fleet.speeds) == ("fixed", "dynamic")
    assert (five["srpfl"].select.fraction, six["fedrep"].select.fraction) == (0.2, 0.2)
    assert six["srpfl"].fleet.speeds == "dynamic"
    assert {experiment.rounds for experiment in three.values()} == {150}
    assert three["srpfl"].local == three["fedrep"].local
    assert three["lg-srpfl"].client == three["lg-fedavg"].client
    assert three["lg-fedavg"].local.momentum == 0


def test_long_cases_are_left_to_an_accelerator_unless_named(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    wanted = ReproductionOptions(seeds=1, sets=("data.name=digits", "data.local_test=0.3"))
    work = plan_reproduction(PAPER, [], wanted, {})
    assert not {run.item for run in work.runs} & {"fig3-cifar10", "fig3-mnist"}
    assert any(line.startswith("fig3-mnist: skipped") for line in work.left_out)


@pytest.mark.parametrize("preset", ["srpfl-mnist", "srpfl-mnist-small", "srpfl-writers", "srpfl-cifar10"])
def test_presets_are_the_papers(preset):
    experiment = resolve(preset)
    assert (experiment.data.clients, experiment.rounds, experiment.evaluation.by) == (100, 150, "clients")
    assert (experiment.local.batch_size, experiment.local.learning_rate, experiment.local.momentum) == (10, 0.01, 0.5)
    assert experiment.client.head_epochs == 10


def test_the_linear_case_is_measured_kept_and_fitted(tmp_path):
    figure = LinearFigure(name="linear", title="", populations=(32, 64, 128))
    wanted = ReproductionOptions(seeds=2, rounds=60)
    lines = figure.measure(wanted, {})
    assert len(lines) == 3 * 2 * 2
    assert sum(bool(line.fedrep) for line in lines) == 1
    write_lines(tmp_path / "lines.jsonl", lines_by_key(lines))
    assert read_lines(tmp_path / "lines.jsonl") == lines
    assert figure.measured(wanted, lines_by_key(lines))
    assert not figure.measured(ReproductionOptions(seeds=3, rounds=60), lines_by_key(lines)), "a third seed is missing"
    half = lines_by_key(lines[::2])
    assert not figure.measured(wanted, half)
    assert lines_by_key(figure.measure(wanted, half)) == lines_by_key(lines[1::2]), "only what is missing is computed"
    text = page_of(lines)
    section = text.split("<h2>The linear case")[1].split("</section>")[0]
    assert section.count('class="plot"') == 4
    assert "Least squares: ratio = " in section


def test_the_fit_finds_a_line_in_one_over_log_n():
    def line(clients: int, seed: int) -> LinearCaseResultLine:
        ratio = 0.05 + 0.7 / np.log(clients)
        return LinearCaseResultLine(item="linear", clients=clients, initial_clients=8, seed=seed, start=0.9, floor=0.1,
                          predicted=0.1, fedrep_rounds=9,
                          fedrep_seconds=10.0, srpfl_rounds=9, srpfl_seconds=10 * ratio)  # fmt: skip

    found = fit_ratios([line(clients, seed) for clients in (64, 128, 256, 512) for seed in (0, 1)])
    assert found is not None
    assert (found.constant, found.slope, found.r2) == pytest.approx((0.05, 0.7, 1.0))
    assert fit_ratios([line(64, 0), line(128, 0)]) is None
    assert linear_case_result_lines(lines_by_key([line(64, 0), line(64, 1)]), "linear")[1].seed == 1


def test_a_figure_stands_for_all_its_cases():
    assert {item.name for item in PAPER.select_items(["fig4"])} == {f"fig4-{case}" for case in DATA_CASES}
    assert [item.name for item in PAPER.select_items(["fig4-small", "linear"])] == ["linear", "fig4-small"]
    with pytest.raises(ConfigError, match="srpfl has no table or figure 'fig'"):
        PAPER.select_items(["fig"])


def test_runs_that_miss_the_target_are_not_compared():
    text = page_of([run_line(algorithm, trace=(0.1, 0.2, 0.3)) for algorithm in ("srpfl", "fedrep")])
    assert "none of 1 and none of 1" in text
    assert "– ×" not in text


def test_gains_by_share_of_the_others_best_and_by_time_by_hand():
    quick = {"trace": (0.1, 0.5, 0.7, 0.78), "seconds": (0.0, 1.0, 2.0, 6.0), "rounds": 3}
    slow = {"trace": (0.1, 0.6, 0.73, 0.8), "seconds": (0.0, 4.0, 8.0, 12.0), "rounds": 3}
    lines = [run_line("srpfl", **quick), run_line("fedrep", **slow), run_line("fedrep", 1, **slow)]
    text = page_of(lines)
    row = text.split("SRPFL and FedRep, C.T. = 0</th>")[1].split("</tr>")[0]
    shares = [cell.split("</td>")[0] for cell in row.split("<td>")[1:]]
    assert shares == ["1.33", "2.00", "none of 1", "none of 1"]  # 0.72 after 6 and 8; 0.76 after 6 and 12; 0.784 never
    as_long = text.split("by the time at which the shorter of their runs ends")[1].split("</table>")[0]
    assert "0.780 and 0.600" in as_long  # FedRep's second round ends after SRPFL's last
    assert "0.780 and 0.730" in as_long  # at 10 a round SRPFL ends at 36, FedRep's second round at 28


def protocol_line(algorithm: str, seed: int = 0, **more: object) -> RunResultLine:
    values = {"rounds": 2, "trace": (0.1, 0.5, 0.7), "seconds": (0.0, 4.0, 8.0), "tuned": (0.3, 0.85, 0.95)}
    return RunResultLine(item="protocols-small", algorithm=algorithm, seed=seed, **(values | more))  # type: ignore[arg-type]


def test_protocols_count_runs_that_diverged_and_tell_a_short_round_from_learning():
    lines = [
        protocol_line("fedrep"),
        protocol_line("fedrep", 1),
        protocol_line("srpfl-stages-1", seconds=(0.0, 0.5, 1.0), tuned=(0.3, 0.85, 0.93)),
        protocol_line("srpfl-stages-1", 1, seconds=(0.0, 0.5, 1.0), tuned=(0.3, 0.85, 0.91)),
        protocol_line("hf-maml", tuned=(0.1, 0.9, None)),
        protocol_line("hf-maml", 1, tuned=(0.1, 0.6, 0.5)),
    ]
    tuned = page_of(lines).split("<h2>Two protocols of evaluation: srpfl-mnist-small")[1].split("Clients' own heads")[0]
    cells = {row.split("</th>")[0]: row.split("<td>")[1:] for row in tuned.split('<th scope="row">')[1:]}
    maml = [cell.split("</td>")[0] for cell in cells["HF-MAML, β = 0.1, after one step (2)"]]
    assert maml[:3] == ["0.100 ± 0.000", "0.750 ± 0.212 (1 of 2 diverged)", "0.500 (1 of 2 diverged)"]
    assert maml[5:] == ["4.00 (1 of 2): 1.0 ×", "1"]
    srpfl = [cell.split("</td>")[0] for cell in cells["SRPFL, stages of 1 round (2)"]]
    assert srpfl[3:] == ["none of 2", "–", "0.50 ± 0.00: 8.0 ± 0.0 ×", "1"]
    alike = (
        "these methods need as many rounds as FedRep on every seed, and gain only by rounds that wait for fewer clients"
    )
    assert f"At 0.8 {alike}: SRPFL, stages of 1 round." in tuned
    assert f"At 0.94 {alike}" not in tuned
    assert "SRPFL, stages of 1 round −3.0 ± 1.4; HF-MAML, β = 0.1, after one step −45.0 (1 of 2)." in tuned
    assert "FedRep and SRPFL 5 × (10 + 1)" in tuned


def test_a_lucky_round_is_not_sustained():
    lucky, steady = (0.1, 0.95, *[0.5] * 6), (0.1, 0.95, *[0.96] * 6)
    seconds, rounds = tuple(float(each) for each in range(8)), 7
    both = {
        algorithm: run_line(algorithm, trace=trace, seconds=seconds, rounds=rounds)
        for algorithm, trace in (("srpfl", lucky), ("fedrep", steady))
    }
    text = page_of(list(both.values()))
    assert "are the same, but for: fig3-small: SRPFL and FedRep / 0.94 / none of 1 and 1 / none of 1 and 11" in text
    assert "SRPFL less FedRep, best score −1.0, last score −46.0" in text
