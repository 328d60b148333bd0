"""Between organisations: the same workflows over gRPC with mutual TLS, on the wall's clock."""
