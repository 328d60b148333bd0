"""The folder of a project: its authority, and a kit for every party.

    ca/    ca.pem, ca-key.pem, issued.json (what was issued to whom), revoked.json; it never leaves the project's owner
    kits/  one folder a party, to be handed over by a safe way

What is issued is written down before the kit is made: no certificate can exist that could not be revoked.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec

from winnow.core import suggest
from winnow.core.message_decoding import UnreadableError, from_json
from winnow.deploy.trust.application import Application
from winnow.deploy.trust.certificate_authority import CA_CERTIFICATE_FILE, CertificateAuthority
from winnow.deploy.trust.errors import KitError
from winnow.deploy.trust.kit import CERTIFICATE_FILE
from winnow.deploy.trust.kit_builder import NewKit, build_kit, build_public_kit, install_kit, update_endpoints
from winnow.deploy.trust.peer_identity import Peer, read_certificate
from winnow.deploy.trust.pending_kit import HANDED_OUT
from winnow.deploy.trust.private_file_writing import hold_lock_file, read_small, write_bytes_atomically
from winnow.deploy.trust.project_file import Project, ProjectPerson, ProjectServer, ProjectSite
from winnow.deploy.trust.revocation_list import REVOKED_FILE, RevocationList

ISSUED_FILE = "issued.json"
EXPIRY_WARNING = timedelta(days=30)


class IssuedCertificates(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What was issued to a party; its latest certificate says the rest."""

    kind: str
    organisation: str
    role: str
    hosts: list[str]
    expires: datetime
    serials: list[str]


@dataclass(frozen=True, kw_only=True)
class Provisioner:
    """Where kits are made. Every method answers with lines that say what was done and what is to do."""

    folder: Path
    project: Project
    authority: CertificateAuthority
    now: datetime

    @property
    def ca(self) -> Path:
        return self.folder / "ca"

    def kit(self, name: str) -> Path:
        return self.folder / "kits" / name

    def issue_missing(self) -> Iterator[str]:
        """Kits for those who have none yet; what is amiss with the others is said."""
        issued_to = self._issued()
        for party in self.project.parties:
            if party.name not in issued_to:
                yield f"made {self.kit(party.name)}: {self._issue(party, issued_to)}"
            else:
                yield from self._status_lines(party, issued_to[party.name])
        for name in sorted(issued_to.keys() - {party.name for party in self.project.parties}):
            if not self._is_revoked(issued_to[name]):
                yield f"{name} is no longer in the project, but its certificate is valid; revoke it: --revoke {name}"
        yield from self._update_endpoints()

    def issue_for(self, application: Application) -> dict[str, bytes]:
        """The kit of an applicant who is in the project now, but for the keys, which stay where they were made."""
        party, issued_to = application.party, self._issued()
        folder = self.kit(party.name)
        if party.name in issued_to:
            if not holds_kit_for(folder, application.key):
                raise KitError(f"{party.name} has a kit already; the applicant needs another name")
            return {name: read_small(folder / name) for name in HANDED_OUT}  # an approval that did not arrive
        keys = (application.key, application.sealing_key)
        made = build_public_kit(self.project, party, keys, self.authority, self.now, self._revocations())
        self._install(party, made, issued_to)
        return made.files | {REVOKED_FILE: read_small(self.ca / REVOKED_FILE)}

    def renew(self, name: str) -> Iterator[str]:
        """A new key and certificate. The old certificate stays valid until it expires or is revoked."""
        party = next((party for party in self.project.parties if party.name == name), None)
        if party is None:
            raise KitError(f"the project has no party named {name!r}; {suggest(name, self._names())}")
        peer = self._issue(party, self._issued())
        yield f"renewed {self.kit(name)}: {peer}"
        yield f"hand out to {name}: {self.kit(name)}"

    def revoke(self, name: str) -> Iterator[str]:
        """No certificate that was ever issued to this party counts any longer."""
        issued_to = self._issued()
        if name not in issued_to:
            raise KitError(f"no certificate was issued to {name!r}; {suggest(name, issued_to)}")
        revocations = self._revocations()
        if self._is_revoked(issued_to[name]):
            yield f"{name} is already revoked (revocation list {revocations.number})"
        else:
            revocations = revocations.with_serials(int(serial, 16) for serial in issued_to[name].serials)
            write_bytes_atomically(self.ca / REVOKED_FILE, revocations.sign(self.project.name, self.authority.key))
            yield f"revoked {name} (revocation list {revocations.number})"
        yield from self._distribute_revocations(issued_to, leaving_out=name)

    def _issue(
        self, party: ProjectServer | ProjectSite | ProjectPerson, issued_to: dict[str, IssuedCertificates]
    ) -> Peer:
        made = build_kit(self.project, party, self.authority, self.now, self._revocations())
        self._install(party, made, issued_to)
        return Peer.of(made.certificate)

    def _install(
        self,
        party: ProjectServer | ProjectSite | ProjectPerson,
        made: NewKit,
        issued_to: dict[str, IssuedCertificates],
    ) -> None:
        earlier = issued_to[party.name].serials if party.name in issued_to else []
        issued_to[party.name] = IssuedCertificates(
            kind=party.kind,
            organisation=party.organisation,
            role=party.role,
            hosts=_hosts(party),
            expires=made.certificate.not_valid_after_utc,
            serials=[*earlier, f"{made.certificate.serial_number:x}"],
        )
        write_bytes_atomically(self.ca / ISSUED_FILE, msgspec.json.format(msgspec.json.encode(issued_to), indent=2))
        install_kit(self.kit(party.name), made.files | {REVOKED_FILE: read_small(self.ca / REVOKED_FILE)})

    def _status_lines(
        self, party: ProjectServer | ProjectSite | ProjectPerson, issued: IssuedCertificates
    ) -> Iterator[str]:
        now = (party.kind, party.organisation, party.role, _hosts(party))
        if self._is_revoked(issued):
            yield f"{party.name} is revoked; issue a new certificate with --renew {party.name}"
        elif now != (issued.kind, issued.organisation, issued.role, issued.hosts):
            yield f"{party.name} has changed since its kit was made; make a new kit with --renew {party.name}"
        elif issued.expires - self.now < EXPIRY_WARNING:
            yield f"{party.name} expires on {issued.expires:%Y-%m-%d}; make a new kit with --renew {party.name}"
        elif not self.kit(party.name).is_dir():
            yield f"{party.name} was issued a kit that is no longer here; make a new kit with --renew {party.name}"
        else:
            yield f"kept {self.kit(party.name)}"

    def _update_endpoints(self) -> Iterator[str]:
        """Tell kits made earlier about new servers; keys and certificates stay."""
        for party in self.project.parties:
            changed = update_endpoints(self.kit(party.name), self.project.endpoints, self.authority)
            if changed:
                yield f"hand out to {party.name}: {' and '.join(map(str, changed))} (the servers' addresses changed)"

    def _distribute_revocations(self, issued_to: dict[str, IssuedCertificates], leaving_out: str) -> Iterator[str]:
        """Into every kit that is here; servers and sites must have it, as they decide by it."""
        content = read_small(self.ca / REVOKED_FILE)
        for name, issued in issued_to.items():
            if self.kit(name).is_dir():
                write_bytes_atomically(self.kit(name) / REVOKED_FILE, content)
            if issued.kind != "person" and name != leaving_out:
                here = self.kit(name) if self.kit(name).is_dir() else self.ca
                yield f"hand out to {name}: {here / REVOKED_FILE}"

    def _issued(self) -> dict[str, IssuedCertificates]:
        path = self.ca / ISSUED_FILE
        try:
            return from_json(path.read_bytes(), dict[str, IssuedCertificates])
        except UnreadableError as error:
            raise KitError(f"{path} is damaged: {error}; restore it from a backup") from error

    def _revocations(self) -> RevocationList:
        return RevocationList.read(read_small(self.ca / REVOKED_FILE), self.authority.certificate)

    def _is_revoked(self, issued: IssuedCertificates) -> bool:
        """By its latest certificate: a party that was revoked and renewed is not."""
        return int(issued.serials[-1], 16) in self._revocations().serials

    def _names(self) -> list[str]:
        return [party.name for party in self.project.parties]


@contextmanager
def open_provisioner(folder: Path, project: Project, passphrase: bytes | None, now: datetime) -> Iterator[Provisioner]:
    """The workshop in this folder, begun if it is not there. Nobody else can use it meanwhile."""
    ca = folder / "ca"
    ca.mkdir(parents=True, exist_ok=True, mode=0o700)
    (folder / "kits").mkdir(exist_ok=True, mode=0o700)
    with hold_lock_file(ca / "lock"):
        authority = (
            CertificateAuthority.load(ca, passphrase)
            if is_provisioned(folder)
            else _begin(ca, project, passphrase, now)
        )
        yield Provisioner(folder=folder, project=project, authority=authority, now=now)


def is_provisioned(folder: Path) -> bool:
    """Whether there is an authority in this folder."""
    return (folder / "ca" / CA_CERTIFICATE_FILE).is_file()


def _begin(ca: Path, project: Project, passphrase: bytes | None, now: datetime) -> CertificateAuthority:
    authority = CertificateAuthority.create(project.name, now)
    write_bytes_atomically(ca / ISSUED_FILE, b"{}")
    write_bytes_atomically(ca / REVOKED_FILE, RevocationList().sign(project.name, authority.key))
    authority.save(ca, passphrase)
    return authority


def _hosts(party: ProjectServer | ProjectSite | ProjectPerson) -> list[str]:
    return list(party.hosts) if isinstance(party, ProjectServer) else []


def holds_kit_for(folder: Path, key: ec.EllipticCurvePublicKey) -> bool:
    """Whether the kit in this folder was made for this key."""
    path = folder / CERTIFICATE_FILE
    return path.is_file() and read_certificate(read_small(path)).public_key() == key
