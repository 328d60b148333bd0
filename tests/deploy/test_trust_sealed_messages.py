"""Signatures and sealed messages: what was written by whom, and nothing else."""

import dataclasses
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from papers import kit_of, provision

from winnow.deploy.trust.errors import IdentityError, SealedMessageError
from winnow.deploy.trust.kit import Kit
from winnow.deploy.trust.peer_identity import utc_now
from winnow.deploy.trust.revocation_list import RevocationList
from winnow.deploy.trust.sealed_messages import SealingContext, seal, unseal
from winnow.deploy.trust.signing import Signature, sign, verify

NONE_REVOKED = RevocationList()
TAG_BYTES = 16
CONTEXT = SealingContext(job="job-1", round=3, sender="plant-a", recipient="plant-b", subject="2 to 7")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parties:
    plant_a: Kit
    plant_b: Kit
    lead: Kit
    stranger: Kit


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Parties:
    home, away = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("away")
    provision(home)
    provision(away)
    return Parties(
        plant_a=kit_of(home, "plant-a"),
        plant_b=kit_of(home, "plant-b"),
        lead=kit_of(home, "the-lead"),
        stranger=kit_of(away, "plant-a"),
    )


# Signatures -----------------------------------------------------------------------------------------------------------


def test_a_signature_says_who_signed(parties: Parties) -> None:
    signature = sign(parties.lead, b"a job")
    travelled = msgspec.msgpack.decode(msgspec.msgpack.encode(signature), type=Signature)
    assert verify(travelled, b"a job", parties.plant_a.authority, NONE_REVOKED, utc_now()) == parties.lead.peer


def test_a_signature_that_does_not_fit_is_refused(parties: Parties) -> None:
    authority, now = parties.plant_a.authority, utc_now()
    signature = sign(parties.lead, b"a job")
    swapped = Signature(certificate=parties.plant_a.certificate_pem, value=signature.value)
    late = parties.lead.certificate.not_valid_after_utc + timedelta(hours=1)
    revoked = NONE_REVOKED.with_serials([parties.lead.peer.serial])
    for refused, content, revocations, at, purpose, why in [
        (signature, b"another job", NONE_REVOKED, now, "job", "changed after signing"),
        (signature, b"a job", NONE_REVOKED, now, "message", "is invalid"),
        (swapped, b"a job", NONE_REVOKED, now, "job", "the signature of site plant-a of Plant A is invalid"),
        (signature, b"a job", NONE_REVOKED, late, "job", "expired"),
        (signature, b"a job", revoked, now, "job", "was revoked"),
        (sign(parties.stranger, b"a job"), b"a job", NONE_REVOKED, now, "job", "not issued by the CA"),
        (Signature(certificate=b"", value=b""), b"a job", NONE_REVOKED, now, "job", "not a valid certificate"),
        (
            Signature(certificate=parties.lead.certificate_pem, value=b"x"),
            b"a job",
            NONE_REVOKED,
            now,
            "job",
            "is invalid",
        ),
    ]:
        with pytest.raises(IdentityError, match=why):
            verify(refused, content, authority, revocations, at, purpose)


# Letters --------------------------------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(
    text=st.binary(max_size=300), job=st.text(max_size=10), round=st.integers(0, 2**53), subject=st.text(max_size=10)
)
def test_a_message_opens_for_its_recipient(parties: Parties, text: bytes, job: str, round: int, subject: str) -> None:
    context = SealingContext(job=job, round=round, sender="plant-a", recipient="plant-b", subject=subject)
    sealed = seal(parties.plant_a, parties.plant_b.certificate_pem, context, text)
    assert unseal(parties.plant_b, sealed, context) == (parties.plant_a.peer, text)
    assert len(text) < 8 or text not in sealed


def box_bytes(sealed: bytes) -> int:
    """All else is the certificate, keys, and a signature whose length is chance."""
    return len(msgspec.msgpack.decode(sealed)["box"])


@settings(max_examples=50, deadline=None)
@given(size=st.integers(0, 100_000), less=st.integers(0, 255))
def test_a_messages_length_tells_little_of_its_text(parties: Parties, size: int, less: int) -> None:
    def length(text: int) -> int:
        found = box_bytes(seal(parties.plant_a, parties.plant_b.certificate_pem, CONTEXT, bytes(text)))
        return found - TAG_BYTES

    assert size < length(size) <= max(256, 1.125 * size + 256)
    steps = {length(each) for each in range(max(0, size - less), size + 1, 64)}
    assert len(steps) <= 2, "lengths that lie close together are mostly one and the same"
    assert all(each % 256 == 0 for each in steps)


def test_messages_of_one_kind_are_all_of_one_length(parties: Parties) -> None:
    texts = (b"", b"no", b"yes", bytes(72), b"\x80\x80\0\0", bytes(255))
    sealed = [seal(parties.plant_a, parties.plant_b.certificate_pem, CONTEXT, text) for text in texts]
    assert {box_bytes(each) for each in sealed} == {256 + TAG_BYTES}
    assert [unseal(parties.plant_b, each, CONTEXT)[1] for each in sealed] == [*texts]


@settings(max_examples=120, deadline=None)
@given(place=st.integers(0, 2000), kind=st.sampled_from(["flip", "cut", "insert"]), byte=st.integers(1, 255))
def test_any_change_on_the_way_is_found(parties: Parties, place: int, kind: str, byte: int) -> None:
    sealed = seal(parties.plant_a, parties.plant_b.certificate_pem, CONTEXT, b"the text")
    at = place % len(sealed)
    changed = {
        "flip": sealed[:at] + bytes([sealed[at] ^ byte]) + sealed[at + 1 :],
        "cut": sealed[:at],
        "insert": sealed[:at] + bytes([byte]) + sealed[at:],
    }[kind]
    try:
        opened = unseal(parties.plant_b, changed, CONTEXT)
    except SealedMessageError:
        return
    # Only bytes that carry no meaning may differ: the ends of lines in the certificate's PEM.
    assert opened == (parties.plant_a.peer, b"the text")


@settings(max_examples=100, deadline=None)
@given(noise=st.binary(max_size=200))
def test_noise_is_no_message(parties: Parties, noise: bytes) -> None:
    with pytest.raises(SealedMessageError):
        unseal(parties.plant_b, noise, CONTEXT)


@pytest.mark.parametrize(
    "change", [{"job": "job-2"}, {"round": 4}, {"subject": "2 to 8"}, {"sender": "plant-c"}, {"recipient": "plant-c"}]
)
def test_a_message_stays_where_it_belongs(parties: Parties, change: dict[str, str]) -> None:
    sealed = seal(parties.plant_a, parties.plant_b.certificate_pem, CONTEXT, b"the text")
    with pytest.raises(SealedMessageError):
        unseal(parties.plant_b, sealed, dataclasses.replace(CONTEXT, **change))  # type: ignore[arg-type]


def test_another_site_cannot_take_over_a_message(parties: Parties) -> None:
    """Neither by opening it nor by putting its own name under it."""
    sealed = seal(parties.plant_a, parties.plant_b.certificate_pem, CONTEXT, b"the text")
    with pytest.raises(SealedMessageError, match="is addressed to plant-b, not to plant-a"):
        unseal(parties.plant_a, sealed, CONTEXT)
    with pytest.raises(SealedMessageError):
        unseal(parties.plant_a, sealed, dataclasses.replace(CONTEXT, recipient="plant-a"))
    own = dataclasses.replace(CONTEXT, sender="plant-b", recipient="plant-a")
    theirs = msgspec.msgpack.decode(sealed)
    written = msgspec.msgpack.decode(seal(parties.plant_b, parties.plant_a.certificate_pem, own, b""))
    theirs["signature"] = written["signature"]
    with pytest.raises(SealedMessageError, match="rejected"):
        unseal(parties.plant_b, msgspec.msgpack.encode(theirs), CONTEXT)


def test_messages_are_written_in_ones_own_name_for_a_site_of_the_project(parties: Parties) -> None:
    revoked = NONE_REVOKED.with_serials([parties.plant_b.peer.serial])
    for context, certificate, revocations, why in [
        (
            dataclasses.replace(CONTEXT, sender="plant-b"),
            parties.plant_b.certificate_pem,
            None,
            "seal messages as plant-b",
        ),
        (CONTEXT, parties.stranger.certificate_pem, None, "not issued by the CA"),
        (CONTEXT, parties.plant_a.certificate_pem, None, "the certificate belongs to site plant-a"),
        (CONTEXT, parties.lead.certificate_pem, None, "has no sealing key"),
        (CONTEXT, parties.plant_b.certificate_pem, revoked, "was revoked"),
        (CONTEXT, b"", None, "not a valid certificate"),
    ]:
        with pytest.raises(SealedMessageError, match=why):
            seal(parties.plant_a, certificate, context, b"the text", revocations)


def test_messages_of_persons_strangers_and_revoked_sites_are_refused(parties: Parties, tmp_path: Path) -> None:
    by_person = dataclasses.replace(CONTEXT, sender="the-lead")
    sealed = seal(parties.lead, parties.plant_b.certificate_pem, by_person, b"the text")
    with pytest.raises(SealedMessageError, match="was signed by lead the-lead"):
        unseal(parties.plant_b, sealed, by_person)
    sealed = seal(parties.plant_a, parties.plant_b.certificate_pem, CONTEXT, b"the text")
    with pytest.raises(SealedMessageError, match="was revoked"):
        unseal(parties.plant_b, sealed, CONTEXT, NONE_REVOKED.with_serials([parties.plant_a.peer.serial]))
    with pytest.raises(SealedMessageError, match="no sealing key"):
        unseal(parties.lead, sealed, CONTEXT)


def test_the_same_text_is_never_sealed_alike(parties: Parties) -> None:
    one, two = (seal(parties.plant_a, parties.plant_b.certificate_pem, CONTEXT, b"the text") for _ in range(2))
    assert msgspec.msgpack.decode(one)["box"] != msgspec.msgpack.decode(two)["box"]
