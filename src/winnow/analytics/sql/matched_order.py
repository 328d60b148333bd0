"""MIN and MAX over a join between two owners: the value of a rank among joined rows, by search.

Joined rows with a value up to an edge are a sum over identifiers, too: (rows up to the edge of the one owner) × (rows
of the other). So a product is compared with the rank for each edge, and only yes or no is opened.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.program import Program
from winnow.analytics.sql.matched_join import Cell, MatchedJoin
from winnow.analytics.sql.matched_sums import summed_cell
from winnow.analytics.sql.opened_sums import Summand
from winnow.analytics.sql.row_sets import RowSet
from winnow.analytics.stats.quantile_search import Edges, Search, narrow_down


def search_matched(join: MatchedJoin, searches: list[Search]) -> Program[list[float]]:
    def ask(tried: Edges, goals: NDArray[np.int64]) -> Program[NDArray[np.bool_]]:
        cells = [
            _cell(join, search, float(edge))
            for search, steps in zip(searches, tried, strict=True)
            for edge in search.edge(steps)
        ]
        return (yield from join.compare("smallest and largest", cells, goals))

    return (yield from narrow_down(searches, ask))


def _cell(join: MatchedJoin, search: Search, edge: float) -> Cell:
    assert search.group is not None
    both = summed_cell(join, Summand(rows=RowSet(present=search.inputs)), search.group)
    left, right = (
        replace(own, at_most=(search.column.name, edge)) if search.column.name in side.side.names else own
        for own, side in zip(both, join.sides, strict=True)
    )
    return left, right
