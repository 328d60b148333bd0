"""The names and addresses under which a certificate's holder may serve."""

from cryptography import x509


def certificate_hosts(certificate: x509.Certificate) -> set[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return {str(name) for kind in (x509.DNSName, x509.IPAddress) for name in names.get_values_for_type(kind)}
