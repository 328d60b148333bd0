"""What a site does for its clients under secure aggregation: it holds their updates back, and answers the steps.

No update leaves but masked, and each is masked once: a second sum with the same update in it, over other clients, would
give the update away as the difference.
"""

import os
from typing import TYPE_CHECKING

from winnow.core import Reply, Task
from winnow.learn.filters import Chance
from winnow.learn.matching import AtSites
from winnow.privacy.secure.closing import Left, ballot, check_closed, closing_to_sign
from winnow.privacy.secure.form import departures
from winnow.privacy.secure.group import Space, Vector
from winnow.privacy.secure.held import Held, HeldUpdates
from winnow.privacy.secure.identity import Identities
from winnow.privacy.secure.indexing import digest_of
from winnow.privacy.secure.keeper import Contents, KeeperKey, digest_of_space, make_deposit
from winnow.privacy.secure.masks import SEED_BYTES, add_mask
from winnow.privacy.secure.member import Member
from winnow.privacy.secure.refusal import RefusedError
from winnow.privacy.secure.steps import (
    ANNOUNCE,
    CLOSE,
    CONFIRM,
    DEPOSIT,
    MASK,
    REVEAL,
    SECURE,
    SHARE,
    Step,
    answering,
    carried,
    carried_numbers,
    saying,
    session_of,
    told_in,
)
from winnow.privacy.secure.terms import Directory, Terms, read, write
from winnow.privacy.secure.told import Told

if TYPE_CHECKING:
    from winnow.privacy.secure.collect import Secure


class SecureSite:
    """The clients' secrets of this process: updates that wait to be masked, and the sessions under way."""

    def __init__(self, settings: "Secure", identities: Identities, chance: Chance) -> None:
        """By `chance` values are rounded; the server must not foresee it."""
        self._settings, self._identities, self._chance = settings, identities, chance
        self._updates = HeldUpdates(identities)
        self._members: dict[int, Member] = {}
        self._told: dict[int, Told] = {}

    def at_site(self) -> AtSites:
        """The steps of the way that the job's author chose: a server is not to have the other's assumptions instead."""
        pairwise = {
            ANNOUNCE: self._announce,
            CLOSE: self._close,
            SHARE: self._share,
            MASK: self._mask,
            CONFIRM: self._confirm,
            REVEAL: self._reveal,
        }
        steps = {DEPOSIT: self._deposit} if self._settings.keeper else pairwise
        handlers = {name: answering(step) for name, step in steps.items()}
        return AtSites(handlers=handlers, filters=(self._updates.hold,), settings=dict.fromkeys(steps, Step))

    # The steps --------------------------------------------------------------------------------------------------------

    def _announce(self, task: Task) -> Reply:
        if note := self._identities.noted(task.client, task.round):
            left = read(note, Left)
            if "closings" not in task.payload.get(SECURE, {}):
                return saying(task, left=write(left))
            closings = read(carried(task.payload, "closings"), dict[int, bytes])
            check_closed(left, self._terms(task, left.session), closings, self._identities)
            self._updates.call_back(task, note)
        self._updates.look(task)
        member = Member(task.client, self._terms(task), self._identities)
        self._members[task.client] = member
        self._told.pop(task.client, None)
        return saying(task, announcement=write(member.announce()))

    def _close(self, task: Task) -> Reply:
        """Sign that this client has signed no list of survivors in the session, and never will."""
        member, terms = self._members.get(task.client), self._terms(task)
        if member is not None and member.terms.session == terms.session:
            if member.has_confirmed:
                raise RefusedError("a list of survivors was confirmed in this session")
            del self._members[task.client]
        signature = self._identities.sign_once(task.client, closing_to_sign(terms), ballot(terms))
        return saying(task, closing=signature)

    def _share(self, task: Task) -> Reply:
        letters = self._member(task).share(read(carried(task.payload, "directory"), Directory))
        return Reply(task=task, letters=letters)

    def _mask(self, task: Task) -> Reply:
        member, held = self._member(task), self._updates.look(task)
        told = told_in(task.payload)
        if told.members.tolist() != member.members:
            raise RefusedError("the weights are not those of this session's members")
        vector, space = self._words(task, held, told)
        digest = told.digest(session_of(task), held.model)
        masked = member.mask(task.letters, vector, space, digest)
        self._updates.let_out(task, write(member.left))
        self._told[task.client] = told
        return saying(task, words=masked, told=digest)

    def _confirm(self, task: Task) -> Reply:
        survivors, member = carried_numbers(task.payload, "survivors").astype(int).tolist(), self._member(task)
        if task.client in self._told:
            self._told[task.client].check_survivors(survivors, self._settings.heaviest)
        return saying(task, signature=member.confirm(survivors))

    def _reveal(self, task: Task) -> Reply:
        signatures = read(carried(task.payload, "signatures"), dict[int, bytes])
        shares = self._member(task).reveal(signatures)
        del self._members[task.client], self._told[task.client]
        self._updates.forget(task.client)
        return saying(task, shares=write(shares))

    def _deposit(self, task: Task) -> Reply:
        """With a mask keeper: the vector under one mask, whose seed is sealed to the keeper."""
        held = self._updates.look(task)
        terms, told = self._terms(task), told_in(task.payload)
        key = read(carried(task.payload, "keeper"), KeeperKey)
        vector, space = self._words(task, held, told)
        space.check(vector)
        digest, seed = told.digest(session_of(task), held.model), os.urandom(SEED_BYTES)
        add_mask(vector, seed, space, sign=1)
        words = space.pack(space.reduce(vector))
        assigned = digest_of(words, space, self._settings.encoding.indexed(held.form))
        contents = Contents(
            seed=seed,
            members=len(told.members),
            told=digest,
            weight=told.weight_of(task.client, self._settings.heaviest),
            space=digest_of_space(space),
            assigned=assigned,
        )
        deposit = make_deposit(task.client, contents, key, terms, self._identities)
        self._updates.let_out(task)
        self._updates.forget(task.client)
        return saying(task, words=words, told=digest, deposit=write(deposit))

    # Besides ----------------------------------------------------------------------------------------------------------

    def _words(self, task: Task, held: Held, told: Told) -> tuple[Vector, Space]:
        """The client's update times its weight, encoded."""
        encoding, members = self._settings.encoding, len(told.members)
        values = departures(held.parts, held.model, told.weight_of(task.client, self._settings.heaviest))
        chance = self._chance(held.task, "secure rounding")
        vector = encoding.encode(held.form, values, told.parameters, members, chance)
        return vector, encoding.space(held.form, members)

    def _terms(self, task: Task, session: bytes | None = None) -> Terms:
        return self._settings.terms(session or session_of(task), task.round)

    def _member(self, task: Task) -> Member:
        member = self._members.get(task.client)
        if member is None or member.terms.session != session_of(task):
            raise RefusedError("this client takes part in no such session")
        return member
