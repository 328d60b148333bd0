"""Aggregates of a statement: what each needs of every row."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil, floor

from sqlglot import exp

from winnow.analytics.sql.aggregate_functions import FUNCTIONS, function_name, quantile_level, tells_rows
from winnow.analytics.sql.allowed_nodes import refused
from winnow.analytics.sql.choosing_conditions import (
    MAX_CONDITIONS,
    alternatives_in,
    conditions_in,
    reasons_in,
    succeeds,
    too_many_conditions,
)
from winnow.analytics.sql.describe_expression import describe_condition, describe_expression
from winnow.analytics.sql.described import LARGEST_WHOLE, Described
from winnow.analytics.sql.duckdb_engine import MICROSECONDS_A_DAY
from winnow.analytics.sql.query_plan import SEARCHES, Argument, Function, QueryAggregate
from winnow.analytics.sql.relations import RowSource
from winnow.analytics.sql.sql_text import conjuncts, parsed, shown_text, text_of, tried
from winnow.analytics.stats.plan import NumberColumn

MAX_AGGREGATES = 100


@dataclass
class AggregateReader:
    source: RowSource
    found: dict[str, exp.Expr] = field(default_factory=dict)
    """The aggregates by their text."""
    _arguments: dict[str, Argument] = field(default_factory=dict)
    _indicators: dict[str, Argument] = field(default_factory=dict)
    _identifiers: dict[str, str] = field(default_factory=dict)
    """Names of columns whose different values are counted, by their text."""
    _divisions: tuple[str, ...] = ()
    """The indicators of conditions that divide the rows of the whole statement."""

    @property
    def indicators(self) -> tuple[Argument, ...]:
        return tuple(self._indicators.values())

    def read(self, node: exp.Expr) -> str:
        """The name of an aggregate's column."""
        text = text_of(node)
        self.found.setdefault(text, node.copy())
        if len(self.found) > MAX_AGGREGATES:
            raise refused(node, f"the statement has more than {MAX_AGGREGATES} aggregates; ask for less at once")
        return f"g{list(self.found).index(text)}"

    def check_levels(self) -> None:
        """Nothing private may stand in an aggregate, but a key whose different values are counted."""
        for node in self.found.values():
            for column in (each for each in node.find_all(exp.Column) if not isinstance(each.parent, exp.Distinct)):
                if self.source.described(column).level == "private":
                    called = function_name(node.this if isinstance(node, exp.Filter) else node)
                    raise refused(
                        column, f"column '{column.name}' is private and cannot stand in {called}; it may stand in WHERE"
                    )

    def check_arguments(self) -> None:
        """In words of our own what DuckDB would not accept either."""
        for node in self.found.values():
            condition, inner = (node.expression.this, node.this) if isinstance(node, exp.Filter) else (None, node)
            quantile_level(inner)
            if not isinstance(inner.this, exp.Distinct):
                for each in (inner.this, inner.expression) if isinstance(inner, exp.Corr) else (inner.this,):
                    self._described(each, condition)

    def aggregates(self, types: Sequence[str]) -> list[QueryAggregate]:
        found = [
            self._aggregate(f"g{place}", node, kind)
            for place, (node, kind) in enumerate(zip(self.found.values(), types, strict=True))
        ]
        sums = {each.columns for each in found if each.function not in (*SEARCHES, "count")}
        return [
            replace(
                each,
                overlaps=any(each.columns & other and each.columns != other for other in sums),
                conditions=self._divisions,
            )
            for each in found
        ]

    def columns(self) -> list[exp.Expr]:
        """The arguments, for the statement that selects an owner's rows."""
        both = (*self._arguments.values(), *self._indicators.values())
        identifiers = [exp.alias_(parsed(text), name) for text, name in self._identifiers.items()]
        return [*(exp.alias_(parsed(each.sql), each.name) for each in both), *identifiers]

    def _aggregate(self, name: str, node: exp.Expr, kind: str) -> QueryAggregate:
        condition = node.expression.this if isinstance(node, exp.Filter) else None
        inner = node.this if isinstance(node, exp.Filter) else node
        function = FUNCTIONS.get(type(inner))
        if function is None:
            raise refused(node, f"FILTER of {type(inner).__name__.upper()} is not supported")
        if isinstance(inner.this, exp.Distinct):
            if condition is not None:
                raise refused(node, "FILTER of COUNT(DISTINCT …) is not supported; write the condition into WHERE")
            key = self._identifier(inner.this)
            return QueryAggregate(name=name, function="count_distinct", arguments=(), type=kind, key=key)
        if function == "count" and isinstance(inner.this, exp.Star) and condition is None:
            return QueryAggregate(name=name, function="count", arguments=(), type=kind)
        given = [inner.this, inner.expression] if function == "corr" else [inner.this]
        conditions = self._by_owner(condition)
        arguments, owners, all_known, date = [], set[int | None](), list[Described](), False
        for each in given:
            owner = self.source.owner_of(each) if each.find(exp.Column) else next(iter(conditions), None)
            owners.add(owner)
            known = self._described(each, conditions.get(owner))
            all_known.append(known)
            date = known.type == "date" and function in SEARCHES
            arguments.append(self._argument(each, conditions.get(owner), known, function, inner))
        star = exp.Star()
        filters = [
            self._argument(star, each, self._described(star, each), "count", inner)
            for owner, each in conditions.items()
            if owner not in owners
        ]
        return QueryAggregate(
            name=name,
            function=function,
            arguments=tuple(arguments),
            filters=tuple(filters),
            type=kind,
            level=quantile_level(inner),
            date=date,
            telling=shown_text(inner, 80) if tells_rows(function, all_known) else "",
        )

    def _identifier(self, node: exp.Distinct) -> str:
        """The column of identifiers."""
        column = node.expressions[0] if len(node.expressions) == 1 else None
        shown = shown_text(node)
        if isinstance(column, exp.Column) and self.source.described(column).chosen:
            raise refused(node, f"COUNT({shown}): a condition chooses which rows have it; choose rows by WHERE")
        if not isinstance(column, exp.Column) or not self.source.described(column).key:
            raise refused(node, f"COUNT({shown}) counts the values of one column that is a key; declare key = true")
        return self._identifiers.setdefault(text_of(column), f"d{len(self._identifiers)}")

    def _by_owner(self, condition: exp.Expr | None) -> dict[int | None, exp.Expr]:
        """What FILTER demands of the columns of each owner of a join."""
        if condition is None:
            return {}
        if not self.source.apart:
            return {None: condition}
        found: dict[int | None, list[exp.Expr]] = {}
        for each in conjuncts(condition):
            found.setdefault(self.source.owner_of(each) or 0, []).append(each)
        return {owner: exp.and_(*each) for owner, each in found.items()}

    def _described(self, node: exp.Expr, condition: exp.Expr | None) -> Described:
        if condition is not None:
            describe_condition(condition, self.source.described)
        if isinstance(node, exp.Star):
            return Described(type="integer", low=1, high=1)
        return describe_expression(node, self.source.described)

    def _argument(
        self, node: exp.Expr, condition: exp.Expr | None, known: Described, function: Function, inner: exp.Expr
    ) -> Argument:
        shown = f"{function_name(inner)}({shown_text(node)})"
        whole, low, high = known.whole, known.low, known.high
        if function == "count":
            counted = exp.true() if isinstance(node, exp.Star) else node.copy().is_(exp.null()).not_()
            value: exp.Expr = exp.case().when(counted, exp.Literal.number(1))
            whole, low, high = True, 1.0, 1.0
        elif known.type == "date" and function in SEARCHES:
            value = exp.Anonymous(this="epoch_us", expressions=[exp.cast(node.copy(), "TIMESTAMP")])
            whole, low, high = True, low * MICROSECONDS_A_DAY, high * MICROSECONDS_A_DAY
        elif known.type not in ("number", "integer", "boolean"):
            raise refused(node, f"{shown} needs numbers")
        else:
            value = exp.Paren(this=node.copy())
        if not (abs(low) < LARGEST_WHOLE and abs(high) < LARGEST_WHOLE):
            raise refused(node, f"{shown}: its bounds are not known; {self._advice(node)}")
        if whole:
            low, high = float(floor(low)), float(ceil(high))
        if condition is not None:
            value = exp.case().when(condition.copy(), value)
        text = text_of(tried(value, "BIGINT" if whole else "DOUBLE"))
        if text not in self._arguments:
            name, least_high = f"a{len(self._arguments)}", high if high > low else low + 1
            column = NumberColumn(name=name, low=low, high=least_high, whole=whole)
            filtered = [] if condition is None else [condition]
            conditions = [*filtered, *conditions_in(node), *self._chosen_by(node)]
            conditions += [*reasons_in(node), *(one for each in conjuncts(condition) for one in alternatives_in(each))]
            conditions += succeeds(node)
            two = self.source.two_valued(node) if isinstance(node.unnest(), exp.Column) and low == 0 else []
            self._arguments[text] = Argument(
                column=column,
                sql=text,
                conditions=self._indicators_of(conditions),
                differing=self._indicators_of(self._factors(node)),
                null_outside=self._indicators_of(filtered),
                zero_outside=self._indicators_of([*filtered, *two]),
                unseen=(known.conditional and not conditions) or self._chosen_before(node),
                columns=known.columns,
            )
        return self._arguments[text]

    def _advice(self, unbounded: exp.Expr) -> str:
        """How an expression gets bounds."""
        named = [each.name for each in unbounded.find_all(exp.Column) if not self.source.described(each).bounded]
        if named:
            return f"declare bounds = [low, high] for column '{named[0]}'"
        return "divide only by what is never 0" if unbounded.find(exp.Div) else "write simpler arithmetic"

    def _chosen_before(self, node: exp.Expr) -> bool:
        """Whether a column of a subquery is made by a condition."""
        return any(self.source.described(each).conditional for each in node.find_all(exp.Column))

    def _chosen_by(self, node: exp.Expr) -> list[exp.Expr]:
        """What its columns choose rows by."""
        marked = [each for column in node.find_all(exp.Column) for each in self.source.choices(column)]
        return marked + self.source.two_valued(node)

    def _factors(self, node: exp.Expr) -> list[exp.Expr]:
        """Of an expression of several columns, which rows have another value of one than its least: were they few, a
        product with it would be theirs.
        """
        columns = {text_of(each): each for each in node.find_all(exp.Column)}
        known = [(each, self.source.described(each)) for each in columns.values() if len(columns) > 1]
        return [
            exp.NEQ(this=each.copy(), expression=exp.convert(int(own.low) if own.whole else own.low))
            for each, own in known
            if own.bounded and own.type in ("number", "integer")
        ]

    def divide(self, conditions: Sequence[exp.Expr]) -> None:
        """All numbers of the statement are told only if these conditions choose no few rows."""
        self._divisions = self._indicators_of(conditions)

    def _indicators_of(self, conditions: Sequence[exp.Expr]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._indicator(each) for each in conditions))

    def _indicator(self, condition: exp.Expr) -> str:
        """The name of a column that has 1 where a condition holds."""
        value = exp.case().when(condition.copy(), exp.Literal.number(1)).else_(exp.Literal.number(0))
        text = text_of(tried(value, "BIGINT"))
        if text not in self._indicators:
            if len(self._indicators) >= MAX_CONDITIONS:
                raise too_many_conditions(condition)
            column = NumberColumn(name=f"c{len(self._indicators)}", low=0, high=1, whole=True)
            self._indicators[text] = Argument(column=column, sql=text)
        return self._indicators[text].name
