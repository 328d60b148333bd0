"""What `winnow budget` shows and resets: the privacy budgets that a site keeps."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from winnow.core.errors import ConfigError
from winnow.core.suggest import suggest
from winnow.deploy.site.agent import STATE_FILE
from winnow.deploy.site.budget_records import Spending, epsilon_left
from winnow.deploy.site.config import load_config
from winnow.deploy.site.state_store import SiteStateStore
from winnow.deploy.trust.audit_log_file import AUDIT_FILE, open_audit_log
from winnow.deploy.trust.errors import AuditError
from winnow.deploy.trust.kit import Kit
from winnow.deploy.trust.policy_rules import POLICY_FILE, matches
from winnow.deploy.trust.site_policy import SpendingLimit, read_site_policy


@dataclass(frozen=True, kw_only=True)
class BudgetLine:
    """What a person has spent on a table, and what is left by the rule that now names both; None without one."""

    spending: Spending
    limit: SpendingLimit | None

    @property
    def left(self) -> float | None:
        return None if self.limit is None else epsilon_left(self.limit, self.spending.rho)


def read_budgets(kit_folder: Path, config_file: Path | None = None) -> list[BudgetLine]:
    kit = Kit.load(kit_folder, "site")
    with _state(kit, config_file) as state:
        found = [] if state is None else state.budgets.spendings()
    return [BudgetLine(spending=each, limit=_limit(kit, each)) for each in found]


def reset_budget(kit_folder: Path, person: str, table: str, config_file: Path | None = None) -> int:
    """Let what a person has spent on a table no longer count; how many questions that were. The audit log says so."""
    kit = Kit.load(kit_folder, "site")
    with _state(kit, config_file) as state:
        spent = {} if state is None else {(each.person, each.table): each for each in state.budgets.spendings()}
        if state is None or (person, table) not in spent:
            known = sorted({f"{one} {other}" for one, other in spent})
            hint = suggest(f"{person} {table}", known) if known else "nobody has"
            raise ConfigError(f"{person} has spent nothing on table {table!r} here; {hint}")
        try:
            audit = open_audit_log(kit.path / AUDIT_FILE, kit)
        except AuditError as error:
            raise AuditError(f"{error}: a budget is reset while the site's agent is stopped") from error
        try:
            booked = spent[person, table]
            audit.note("budget reset", f"{person}, table {table}", f"{booked.questions} questions no longer count")
            return state.budgets.reset(person, table)
        finally:
            audit.close()


@contextmanager
def _state(kit: Kit, config_file: Path | None) -> Iterator[SiteStateStore | None]:
    """The site's state; None where it has none yet."""
    path = Path(load_config(kit.path, config_file).state) / STATE_FILE
    if not path.is_file():
        yield None
        return
    state = SiteStateStore(path)
    try:
        yield state
    finally:
        state.close()


def _limit(kit: Kit, spending: Spending) -> SpendingLimit | None:
    """By name: of which organisation a person is, and in which role, stands in the signatures of their questions."""
    path = kit.path / POLICY_FILE
    rules = read_site_policy(path.read_bytes()).queries if path.is_file() else ()
    fitting = (
        rule.noise for rule in rules if matches(rule.people, spending.person) and matches(rule.tables, spending.table)
    )
    return next((noise for noise in fitting if noise is not None), None)
