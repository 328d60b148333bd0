"""`winnow query` against a server that swaps answers, makes them up, or sends what nobody could."""

import json
import readline
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lying_server import LyingServer

from command_line import Outcome, call
from winnow.core import RunError, WinnowError
from winnow.deploy.client.connection import connect
from winnow.deploy.client.submit_question import check_answers, read_answer
from winnow.deploy.wire.messages import SubmitJob

SQL = "SELECT ward, COUNT(*) AS n FROM stays GROUP BY ward"
ANSWER: dict[str, Any] = {
    "kind": "query",
    "table": "stays",
    "sql": SQL,
    "owners": ["plant-a", "plant-b"],
    "minimum": 10,
    "columns": ["ward", "n"],
    "rows": [{"ward": "eyes", "n": 12}],
    "errors": [{}],
    "left_out": 0,
    "hidden_values": 0,
    "unlisted_rows": False,
    "plan": ["\x1b[2Jcount rows"],
}
STEP = {"kind": "round_finished", "round": 1, "at": 0, "version": 1, "aggregated": [], "loss": 0, "joules": 0}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LyingServer]:
    with LyingServer(tmp_path_factory.mktemp("liar")).running() as server:
        yield server


@pytest.fixture
def server(running: LyingServer) -> LyingServer:
    running.answer, running.job, running.jobs, running.lines, running.table = ANSWER, {}, 1, (), "stays"
    running.heard.clear()
    return running


def ask(capsys: pytest.CaptureFixture[str], server: LyingServer, *options: object) -> Outcome:
    """What the command says, which is a line or an answer, and steers no terminal."""
    done = call(capsys, "query", SQL, "--kit", server.kit, *options)
    assert "\x1b" not in done.out + done.err
    return done


def refused(capsys: pytest.CaptureFixture[str], server: LyingServer, *options: object) -> str:
    done = ask(capsys, server, *options)
    assert (done.code, done.out) == (2, "")
    last = done.err.splitlines()[-1]
    assert last.startswith("winnow: error: ")
    return last.removeprefix("winnow: error: ")


def test_an_honest_answer_is_shown(capsys: pytest.CaptureFixture[str], server: LyingServer) -> None:
    assert "eyes  12" in ask(capsys, server).out
    with connect(server.kit) as connection:
        answer = connection.query(SQL)
    assert answer.explain() == "?[2Jcount rows"


@pytest.mark.parametrize(("offered", "completed"), [("stays", ["stays"]), ("stays\x1b[2J", []), ("s" * 101, [])])
def test_the_prompt_completes_tables_that_sites_offer_if_they_are_names(
    capsys: pytest.CaptureFixture[str],
    server: LyingServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    offered: str,
    completed: list[str],
) -> None:
    def leave(shown: str) -> str:
        raise EOFError

    simulated = '[tables.simulated]\nfile = "rows.csv"\nowner = "clinic"\ncolumns = { clinic = "public" }\n'
    (tmp_path / "federation.toml").write_text(simulated)
    (tmp_path / "rows.csv").write_text("clinic\na\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("builtins.input", leave)
    server.table = offered
    done = call(capsys, "query", "-i", "--kit", server.kit)
    assert done.code == 0
    assert "\x1b" not in done.out + done.err
    complete = readline.get_completer()
    assert complete is not None
    words = [word for state in range(100) if (word := complete("s", state)) is not None]
    assert words == [*completed, "SELECT", "SUM("]


@pytest.mark.parametrize(
    ("change", "options"),
    [
        ({"sql": "SELECT ward, COUNT(*) AS n FROM stays WHERE age > 60 GROUP BY ward"}, ()),
        ({"kind": "statistics"}, ()),
        ({"table": "other"}, ()),
        ({"epsilon": 1.0, "delta": 1e-6}, ()),
        ({}, ("--epsilon", "1")),
        ({"epsilon": 2.0, "delta": 1e-6}, ("--epsilon", "1")),
        ({"epsilon": 1.0, "delta": 1e-3}, ("--epsilon", "1")),
        ({"sql": "SELECT 1"}, ("--explain",)),
    ],
)
def test_the_answer_to_another_question_is_not_shown(
    capsys: pytest.CaptureFixture[str], server: LyingServer, change: dict[str, Any], options: tuple[str, ...]
) -> None:
    server.answer = {**ANSWER, **change}
    assert refused(capsys, server, *options) == "the server sent the answer to another question; nothing is shown"


@pytest.mark.parametrize(
    ("owners", "line"),
    [
        (["plant-a", "spy\x1b[2J"], "the answer is about spy?[2J, who was not asked; nothing is shown"),
        (["plant-a"], "the answer is about 1 of the 2 owners who were asked; nothing is shown"),
        (["plant-a", "plant-a"], "the answer is about 1 of the 2 owners who were asked; nothing is shown"),
        ([], "the answer is about 0 of the 2 owners who were asked; nothing is shown"),
        ("plant-a", "the server's answer does not say whose rows it is about; nothing is shown"),
    ],
)
def test_an_answer_is_about_those_who_were_asked(
    capsys: pytest.CaptureFixture[str], server: LyingServer, owners: Any, line: str
) -> None:
    server.answer = {**ANSWER, "owners": owners}
    assert refused(capsys, server) == line


def test_two_owners_may_stand_beside_a_helper_and_three_may_not_lose_one() -> None:
    from winnow.analytics.sql.query_question import QueryQuestion

    question = QueryQuestion.model_validate({"sql": SQL})
    check_answers(question, {**ANSWER, "owners": ["a", "b"]}, ("a", "b", "helper"))
    with pytest.raises(RunError, match="about 3 of the 4 owners"):
        check_answers(question, {**ANSWER, "owners": ["a", "b", "c"]}, ("a", "b", "c", "d"))


@pytest.mark.parametrize(
    "change",
    [
        {"owners": None},
        {"plan": None},
        {"left_out": -4},
        {"left_out": 10**4000},
        {"minimum": -10},
        {"errors": [{"n": -3.0}]},
        {"errors": [{"other": 3.0}]},
        {"rows": [{"ward": "\ud800", "n": 1}]},
        {"columns": ["\ud800"], "rows": [{"\ud800": 1}]},
    ],
)
@pytest.mark.parametrize("options", [(), ("--json",), ("--out", "answer.csv")])
def test_an_answer_of_no_shape_is_one_line(
    capsys: pytest.CaptureFixture[str],
    server: LyingServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
    options: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    server.answer = {key: value for key, value in {**ANSWER, **change}.items() if value is not None}
    assert "answer" in refused(capsys, server, *options)
    assert list(tmp_path.iterdir()) == []


def test_noise_that_is_told_by_half_is_one_line(capsys: pytest.CaptureFixture[str], server: LyingServer) -> None:
    server.answer = {**ANSWER, "epsilon": None, "delta": 1e-6}
    assert refused(capsys, server).endswith("its noise is not fully told")


@pytest.mark.parametrize("plan", [None, 3, [3], "text", {"a": 1}])
def test_an_explanation_of_no_shape_is_one_line(
    capsys: pytest.CaptureFixture[str], server: LyingServer, plan: Any
) -> None:
    server.answer = {**ANSWER, "plan": plan, "costs": "Costs: none"}
    done = ask(capsys, server, "--explain")
    assert done.code == 0 if plan in ("text", {"a": 1}) else "nothing is shown" in done.err
    server.answer = {**ANSWER, "costs": ["\x1b[2J"]}
    assert refused(capsys, server, "--explain").endswith("nothing is shown")


@pytest.mark.parametrize(
    "event",
    ["{", "[]", "{}", '{"kind":"zz"}', '{"kind":"round_finished","round":1}', "[" * 50_000],
)
def test_a_log_of_no_events_is_one_line(capsys: pytest.CaptureFixture[str], server: LyingServer, event: str) -> None:
    server.lines = [("event", event)]
    line = "a line of the job's log is not an event: no job writes what the server sent"
    assert refused(capsys, server) == line
    assert line in call(capsys, "logs", "a-job", "--kit", server.kit).err


@pytest.mark.parametrize(("exchanges", "sent"), [(None, 1.0), (1e308, 1.0), (1.0, 1e308), (1.0, None), (-1.0, 1.0)])
def test_costs_that_cannot_be_are_not_counted(
    capsys: pytest.CaptureFixture[str], server: LyingServer, exchanges: float | None, sent: float | None
) -> None:
    told = {**STEP, "metrics": {"messages": {"exchanges": exchanges}}, "cost": {"sent_bytes": sent}}
    server.lines = [("event", json.dumps(told)), ("log", "hello\x1b[2J\nwinnow: error: a line of its own")]
    done = ask(capsys, server)
    assert done.code == 0
    assert "exchange" not in done.err
    assert "server: hello?[2J winnow: error: a line of its own" in done.err.splitlines()


def test_a_job_that_is_not_told_of_is_one_line(capsys: pytest.CaptureFixture[str], server: LyingServer) -> None:
    for jobs, told in ((0, {}), (2, {}), (1, {"job": "another"})):
        server.jobs, server.job = jobs, told
        assert refused(capsys, server).startswith("the server was asked about job query-stays-")
    server.jobs, server.job = 1, {"status": "failed", "reason": "one\nwinnow: all is well\x1b[2J"}
    assert refused(capsys, server).endswith(" failed: one winnow: all is well?[2J")


def test_a_file_that_cannot_be_written_or_read_is_found_out_before_owners_are_asked(
    capsys: pytest.CaptureFixture[str], server: LyingServer, tmp_path: Path
) -> None:
    """What they book would be spent for nothing."""
    (tmp_path / "folder.csv").mkdir()
    for out in (tmp_path / "none" / "a.csv", tmp_path / "folder.csv"):
        assert refused(capsys, server, "--out", out).startswith(f"--out {out}: ")
    (tmp_path / "long.sql").write_text(SQL + " -- " + "x" * 1_000_000)
    for file, line in ((tmp_path / "long.sql", "is longer than the 20,000 letters"), (Path("/dev/zero"), "is longer")):
        done = call(capsys, "query", "-f", file, "--kit", server.kit)
        assert done.code == 2
        assert line in done.err
    assert not any(isinstance(each, SubmitJob) for each in server.heard)


def test_half_a_surrogate_pair_is_no_text() -> None:
    with pytest.raises(WinnowError, match="the server's answer cannot be read"):
        read_answer(b'{"a": "\\ud800"}')
