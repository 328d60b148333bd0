"""A party signs what others will rely on, and others check who it was."""

from datetime import datetime

import msgspec
from cryptography import x509

from winnow.deploy.trust.errors import IdentityError
from winnow.deploy.trust.kit import Kit
from winnow.deploy.trust.peer_identity import SKEW, Peer, check_certificate, read_certificate
from winnow.deploy.trust.revocation_list import RevocationList
from winnow.deploy.trust.signed_documents import ALGORITHM, is_signed, with_purpose

JOB_PURPOSE = "job"
MAX_JOB_AGE_DAYS = 7.0
"""For so long after it was signed a job can be begun, unless the server or the site says otherwise."""
DAY = 86400.0


class Signature(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who signed, and the signature. It can be a part of other messages."""

    certificate: bytes
    """PEM."""
    value: bytes


def sign(kit: Kit, content: bytes, purpose: str = JOB_PURPOSE) -> Signature:
    """A signature for one purpose is not valid for any other."""
    return Signature(certificate=kit.certificate_pem, value=kit.key.sign(with_purpose(purpose, content), ALGORITHM))


def verify(
    signature: Signature,
    content: bytes,
    authority: x509.Certificate,
    revocations: RevocationList,
    now: datetime,
    purpose: str = JOB_PURPOSE,
) -> Peer:
    """Who signed this, if it is somebody of this project whose certificate counts now."""
    certificate = read_certificate(signature.certificate)
    peer = check_certificate(certificate, authority, now)
    revocations.check(peer)
    if not is_signed(signature.value, with_purpose(purpose, content), certificate):
        raise IdentityError(f"the signature of {peer} is invalid: the {purpose} was changed after signing")
    return peer


def check_job_age(issued: float, now: datetime, days: float) -> None:
    """Refuse a job that was signed too long ago to be begun now: whoever kept it could bring it at any time."""
    age = now.timestamp() - issued
    if age < -SKEW.total_seconds():
        raise IdentityError("the signing time of the job is in the future; check the clocks")
    if not age <= days * DAY:  # refuses what is no number, too
        raise IdentityError(f"the job was signed {age / DAY:.0f} days ago; the limit is {days:g} days; submit it again")
