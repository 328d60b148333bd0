"""What may be asked of a table that several owners hold, and under which terms they answer.

Agents, the server and the command line load this module: it imports neither torch nor what reads tables.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

from pydantic import Field, ValidationError, field_validator, model_validator

from winnow.analytics.permissions import NO_ROWS_HINT, Permission, Reveal, noise_hint
from winnow.analytics.tables.compare_declarations import merge_declarations
from winnow.analytics.tables.declaration import TableDeclaration
from winnow.config.validation_error_message import config_error
from winnow.core import ConfigError, Settings, suggest
from winnow.privacy.concentrated_privacy import rho_of

if TYPE_CHECKING:
    from winnow.analytics.program import Program

Answer: TypeAlias = dict[str, Any]
"""Plain values that JSON can hold."""

MAX_MINIMUM = 1_000_000_000
"""Below 2³⁰: a threshold that comparisons had no room for would come out on the wrong side."""
MAX_TABLES = 20
"""Of one question."""
MIN_EPSILON, MAX_EPSILON, MIN_DELTA = 1e-3, 1e3, 1e-30

KINDS: Mapping[str, str] = {
    "statistics": "winnow.analytics.stats.statistics_question.StatisticsQuestion",
    "fit": "winnow.analytics.fit.fit_question.FitQuestion",
    "intersect": "winnow.analytics.intersect.intersect_question.IntersectQuestion",
    "query": "winnow.analytics.sql.query_question.QueryQuestion",
    "trees": "winnow.analytics.trees.trees_question.TreesQuestion",
    "truth": "winnow.analytics.truth.truth_question.TruthQuestion",
    "budget": "winnow.analytics.budget_question.BudgetQuestion",
}
"""Where the class of each kind of question is; `read_question` imports it."""


class EpsilonLeft(Settings):
    """What is left of a budget of ε at δ."""

    left: float = Field(ge=0)
    epsilon: float = Field(gt=0)
    delta: float = Field(gt=0, lt=1)


class QueryTerms(Settings):
    """What an owner says when a question is put to it: what its rows look like, and what it allows."""

    declaration: TableDeclaration
    table: str = ""
    """The table that is declared, if it is not the question's first."""
    beside: dict[str, TableDeclaration] = Field(default={}, max_length=MAX_TABLES)
    """Further tables of the question that it has."""
    replicated: dict[str, str] = Field(default={}, max_length=MAX_TABLES)
    """Digests of the rows of those that every owner has."""
    minimum: int = Field(default=10, ge=1, le=MAX_MINIMUM)
    """Fewer rows than these stand behind nothing that is opened."""
    allow: tuple[Permission, ...]
    rows: int = Field(default=0, ge=0)
    """So many rows may be shown as they are."""
    reveal: Reveal = "intersection"
    """What others may learn where identifiers are matched: which are in common, or how many."""
    owners: int = Field(default=2, ge=1)
    """So many owners have to take part at least."""
    noise_needed: bool = False
    noise_delta: float | None = Field(default=None, gt=0, lt=1)
    """The δ at which its budget counts ε."""
    budget: EpsilonLeft | None = None
    """The author's, where the question is how much is left."""


@dataclass(frozen=True, kw_only=True)
class MergedTerms:
    """The terms of all owners together: the strictest of each."""

    declaration: TableDeclaration
    """Of the question's first table."""
    minimum: int
    owners: tuple[str, ...]
    budgets: Mapping[str, EpsilonLeft | None] = field(default_factory=dict)
    """By owner, where the question is how much is left."""
    rows: int = 0
    """How many rows may be shown as they are."""
    per_owner: bool = False
    """Whether all owners allow what is about one of them."""
    least_owners: int = 1
    """So many have to take part at least."""
    beside: Mapping[str, TableDeclaration] = field(default_factory=dict)
    """Of its further tables."""
    holders: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Who has each of several tables."""
    forbid_match: str | None = None
    """An owner that does not allow that identifiers are matched."""
    sizes_only: str | None = None
    """An owner that lets others learn only how many identifiers are in common."""

    def tables(self, names: Sequence[str]) -> dict[str, TableDeclaration]:
        """The declarations by the names of the question's tables."""
        return dict(zip(names, (self.declaration, *self.beside.values()), strict=True))


class Question(Settings):
    """A question about a table. The same object at its author, the server and the owners gives the same program."""

    kind: str
    table: str = Field(min_length=1)
    epsilon: float | None = Field(default=None, gt=0)
    """With it, noise is added so that the answer is (ε, δ)-differentially private; without, minimum counts protect."""
    delta: float = Field(default=1e-6, ge=MIN_DELTA, lt=1)
    reader: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """The public key, in hex, of whoever may read rows that the answer shows."""
    opens_nothing: ClassVar[bool] = False
    """Whether owners tell their terms alone: then nobody demands noise."""

    @field_validator("epsilon")
    @classmethod
    def _can_be_drawn(cls, epsilon: float | None) -> float | None:
        """Beyond these the noise could not be drawn, or would be none."""
        if epsilon is not None and not MIN_EPSILON <= epsilon <= MAX_EPSILON:
            raise ValueError(f"must be between {MIN_EPSILON:g} and {MAX_EPSILON:g}")
        return epsilon

    @model_validator(mode="after")
    def _noise_given(self) -> Self:
        if self.epsilon is None and "delta" in self.model_fields_set:
            raise ValueError("delta belongs to noise; add epsilon, or leave it out")
        return self

    def section(self) -> dict[str, Any]:
        """As a [question] section holds it."""
        return self.model_dump(mode="json", exclude_none=True, exclude={"delta"} if self.epsilon is None else None)

    @property
    def tables(self) -> tuple[str, ...]:
        """All tables that it is about; only statements of SQL have several."""
        return (self.table,)

    @abstractmethod
    def needs(self) -> frozenset[Permission]:
        """What owners have to allow."""

    def shows_rows(self) -> bool:
        """Whether the answer has rows as they are."""
        return False

    def rho(self, terms: MergedTerms) -> float:
        """What the answer costs in zero-concentrated differential privacy; nothing without noise."""
        return 0.0 if self.epsilon is None else rho_of(self.epsilon, self.delta)

    @abstractmethod
    def program(self, terms: MergedTerms) -> "Program[Answer]":
        """The steps that answer it, from columns that the merged declaration has; else a ConfigError in one line."""


def read_question(settings: Mapping[str, Any]) -> Question:
    """The question that these settings, or a [question] section, ask; those that are None were not given."""
    given = {name: value for name, value in settings.items() if value is not None}
    kind = given.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ConfigError(f"[question] kind = {kind!r} is unknown; {suggest(str(kind), KINDS)}")
    module, _, name = KINDS[kind].rpartition(".")
    schema: type[Question] = getattr(import_module(module), name)
    try:
        return schema.model_validate(given)
    except ValidationError as error:
        raise config_error(error, "[question]", schema, given) from None


def merge_terms(question: Question, terms: Mapping[str, QueryTerms]) -> MergedTerms:
    """The terms by owner as one, if all of them allow the question."""
    for owner, own in terms.items():
        _check_allowed(question, owner, own, len(terms))
    held = {owner: {own.table or question.table: own.declaration, **own.beside} for owner, own in terms.items()}
    declared, holders = dict[str, TableDeclaration](), dict[str, tuple[str, ...]]()
    for table in question.tables:
        by_owner = {owner: tables[table] for owner, tables in held.items() if table in tables}
        if not by_owner:
            raise ConfigError(f"no owner has table {table!r}")
        declared[table], holders[table] = merge_declarations(by_owner), tuple(by_owner)
        if declared[table].replicated:
            _check_replicated(table, terms)
    return MergedTerms(
        declaration=declared.pop(question.tables[0]),
        minimum=max(own.minimum for own in terms.values()),
        owners=tuple(terms),
        budgets={owner: own.budget for owner, own in terms.items()},
        rows=min(own.rows for own in terms.values()),
        least_owners=max(own.owners for own in terms.values()),
        beside=declared,
        holders=holders,
        per_owner=all("per-owner" in own.allow for own in terms.values()),
        forbid_match=next((owner for owner, own in terms.items() if "match" not in own.allow), None),
        sizes_only=next((owner for owner, own in terms.items() if own.reveal == "size"), None),
    )


def _check_replicated(table: str, terms: Mapping[str, QueryTerms]) -> None:
    """Owners must have the same rows of it."""
    digests = {owner: own.replicated.get(table) for owner, own in terms.items()}
    first, *others = digests
    if differing := [owner for owner in others if digests[owner] != digests[first]]:
        raise ConfigError(
            f"{first} and {differing[0]} have different rows of the replicated table {table!r}; copy one's to the other"
        )


def _check_allowed(question: Question, owner: str, own: QueryTerms, owners: int) -> None:
    if forbidden := sorted(question.needs() - set(own.allow)):
        named = ", ".join(forbidden)
        raise ConfigError(
            f"{owner} forbids {named} on table {question.table!r}: its rule in [[queries]] has to name it"
        )
    if question.shows_rows() and not own.rows:
        raise ConfigError(f"{owner} shows no rows of table {question.table!r}; {NO_ROWS_HINT}")
    if own.noise_needed and question.epsilon is None and not question.opens_nothing:
        hint = noise_hint(question.needs())
        raise ConfigError(f"{owner} answers questions on table {question.table!r} with noise only; {hint}")
    if own.noise_delta is not None and question.epsilon is not None and question.delta > own.noise_delta:
        raise ConfigError(f"{owner} counts ε at δ = {own.noise_delta:g}; delta = {question.delta:g} is larger")
    if owners < own.owners and "per-owner" not in own.allow and not question.opens_nothing:
        raise ConfigError(
            f"{owner} answers where at least {own.owners} owners take part, and {owners} would; wait until more sites "
            "with the table are connected (winnow sites), or set owners in its rule of [[queries]]"
        )
