"""A join of two owners' rows by distance: ON DWITHIN(a.x, a.y, b.x, b.y, r), where neither tells its coordinates.

Rows are put into the cells of a grid, and distances are those of the cells' middles. Where coordinates are whole
numbers and the grid has a cell for each, that is exact.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import hypot

from sqlglot import exp

from winnow.analytics.sql.allowed_nodes import refused
from winnow.analytics.sql.relations import RowSource
from winnow.analytics.sql.spatial_functions import ARGUMENTS
from winnow.analytics.sql.sql_text import conditions_of, parsed
from winnow.core.untrusted_text import one_line

MAX_STEPS = 512
"""Of a side of the grid."""
LIMITS: Mapping[type[exp.Expr], bool] = {exp.LTE: False, exp.LT: True}
"""Whether a comparison leaves out the limit itself."""


@dataclass(frozen=True, kw_only=True)
class GridAxis:
    low: float
    step: float
    count: int


@dataclass(frozen=True, kw_only=True)
class NearGrid:
    axes: tuple[GridAxis, GridAxis]
    radius: float
    strict: bool
    """Whether pairs at that very distance do not count."""
    exact: bool

    @property
    def cells(self) -> int:
        return self.axes[0].count * self.axes[1].count

    @property
    def precision(self) -> float:
        """By so much the distance of two middles may differ from that of the rows."""
        return 0.0 if self.exact else hypot(*(each.step for each in self.axes))


@dataclass(frozen=True, kw_only=True)
class WrittenNear:
    """The condition as it stands in a statement: two points, and how far they may be from each other."""

    node: exp.Expr
    points: tuple[tuple[exp.Expr, exp.Expr], tuple[exp.Expr, exp.Expr]]
    radius: float
    strict: bool

    def by_side(self, source: RowSource) -> tuple[list[exp.Column], list[exp.Column]]:
        """The coordinates of each owner's rows."""
        found: dict[int | None, list[exp.Column]] = {}
        for column in (each for point in self.points for one in point for each in one.find_all(exp.Column)):
            source.described(column)  # names one that is in no table
        for point in self.points:
            owners = {source.owner_of(each) for each in point}
            columns = [each for each in point if isinstance(each, exp.Column)]
            if len(owners) != 1 or len(columns) != 2:
                raise refused(self.node, "a distance between owners takes two columns of each: a.x, a.y, b.x, b.y")
            found[owners.pop()] = [source.written(each) for each in columns]
        if set(found) != {0, 1}:
            raise refused(self.node, "a distance between owners takes two columns of each: a.x, a.y, b.x, b.y")
        return found[0], found[1]

    def grid(self, sides: tuple[list[exp.Column], list[exp.Column]], source: RowSource) -> NearGrid:
        axes, exact = [], True
        for pair in zip(*sides, strict=True):
            known = [source.described(each) for each in pair]
            for column, each in zip(pair, known, strict=True):
                if each.level == "private" or not each.bounded or each.type not in ("number", "integer"):
                    named = f"column '{one_line(column.name)}'"
                    raise refused(self.node, f"{named}: a distance between owners takes numbers with bounds")
            low, high = min(each.low for each in known), max(each.high for each in known)
            whole = all(each.whole for each in known) and high - low < MAX_STEPS
            count = int(high - low) + 1 if whole else MAX_STEPS
            axes.append(GridAxis(low=low, step=1.0 if whole else (high - low) / (MAX_STEPS - 1), count=count))
            exact &= whole
        return NearGrid(axes=(axes[0], axes[1]), radius=self.radius, strict=self.strict, exact=exact)


def take_near(tree: exp.Select) -> WrittenNear | None:
    """The condition on the distance of two tables' rows, which is taken out of ON or WHERE; None if there is none."""
    for node in conditions_of(tree):
        found = _read(node)
        if found is not None:
            node.replace(exp.true())
            return found
    return None


def _read(node: exp.Expr) -> WrittenNear | None:
    if type(node) not in LIMITS:
        return None
    measured = node.this
    while isinstance(measured, exp.Paren) and ARGUMENTS not in measured.meta:
        measured = measured.this
    given, limit = [parsed(each) for each in measured.meta.get(ARGUMENTS, ())], node.expression.unnest()
    if not given or not all(each.find(exp.Column) for each in given):
        return None
    if not isinstance(limit, exp.Literal) or limit.is_string:
        raise refused(node, "a distance between owners is compared with a number that is written out, 0 or more")
    points = (given[0], given[1]), (given[2], given[3])
    return WrittenNear(node=node.copy(), points=points, radius=float(limit.this), strict=LIMITS[type(node)])
