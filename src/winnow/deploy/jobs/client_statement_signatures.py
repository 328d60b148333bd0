"""What a site signs for a client in a protocol between clients, and how others check it.

A signature states: in this round of this job, as its author submitted it, this client sent that. It is valid for
nothing else, so a job's own code may ask for it.
"""

from functools import lru_cache
from hashlib import sha256

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import load_der_public_key

from winnow.deploy.jobs.bundle_format import Bundle
from winnow.deploy.trust.signed_documents import ALGORITHM, with_purpose

STATEMENT_PURPOSE = "statement of a client"
KEEPER_NUMBER = -1
"""The number under which a site signs as mask keeper."""


def submission_id(bundle: Bundle) -> str:
    """Identifies a job by what its author signed and by that signature.

    A job that is submitted again is a different one. A server that deploys a job again, under any name, cannot make it
    one: it could change all of a signature but the number r, and the certificate does not enter the id.
    """
    number, _ = decode_dss_signature(bundle.signature) if bundle.signature else (0, 0)
    return sha256(msgspec.msgpack.encode([bundle.signed, f"{number:x}"])).hexdigest()


def statement_bytes(submission: str, round: int, client: int, content: bytes) -> bytes:
    return with_purpose(STATEMENT_PURPOSE, msgspec.msgpack.encode([submission, round, client, content]))


def verify_statement(key: bytes, signature: bytes, statement: bytes) -> bool:
    """Whether the holder of this public key (DER) signed this statement."""
    public = _key(key)
    if public is None:
        return False
    try:
        public.verify(signature, statement, ALGORITHM)
    except InvalidSignature:
        return False
    return True


@lru_cache(maxsize=1024)
def _key(data: bytes) -> ec.EllipticCurvePublicKey | None:
    key = load_der_public_key(data)
    return key if isinstance(key, ec.EllipticCurvePublicKey) else None
