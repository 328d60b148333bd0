"""DISTANCE, KM and DWITHIN, which DuckDB has not: each becomes an expression that every engine knows."""

from collections.abc import Sequence

import sqlglot
from sqlglot import exp

from winnow.analytics.sql.allowed_nodes import refused

EARTH_KM = 6371.0088
"""The Earth's mean radius."""
PLANE = "SQRT(({x} - {x0}) * ({x} - {x0}) + ({y} - {y0}) * ({y} - {y0}))"
HALF_CHORD = (
    "SIN(RADIANS({y} - {y0}) / 2) * SIN(RADIANS({y} - {y0}) / 2) + COS(RADIANS({y})) * COS(RADIANS({y0})) * "
    "SIN(RADIANS({x} - {x0}) / 2) * SIN(RADIANS({x} - {x0}) / 2)"
)
SPHERE = f"{2 * EARTH_KM} * ASIN(LEAST(1.0, SQRT({HALF_CHORD})))"
DISTANCE = "distance"
"""The mark of an expression that is one."""
ARGUMENTS = "arguments"
"""Of a distance in the plane: x, y, x0 and y0 as they are written."""
PLACES = "places"
"""The mark of one between places: each coordinate is a column or a number."""
FORMS = {
    "DISTANCE": (4, "DISTANCE(x, y, x0, y0)", PLANE),
    "KM": (4, "KM(lon, lat, lon0, lat0)", SPHERE),
    "DWITHIN": (5, "DWITHIN(x, y, x0, y0, r)", f"({PLANE}) <= {{r}}"),
}


def expand_spatial(tree: exp.Expr) -> exp.Expr:
    """The tree with these functions written out; haversine formula for KM."""
    return tree.transform(_expanded)


def _expanded(node: exp.Expr) -> exp.Expr:
    if not isinstance(node, exp.Anonymous) or str(node.this).upper() not in FORMS:
        return node
    count, form, text = FORMS[str(node.this).upper()]
    arguments: Sequence[exp.Expr] = node.expressions
    if len(arguments) != count:
        raise refused(node, f"{form} takes {count} arguments, not {len(arguments)}")
    names = ("x", "y", "x0", "y0", "r")
    written = sqlglot.parse_one(text.format(**{name: f"arg_{name}" for name in names}), read="duckdb")
    given = {f"arg_{name}": exp.Paren(this=each.copy()) for name, each in zip(names, arguments, strict=False)}
    filled = written.transform(lambda each: given[each.name] if isinstance(each, exp.Column) else each)
    distance = exp.Paren(this=filled)
    distance.meta[DISTANCE] = str(node.this).upper() != "DWITHIN"
    distance.meta[PLACES] = all(isinstance(each, exp.Column) or not each.find(exp.Column) for each in arguments)
    if text is not SPHERE:
        measured = distance if distance.meta[DISTANCE] else filled.this
        measured.meta[ARGUMENTS] = tuple(each.sql("duckdb") for each in arguments[:4])
    return distance


def is_spatial(node: exp.Expr) -> bool:
    """Whether an expression was written as DISTANCE or KM."""
    return bool(node.meta.get(DISTANCE))
