"""winnow run, show and report: through the command line, against what lies in the folder."""

import json
import re
import shlex
import tomllib
from pathlib import Path

import numpy as np
import pytest

import winnow
from command_line import call, write_tiny
from winnow.core import ConfigError
from winnow.progress.live_display import Progress
from winnow.runs import RunFolder


@pytest.fixture(autouse=True)
def _somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    return write_tiny(tmp_path)


def record(folder: str | Path) -> dict:
    content = json.loads((Path(folder) / "result.json").read_text())
    del content["wall_seconds"]
    return content


def test_a_run_ends_with_its_result_and_where_it_is(capsys, tiny):
    done = call(capsys, "run", tiny, "--quiet")
    folder = "runs/tiny-fedprof-seed0"
    assert done.code == 0
    assert done.err == ""
    assert f"{record(folder)['best']['value']:.4f}" in done.out
    assert folder in done.out
    assert Path(folder, "report.html").is_file()


def test_json_is_the_result_file_and_nothing_else(capsys, tiny):
    done = call(capsys, "run", tiny, "--json")
    printed = json.loads(done.out)
    assert printed.pop("path") == "runs/tiny-fedprof-seed0"
    assert printed.pop("report") == "runs/tiny-fedprof-seed0/report.html"
    assert printed.pop("finished") is True
    assert printed == json.loads(Path("runs/tiny-fedprof-seed0/result.json").read_text())


def test_options_reach_the_stored_configuration(capsys, tiny):
    options = ("--set", "local.batch_size=16", "--set", "data.partition.name=iid", "--seed", 7, "--rounds", 1)
    assert call(capsys, "run", tiny, *options, "--algorithm", "fedavg-rp", "--out", "here").code == 0
    config = tomllib.loads(Path("here/config.toml").read_text())
    assert (config["local"]["batch_size"], config["seed"], config["rounds"]) == (16, 7, 1)
    assert config["algorithm"] == "fedavg-rp"
    assert config["select"]["name"] == "uniform"


def test_another_partition_leaves_the_former_ones_keys_behind(capsys):
    done = call(capsys, "run", "demo", "--rounds", 1, "--set", "data.partition.name=iid", "--out", "here", "--quiet")
    assert done.code == 0
    assert tomllib.loads(Path("here/config.toml").read_text())["data"]["partition"] == {"name": "iid"}


def test_a_taken_default_folder_is_left_alone(capsys, tiny):
    for expected in ("runs/tiny-fedprof-seed0", "runs/tiny-fedprof-seed0-2", "runs/tiny-fedprof-seed0-3"):
        assert json.loads(call(capsys, "run", tiny, "--json", "--rounds", 1).out)["path"] == expected


def test_resuming_a_finished_run_says_so_and_changes_nothing(capsys, tiny):
    call(capsys, "run", tiny, "--out", "here")
    before = Path("here/result.json").read_bytes()
    again = call(capsys, "run", "here", "--resume")
    assert again.code == 0
    assert "here is already finished; use --rounds to add rounds" in again.err
    assert "best accuracy" in again.out
    assert Path("here/result.json").read_bytes() == before


@pytest.mark.parametrize("source", ["folder", "file"])
def test_more_rounds_extend_a_finished_run_as_if_asked_for_at_once(capsys, tiny, source):
    call(capsys, "run", tiny, "--rounds", 4, "--out", "at-once")
    call(capsys, "run", tiny, "--rounds", 2, "--out", "extended")
    again = ("extended",) if source == "folder" else (tiny, "--out", "extended")
    assert call(capsys, "run", *again, "--resume", "--rounds", 4).code == 0
    assert record("extended") == record("at-once")
    for name in ("last.safetensors", "best.safetensors", "events.jsonl", "config.toml"):
        assert Path("extended", name).read_bytes() == Path("at-once", name).read_bytes(), name


def test_resume_begins_a_run_that_is_not_there(capsys, tiny):
    assert call(capsys, "run", tiny, "--out", "new", "--resume", "--quiet").code == 0
    assert record("new")["rounds"] == 2


def test_ctrl_c_says_how_to_resume_and_the_resumed_run_is_the_uninterrupted_one(capsys, tiny, monkeypatch):
    call(capsys, "run", tiny, "--rounds", 4, "--out", "whole")
    with monkeypatch.context() as patched:
        patched.setattr(Progress, "on_event", _interrupt_in_round(3))
        patched.setattr("winnow.experiment.run.CHECKPOINT_SECONDS", 0.0)
        stopped = call(capsys, "run", tiny, "--rounds", 4, "--out", "cut")
    assert stopped.code == 130
    assert "continue with: winnow run ./cut --resume" in stopped.err
    assert "Traceback" not in stopped.err
    assert "not finished" in call(capsys, "show", "cut").out
    assert call(capsys, "run", "cut", "--resume").code == 0
    assert record("cut") == record("whole")
    assert Path("cut/last.safetensors").read_bytes() == Path("whole/last.safetensors").read_bytes()


def _interrupt_in_round(number):
    def on_event(self, event):
        if event.round == number:
            raise KeyboardInterrupt

    return on_event


def test_a_bug_keeps_its_traceback_and_does_not_advise_to_meet_it_again(capsys, tiny, monkeypatch):
    def on_event(self, event):
        raise ZeroDivisionError

    monkeypatch.setattr(Progress, "on_event", on_event)
    from winnow.cli import main

    with pytest.raises(ZeroDivisionError) as bug:
        main(["run", tiny, "--out", "here"])
    assert not getattr(bug.value, "__notes__", [])
    assert "--resume" not in capsys.readouterr().err


def test_numbers_are_text_where_text_is_meant(capsys, tiny):
    split = ("--algorithm", "fedper", "--set", "name=7", "--set", "rounds=1")
    with_hidden = ("--set", "model={name='mlp', hidden=[8]}")
    assert call(capsys, "run", tiny, *split, *with_hidden, "--set", "client.cut=3", "--out", "here").code == 0
    written = tomllib.loads(Path("here/config.toml").read_text())
    assert (written["client"]["cut"], written["name"], written["rounds"]) == ("3", "7", 1)
    assert "finished, 1 round\n" in call(capsys, "show", "here").out


def test_a_method_without_its_layers_says_so(capsys, tiny):
    said = call(capsys, "run", tiny, "--algorithm", "fedbn", "--set", "rounds=1").err
    assert "the model has no batch normalisation; fedbn behaves like fedavg-rp" in said


@pytest.mark.parametrize("out", ["demo", "two words", "runs/deep/down", "mine.toml", "../beside"])
def test_the_command_that_continues_a_run_can_be_pasted(capsys, tiny, monkeypatch, tmp_path, out):
    (tmp_path / "the data").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with monkeypatch.context() as patched:
        patched.setattr(Progress, "on_event", _interrupt_in_round(1))
        stopped = call(capsys, "run", tiny, "--out", out, "--data", tmp_path / "the data")
    command = shlex.split(stopped.err.strip().partition("continue with: ")[2])
    assert command[0] == "winnow"
    assert Path(command[-1]) == tmp_path / "the data"
    assert call(capsys, *command[1:]).code == 0
    assert record(out)["rounds"] == 2


@pytest.mark.parametrize("command", ["run", "compare"])
def test_ctrl_c_before_the_run_began_says_so(capsys, tiny, monkeypatch, command):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("winnow.config.resolve.experiment_from_table", interrupted)
    stopped = call(capsys, command, tiny)
    assert (stopped.code, stopped.out, stopped.err) == (130, "", "winnow: stopped before the run started\n")
    assert not Path("runs").exists()


MISTAKES = {
    "preset": (("run", "demmo"), "no preset 'demmo'; did you mean 'demo'?"),
    "file": (("run", "nowhere.toml"), "nowhere.toml: no such file"),
    "kind of file": (
        ("run", "table.xlsx"),
        "table.xlsx: tables come as .npz, .csv, .csv.gz, .parquet files, and configurations as .toml",
    ),
    "algorithm": (("run", "demo", "--algorithm", "fedpro"), "fedpro' is unknown; did you mean 'fedprof' or 'fedprox'?"),
    "key": (("run", "demo", "--set", "local.epoch=2"), "unknown key local.epoch; did you mean 'epochs'?"),
    "type": (("run", "demo", "--set", "rounds=many"), "rounds = 'many': must be a whole number"),
    "impossible": (("run", "demo", "--set", "select.fraction=2"), "select.fraction = 2: must be at most 1"),
    "member": (
        ("run", "demo", "--set", "model.name=mpl"),
        "model.name = 'mpl' is unknown; did you mean 'mlp'?\n",
    ),
    "missing": (
        ("run", "demo", "--set", "collect.name=homomorphic"),
        "collect.key_holder is missing: the number of the client that holds the key",
    ),
    "missing in a name": (
        ("run", "demo", "--set", "select.profile_comparison=noisy"),
        "select.profile_comparison.noise_multiplier is missing: the noise's standard deviation",
    ),
    "numbers": (
        (
            "run",
            "demo",
            "--set",
            "collect={name='secure', keeper=true, encoding={name='product-quantisation', codewords=300}}",
        ),
        "collect.encoding.codewords = 300 is unknown; valid: 2, 4, 8, 16, 32, 64, 128, 256",
    ),
    "word in a list": (
        ("run", "demo", "--set", "quality.evidence=['updates', 'label']"),
        "quality.evidence[1] = 'label' is unknown; did you mean 'labels'?\n",
    ),
    "word in a list, far from all": (
        ("run", "demo", "--set", "quality.evidence=['zzz']"),
        "quality.evidence[0] = 'zzz' is unknown; valid: columns, contribution, inputs, labels, updates\n",
    ),
    "large": (("run", "demo", "--set", "model.hidden=[70000]"), "model.hidden[0] = 70000: must be at most 65536"),
    "width": (("run", "demo", "--set", "model.hidden=[-5]"), "model.hidden[0] = -5: must be at least 1"),
    "setting without effect": (("run", "demo", "--set", "data.task=regression"), "data.task has no effect on"),
    "data set of a comparison": (
        ("compare", "demo", "--set", "data.name=digts"),
        "unknown data set 'digts'; did you mean",
    ),
    "file of a comparison": (("compare", "demo", "--set", "data.path=no.csv"), "there is no file"),
    "data set": (("run", "demo", "--set", "data.name=digit"), "unknown data set 'digit'; did you mean 'digits'?"),
    "no equals sign": (("run", "demo", "--set", "rounds"), "--set rounds: write it as key.path=value"),
    "nothing to resume": (("run", "runs/none", "--resume"), "runs/none contains no run"),
    "folder without resume": (("run", "."), "add --resume to continue the run in it"),
    "show": (("show", "nowhere"), "nowhere contains no run"),
    "report": (("report", "nowhere"), "nowhere contains no run"),
    "preset to show": (("presets", "show", "demmo"), "no preset 'demmo'; did you mean 'demo'?"),
    "data to get": (("data", "get", "mnst"), "unknown data set 'mnst'; did you mean 'mnist'?"),
    "seeds": (("compare", "demo", "--seeds", "one"), "--seeds one: write a count such as 5, or a list such as 3,7,11"),
    "seed twice": (("compare", "demo", "--seeds", "1,1"), "seeds: 1, 1 contains a duplicate"),
    "member far from all": (
        ("run", "demo", "--set", "model.name=zzz"),
        "model.name = 'zzz' is unknown; valid: adapter, cnn, efficientnet-lite0, ensemble, lenet5, linear, lstm, mlp"
        ", phones, python, resnet18, shufflenet-v2, word-mean\n",
    ),
    "list": (("run", "demo", "--set", "model.hidden=3"), "model.hidden = 3: must be a list, such as [64, 32]"),
    "list of tables": (("run", "demo", "--set", "data.corruptions=3"), "data.corruptions = 3: must be a list, in br"),
    "two mistakes": (
        ("run", "demo", "--set", "rounds=many", "--set", "select.alpha=x"),
        "rounds = 'many': must be a whole number; select.alpha = 'x': must be a number\n",
    ),
    "key of another member": (
        ("run", "demo", "--algorithm", "fedavg", "--set", "select.profile_comparison=plain"),
        "unknown key select.profile_comparison; it belongs to select.name = 'profile'",
    ),
    "layer that looks like a number": (
        ("run", "demo", "--set", "select.layer=9"),
        "select.layer: the model has no layer '9'; valid: '0', '1',",
    ),
    "cut that looks like a number": (
        ("run", "demo", "--algorithm", "fedper", "--set", "client.cut=1.10"),
        "client.cut: the model has no layer '1.10'",
    ),
    "all of it private": (
        ("run", "demo", "--algorithm", "fedper", "--set", "client.names=['*']"),
        "client.names: the head would be the whole model; let client.names match fewer entries",
    ),
    "private layer": (
        ("run", "demo", "--set", "client={name='split', cut='3'}", "--set", "select.layer=3"),
        "select.layer: layer '3' belongs to the private part of the model",
    ),
    "more awaited than at work": (
        ("run", "demo", "--algorithm", "fedbuff", "--set", "select.count=4", "--set", "schedule.buffer_size=5"),
        "schedule.buffer_size = 5, but only 4 clients train at a time",
    ),
    "algorithms of a run": (
        ("run", "demo", "--algorithm", "fedprof,fedavg"),
        "compare several with: winnow compare --algorithms fedprof,fedavg",
    ),
    "algorithms without commas": (
        ("compare", "demo", "--algorithms", "fedprof fedavg"),
        "compare several with: winnow compare --algorithms fedprof,fedavg",
    ),
    "some and all": (
        ("compare", "demo", "--algorithms", "fedprof", "--all"),
        "--all and --algorithms cannot be combined;",
    ),
    "no algorithm": (("compare", "demo", "--algorithms", ""), "algorithms: give at least one"),
    "preset in the place of a command": (("presets", "demo"), "did you mean: winnow presets show demo"),
    "rival": (("compare", "demo", "--algorithms", "fedprof,fedavgg"), "did you mean 'fedavg'?"),
    "too few rounds": (("run", "demo", "--rounds", "-3"), "error: --rounds: -3 is "),
    "rounds that are no number": (("run", "demo", "--rounds", "a\nbc"), "error: --rounds: a bc is "),
    "negative seed": (("run", "demo", "--seed", "-1"), "error: --seed: -1 is "),
    "no workers": (("compare", "demo", "--workers", "0"), "; see winnow compare --help"),
    "unknown option": (("run", "demo", "--round", "5"), "there is no option --round; did you mean --rounds?"),
    "strange option": (("run", "demo", "--zqx"), "there is no option --zqx; see winnow run --help"),
    "unknown command": (("rnu", "demo"), "there is no command rnu; did you mean run?"),
    "strange command": (("local", "zqx"), "there is no command zqx; see winnow local --help"),
    "nothing to run": (("run",), "PRESET_OR_FILE is missing; see winnow run --help"),
    "no kit": (("jobs",), "--kit is missing; give it, or set WINNOW_KIT; see winnow jobs --help"),
    "option without its value": (("run", "demo", "--rounds"), "--rounds requires an argument"),
    "too many words": (("version", "now"), "(now); see winnow version --help"),
}


@pytest.mark.parametrize(("arguments", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_one_line(capsys, arguments, message):
    refused = call(capsys, *arguments)
    assert refused.code == 2
    assert refused.out == ""
    assert refused.err.count("\n") == 1
    assert refused.err.startswith("winnow: error: ")
    assert message in refused.err


def test_mistakes_in_a_file_name_the_file(capsys, tmp_path):
    path = write_tiny(tmp_path, "lerning_rate = 0.1\n")
    refused = call(capsys, "run", path)
    assert refused.err.startswith(
        f"winnow: error: {path}: unknown key local.lerning_rate; did you mean 'learning_rate'?"
    )
    Path(path).write_text("rounds = = 3")
    assert f"{path}: not valid TOML" in call(capsys, "run", path).err
    Path(path).write_bytes(b"\xff\xfe")
    assert f"{path} is not UTF-8 text; save it as UTF-8" in call(capsys, "run", path).err


@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_folder_that_cannot_be_made_is_one_line(capsys, tiny, command):
    Path("file").write_text("")
    refused = call(capsys, command, tiny, "--out", "file/below", "--quiet")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "Not a directory; file is a file, and a folder is needed here" in refused.err


def test_a_damaged_configuration_is_one_line(capsys, tiny):
    call(capsys, "run", tiny, "--out", "here")
    for damage in (b"rounds = [", b"\xff\xfe\x00"):
        Path("here/config.toml").write_bytes(damage)
        refused = call(capsys, "run", "here", "--resume")
        assert (refused.code, refused.err.count("\n")) == (2, 1)
        assert "config.toml is damaged" in refused.err


DAMAGES = {
    "conditions without labels": ("conditions.json", '{"a": 1}'),
    "conditions of no label": ("conditions.json", '{"labels": ["clean"], "of_client": [0, 0, 0, 0, 0, 7]}'),
    "conditions of too few": ("conditions.json", '{"labels": ["clean"], "of_client": [0]}'),
    "no conditions": ("conditions.json", None),
    "no object": ("conditions.json", "[]"),
    "label of another type": ("run.json", '{"schema": 1, "name": 7, "algorithm": "a", "seed": 0, "metric": "r2"}'),
    "target of another type": (
        "run.json",
        '{"schema": 1, "name": "x", "algorithm": "a", "seed": 0, "metric": "r2", "target": "high"}',
    ),
    "result of another type": ("result.json", '{"rounds": "two"}'),
    "no events": ("events.jsonl", None),
    "empty events": ("events.jsonl", ""),
}


@pytest.mark.parametrize(("name", "content"), DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_folder_is_one_line(capsys, tiny, name, content):
    call(capsys, "run", tiny, "--out", "here")
    Path("here", name).unlink()
    if content is not None:
        Path("here", name).write_text(content)
    for command in (("show", "here"), ("report", "here")):
        refused = call(capsys, *command)
        assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1), command
        assert "here" in refused.err


def test_a_finished_run_that_lost_events_is_refused_wherever_it_is_read(capsys, tiny):
    call(capsys, "run", tiny, "--out", "here")
    events = Path("here/events.jsonl").read_bytes().splitlines(keepends=True)
    Path("here/events.jsonl").write_bytes(b"".join(events[:-1]))
    for command in (("show", "here"), ("report", "here"), ("run", "here", "--resume", "--quiet")):
        refused = call(capsys, *command)
        assert (refused.code, refused.out) == (2, "")
        assert "events.jsonl is damaged: it is missing or shorter than after round 2" in refused.err


def test_a_folder_in_use_is_refused(capsys, tiny):
    call(capsys, "run", tiny, "--out", "here")
    folder, _ = RunFolder.resume(Path("here"))
    with folder:
        refused = call(capsys, "run", "here", "--resume", "--rounds", 9)
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "is in use by another process" in refused.err


def test_another_run_than_the_stored_one_is_refused(capsys, tiny):
    call(capsys, "run", tiny, "--out", "here")
    other = call(capsys, "run", tiny, "--set", "local.epochs=2", "--out", "here", "--resume")
    assert (other.code, "holds a run with a different local" in other.err) == (2, True)
    fewer = call(capsys, "run", "here", "--resume", "--rounds", 1)
    assert (fewer.code, "holds a run of 2 rounds" in fewer.err) == (2, True)
    changed = call(capsys, "run", "here", "--resume", "--seed", 1)
    assert (changed.code, "remove --seed" in changed.err) == (2, True)


OWN_TABLE = "age,dose,hospital,price\n" + "".join(
    f"{row % 17},{row % 5},{row % 3},{row % 17 - 2 * (row % 5)}.5\n" for row in range(120)
)
BY_HOSPITAL = ("--set", "data.owner=hospital")


def test_a_table_of_ones_own_runs_once_the_column_to_predict_is_named(capsys):
    Path("my prices.csv").write_text(OWN_TABLE)
    unnamed = call(capsys, "run", "my prices.csv")
    assert (unnamed.code, unnamed.err.count("\n")) == (2, 1)
    command = re.search(r"for example: winnow (.*) \(columns: age, dose, hospital, price\)", unnamed.err)
    assert command is not None
    assert shlex.split(command[1]) == ["run", "my prices.csv", "--targets", "price"]
    ran = json.loads(call(capsys, *shlex.split(command[1]), "--rounds", 2, "--json", "--quiet").out)
    assert (ran["name"], ran["metric"], ran["path"]) == ("my prices", "r2", "runs/my-prices-fedprof-seed0")
    both = call(
        capsys, "compare", "my prices.csv", "--targets", "price,dose", "--seeds", 1, "--rounds", 1, "--workers", 1
    )
    assert both.code == 0
    config = tomllib.loads(Path("runs/compare-my-prices/fedprof-seed0/config.toml").read_text())
    assert config["data"]["targets"] == ["price", "dose"]


def test_a_program_says_how_it_is_run(capsys):
    Path("mine.py").write_text("import winnow\n")
    for command in ("run", "compare"):
        refused = call(capsys, command, "mine.py")
        assert (refused.code, refused.err.count("\n")) == (2, 1)
        for way in ("python mine.py", "winnow local run mine.py", "winnow submit mine.py --kit KIT"):
            assert way in refused.err


def test_devices_that_nobody_described_take_no_time_and_no_energy(capsys):
    """Hospitals are no phones: neither lines nor tables nor the report tell of device time and energy."""
    Path("own.csv").write_text(OWN_TABLE)
    words = ("device time", "device seconds", r"\bWh\b", "energy", "joules")

    def told(folder: str, *more: str) -> dict[str, bool]:
        table = ("run", "own.csv", "--targets", "price", "--rounds", 2, *BY_HOSPITAL, "--out", folder, *more)
        ran, shown = call(capsys, *table).out, call(capsys, "show", folder).out
        whole = Path(folder, "report.html").read_text()
        page = re.sub(r"<(script|style|details)[ >].*?</\1>", "", whole, flags=re.DOTALL)
        return {word: bool(re.search(word, f"{ran} {shown} {page}", re.IGNORECASE)) for word in words}

    assert told("hospitals") == dict.fromkeys(words, False)
    assert told("phones", "--set", "fleet.dropout=0.0") == dict.fromkeys(words, True)
    result = record("hospitals")
    assert (result["seconds"], result["wh"], result["cost"]["training_joules"]) == (0.0, 0.0, 0.0)
    assert result["cost"]["sent_bytes"] > 0
    assert record("phones")["best"] == result["best"], "the models are the same"
    assert call(capsys, "run", "hospitals", "--resume", "--rounds", 3).code == 0
    assert record("hospitals")["seconds"] == 0.0


def test_progress_tells_of_devices_only_where_there_are_any(capsys, monkeypatch):
    monkeypatch.setattr("winnow.progress.live_display.SECONDS_BETWEEN_LINES", -1.0)
    Path("own.csv").write_text(OWN_TABLE)
    lines = call(capsys, "run", "own.csv", "--targets", "price", "--rounds", 2, *BY_HOSPITAL).err
    assert "round 2/2" in lines
    assert "device" not in lines
    assert "3 selected" in lines, "all of them: there are few"
    assert "device" in call(capsys, "run", "demo", "--rounds", 2).err


def test_a_number_for_select_is_a_share_or_a_count(capsys, tiny):
    for said, stored in (("0.5", {"fraction": 0.5}), ("3", {"count": 3}), ("1.0", {"fraction": 1.0})):
        call(capsys, "run", tiny, "--set", f"select={said}", "--set", "select.alpha=2.0", "--out", said, "--rounds", 1)
        select = tomllib.loads(Path(said, "config.toml").read_text())["select"]
        assert {key: select[key] for key in ("fraction", "count") if key in select} == stored
        assert select["alpha"] == 2.0
    refused = call(capsys, "run", tiny, "--set", "select=1")
    assert "one client or all of them; write select.count = 1 or select = 1.0" in refused.err


def test_show_tells_costs_and_participation(capsys, tmp_path):
    tiny = write_tiny(tmp_path, '[[data.corruptions]]\nname = "noise"\nfraction = 0.5\n')
    call(capsys, "run", tiny, "--out", "here")
    shown = call(capsys, "show", "here").out
    for word in ("transfer", "training", "profiling", "clean", "noise"):
        assert word in shown
    assert json.loads(call(capsys, "show", "here", "--json").out)["best"] == record("here")["best"]


def test_a_joint_report_goes_where_it_is_told(capsys, tiny):
    for seed in (0, 1):
        call(capsys, "run", tiny, "--seed", seed, "--out", f"seed{seed}")
    done = call(capsys, "report", "seed0", "seed1", "--out", "both.html")
    assert done.out.strip() == "both.html"
    assert "<html" in Path("both.html").read_text()[:500]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("report", "run", "--out", "good.csv"), "--out good.csv: it is written as .html; name the file good.html"),
        (("report", "run", "--out", "nope/x.html"), "--out nope/x.html: there is no folder nope; create it"),
        (("report", "run", "--out", "folder.html"), "--out folder.html: this is a folder; name a file"),
        (("export", "run", "--onnx", "good.csv"), "--onnx good.csv: it is written as .onnx; name the file good.onnx"),
        (("export", "run", "--torchscript", "run/best.safetensors"), "best.safetensors: it is written as .pt or"),
        (("clients", "run", "--out", "good.csv"), "--out good.csv: this file holds another table"),
        (("clients", "run", "--out", "run/metrics.csv"), "this file belongs to the run or model in run"),
        (("predict", "run", "rows.npz", "--out", "good.csv"), "--out good.csv: this file holds another table"),
        (("predict", "run", "rows.npz", "--out", "run/metrics.csv"), "this file belongs to the run or model in run"),
        (
            ("run", "tiny.toml", "--out", "good.csv"),
            "cannot use good.csv: File exists; good.csv is a file, and a folder",
        ),
    ],
)
def test_no_command_writes_over_a_file_of_the_user_or_the_run(capsys, tiny, command, words):
    call(capsys, "run", tiny, "--out", "run", "--quiet")
    Path("good.csv").write_text("age,diagnosis\n71,ill\n")
    Path("folder.html").mkdir()
    np.savez("rows.npz", x=np.full((3, 1, 8, 8), 8.0))
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    refused = call(capsys, *command)
    assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1), refused.err
    assert words in refused.err
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before


def test_what_a_command_wrote_it_may_write_again(capsys, tiny):
    call(capsys, "run", tiny, "--out", "run", "--quiet")
    np.savez("rows.npz", x=np.full((3, 1, 8, 8), 8.0))
    for _ in range(2):
        assert call(capsys, "clients", "run", "--out", "clients.csv").code == 0
        assert call(capsys, "predict", "run", "rows.npz", "--out", "predicted.csv").code == 0
        assert call(capsys, "report", "run", "--out", "run/report.html").code == 0


def test_python_refuses_the_same_files(tiny):
    result = winnow.run(tiny, progress=False)
    for write, name in ((result.report, "x.csv"), (result.export_onnx, "x.csv"), (result.export_torchscript, "x.csv")):
        with pytest.raises(ConfigError, match=r"^x\.csv: it is written as"):
            write(name)
    assert not Path("x.csv").exists()
