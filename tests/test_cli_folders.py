"""Folders with runs: who gets which, how they are listed and compared, and what a full disk leaves of them."""

import errno
import json
import os
import re
import resource
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir, redirect_stdout
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

import pytest

import winnow
from command_line import Outcome, call, write_tiny
from winnow.cli import main
from winnow.core import RunError, WinnowWarning
from winnow.experiment.run_folders import claim_folder, latest_path
from winnow.runs import RunFolder

PLOTLY = "plotly.js v"


@pytest.fixture(autouse=True)
def _somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    return write_tiny(tmp_path)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder in which tiny.toml was compared, into the folder `both`; and what was printed."""
    folder, printed = tmp_path_factory.mktemp("compared"), StringIO()
    tiny = write_tiny(folder)
    with chdir(folder), redirect_stdout(printed), pytest.raises(SystemExit) as left:
        main(["compare", tiny, "--seeds", "2", "--workers", "1", "--quiet", "--out", "both"])
    assert not left.value.code
    return folder, printed.getvalue()


@pytest.fixture
def both(compared: tuple[Path, str]) -> Path:
    """A copy of the comparison's folder."""
    return Path(shutil.copytree(compared[0] / "both", "both"))


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


# Numbers --------------------------------------------------------------------------------------------------------------


def test_runs_that_start_at_once_get_different_numbers():
    def claim(_: int) -> str:
        with claim_folder(Path("runs/same"), given=False) as folder:
            (folder / "something").touch()
        return folder.name

    with ThreadPoolExecutor(8) as threads:
        names = list(threads.map(claim, range(24)))
    assert sorted(names) == sorted(["same", *(f"same-{number}" for number in range(2, 25))])
    assert latest_path(Path("runs/same")).name == "same-24"


def test_a_run_that_never_starts_gives_its_number_back(capsys, tiny):
    refused = call(capsys, "run", tiny, "--set", "data.clients=5000")
    assert refused.code == 2
    assert not list(Path("runs").iterdir())
    Path("runs/tiny-fedprof-seed0").mkdir()  # of a process that was killed here, or is about to start
    assert json.loads(call(capsys, "run", tiny, "--json").out)["path"] == "runs/tiny-fedprof-seed0-2"
    resumed = call(capsys, "run", tiny, "--resume")
    assert "runs/tiny-fedprof-seed0-2 is already finished" in resumed.err


# Lists and tables -----------------------------------------------------------------------------------------------------


def test_runs_are_listed_with_what_became_of_them(capsys, tiny, both, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    call(capsys, "run", tiny, "--out", "runs/alone", "--seed", 7)
    both.rename("runs/both")
    Path("runs/alone/result.json").unlink()
    Path("runs/both/fedprof-seed1/conditions.json").write_text("{")
    Path("runs/notes").mkdir()
    listed = call(capsys, "runs")
    rows = {line.split()[0]: line.split() for line in listed.out.splitlines()[2:]}
    assert set(rows) == {"alone", *(f"both/{name}" for name in ("fedprof-seed0", "fedavg-rp-seed0", "fedavg-rp-seed1"))}
    started = RunFolder.open(Path("runs/alone")).label.started
    assert rows["alone"][:4] == ["alone", "fedprof", "7", "2/2"]
    assert rows["alone"][5:] == ["not", "finished", *started[:16].split("T")]
    best = json.loads(Path("runs/both/fedprof-seed0/result.json").read_text())["best"]["value"]
    assert rows["both/fedprof-seed0"][4:6] == [f"{best:.4f}", "finished"]
    assert listed.err.count("\n") == 1
    assert "both/fedprof-seed1/conditions.json is damaged" in listed.err
    assert len(lines(call(capsys, "runs", "runs/both", "--json").out)) == 3
    assert call(capsys, "runs", "runs/notes").out == "there are no runs in runs/notes\n"
    assert call(capsys, "runs", "nowhere").err == "winnow: error: nowhere: no such folder\n"


def test_a_folder_of_runs_is_shown_as_the_comparison_that_it_is(capsys, compared, both):
    shown = call(capsys, "show", "both").out
    assert shown.splitlines()[0] == "tiny · seeds 0, 1"
    averaged = compared[1].partition("Paired by seed")[0]
    cells = {line for line in averaged.splitlines() if re.match(r" fed", line)}
    assert len(cells) == 2
    assert cells <= set(shown.splitlines())
    (both / "fedprof-seed1/result.json").unlink()
    assert call(capsys, "show", "both").out.splitlines()[-1] == "Not finished: both/fedprof-seed1"
    assert call(capsys, "report", "both").out == "both/report.html\n"


def test_runs_of_different_metrics_are_not_mixed_in_one_table(capsys, tiny):
    call(capsys, "run", tiny, "--out", "runs/one")
    call(capsys, "run", tiny, "--out", "runs/other", "--set", "name=other")
    shown = call(capsys, "show", "runs").out
    assert [line for line in shown.splitlines() if "seed" in line] == ["tiny · seed 0", "other · seed 0"]


def test_a_folder_without_runs_is_one_line(capsys):
    Path("empty").mkdir()
    for command in ("show", "report"):
        assert call(capsys, command, "empty").err == "winnow: error: empty contains no run: run.json is missing\n"


def test_json_has_one_shape(capsys, tiny):
    """A line for each run, with the entries of result.json and three more, whatever the command."""
    ran = lines(call(capsys, "run", tiny, "--out", "alone", "--json", "--quiet").out)
    both = lines(call(capsys, "compare", tiny, "--seeds", 1, "--workers", 1, "--out", "both", "--json", "--quiet").out)
    shown, listed = lines(call(capsys, "show", "both", "--json").out), lines(call(capsys, "runs", "both", "--json").out)
    reported = lines(call(capsys, "report", "alone", "--out", "page.html", "--json").out)
    for record in (*ran, *both, *shown, *listed, *reported):
        written = json.loads(Path(record["path"], "result.json").read_text())
        assert record == {"path": record["path"], "report": record["report"], "finished": True, **written}
    assert [record["report"] for record in (*ran, *reported)] == ["alone/report.html", "page.html"]
    assert {record["report"] for record in both} == {"both/report.html"}
    assert {record["path"] for record in shown} == {record["path"] for record in both}


def test_a_run_tells_when_and_from_which_commit_it_was_started(capsys, tiny):
    def started() -> str:
        call(capsys, "run", tiny, "--rounds", 1, "--quiet")
        return RunFolder.open(latest_path(Path("runs/tiny-fedprof-seed0"))).label.commit

    git = ["git", "-c", "user.name=me", "-c", "user.email=me@example.org"]
    assert started() == ""
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "add", "tiny.toml"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--message", "mine"], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout[:12]
    assert started() == commit
    Path(tiny).write_text(Path(tiny).read_text() + "\n")
    assert started() == f"{commit}-dirty"
    view = RunFolder.open(Path("runs/tiny-fedprof-seed0"))
    assert "torch" in view.label.machine
    assert datetime.fromisoformat(view.label.started) <= datetime.now(UTC)


# Reports --------------------------------------------------------------------------------------------------------------


def test_a_comparison_holds_one_copy_of_plotly_and_python_writes_the_same_files(capsys, tiny, both):
    pages = list(both.rglob("*.html"))
    assert pages == [both / "report.html"]
    assert pages[0].read_text().count(PLOTLY) == 1
    winnow.compare(tiny, seeds=2, out="python", progress=False)
    assert {p.relative_to("python") for p in Path("python").rglob("*")} == {
        p.relative_to("both") for p in Path("both").rglob("*")
    }
    ours, theirs = (json.loads(Path(out, "compare.json").read_text()) for out in ("python", "both"))
    assert ours == theirs
    assert call(capsys, "report", "both/fedprof-seed0").out == "both/fedprof-seed0/report.html\n"
    assert PLOTLY in Path("both/fedprof-seed0/report.html").read_text()
    with pytest.raises(RunError, match="python is not empty"):
        winnow.compare(tiny, seeds=1, out="python", progress=False)


@pytest.mark.parametrize("file", ["evaluation.json", "model.json", "model-card.md"])
def test_a_disk_that_is_full_at_the_end_costs_neither_the_run_nor_its_result(file, tiny, monkeypatch):
    replace = Path.replace

    def full(self, target):
        if Path(target).name == file:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        return replace(self, target)

    with monkeypatch.context() as disk:
        disk.setattr(Path, "replace", full)
        with pytest.warns(WinnowWarning, match="could not be written .*No space left on device.*the run is finished"):
            result = winnow.run(tiny, out="here", progress=False)
    assert result.best is not None
    assert Path("here", "result.json").is_file()
    again = winnow.run(tiny, out="here", resume=True, progress=False)
    assert again.best == result.best
    assert Path("here", "model.json").is_file()


def on_full_disk(capsys, *arguments: object) -> Outcome:
    """A command where no file may grow beyond a megabyte; a report is larger."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        return call(capsys, *arguments)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_costs_the_report_and_not_the_run(capsys, tiny):
    done = on_full_disk(capsys, "run", tiny, "--out", "here", "--quiet")
    assert done.code == 0
    assert "finished, 2 rounds" in done.out
    assert done.err == (
        "winnow: warning: the report could not be written (cannot use here/report.html: File too large); "
        "the run is finished; try: winnow report here\n"
    )
    assert {"report.html", "report.html.tmp"}.isdisjoint(path.name for path in Path("here").iterdir())
    assert "finished, 2 rounds" in call(capsys, "show", "here").out
    assert call(capsys, "report", "here").out == "here/report.html\n"

    both = on_full_disk(capsys, "compare", tiny, "--seeds", 1, "--workers", 1, "--out", "both", "--quiet")
    assert (both.code, both.err.count("\n")) == (0, 1)
    assert "the report could not be written" in both.err
    assert "fedavg-rp" in both.out
    assert "Report" not in both.out


def test_a_full_disk_is_told_in_python_too_and_leaves_a_finished_run_finished(tiny, monkeypatch):
    def full(*_: object) -> None:
        raise RunError("cannot use it: No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("winnow.explain.report_with_privacy.write_reports", full)
        with pytest.warns(WinnowWarning, match="the report could not be written .* the run is finished; try: winnow"):
            assert winnow.run(tiny, out="here", progress=False).best is not None
    assert RunFolder.open(Path("here")).result is not None
    with monkeypatch.context() as patched:
        patched.setattr("winnow.runs.folder.save_checkpoint", full)
        with pytest.raises(RunError, match="No space left"):
            winnow.run(tiny, out="here", resume=True, rounds=3, progress=False)
    assert RunFolder.open(Path("here")).result is not None


def test_where_a_model_cannot_be_written_there_is_one_line(capsys, tiny):
    large = ("--set", "model.name=mlp", "--set", "model.hidden=[5000]")
    done = on_full_disk(capsys, "run", tiny, "--out", "here", "--quiet", *large)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert done.err.startswith("winnow: error: cannot write here/")
    assert "not finished" in call(capsys, "show", "here").out
    assert call(capsys, "run", "here", "--resume", "--quiet").code == 0
    assert not list(Path("here").glob("*tmp*"))
