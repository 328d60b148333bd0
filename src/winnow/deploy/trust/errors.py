"""Errors about kits, certificates, policies and audit logs. Every message is one line.

TrustError
├── KitError            a kit is incomplete, changed, of another project, expired, or for another purpose
├── IdentityError       a certificate, signature or revocation list is invalid
├── PolicyError         a policy file is invalid
├── SealedMessageError  a sealed message cannot be made or opened
└── AuditError          an audit log is in use, or has lost entries
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
    """A sealed message cannot be made or opened."""


class AuditError(TrustError):
    """An audit log is in use, or has lost what was in it."""
