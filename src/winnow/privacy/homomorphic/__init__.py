"""Homomorphic aggregation: the server adds up ciphertexts, and one client, who holds the key, opens the sum alone.

`cipher` is the arithmetic on encrypted vectors, `held` keeps updates at their site, `site` answers the steps there,
`round` holds the conversation at the server, `collect` is the setting.
"""
