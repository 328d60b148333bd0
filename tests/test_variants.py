"""Variants: algorithms that a configuration file derives from named ones."""

import tomllib
from pathlib import Path

import pytest

import winnow
from command_line import call, write_tiny
from winnow.config.resolve import resolve
from winnow.experiment.comparison import all_algorithms_grid
from winnow.runs import RunFolder

VARIANT = """
[algorithms.fedprof.select]
alpha = 20.0

[algorithms."fedprof+adam"]
base = "fedprof"
server = { name = "adam", learning_rate = 0.02 }
client = { name = "proximal", mu = 0.1 }
"""


@pytest.fixture
def varied(tmp_path: Path, monkeypatch) -> str:
    monkeypatch.chdir(tmp_path)
    return write_tiny(tmp_path, VARIANT)


def test_a_variant_is_its_base_with_the_overlay_on_top(varied):
    base, variant = (resolve(varied, algorithm=name) for name in ("fedprof", "fedprof+adam"))
    by_hand = resolve(
        varied, sets=["server.name=adam", "server.learning_rate=0.02", "client.name=proximal", "client.mu=0.1"]
    )
    assert (variant.algorithm, variant.base) == ("fedprof+adam", "fedprof")
    assert variant.select == base.select
    assert variant.select.alpha == 20.0
    assert variant.model_copy(update={"algorithm": "fedprof", "base": None}) == by_hand


def test_options_win_over_a_variant(varied):
    assert resolve(varied, algorithm="fedprof+adam", sets=["server.learning_rate=0.5"]).server.learning_rate == 0.5


def test_it_is_called_by_its_name_everywhere(varied):
    comparison = winnow.compare(varied, algorithms="fedprof,fedprof+adam", seeds=1, out="both")
    assert [row.algorithm for row in comparison.table()] == ["fedprof", "fedprof+adam"]
    assert RunFolder.open(Path("both/fedprof+adam-seed0")).label.algorithm == "fedprof+adam"
    page = comparison.report("report.html").read_text("utf-8")
    assert "tiny: fedprof vs fedprof+adam" in page
    assert "fedprof+adam, seed 0: times each client was selected" in page


def test_the_stored_configuration_needs_the_file_no_more(capsys, varied):
    call(capsys, "run", varied, "--algorithm", "fedprof+adam", "--out", "one", "--quiet")
    call(capsys, "run", varied, "--algorithm", "fedprof+adam", "--rounds", 4, "--out", "whole", "--quiet")
    Path(varied).unlink()
    stored = tomllib.loads(Path("one/config.toml").read_text("utf-8"))
    assert (stored["algorithm"], stored["base"]) == ("fedprof+adam", "fedprof")
    assert (stored["server"]["name"], stored["client"]["mu"], stored["select"]["alpha"]) == ("adam", 0.1, 20.0)

    done = call(capsys, "run", "one", "--resume", "--rounds", 4, "--quiet")

    assert done.code == 0, done.err
    assert Path("one/events.jsonl").read_bytes() == Path("whole/events.jsonl").read_bytes()
    again = call(capsys, "run", "one/config.toml", "--out", "again", "--quiet")
    assert again.code == 0, again.err
    assert Path("again/events.jsonl").read_bytes() == Path("whole/events.jsonl").read_bytes()


def test_a_variant_needs_no_file():
    options = {"algorithm": "fedprof+adam", "server": {"name": "adam"}}
    from_python = winnow.run("demo", base="fedprof", rounds=1, **options).experiment
    sets = ["algorithm=fedprof+adam", "base=fedprof", "server.name=adam"]
    assert resolve("demo", sets=sets, rounds=1).server == from_python.server
    assert from_python.algorithm == "fedprof+adam"


def test_all_are_compared_with_the_variants(varied):
    experiments, _ = all_algorithms_grid(varied, seeds=1)
    assert {"fedavg", "fedprof", "fedprof+adam"} <= {each.algorithm for each in experiments}


@pytest.mark.parametrize(
    ("overlay", "message"),
    [
        ('[algorithms.mine]\nbase = "fedprf"', "algorithms.mine.base = 'fedprf' is unknown; did you mean 'fedprof'?"),
        (
            '[algorithms.mine]\nbase = "fedprof"\n[algorithms.other]\nbase = "mine"',
            "algorithms.other.base = 'mine' is itself a variant; set base to a known algorithm",
        ),
        ("[algorithms.mine]\nbase = 3", "algorithms.mine.base = 3 is unknown; valid: "),
        ('[algorithms.fedprof]\nbase = "fedavg"', "'fedprof' is an algorithm; choose another name for the variant"),
        ('[algorithms."../mine"]\nbase = "fedavg"', "'../mine' is not a valid variant name"),
        ("[algorithms.fedprf.select]\nalpha = 3.0", "algorithms.fedprf: no such algorithm; did you mean 'fedprof'?"),
        ('[algorithms.mine]\nbase = "fedprof"\nserver = { name = "adan" }', "server.name = 'adan' is unknown"),
    ],
)
def test_a_mistake_is_one_line(capsys, tmp_path, overlay, message):
    done = call(capsys, "run", write_tiny(tmp_path, f"\n{overlay}\n"), "--algorithm", "mine")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert message in done.err


def test_an_unknown_name_is_compared_with_variants_too(capsys, varied):
    assert "did you mean 'fedprof+adam'?" in call(capsys, "run", varied, "--algorithm", "fedprof+adm").err
