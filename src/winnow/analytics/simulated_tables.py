"""What the simulated owners of a federation file have of the tables that a question is about, and on which terms."""

from collections.abc import Sequence

from winnow.analytics.permissions import NO_ROWS_HINT, PERMISSIONS
from winnow.analytics.query_rules import SIMULATION_RULE, QueryRule
from winnow.analytics.question import EpsilonLeft, QueryTerms, Question
from winnow.analytics.tables.federation_file import FederatedTable, FederationFile
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.analytics.tables.row_digest import row_digest
from winnow.core import ConfigError, suggest


def simulated_tables(
    question: Question, federation: FederationFile, owners: Sequence[str] = ()
) -> tuple[dict[str, OwnerTable], dict[str, QueryTerms]]:
    """Rows and terms by owner, of all owners or of those named."""
    tables = {name: federation.table(name) for name in question.tables}
    divided = {name: table for name, table in tables.items() if table.replicated is None}
    if not divided:
        federation.divided(question.table)
    names = list(dict.fromkeys(owner for table in divided.values() for owner in table.owners))
    for unknown in [name for name in owners if name not in names]:
        raise ConfigError(
            f"table '{next(iter(divided))}' has no owner {unknown!r}; {suggest(unknown, names, at_most=12)}"
        )
    rules = {name: _rule(question, table) for name, table in tables.items()}
    digests = {name: row_digest(each.replicated()) for name, each in tables.items() if each.replicated is not None}
    rows, terms = dict[str, OwnerTable](), dict[str, QueryTerms]()
    for owner in (name for name in names if not owners or name in owners):
        held = _held(owner, tables)
        first, *others = held
        beside = {name: held[name] for name in others}
        rows[owner] = OwnerTable(held[first].declaration, held[first].rows, beside)
        terms[owner] = _terms(question, first, rows[owner], [rules[name] for name in held], digests)
    return rows, terms


def _held(owner: str, tables: dict[str, FederatedTable]) -> dict[str, OwnerTable]:
    """The tables that an owner has. Where others have rows of both of two tables, it has both, if one without rows."""
    divided = [table for table in tables.values() if table.replicated is None]
    apart = len(divided) > 1 and not {*divided[0].owners}.intersection(*(table.owners for table in divided[1:]))
    found = dict[str, OwnerTable]()
    for name, table in tables.items():
        if table.replicated is not None:
            found[name] = table.replicated()
        elif owner in table.owners:
            found[name] = table.owners[owner]()
        elif not apart:
            any_ = next(iter(table.owners.values()))()
            found[name] = OwnerTable(any_.declaration, any_.rows.slice(0, 0))
    return found


def _rule(question: Question, table: FederatedTable) -> QueryRule:
    """The first rule that allows all of a question; people are not told apart in a simulation."""
    for rule in table.queries:
        if question.needs() <= set(rule.allow) and (rule.rows or not question.shows_rows()):
            return rule
    if question.shows_rows():
        raise ConfigError(
            f"no rule of [[queries]] shows rows of table '{table.name}'; {NO_ROWS_HINT}, or add rows = 100 to a rule"
        )
    needed = sorted(question.needs())
    if table.queries == (SIMULATION_RULE,):
        lacking = ", ".join(each for each in needed if each not in SIMULATION_RULE.allow)
        listed = ", ".join(f'"{each}"' for each in needed)
        raise ConfigError(
            f"{lacking} on table '{table.name}' needs a rule that allows it: add [[queries]] with allow = [{listed}] "
            "to the file that declares the table"
        )
    asked = ", ".join(needed) or "anything"
    raise ConfigError(f"no rule of [[queries]] allows {asked} on table '{table.name}'; add it to one rule's allow")


def _terms(
    question: Question, first: str, rows: OwnerTable, rules: Sequence[QueryRule], digests: dict[str, str]
) -> QueryTerms:
    """Of several tables the strictest rule counts."""
    return QueryTerms(
        declaration=rows.declaration,
        table="" if first == question.table else first,
        beside={name: each.declaration for name, each in rows.beside.items()},
        replicated=digests,
        minimum=max(rule.minimum for rule in rules),
        allow=tuple(each for each in PERMISSIONS if all(each in rule.allow for rule in rules)),
        rows=min(rule.rows for rule in rules),
        owners=max(rule.owners for rule in rules),
        reveal="size" if any(rule.reveal == "size" for rule in rules) else "intersection",
        noise_needed=any(rule.noise is not None for rule in rules),
        noise_delta=min((rule.noise.delta for rule in rules if rule.noise is not None), default=None),
        budget=_untouched(rules[0]) if question.opens_nothing else None,
    )


def _untouched(rule: QueryRule) -> EpsilonLeft | None:
    """Simulated owners book nothing."""
    if rule.noise is None:
        return None
    return EpsilonLeft(left=rule.noise.epsilon, epsilon=rule.noise.epsilon, delta=rule.noise.delta)
