"""A person's signature under a job."""

import msgspec

from winnow.deploy.jobs.bundle_format import Bundle
from winnow.deploy.trust.kit import Kit
from winnow.deploy.trust.peer_identity import utc_now
from winnow.deploy.trust.signing import sign


def sign_bundle(kit: Kit, bundle: Bundle) -> Bundle:
    """The bundle with this person's signature."""
    dated = msgspec.structs.replace(bundle, issued=utc_now().timestamp())
    signature = sign(kit, dated.signed)
    return msgspec.structs.replace(dated, certificate=signature.certificate, signature=signature.value)
