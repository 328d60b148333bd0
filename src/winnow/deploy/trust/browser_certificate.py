"""A person's key and certificate as browsers import them."""

import secrets

from cryptography.hazmat.primitives.serialization import BestAvailableEncryption
from cryptography.hazmat.primitives.serialization.pkcs12 import serialize_key_and_certificates

from winnow.deploy.trust.kit import Kit

PASSWORD_BYTES = 12


def browser_certificate(kit: Kit) -> tuple[bytes, str]:
    """A PKCS #12 file, and the password under which it is encrypted.

    The CA is left out: a browser that imported it as an authority would believe it about every web site.
    """
    password = secrets.token_urlsafe(PASSWORD_BYTES)
    name = f"{kit.name} in {kit.project}".encode()
    encryption = BestAvailableEncryption(password.encode())
    return serialize_key_and_certificates(name, kit.key, kit.certificate, None, encryption), password
