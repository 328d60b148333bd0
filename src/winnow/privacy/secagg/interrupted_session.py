"""How an interrupted session is closed, so that its round can be repeated.

A client that has masked its vector in a session must not mask it in another session of the same round, unless the sum
of the first can never be unmasked. No party knows that alone. So members *close* the old session: each signs that it
has signed no list of survivors there and never will. A client signs one or the other, and its site records which.
Unmasking takes `survivors_needed` signatures under one list. If as many of the same members have closed the session,
too few are left for any list, as long as fewer clients would sign both than are needed to get two lists signed.
"""

from collections.abc import Mapping

from msgspec import Struct

from winnow.learn.party_signing_interface import PartyIdentities
from winnow.privacy.secagg.errors import ProtocolError
from winnow.privacy.secagg.session_terms import SESSION_BYTES, SessionTerms, read_message, roster_digest


class SessionRecord(Struct, frozen=True, kw_only=True):
    """The session in which a client masked its vector, and its members as the client knew them."""

    session: bytes
    members: list[int]
    roster: bytes


def read_session_record(data: bytes, now: SessionTerms) -> SessionRecord:
    """The interrupted session that a client reports. Not the present one: all members would have to close it."""
    interrupted = read_message(data, SessionRecord)
    if len(interrupted.session) != SESSION_BYTES or interrupted.session == now.session:
        raise ProtocolError("it reports an interrupted session that cannot exist")
    return interrupted


def ballot(terms: SessionTerms) -> bytes:
    """Identifies the one statement that a client may sign in a session: a survivor list, or that it is closed."""
    return terms.statement("ballot")


def close_statement(terms: SessionTerms) -> bytes:
    return terms.statement("closed")


def check_closed(
    interrupted: SessionRecord, terms: SessionTerms, signatures: Mapping[int, bytes], identities: PartyIdentities
) -> None:
    """Refuse unless so many members have closed the session that its sum can never be unmasked."""
    if (
        roster_digest(terms, interrupted.members, [identities.name(each) for each in interrupted.members])
        != interrupted.roster
    ):
        raise ProtocolError("the member list of the interrupted session has changed")
    needed, signed = terms.survivors_needed(len(interrupted.members)), close_statement(terms)
    eligible = (each for each in interrupted.members if each in signatures)
    sound = sum(identities.verify(each, signed, signatures[each]) for each in eligible)
    if sound < needed:
        raise ProtocolError(
            f"the update was already sent in a session that was interrupted; {sound} of its "
            f"{len(interrupted.members)} members have closed it, and it takes {needed}"
        )
