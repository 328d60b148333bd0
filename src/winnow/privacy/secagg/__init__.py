"""Secure aggregation: the server learns the sum of the clients' updates and no single update.

`modular_vectors` is the arithmetic modulo 2^p, `masks`, `shamir` and `key_agreement` the cryptography, `masking_graph`
says who shares masks with whom. `pairwise_client` and `pairwise_server` are the two sides of the pairwise protocol,
`mask_keeper` is the third party of the other protocol. `encoding` turns updates into vectors of the group. `site` and
`protocol_runner` run the protocols as tasks of a federation; `collect` has the settings.
"""
