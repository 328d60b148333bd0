"""Counts and sums of a join between two owners, in one product of those that may be told.

A number of one owner is summed by identifier and multiplied by how many rows the other has. Of a pair of numbers that
two owners have, Σuv is a product of fractions; it is shifted to the length of the other sums.
"""

from collections.abc import Sequence

from winnow.analytics.program import Program
from winnow.analytics.sql.matched_join import Cell, MatchedJoin
from winnow.analytics.sql.matched_rows import KeyedSum
from winnow.analytics.sql.matched_sets import parts_of
from winnow.analytics.sql.opened_sums import Opened, Summand, summands_of
from winnow.analytics.sql.row_sets import ALL_ROWS, DecidedSets, sets_behind
from winnow.analytics.stats.moments import fraction_bits
from winnow.analytics.stats.suppression import EMPTY

PAIR_POWERS = ((1, 0), (0, 1), (2, 0), (0, 2), (1, 1))
"""Of u and v in the five sums of a pair."""
LARGEST_BITS = 62
"""Of a fraction of products and their number: |uv| ≤ ¼, so sums stay below 2⁶¹."""


def open_matched_sums(
    join: MatchedJoin, shown: Sequence[int], decided: DecidedSets
) -> Program[tuple[Opened, dict[str, list[int]]]]:
    """What is opened, and the groups in which each aggregate is told; all of it is 0 where a group has no rows."""
    told: dict[str, list[int]] = {}
    wanted: dict[tuple[Summand, int], None] = {}
    empty = {group for group in shown if decided.rows[group] == EMPTY}
    for aggregate in join.plan.aggregates:
        sets = sets_behind(aggregate)
        told[aggregate.name] = [group for group in shown if group in empty or decided.told(sets, group)]
        for summand in summands_of(aggregate, decided.bits):
            wanted.update(dict.fromkeys((summand, group) for group in told[aggregate.name]))
    opened = {each: 0 for each in wanted if each[1] in empty}
    asked = [each for each in wanted if each not in opened]
    hidden = len(join.plan.aggregates) * len(shown) - sum(map(len, told.values())) + decided.small_groups
    if asked:
        found = yield join.product("sums", [summed_cell(join, *each) for each in asked], hidden=hidden)
        opened |= {each: int(value) >> _shift(join, each[0]) for each, value in zip(asked, found, strict=True)}
    return opened, told


def summed_cell(join: MatchedJoin, summand: Summand, group: int) -> Cell:
    """The product that is a sum over the joined rows of a group."""
    left, right = (
        KeyedSum(group=own, summand=_own_summand(join, place, summand), bits=_bits(join, summand))
        for place, own in enumerate(join.groups_of(group))
    )
    return left, right


def _own_summand(join: MatchedJoin, place: int, summand: Summand) -> Summand:
    """What one owner sums by identifier."""
    rows = dict(parts_of(join, summand.rows)).get(place, ALL_ROWS)
    own = tuple(each for each in summand.arguments if each.name in join.sides[place].side.names)
    power = summand.power
    if _across(join, summand):
        power = PAIR_POWERS[summand.power][summand.arguments.index(own[0])]
        own = own if power else ()
    return Summand(rows=rows, arguments=own, power=power if own else 0)


def _across(join: MatchedJoin, summand: Summand) -> bool:
    """Whether it is about a pair of numbers that two owners have."""
    return len({each.name in join.sides[0].side.names for each in summand.arguments}) == 2


def _is_product(join: MatchedJoin, summand: Summand) -> bool:
    return _across(join, summand) and PAIR_POWERS[summand.power] == (1, 1)


def _bits(join: MatchedJoin, summand: Summand) -> int:
    """Of the fraction of an owner's sums."""
    return (LARGEST_BITS - join.bits) // 2 if _is_product(join, summand) else fraction_bits(join.bits)


def _shift(join: MatchedJoin, summand: Summand) -> int:
    """By so many bits Σuv is longer than other sums."""
    return 2 * _bits(join, summand) - fraction_bits(join.bits) if _is_product(join, summand) else 0
