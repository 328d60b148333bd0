"""Applications for kits: handed in by strangers, decided by the project's owner, collected once."""

import secrets
from dataclasses import dataclass
from hashlib import sha256

from cryptography import x509
from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from winnow.core import ConfigError
from winnow.deploy.server.lease import FencedDatabase
from winnow.deploy.server.tables import ApplicationRow
from winnow.deploy.trust.application import read_application
from winnow.deploy.trust.kit import CERTIFICATE_FILE
from winnow.deploy.trust.peer_identity import check_certificate, read_certificate, sealing_key_of, utc_now
from winnow.deploy.trust.pending_kit import unpack_kit
from winnow.deploy.wire.errors import RequestRefusedError, one_line
from winnow.deploy.wire.messages import ApplicationInfo

WAITING, APPROVED, REFUSED, COLLECTED = "waiting", "approved", "refused", "collected"
MAX_WAITING = 200
"""Further ones are turned away until some are decided."""
MAX_KEPT = 500
"""Decided ones that are still listed."""
EXPIRY_SECONDS = 30 * 86_400.0
"""After which an application that nobody decided, or a kit that nobody collected, is deleted."""
CODE_BYTES = 16
NOT_THERE = "there is nothing to collect under this code"


@dataclass(frozen=True, kw_only=True)
class ApplicationStore:
    """Every method is one transaction that checks the lease; blocking, for threads."""

    fenced: FencedDatabase
    authority: x509.Certificate

    def add(self, content: bytes) -> str:
        """The code under which the applicant will collect the kit; only its digest is kept."""
        read_application(content)
        code = secrets.token_urlsafe(CODE_BYTES)
        with self.fenced.write_session() as session:
            now = self._tidy(session)
            identifier = sha256(content).hexdigest()
            if session.get(ApplicationRow, identifier) is not None:
                raise ConfigError("this application was handed in already; its code was shown then")
            waiting = select(func.count()).where(ApplicationRow.state.in_((WAITING, APPROVED)))
            if (session.scalar(waiting) or 0) >= MAX_WAITING:
                raise ConfigError(f"{MAX_WAITING} applications wait already; tell the project's owner")
            row = ApplicationRow(
                application=identifier, content=content, code=_digest(code), state=WAITING, reason="", received=now,
                changed=now, handed_out=None,
            )  # fmt: skip
            session.add(row)
        return code

    def list(self) -> list[ApplicationInfo]:
        """The latest first; those that wait before all others."""
        with self.fenced.database.read_session() as session:
            rows = session.scalars(select(ApplicationRow).order_by(ApplicationRow.received.desc())).all()
        infos = [
            ApplicationInfo(
                application=row.application, content=row.content, state=row.state, reason=row.reason,
                received=row.received, changed=row.changed,
            )
            for row in rows
        ]  # fmt: skip
        return sorted(infos, key=lambda info: info.state != WAITING)

    def refuse(self, application: str, reason: str) -> str:
        with self.fenced.write_session() as session:
            row = self._waiting(session, application)
            row.state, row.reason, row.changed = REFUSED, one_line(reason), self.fenced.database.now(session)
        return "refused"

    def approve(self, application: str, package: bytes) -> str:
        """Keep what is to be handed out, if it is for this applicant's own key."""
        with self.fenced.write_session() as session:
            row = self._waiting(session, application)
            self._check(row.content, package)
            row.state, row.handed_out, row.changed = APPROVED, package, self.fenced.database.now(session)
        return "approved; the applicant can collect the kit"

    def collect(self, code: str) -> tuple[str, bytes]:
        """The applicant's name and the kit, which is deleted here: it is handed out once."""
        with self.fenced.write_session() as session:
            now = self._tidy(session)
            row = session.scalars(select(ApplicationRow).where(ApplicationRow.code == _digest(code))).one_or_none()
            if row is None:
                raise ConfigError(NOT_THERE)
            if row.state == WAITING:
                raise ConfigError("the project's owner has not decided yet; come back later")
            if row.state == REFUSED:
                raise ConfigError(f"the application was refused: {row.reason or 'no reason was given'}")
            if row.handed_out is None:
                raise ConfigError("this kit was handed out already; if you do not have it, tell the project's owner")
            package, row.handed_out = row.handed_out, None
            row.state, row.changed = COLLECTED, now
            return read_application(row.content).party.name, package

    def _check(self, content: bytes, package: bytes) -> None:
        applied, certificate = read_application(content), read_certificate(unpack_kit(package)[CERTIFICATE_FILE])
        peer = check_certificate(certificate, self.authority, utc_now())
        party = applied.party
        same = (peer.name, peer.kind, peer.organisation, peer.role) == (
            party.name, party.kind, party.organisation, party.role,
        )  # fmt: skip
        sealed = applied.sealing_key is None or sealing_key_of(certificate) == applied.sealing_key
        if not same or certificate.public_key() != applied.key or not sealed:
            raise RequestRefusedError("this kit is not for the key, name and role of the application")

    def _waiting(self, session: Session, application: str) -> ApplicationRow:
        row = session.get(ApplicationRow, application)
        if row is None or row.state != WAITING:
            raise RequestRefusedError("no such application waits; somebody may have decided it already")
        return row

    def _tidy(self, session: Session) -> float:
        """Delete what has grown old; the time by the database's clock."""
        now = self.fenced.database.now(session)
        old = ApplicationRow.state.in_((WAITING, APPROVED)) & (ApplicationRow.changed < now - EXPIRY_SECONDS)
        session.execute(delete(ApplicationRow).where(old))
        decided = ApplicationRow.state.in_((REFUSED, COLLECTED))
        kept = select(ApplicationRow.application).where(decided).order_by(ApplicationRow.changed.desc()).limit(MAX_KEPT)
        session.execute(delete(ApplicationRow).where(decided & ApplicationRow.application.not_in(kept)))
        return now


def _digest(code: str) -> str:
    return sha256(code.encode("utf-8", "surrogateescape")).hexdigest()
