"""An owner in a step over lists: of identifiers that are matched or counted, of rows that are mixed or multiplied."""

from typing import TYPE_CHECKING, TypeAlias

from winnow.analytics.program import CountDistinct, Match, Mix, Product, Step
from winnow.privacy.mixing.mix_party import MixParty, MixStep
from winnow.privacy.mixing.sealed_rows import sealed_rows
from winnow.privacy.set_intersection.match_party import MatchParty, MatchStep
from winnow.privacy.set_intersection.union_party import UnionParty, UnionStep
from winnow.privacy.shares.product_party import ProductParty
from winnow.privacy.shares.product_step import ProductStep

if TYPE_CHECKING:
    from winnow.analytics.tables.owner_table import OwnerTable

ListStep: TypeAlias = MatchStep | UnionStep | MixStep | ProductStep
ListParty: TypeAlias = MatchParty | UnionParty | MixParty | ProductParty


def list_party(step: ListStep, asked: Step, me: int, rows: "OwnerTable | None") -> ListParty:
    """Party `me`; a helper has no rows."""
    if isinstance(asked, Match):
        assert isinstance(step, MatchStep)
        return MatchParty(step, me, [] if rows is None or me not in step.parties else asked.local(rows))
    if isinstance(asked, CountDistinct):
        assert isinstance(step, UnionStep)
        return UnionParty(step, me, [] if rows is None else asked.local(rows))
    if isinstance(asked, Product):
        assert isinstance(step, ProductStep)
        return ProductParty(step, me, None if rows is None else asked.local(rows))
    assert isinstance(asked, Mix)
    assert isinstance(step, MixStep)
    boxes = [] if rows is None else sealed_rows(asked.local(rows), asked.slots, asked.size, asked.reader)
    return MixParty(step, me, boxes)
