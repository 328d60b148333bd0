"""An owner in a step over lists: of identifiers that are matched or counted, of rows that are mixed."""

from typing import TYPE_CHECKING, TypeAlias

from winnow.analytics.program import CountDistinct, Match, Mix, Step
from winnow.privacy.mixing.mix_party import MixParty, MixStep
from winnow.privacy.mixing.sealed_rows import sealed_rows
from winnow.privacy.set_intersection.match_party import MatchParty, MatchStep
from winnow.privacy.set_intersection.union_party import UnionParty, UnionStep
from winnow.privacy.shares.errors import SharesError

if TYPE_CHECKING:
    from winnow.analytics.tables.owner_table import OwnerTable

ListStep: TypeAlias = MatchStep | UnionStep | MixStep
ListParty: TypeAlias = MatchParty | UnionParty | MixParty


def list_party(step: ListStep, asked: Step, me: int, rows: "OwnerTable | None") -> ListParty:
    """Party `me`; a helper has no rows."""
    if isinstance(asked, Match):
        assert isinstance(step, MatchStep)
        if rows is None:
            raise SharesError("a helper has no identifiers to match")
        return MatchParty(step, me, asked.local(rows))
    if isinstance(asked, CountDistinct):
        assert isinstance(step, UnionStep)
        return UnionParty(step, me, [] if rows is None else asked.local(rows))
    assert isinstance(asked, Mix)
    assert isinstance(step, MixStep)
    boxes = [] if rows is None else sealed_rows(asked.local(rows), asked.slots, asked.size, asked.reader)
    return MixParty(step, me, boxes)
