"""Who is who and who may do what: certificates, kits, policies, signatures, the audit log."""
