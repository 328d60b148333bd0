"""How an exchange that was interrupted is closed, so that its round can be held again.

A client that has masked its vector in a session must not do so in another session of the same round, unless the first
one's sum can never be opened. Nobody knows that alone. So members *close* the old session: each signs that it has
signed no list of survivors there, and never will. A client signs one or the other, and its site remembers which. A sum
takes `survivors_needed` signatures under one list. As many that close, out of the same members, leave too few for any
list, as long as those who would sign both are fewer than it takes to have two lists signed.
"""

from collections.abc import Mapping

from msgspec import Struct

from winnow.learn.party_identities import PartyIdentities
from winnow.privacy.secagg.errors import ProtocolError
from winnow.privacy.secagg.session_terms import SESSION_BYTES, SessionTerms, read, roster_digest


class SessionRecord(Struct, frozen=True, kw_only=True):
    """Where a client's masked vector has gone: the session, and its members as the client knew them."""

    session: bytes
    members: list[int]
    roster: bytes


def read_session_record(said: bytes, now: SessionTerms) -> SessionRecord:
    """Where a client says that its vector has gone. Not to the session of `now`: all would have to close that one."""
    left = read(said, SessionRecord)
    if len(left.session) != SESSION_BYTES or left.session == now.session:
        raise ProtocolError("it reports an interrupted session that cannot exist")
    return left


def ballot(terms: SessionTerms) -> bytes:
    """The one thing that a client may sign in a session: a list of survivors, or that the session is closed."""
    return terms.naming("ballot")


def close_statement(terms: SessionTerms) -> bytes:
    return terms.naming("closed")


def check_closed(
    left: SessionRecord, terms: SessionTerms, signatures: Mapping[int, bytes], identities: PartyIdentities
) -> None:
    """Refuse unless so many members have closed the session that its sum can never be opened."""
    if roster_digest(terms, left.members, [identities.name(each) for each in left.members]) != left.roster:
        raise ProtocolError("the member list of the interrupted session has changed")
    needed, signed = terms.survivors_needed(len(left.members)), close_statement(terms)
    eligible = (each for each in left.members if each in signatures)
    sound = sum(identities.verify(each, signed, signatures[each]) for each in eligible)
    if sound < needed:
        raise ProtocolError(
            f"the update was already sent in a session that was interrupted; {sound} of its "
            f"{len(left.members)} members have closed it, and it takes {needed}"
        )
