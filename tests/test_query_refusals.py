"""What SQL is refused, each time in one line that says what and where; and the command itself."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import winnow
from command_line import call
from query_tables import PERMISSIONS, answer_of, divided, pooled_rows, terms_of
from winnow import questions
from winnow.analytics.question import merge_terms, read_question
from winnow.core import ConfigError

PRIVATE = "column 'patient' is private and cannot be shown; it may stand in WHERE (line 1)"
ALL_OWNERS = "would need the rows of all owners; it is not supported (line 1)"
REFUSALS = {
    "SELECT COUNT(*)\nFROM stays LEFT JOIN stays b ON true": "LEFT JOIN of b needs ON with a column",
    "SELECT ROW_NUMBER() OVER (ORDER BY age) FROM stays": "ROW_NUMBER() OVER … is not supported (line 1)",
    "SELECT patient FROM stays": PRIVATE,
    "SELECT patient, COUNT(*) FROM stays GROUP BY 1": PRIVATE,
    "SELECT COUNT(patient) FROM stays": "column 'patient' is private and cannot stand in COUNT; it may",
    "SELECT SUM(CASE WHEN\npatient = 'x' THEN 1 END) FROM stays": "cannot stand in SUM; it may stand in WHERE (line 2)",
    "SELECT note, COUNT(*) FROM stays GROUP BY note": "protected and has no list of values; group by a comparison",
    'SELECT COUNT(*) FROM stays WHERE outcome = "died"': "a value of outcome is written as a text: 'died' (line 1)",
    "SELECT COUNT(*) FROM stays WHERE": "something is missing after 'WHERE' (line 1)",
    "SELECT age, COUNT(*) FROM stays": "column 'age' stands neither in GROUP BY nor in an aggregate (line 1)",
    "SELECT *, COUNT(*) FROM stays": "SELECT * would show rows; name columns of GROUP BY and aggregates (line 1)",
    "SELECT COUNT(*) FROM stays WHERE agee > 1": "there is no column 'agee'; did you mean 'age'? (line 1)",
    "SELECT COUNT(*) FROM stays s WHERE t.age > 1": "no table or alias 't' is in FROM; 's' is (line 1)",
    "SELECT COUNT(DISTINCT age) FROM stays": "COUNT(DISTINCT age) counts the values of one column that is a key;",
    "SELECT COUNT() FROM stays": "COUNT() lacks what it is about; write COUNT(*), or a column (line 1)",
    "SELECT DISTINCT ward FROM stays": "SELECT DISTINCT is not supported (line 1)",
    "SELECT NOW(), COUNT(*) FROM stays": "NOW() is not supported (line 1)",
    "SELECT RANDOM() FROM stays": "RAND() is not supported (line 1)",
    "SELECT COUNT(*) FROM read_csv('/etc/passwd')": "READ_CSV() is not supported (line 1)",
    "SELECT COUNT(*) FROM stays, '/etc/passwd'": "no owner has table '/etc/passwd'",
    "SELECT COUNT(*) FROM stays WHERE age IN (SELECT 1)": "the statement has no FROM; name a table: stays (line 1)",
    "SELECT COUNT(*) FROM stays FULL JOIN stays b ON true": "FULL JOIN is not supported; INNER JOIN is (line 1)",
    "SELECT COUNT(*) FROM stays NATURAL JOIN stays b": "NATURAL JOIN is not supported (line 1)",
    "SELECT COUNT(*) FROM stays JOIN stays": "two tables in FROM are called 'stays'; give one an alias (line 1)",
    "SELECT (SELECT 1) FROM stays": "SELECT within an expression is not supported here (line 1)",
    "SELECT COUNT(*) FROM (SELECT ward, COUNT(*) c FROM stays GROUP BY 1)": f"GROUP BY in a subquery {ALL_OWNERS}",
    "SELECT COUNT(*) FROM (SELECT SUM(age) s FROM stays)": f"an aggregate in a subquery {ALL_OWNERS}",
    "SELECT COUNT(*) FROM (SELECT age FROM (SELECT * FROM stays ORDER BY age))": f"ORDER BY in a subquery {ALL_OWNERS}",
    "SELECT SUM(SUM(age)) FROM stays": "aggregate function calls cannot be nested",
    "SELECT COUNT(*) FROM stays WHERE SUM(age) > 3": "an aggregate within WHERE is not supported (line 1)",
    "SELECT SUM(1 / age) FROM stays": "SUM(1 / age): its bounds are not known; divide only by what is never 0 (line 1)",
    "SELECT SUM(note) FROM stays": "the statement does not fit the table: No function matches",
    "SELECT MAX(ward) FROM stays": "MAX(ward) needs numbers (line 1)",
    "SELECT QUANTILE_CONT(age, -0.5) FROM stays": "a quantile takes a level between 0 and 1, such as",
    "SELECT COUNT(*) FROM stays TABLESAMPLE RESERVOIR(5 PERCENT)": "TABLESAMPLE takes one of BERNOULLI, STRATIFIED,",
    "SELECT COUNT(*) FROM stays; DROP TABLE stays": "write one statement; there are 2",
    "DROP TABLE stays": "DROP is not supported (line 1)",
    "COPY stays TO '/tmp/x'": "COPY is not supported (line 1)",
    "SELECT COUNT(*) FROM stays LIMIT (1 + 1)": "LIMIT takes a whole number (line 1)",
    "SELECT COUNT(*) FROM stays GROUP BY ROLLUP (ward)": "ROLLUP is not supported (line 1)",
    "SELECT COUNT(*) FROM stays UNION ALL SELECT 1": "UNION ALL joins rows before they are counted: write SELECT …",
    "SELECT CAST(age AS HUGEINT) FROM stays": "CAST to INT128 is not supported (line 1)",
    "SELECT COUNT(*) FROM stays QUALIFY age > 1": "QUALIFY is not supported (line 1)",
    "SELECT": "the statement reads no tables; it can read 1 to 20",
    "SELECT COUNT(* FROM stays": "the statement cannot be read as SQL",
    "SELEC COUNT(*) FROM stays": "a query begins with SELECT or WITH, not with 'SELEC'",
    "  ": "write one statement; there are none",
}


def refusal(sql: str) -> str:
    with pytest.raises(ConfigError) as refused:
        plan_of(sql)
    return str(refused.value)


def plan_of(sql: str) -> None:
    question = read_question({"kind": "query", "sql": sql, "table": "stays"})
    next(question.program(merge_terms(question, terms_of(3, rows=20))))


@pytest.mark.parametrize("sql", REFUSALS)
def test_what_is_not_supported_is_refused_by_name_and_line(sql: str) -> None:
    line = refusal(sql)
    assert REFUSALS[sql] in line
    assert "\n" not in line


def test_owners_allow_aggregates_and_extremes_apart() -> None:
    question = read_question({"kind": "query", "sql": "SELECT MIN(age) FROM stays"})
    allowed = tuple(each for each in PERMISSIONS if each != "extremes")
    with pytest.raises(ConfigError, match="owner 0 forbids extremes on table 'stays'"):
        merge_terms(question, terms_of(2, allow=allowed))
    with pytest.raises(ConfigError, match="with noise only; add --epsilon"):
        merge_terms(question, terms_of(2, noise_needed=True))


@pytest.mark.parametrize("deep", ["(" * 3000 + "1" + ")" * 3000, "NOT " * 3000 + "well", " + ".join(["age"] * 4000)])
def test_a_statement_that_is_too_deep_or_long_is_refused(deep: str) -> None:
    line = refusal(f"SELECT COUNT(*) FROM stays WHERE {deep[:19_000]}")
    assert "\n" not in line


# The command ---------------------------------------------------------------------------------------------------------

FILE = """
[tables.stays]
file = "stays.csv"
owner = "hospital"
[tables.stays.columns]
ward    = "public"
age     = { level = "protected", type = "integer", bounds = [0, 110] }
outcome = { level = "protected", values = ["home", "moved", "died"] }
patient = { level = "private", key = true }
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "federation.toml").write_text(FILE)
    rows = pooled_rows(400, seed=2, missing=0.0).to_pylist()
    lines = [
        f"{'north' if place % 3 else 'south'},{row['ward']},{row['age']},{row['outcome']},{row['patient']}"
        for place, row in enumerate(rows)
    ]
    (tmp_path / "stays.csv").write_text("\n".join(["hospital,ward,age,outcome,patient", *lines]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_answers_explains_writes_and_refuses(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sql = "SELECT outcome, COUNT(*) AS n, SUM(age) AS s FROM stays GROUP BY outcome ORDER BY n DESC"
    answer = json.loads(call(capsys, "query", sql, "--json").out)
    assert set(answer["rows"][0]) == {"outcome", "n", "s"}
    assert winnow.query(sql).rows == answer["rows"]
    (folder / "ask.sql").write_text(sql)
    assert call(capsys, "query", "-f", "ask.sql", "--out", "answer.csv").code == 0
    assert (folder / "answer.csv").read_text().splitlines()[0] == '"outcome","n","s"'
    assert "secure compare" in call(capsys, "query", f"EXPLAIN {sql}").out
    assert call(capsys, "query", sql, "--folder", "runs/q").code == 0
    assert "home" in call(capsys, "show", "runs/q").out
    refused = call(capsys, "query", sql, "--out", "answer.txt")
    assert refused.err.strip().endswith("answer.txt must end in .parquet or .csv")
    assert "no table 'stay'; did you mean 'stays'?" in call(capsys, "query", "SELECT COUNT(*) FROM stay").err
    assert "give a statement, or a file with one" in call(capsys, "query").err


@pytest.mark.parametrize("explained", [(), ("--explain",)])
def test_explaining_takes_the_delta_of_a_statement_and_refuses_it_as_asking_does(
    folder: Path, capsys: pytest.CaptureFixture[str], explained: tuple[str, ...]
) -> None:
    (folder / "federation.toml").write_text(f"{FILE}\n[[queries]]\nnoise = {{ epsilon = 4.0, delta = 1e-7 }}\n")
    asked = ("query", "SELECT COUNT(*) AS n FROM stays", *explained)
    told = call(capsys, *asked, "--epsilon", "1", "--delta", "1e-8")
    assert told.code == 0
    assert "ε = 1, δ = 1e-08" in told.out + told.err
    for delta, line in (
        (("--delta", "1e-5"), "counts ε at δ = 1e-07; delta = 1e-05 is larger"),
        ((), "counts ε at δ = 1e-07; delta = 1e-06 is larger"),
        (("--delta", "2"), "delta"),
    ):
        refused = call(capsys, *asked, "--epsilon", "1", *delta)
        assert (refused.code, refused.out) == (2, "")
        assert line in refused.err
    alone = call(capsys, *asked, "--delta", "1e-8")
    assert alone.err.strip().endswith("delta belongs to noise; add epsilon, or leave it out")
    with pytest.raises(ConfigError, match="delta belongs to noise"):
        winnow.query("SELECT COUNT(*) FROM stays", delta=1e-8)


def test_a_distance_among_the_keys_does_not_make_the_first_rows_the_nearest_ones() -> None:
    """DISTANCE(1, 1, 1, 1) is the same of all rows, so the other key decides which are first."""
    first = "SELECT AVG(age) FROM (SELECT * FROM stays ORDER BY {} LIMIT 20){}"
    near, both = {"aggregate", "nearest"}, {"aggregate", "nearest", "extremes"}
    for keys, rest, needed in (
        ("DISTANCE(x, y, 0, 0)", "", near),
        ("age", "", {"aggregate", "extremes"}),
        ("DISTANCE(1, 1, 1, 1), age", "", both),
        ("age", " ORDER BY DISTANCE(1, 1, 1, 1)", both),
    ):
        assert read_question({"kind": "query", "sql": first.format(keys, rest)}).needs() == needed


def test_extremes_need_a_rule_in_a_simulation_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for sql in ("SELECT MAX(age) AS m FROM stays", "SELECT AVG(age) FROM (SELECT * FROM stays ORDER BY age LIMIT 30)"):
        refused = call(capsys, "query", sql)
        assert 'add [[queries]] with allow = ["aggregate", "extremes"]' in refused.err
    for rule, told in (("", False), ('allow = ["aggregate", "extremes"]', True)):
        (folder / "federation.toml").write_text(f"{FILE}\n[[queries]]\n{rule}\n")
        found = call(capsys, "query", "SELECT MAX(age) AS m FROM stays")
        assert (found.code == 0) == told
        assert told or "no rule of [[queries]] allows aggregate, extremes on table 'stays'" in found.err


@pytest.mark.parametrize("typed", [None, "SELECT AVG(agee) FROM stays;\n"])
def test_a_mistake_is_one_line_to_the_end_of_the_process(folder: Path, typed: str | None) -> None:
    """DuckDB would list, when the process ends, what an error's frames have kept of it."""
    asked = ["-i"] if typed else ["SELECT AVG(agee) FROM stays"]
    command = [sys.executable, "-m", "winnow.cli", "query", *asked]
    ended = subprocess.run(command, input=typed, cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    lines = [line for line in ended.stderr.splitlines() if "semicolon" not in line]
    assert len(lines) == 1, ended.stderr
    assert "there is no column 'agee'; did you mean 'age'? (line 1)" in lines[0]


def test_ctrl_c_at_the_prompt_ends_a_statement_and_not_the_prompt(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = ["SELECT COUNT(*) AS first FROM stays;", "SELECT COUNT(*)", "AS second FROM stays;", "SELECT 1;"]
    asked = list[str]()
    honest = questions.ask

    def interrupted(question: Any, **settings: Any) -> Any:
        asked.append(question.sql)
        if len(asked) == 1:
            raise KeyboardInterrupt
        return honest(question, **settings)

    def type_line(shown: str) -> str:
        if not typed:
            raise EOFError
        return typed.pop(0)

    monkeypatch.setattr("builtins.input", type_line)
    monkeypatch.setattr(questions, "ask", interrupted)
    told = call(capsys, "query", "-i")
    assert told.code == 0
    assert asked == ["SELECT COUNT(*) AS first FROM stays", "SELECT COUNT(*)\nAS second FROM stays"]
    assert "winnow: stopped; nothing was kept" in told.err
    assert "second" in told.out
    assert "the statement has no FROM" in told.err or "reads no tables" in told.err


def test_answers_of_different_samples_differ_and_equal_ones_repeat() -> None:
    tables = divided(pooled_rows(500, seed=1), 2, seed=1)
    sql = "SELECT COUNT(*) AS n FROM stays TABLESAMPLE BERNOULLI({} PERCENT)"
    first, again, other = (answer_of(sql.format(part), tables)["rows"] for part in (30, 30, 40))
    assert first == again
    assert first != other


def test_a_lone_semicolon_and_help_do_not_leave_the_prompt(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = [";", "help", KeyboardInterrupt(), "SELECT COUNT(*) AS n FROM stays;", "exit;", "never read"]

    def type_line(shown: str) -> str:
        line = typed.pop(0)
        if isinstance(line, KeyboardInterrupt):
            raise line
        return line

    monkeypatch.setattr("builtins.input", type_line)
    told = call(capsys, "query", "-i")
    assert told.code == 0
    assert typed == ["never read"]
    assert told.err.count("A statement ends with a semicolon") == 2
    assert " n " in told.out


@pytest.mark.parametrize(
    ("out", "said"),
    [
        ("no/answer.csv", "--out no/answer.csv: there is no folder no; create it"),
        ("folder.csv", "--out folder.csv: this is a folder; name a file"),
        ("stays.csv", "--out stays.csv: this file holds the rows of table 'stays'; name another file"),
    ],
)
def test_nobody_is_asked_where_the_answer_could_not_be_written(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, out: str, said: str
) -> None:
    Path("folder.csv").mkdir()
    monkeypatch.setattr(questions, "ask", lambda *_, **__: pytest.fail("somebody was asked"))
    told = call(capsys, "query", "SELECT COUNT(*) FROM stays", "--out", out)
    assert told.code == 2
    assert said in told.err
