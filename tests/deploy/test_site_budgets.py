"""What a site lets people ask, and what it lets them spend: rules of [[queries]], and budgets that nothing frees."""

import io
import json
import math
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from siting import World

from command_line import call
from winnow.analytics.question import KINDS
from winnow.config.question_kinds import QUESTION_KINDS
from winnow.core import RunError
from winnow.deploy.client.submit_question import read_answer
from winnow.deploy.site import noise_secret
from winnow.deploy.site.agent import STATE_FILE
from winnow.deploy.site.budget_records import PrivacyBudgets, QuestionBudget, epsilon_left
from winnow.deploy.site.noise_secret import KEY_FILE, noise_seed
from winnow.deploy.site.state_store import SiteStateStore
from winnow.deploy.site.warm_worker import PRELOADED_MODULES
from winnow.deploy.trust.audit_log_file import AUDIT_FILE, open_audit_log
from winnow.deploy.trust.errors import PolicyError
from winnow.deploy.trust.peer_identity import Peer
from winnow.deploy.trust.private_file_writing import write_bytes_atomically
from winnow.deploy.trust.site_policy import (
    QuestionRequest,
    SitePolicy,
    SiteQueryRule,
    SpendingLimit,
    answers,
    read_site_policy,
    strictest_rule,
)

LIMIT = SpendingLimit(epsilon=4.0, delta=1e-6)
ANA = Peer(name="ana", organisation="Institute", role="lead", kind="person", serial=1)
RULES = """
[[queries]]
people = ["ana"]
tables = ["stays"]
allow = ["statistics", "correlation"]
minimum = 20
noise = { epsilon = 4.0 }

[[queries]]
roles = ["lead"]
tables = ["wards"]
allow = ["statistics"]

[[queries]]
people = ["ana"]
tables = ["wards"]
allow = ["fit"]
owners = 3
"""


def rho(epsilon: float, delta: float = 1e-6) -> float:
    """ρ with ρ + 2√(ρ·ln(1/δ)) = ε, by bisection."""
    low, high = 0.0, epsilon
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if middle + 2 * math.sqrt(middle * math.log(1 / delta)) < epsilon else (low, middle)
    return low


def outcome(table: str, *needs: str, who: Peer = ANA, epsilon: float | None = None, delta: float = 1e-6) -> str:
    """Why a question is refused; the rule's own words if it is not."""
    policy = read_site_policy(RULES.encode())
    asked = QuestionRequest(table=table, needs=frozenset(needs), epsilon=epsilon, delta=delta)
    found = answers(policy, who, asked)
    return f"minimum {found.minimum}, owners {found.owners}" if isinstance(found, SiteQueryRule) else found.reason


def test_one_rule_must_allow_all_of_a_question() -> None:
    bo = Peer(name="bo", organisation="Institute", role="member", kind="person", serial=2)
    assert outcome("stays", "statistics", epsilon=1.0) == "minimum 20, owners 2"
    assert outcome("wards", "statistics") == "minimum 10, owners 2"
    assert outcome("wards", "fit") == "minimum 10, owners 3"
    assert outcome("wards", "fit", "statistics").endswith("may not ask table 'wards' for fit here")
    assert outcome("stays", "statistics").endswith("with noise only here; add --epsilon")
    assert outcome("stays", "statistics", epsilon=1.0, delta=1e-3) == (
        "epsilon is counted at delta = 1e-06 here; the question has delta = 0.001"
    )
    assert outcome("stays", "statistics", "per-owner", epsilon=1.0).endswith("for per-owner here")
    assert outcome("beds", "statistics").endswith("may not ask about table 'beds' here")
    assert outcome("stays", "statistics", who=bo).endswith("may not ask questions here")
    site = Peer(name="ana", organisation="Institute", role="", kind="site", serial=3)
    assert outcome("stays", "statistics", who=site).endswith("may not ask questions here")


def test_of_several_tables_no_more_is_revealed_than_each_rule_says() -> None:
    rule = {"people": ("ana",), "allow": ("aggregate", "match")}
    open_rule = SiteQueryRule(**rule, tables=("visits",))
    closed = SiteQueryRule(**rule, tables=("patients",), reveal="size")
    assert strictest_rule([open_rule, closed]).reveal == strictest_rule([closed, open_rule]).reveal == "size"
    assert strictest_rule([open_rule, open_rule]).reveal == "intersection"


def test_a_site_without_rules_answers_nobody() -> None:
    asked = QuestionRequest(table="stays", needs=frozenset())
    assert not isinstance(answers(SitePolicy(), ANA, asked), SiteQueryRule)


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ('tables = ["a"]\nallow = ["statistic"]', "did you mean 'statistics'?"),
        ('tables = ["a"]\nallow = []\nminimun = 3', "did you mean 'minimum'?"),
        ('tables = ["a"]\nallow = []\nminimum = 0', "minimum"),
        ('tables = ["a"]\nallow = []\nnoise = { epsilon = -1 }', "epsilon"),
        ('allow = ["fit"]', "tables"),
    ],
)
def test_a_rule_with_a_mistake_is_one_line(rule: str, says: str) -> None:
    with pytest.raises(PolicyError, match=says.replace("?", r"\?")) as error:
        read_site_policy(f"[[queries]]\n{rule}\n".encode())
    assert "\n" not in str(error.value)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[SiteStateStore]:
    with closing(SiteStateStore(tmp_path / "state" / STATE_FILE)) as state:
        yield state


def budget(budgets: PrivacyBudgets, submission: str, epsilon: float, person: str = "ana") -> QuestionBudget:
    return QuestionBudget(
        budgets=budgets,
        submission=submission,
        site="clinic",
        person=person,
        table="stays",
        epsilon=epsilon,
        delta=1e-6,
        limit=LIMIT,
    )


def test_what_is_left_composes_and_a_question_that_does_not_last_books_nothing(state: SiteStateStore) -> None:
    budgets = state.budgets
    for number in range(3):
        assert budget(budgets, f"first-{number}", 1.9).book() == ""
    left = rho(4.0) - 3 * rho(1.9)
    shown = epsilon_left(LIMIT, budgets.spent("ana", "stays"))
    assert rho(shown) <= left < rho(shown + 0.01)
    refusal = f"ε {shown + 0.2:g} is too much: {shown:g} of 4 is left for ana at clinic"
    late = budget(budgets, "late", round(shown + 0.2, 6))
    assert late.shortage() == late.book() == refusal
    assert not late.is_booked()
    assert budgets.spent("ana", "stays") == pytest.approx(3 * rho(1.9))
    assert budget(budgets, "bo's", 4.0, person="bo").book() == "", "another person's budget is another one"
    assert budget(budgets, "the rest", shown).book() == ""


def test_a_submission_is_booked_once_whatever_it_says_later(state: SiteStateStore) -> None:
    assert budget(state.budgets, "one", 3.9).book() == ""
    assert budget(state.budgets, "one", 3.9).book() == ""
    assert budget(state.budgets, "one", 3.9).shortage() == ""
    assert state.budgets.spent("ana", "stays") == pytest.approx(rho(3.9))


def test_threads_that_book_together_never_exceed_the_limit(state: SiteStateStore) -> None:
    refused = []
    threads = [
        threading.Thread(target=lambda n=n: refused.append(budget(state.budgets, f"s{n}", 1.0).book() != ""))
        for n in range(40)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    fitting = int(rho(4.0) / rho(1.0))
    assert refused.count(False) == fitting < 40
    assert state.budgets.spent("ana", "stays") <= rho(4.0)


def test_what_is_booked_survives_a_killed_agent_and_an_older_state_has_no_bookings(tmp_path: Path) -> None:
    path = tmp_path / "state" / STATE_FILE
    first = SiteStateStore(path)
    with sqlite3.connect(path) as older:
        older.execute("DROP TABLE budgets")
    older.close()
    first.close()
    again = SiteStateStore(path)
    assert budget(again.budgets, "one", 1.0).book() == ""
    third = SiteStateStore(path)  # `again` is never closed, as if it had been killed
    assert third.budgets.spent("ana", "stays") == pytest.approx(rho(1.0))
    assert third.budgets.is_booked("one")
    third.close()
    again.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"[1, 2]",
        b'{"mean": NaN}',
        b'{"mean": 1e999}',
        b'{"a": ' * 100 + b"1" + b"}" * 100,
        b"[" * 100_000,
        b'{"a": "' + b"x" * 20_000 + b'"}',
        b'{"a": "\xff"}',
        b"",
    ],
)
def test_an_answer_of_a_lying_server_is_refused_in_one_line(sent: bytes) -> None:
    with pytest.raises(RunError, match="the server's answer cannot be read") as error:
        read_answer(sent)
    assert "\n" not in str(error.value)
    assert read_answer(b'{"mean": [1.5, null, "a"]}') == {"mean": [1.5, None, "a"]}


def test_what_a_site_keeps_ready_for_questions_loads_no_torch() -> None:
    code = f"""
import importlib, sys
for module in {(*PRELOADED_MODULES, "winnow.deploy.jobs.worker", "winnow.deploy.jobs.server_analysis")!r}:
    importlib.import_module(module)
print([name for name in ("torch", "scipy", "sklearn") if name in sys.modules], "pyarrow" in sys.modules)
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[] True"


def test_kinds_of_questions_are_those_that_bundles_may_have() -> None:
    assert {*QUESTION_KINDS} == {*KINDS}


def test_noise_is_a_secret_of_the_site_that_stays(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
    assert noise_seed(one, "a") == noise_seed(one, "a")
    assert len({noise_seed(one, "a"), noise_seed(one, "b"), noise_seed(other, "a")}) == 3
    assert (one / KEY_FILE).stat().st_mode & 0o777 == 0o600
    secret = (one / KEY_FILE).read_bytes()
    assert noise_seed(one, "a") != secret


def test_first_questions_at_once_draw_from_the_secret_that_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, seeds = threading.Barrier(2), list[bytes]()

    def slowly(*details: object) -> None:
        with suppress(threading.BrokenBarrierError):
            both.wait(0.3)  # where both make one, they do at the same time
        write_bytes_atomically(*details)

    monkeypatch.setattr(noise_secret, "write_bytes_atomically", slowly)
    threads = [threading.Thread(target=lambda: seeds.append(noise_seed(tmp_path, "a"))) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert seeds == [noise_seed(tmp_path, "a")] * 2


def test_the_command_shows_and_resets_and_the_audit_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path / "project", policy=RULES)
    kit = world.kit_folder

    def reset(person: str, typed: str) -> int:
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        return call(capsys, "budget", kit, "--reset", person, "stays").code

    assert "no question with noise" in call(capsys, "budget", kit).out
    state = SiteStateStore(kit / "state" / STATE_FILE)
    assert budget(state.budgets, "one", 1.5).book() == ""
    shown = call(capsys, "budget", kit).out
    assert f"{epsilon_left(LIMIT, rho(1.5)):g} of 4" in shown
    assert {"ana", "stays"} <= {*shown.split()}
    [told] = json.loads(call(capsys, "budget", kit, "--json").out)
    assert (told["person"], told["questions"], told["rho"]) == ("ana", 1, pytest.approx(rho(1.5)))
    assert (reset("anna", "y\n"), reset("ana", "n\n")) == (2, 1)
    assert state.budgets.spent("ana", "stays") > 0
    with closing(open_audit_log(kit / AUDIT_FILE, world.kit())):
        assert reset("ana", "y\n") == 2, "the agent runs"
    assert (reset("ana", "y\n"), state.budgets.spent("ana", "stays")) == (0, 0.0)
    assert state.budgets.is_booked("one"), "its noise is known, and asking it again costs nothing"
    log = call(capsys, "audit", "show", kit, "--json").out
    assert [json.loads(line)["target"] for line in log.splitlines() if "budget reset" in line] == ["ana, table stays"]
    state.close()
