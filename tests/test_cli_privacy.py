"""What the end of a run says of privacy: what it cost, within what, why it stopped, and what undoes it."""

import json
from pathlib import Path

import pytest

from command_line import call, write_tiny
from winnow.runs import RunFolder

CENTRAL = ("--algorithm", "fedavg", "--set", "collect.name=central-dp", "--set", "collect.clip=1.0")
BUDGET = ("--set", "collect.noise_multiplier=1.0", "--set", "collect.delta=0.001", "--set", "collect.epsilon=8")


@pytest.fixture
def stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A run of twenty rounds in which every client takes part: its budget does not last for them."""
    out = tmp_path / "stopped"
    everyone = ("--set", "select.fraction=1.0", "--rounds", 20, "--quiet", "--out", out)
    assert call(capsys, "run", write_tiny(tmp_path), *CENTRAL, *BUDGET, *everyone).code == 0
    return out


def test_an_epsilon_is_shown_with_its_budget_and_delta(stopped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = json.loads((stopped / "result.json").read_text())
    assert record["privacy_budgets"] == {"epsilon": {"delta": 0.001, "budget": 8.0}}
    shown = call(capsys, "show", stopped).out
    assert f"{record['privacy']['epsilon']:.4g} of 8, at δ = 0.001" in shown
    assert f"stopped after {record['rounds']} of 20 rounds" in shown
    assert f"ε {record['privacy']['epsilon']:.3g} of 8, at δ = 0.001" in call(capsys, "explain", stopped).out


@pytest.mark.parametrize("more", [(), ("--rounds", 30)])
def test_a_run_whose_budget_is_spent_cannot_go_on(
    stopped: Path, capsys: pytest.CaptureFixture[str], more: tuple[str | int, ...]
) -> None:
    before = {path.name: path.read_bytes() for path in stopped.iterdir()}
    again = call(capsys, "run", stopped, "--resume", *more)
    spent = json.loads((stopped / "result.json").read_text())["privacy"]["epsilon"]
    assert again.code == 0
    assert (
        f"has spent its privacy budget (ε {spent:.3g}) and cannot continue: collect.epsilon = 8 does not last"
        in again.err
    )
    assert {path.name: path.read_bytes() for path in stopped.iterdir()} == before


def test_its_report_tells_what_was_spent_and_who_learns_what(stopped: Path) -> None:
    text = (stopped / "report.html").read_text(encoding="utf-8")
    section = text.partition("<h2>Privacy</h2>")[2].partition("</section>")[0]
    spent = json.loads((stopped / "result.json").read_text())["privacy"]["epsilon"]
    assert f"<td>{spent:.4g}</td><td>8</td><td>0.001</td>" in section
    assert "does not last for round" in section
    assert "who learns what" in section.lower()
    assert "whoever gets the result" in section


def test_a_secure_run_in_vain_says_so_and_counts_each_reply_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "vain"
    secure = (
        "--set",
        "collect.name=secure",
        "--set",
        "collect.min_clients=2",
        "--set",
        "collect.max_weight_share=0.01",
    )
    done = call(capsys, "run", write_tiny(tmp_path), "--algorithm", "fedavg", *secure, "--rounds", 2, "--out", out)
    assert done.code == 0
    events = list(RunFolder.open(out).events())
    invited = sum(len(event.clients) for event in events if event.kind == "selected")
    record = json.loads((out / "result.json").read_text())
    assert record["rejected"] == invited
    assert record["abandoned"]["rounds"] == 2
    assert "2 of 2 rounds were abandoned: " in " ".join(done.out.split())
    assert all("collect.max_weight_share" in reason for reason in record["abandoned"]["reasons"])
    page = (out / "report.html").read_text()
    assert "rounds were abandoned" in page.partition("<h2>Rejected replies</h2>")[2]
    assert "rounds were abandoned" not in page.partition("<h2>Rejected replies</h2>")[0]


def test_warnings_are_counted_where_a_run_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny, secure = write_tiny(tmp_path), ("--set", "collect.name=secure", "--set", "collect.min_clients=2")
    done = call(capsys, "run", tiny, "--algorithm", "fedprof", *secure, "--quiet", "--out", tmp_path / "run")
    warnings = json.loads(call(capsys, "explain", tmp_path / "run", "--json").out)["warnings"]
    assert warnings
    assert done.err.strip().startswith(f"{len(warnings)} privacy warning")
    assert done.err.strip().endswith(f": winnow explain {tmp_path / 'run'}")
    assert call(capsys, "run", tiny, "--algorithm", "fedavg", "--quiet", "--out", tmp_path / "plain").err == ""


def test_bytes_are_those_of_the_replies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Plain averaging moves the model down and up, once for each invited client."""
    out = tmp_path / "run"
    shown = call(capsys, "run", write_tiny(tmp_path), "--algorithm", "fedavg", "--quiet", "--out", out).out
    record = json.loads((out / "result.json").read_text())
    moved = record["selections"] * record["message_bytes"]
    assert (record["cost"]["sent_bytes"], record["cost"]["received_bytes"]) == (moved, moved)
    assert "per client and round" in shown
    header, *rows = (out / "metrics.csv").read_text().splitlines()
    assert header.endswith("sent_bytes,received_bytes")
    assert rows[-1].endswith(f"{moved},{moved}")
