"""What can be wrong with a party's papers. Every message is one line.

TrustError
├── KitError         a kit is incomplete, tampered with, foreign, expired, or for another purpose
├── IdentityError    a certificate, signature or revocation list is not to be believed
├── PolicyError      a policy file cannot be understood
├── LetterError      a sealed letter cannot be made or opened
└── AuditError       an audit log is in use, or has lost what was in it
"""

from winnow.core.errors import WinnowError


class TrustError(WinnowError):
    """Something or somebody is not to be trusted."""


class KitError(TrustError):
    """A kit is incomplete, tampered with, foreign, expired, or for another purpose."""


class IdentityError(TrustError):
    """A certificate, a signature or a revocation list is not to be believed."""


class PolicyError(TrustError):
    """A policy file cannot be understood."""


class SealedMessageError(TrustError):
    """A sealed letter cannot be made or opened."""


class AuditError(TrustError):
    """An audit log is in use, or has lost what was in it."""
