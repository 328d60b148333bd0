"""Secure aggregation: the server learns the sum of the clients' updates and no update.

`modular_vectors` is the arithmetic modulo 2^p, `masks`, `shamir` and `key_agreement` the cryptography, `masking_graph`
says who shares masks with whom. `pairwise_client` and `pairwise_server` are the two sides of the pairwise protocol,
`mask_keeper` the party of the other one. `encoding` turns updates into words of the group. `site` and
`protocol_runner` carry all that in tasks, `collect` is the setting.
"""
