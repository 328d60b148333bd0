"""Homomorphic aggregation: the server adds up ciphertexts, and one client, who holds the key, opens the sum alone.

`cipher` is the arithmetic on encrypted vectors, `site` holds updates back and answers the steps, `round` holds the
conversation at the server, `homomorphic_collect` is the setting. Much is shared with `secagg`.
"""
