"""Kits: what is in order is taken, everything else is refused by name."""

import itertools
import shutil
import ssl
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from papers import a_project, kit_of, provision

from winnow.deploy.trust.certificate_authority import CertificateAuthority
from winnow.deploy.trust.errors import IdentityError, KitError
from winnow.deploy.trust.kit import Kit
from winnow.deploy.trust.peer_identity import (
    SKEW,
    Peer,
    check_certificate,
    peer_identifier,
    read_certificate,
    utc_now,
)
from winnow.deploy.trust.project_file import ProjectSite
from winnow.deploy.trust.provisioning import open_provisioner
from winnow.deploy.trust.revocation_list import RevocationList

SIGNED = ["key.pem", "certificate.pem", "ca.pem", "party.json", "endpoints.json", "letter-key.pem"]
FILES = [*SIGNED, "kit.json", "revoked.json"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    provision(folder)
    return folder


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("not issued by the CA")
    provision(folder)
    return folder


@pytest.fixture
def kit(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "kits" / "plant-a", tmp_path / "plant-a"))


def test_a_certificate_is_looked_at_again_at_every_request(made: Path, foreign: Path) -> None:
    server, site = kit_of(made, "server-1"), kit_of(made, "plant-a")
    clock = [utc_now()]
    recognise = peer_identifier(server.authority, lambda: clock[0])
    assert recognise(site.certificate_pem) == recognise(site.certificate_pem) == site.peer
    clock[0] = site.certificate.not_valid_after_utc + 2 * SKEW
    with pytest.raises(IdentityError, match="expired"):
        recognise(site.certificate_pem)
    with pytest.raises(IdentityError, match="not issued by the CA"):
        recognise(kit_of(foreign, "plant-a").certificate_pem)


def refusal(path: Path, **options: object) -> str:
    with pytest.raises(KitError) as refused:
        Kit.load(path, **options)  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)
    assert path.name in str(refused.value)
    return str(refused.value)


def test_a_kit_says_who_its_owner_is(made: Path) -> None:
    for name, kind, organisation, role in [
        ("server-1", "server", "Institute", ""),
        ("plant-a", "site", "Plant A", ""),
        ("the-lead", "person", "Institute", "lead"),
    ]:
        kit = kit_of(made, name)
        assert (kit.name, kit.kind, kit.organisation, kit.role) == (name, kind, organisation, role)
        assert kit.endpoints == ("grpc://localhost:8443", "grpc://127.0.0.1:8443")
        assert kit.peer == Peer.of_pem(kit.certificate_pem)
        assert (kit.sealing_key is not None) == (kind == "site")
        assert b"PRIVATE" not in repr(kit).encode()


def test_keys_are_for_their_owners_eyes(made: Path) -> None:
    for path in [*made.glob("kits/*/*key.pem"), made / "ca" / "ca-key.pem"]:
        assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("file", FILES)
def test_any_changed_byte_is_found(kit: Path, file: str) -> None:
    content = bytearray((kit / file).read_bytes())
    for at in range(0, len(content), 2):
        changed = content.copy()
        changed[at] ^= 1
        (kit / file).write_bytes(changed)
        refusal(kit)
    (kit / file).write_bytes(content)
    assert Kit.load(kit).name == "plant-a"


@pytest.mark.parametrize("file", FILES)
def test_a_missing_file_is_named(kit: Path, file: str) -> None:
    (kit / file).unlink()
    assert file in refusal(kit)


@pytest.mark.parametrize("file", [*SIGNED, "kit.json"])
def test_a_kit_put_together_from_two_is_refused(kit: Path, made: Path, foreign: Path, file: str) -> None:
    original = (kit / file).read_bytes()
    for other in (made / "kits" / "plant-b", foreign / "kits" / "plant-a"):
        content = (other / file).read_bytes()
        if content != original:
            (kit / file).write_bytes(content)
            refusal(kit)


def test_another_projects_revocations_are_refused(kit: Path, foreign: Path) -> None:
    shutil.copy(foreign / "ca" / "revoked.json", kit / "revoked.json")
    assert "this revocation list was not signed by the CA" in refusal(kit)


def test_an_endless_file_is_not_read(kit: Path) -> None:
    with (kit / "endpoints.json").open("wb") as file:
        file.truncate(1 << 34)
    assert "larger than" in refusal(kit)


def test_a_kit_for_another_purpose_is_refused(kit: Path) -> None:
    assert "belongs to site plant-a of Plant A; this command needs the kit of a server" in refusal(kit, kind="server")


def test_a_key_that_others_may_read_is_refused(kit: Path) -> None:
    (kit / "key.pem").chmod(0o640)
    assert f"chmod 600 {kit / 'key.pem'}" in refusal(kit)


def test_what_is_no_kit_is_refused(tmp_path: Path) -> None:
    assert "winnow provision" in refusal(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "incomplete" in refusal(tmp_path / "empty")


def test_a_kit_is_valid_for_its_time_give_or_take_the_skew(kit: Path) -> None:
    certificate = Kit.load(kit).certificate
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    for now in (begins - SKEW, begins, ends, ends + SKEW):
        assert Kit.load(kit, now=now).name == "plant-a"
    second = timedelta(seconds=1)
    assert "is not valid before" in refusal(kit, now=begins - SKEW - second)
    assert "expired on" in refusal(kit, now=ends + SKEW + second)


# Certificates ---------------------------------------------------------------------------------------------------------


def forged(subject_of: x509.Certificate, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    """A certificate that claims to be another's, extensions and all, signed with some key."""
    builder = x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject_of.subject,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=subject_of.not_valid_before_utc,
        not_valid_after=subject_of.not_valid_after_utc,
        extensions=list(subject_of.extensions),
    )
    return builder.sign(key, SHA256())


def test_only_the_authority_vouches(made: Path, foreign: Path) -> None:
    kit = kit_of(made, "plant-a")
    victim = kit_of(made, "the-admin").certificate
    hostile = [
        forged(victim, kit.authority.subject, ec.generate_private_key(ec.SECP256R1())),  # in the CA's name
        forged(victim, kit.certificate.subject, kit.key),  # a party plays CA
        forged(victim, victim.subject, ec.generate_private_key(ec.SECP256R1())),  # nobody vouches
        kit_of(foreign, "the-admin").certificate,
    ]
    assert check_certificate(victim, kit.authority, utc_now()).role == "admin"
    for certificate in hostile:
        with pytest.raises(IdentityError, match="was not issued by the CA"):
            check_certificate(certificate, kit.authority, utc_now())


def test_any_changed_byte_of_a_certificate_is_found(made: Path) -> None:
    """But for a few bits around the signature that say nothing: what was signed is then still the same."""
    kit = kit_of(made, "plant-a")
    whole = kit.certificate.public_bytes(Encoding.DER)
    for at, mask in itertools.product(range(len(whole)), (0x01, 0x80)):
        changed = whole[:at] + bytes([whole[at] ^ mask]) + whole[at + 1 :]
        try:
            certificate = read_certificate(ssl.DER_cert_to_PEM_cert(changed).encode())
            check_certificate(certificate, kit.authority, utc_now())
        except IdentityError:
            continue
        assert certificate.tbs_certificate_bytes == kit.certificate.tbs_certificate_bytes


def test_a_certificate_of_another_kind_names_no_party(made: Path) -> None:
    with pytest.raises(IdentityError, match="does not identify a party"):
        Peer.of(kit_of(made, "plant-a").authority)
    with pytest.raises(IdentityError, match="not a valid certificate"):
        read_certificate(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")


def handshake(server: Path, client: Path, host: str) -> None:
    """TLS in memory, both ends with the files of their kits."""
    at_server, at_client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    at_server.verify_mode = ssl.CERT_REQUIRED
    for context, folder in ((at_server, server), (at_client, client)):
        context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
        context.load_verify_locations(folder / "ca.pem")
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [at_client.wrap_bio(down, up, server_hostname=host), at_server.wrap_bio(up, down, server_side=True)]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue


def test_mutual_tls_takes_these_certificates_and_no_others(made: Path, foreign: Path) -> None:
    kits = made / "kits"
    for host in ("localhost", "127.0.0.1"):
        handshake(kits / "server-1", kits / "plant-a", host)
    for server, client, host in [
        (kits / "server-1", kits / "plant-a", "elsewhere.example"),
        (kits / "server-1", foreign / "kits" / "plant-a", "localhost"),
        (foreign / "kits" / "server-1", kits / "plant-a", "localhost"),
        (kits / "plant-b", kits / "plant-a", "localhost"),
    ]:
        with pytest.raises(ssl.SSLError):
            handshake(server, client, host)


def test_an_authority_whose_key_is_another_is_refused(made: Path, foreign: Path, tmp_path: Path) -> None:
    shutil.copy(made / "ca" / "ca.pem", tmp_path)
    shutil.copy(foreign / "ca" / "ca-key.pem", tmp_path)
    with pytest.raises(KitError, match="in the same folder"):
        CertificateAuthority.load(tmp_path, None)


# Revocations ----------------------------------------------------------------------------------------------------------


def test_revocations_are_followed_and_never_go_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    provision(tmp_path)
    server = kit_of(tmp_path, "server-1")
    file = server.path / "revoked.json"
    watched, victim = server.watch_revocations(), kit_of(tmp_path, "the-lead").peer
    lists = [file.read_bytes()]
    for name in ("the-lead", "the-member"):
        with open_provisioner(tmp_path, a_project(), None, utc_now()) as workshop:
            list(workshop.revoke(name))
        lists.append(file.read_bytes())
    file.write_bytes(lists[1])
    assert watched.current().number == 1
    with pytest.raises(IdentityError, match="the certificate of lead the-lead of Institute was revoked"):
        watched.current().check(victim)
    file.write_bytes(lists[2])
    assert watched.current().number == 2
    for worse in (lists[0], lists[1], b"", b"{}", lists[2][:-10]):
        caplog.clear()
        file.write_bytes(worse)
        assert [watched.current().number for _ in range(3)] == [2, 2, 2]
        assert len(caplog.records) == 1
    file.unlink()
    assert watched.current().number == 2


def test_an_older_list_than_the_kit_knew_is_refused(tmp_path: Path) -> None:
    provision(tmp_path)
    older = (tmp_path / "ca" / "revoked.json").read_bytes()
    with open_provisioner(tmp_path, a_project(), None, utc_now()) as workshop:
        said = list(workshop.revoke("the-lead"))
        assert said[0] == "revoked the-lead (revocation list 1)"
        told = [line.partition(":")[0] for line in said[1:]]
        assert told == [f"hand out to {name}" for name in ("server-1", "plant-a", "plant-b")]
        list(workshop.renew("plant-a"))
    assert kit_of(tmp_path, "plant-a").revocations.number == 1
    (tmp_path / "kits" / "plant-a" / "revoked.json").write_bytes(older)
    assert "revocation list 0 is older than list 1" in refusal(tmp_path / "kits" / "plant-a")


def test_the_revoked_are_out_until_renewed(tmp_path: Path) -> None:
    provision(tmp_path)
    first = kit_of(tmp_path, "plant-a").peer
    with open_provisioner(tmp_path, a_project(), None, utc_now()) as workshop:
        list(workshop.renew("plant-a"))
        second = kit_of(tmp_path, "plant-a").peer
        list(workshop.revoke("plant-a"))
        assert "was revoked" in refusal(tmp_path / "kits" / "plant-a")
        assert "plant-a is already revoked (revocation list 1)" in list(workshop.revoke("plant-a"))
        assert "plant-a is revoked; issue a new certificate with --renew plant-a" in list(workshop.issue_missing())
        list(workshop.renew("plant-a"))
    kit = kit_of(tmp_path, "plant-a")
    assert kit.revocations == RevocationList(number=1, serials=frozenset({first.serial, second.serial}))


# Provisioning ---------------------------------------------------------------------------------------------------------


def contents(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_running_again_adds_only_who_is_new(tmp_path: Path) -> None:
    provision(tmp_path)
    before = contents(tmp_path)
    assert all(line.startswith("kept ") for line in provision(tmp_path))
    assert contents(tmp_path) == before
    more = a_project(sites=[*(s.model_dump() for s in a_project().sites), {"name": "plant-c", "organisation": "C"}])
    said = provision(tmp_path, more)
    assert [line for line in said if not line.startswith("kept ")] == [
        f"made {tmp_path / 'kits' / 'plant-c'}: site plant-c of C"
    ]
    after = contents(tmp_path)
    changed = {path for path in before if after[path] != before[path]}
    assert changed == {Path("ca/issued.json")}
    assert kit_of(tmp_path, "plant-c").kind == "site"


def test_a_new_server_reaches_the_kits_made_before(tmp_path: Path) -> None:
    provision(tmp_path)
    serial = kit_of(tmp_path, "plant-a").peer.serial
    server = {"name": "server-2", "organisation": "Institute", "hosts": ["::1"], "port": 99}
    more = a_project(servers=[*(s.model_dump() for s in a_project().servers), server])
    said = provision(tmp_path, more)
    assert sum("hand out to" in line for line in said) == len(a_project().parties)
    kit = kit_of(tmp_path, "plant-a")
    assert kit.peer.serial == serial
    assert kit.endpoints[-1] == "grpc://[::1]:99"


def test_what_has_changed_or_gone_is_said(tmp_path: Path) -> None:
    provision(tmp_path)
    shutil.rmtree(tmp_path / "kits" / "plant-b")
    sites = [{"name": "plant-a", "organisation": "Other"}, a_project().sites[1].model_dump()]
    moved = a_project(sites=sites, people=[])
    said = provision(tmp_path, moved)
    assert "plant-a has changed since its kit was made; make a new kit with --renew plant-a" in said
    assert "plant-b was issued a kit that is no longer here; make a new kit with --renew plant-b" in said
    assert sum("is no longer in the project" in line for line in said) == 4
    late = provision(tmp_path, now=utc_now() + timedelta(days=340))
    assert sum("expires on" in line for line in late) == len(a_project().parties)


def test_a_renewed_kit_keeps_what_the_operator_put_beside_it(tmp_path: Path) -> None:
    provision(tmp_path)
    old = kit_of(tmp_path, "plant-a")
    (old.path / "policy.toml").write_text("remote_control = true\n")
    with open_provisioner(tmp_path, a_project(), None, utc_now()) as workshop:
        list(workshop.renew("plant-a"))
    assert (old.path / "policy.toml").read_text() == "remote_control = true\n"
    assert kit_of(tmp_path, "plant-a").key_pem != old.key_pem
    assert not list(tmp_path.glob("kits/.*"))


def test_a_passphrase_is_needed_again(tmp_path: Path) -> None:
    with open_provisioner(tmp_path, a_project(), b"sesame", utc_now()) as workshop:
        list(workshop.issue_missing())
    assert b"ENCRYPTED" in (tmp_path / "ca" / "ca-key.pem").read_bytes()
    for wrong in (None, b"simsim"):
        with (
            pytest.raises(KitError, match="wrong passphrase"),
            open_provisioner(tmp_path, a_project(), wrong, utc_now()),
        ):
            pass
    with open_provisioner(tmp_path, a_project(), b"sesame", utc_now()) as workshop:
        assert list(workshop.renew("plant-a"))


def test_no_certificate_outlives_the_authority(made: Path) -> None:
    authority = CertificateAuthority.load(made / "ca", None)
    late = authority.certificate.not_valid_after_utc - timedelta(days=3)
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    certificate = authority.issue(ProjectSite(name="s", organisation="o"), key, None, late, 365)
    assert certificate.not_valid_after_utc == authority.certificate.not_valid_after_utc
