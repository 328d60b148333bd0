"""Secure aggregation: the server learns the sum of the clients' updates and no update.

`group` is the arithmetic modulo 2^p, `masks`, `shamir` and `keys` the cryptography, `graph` says who shares masks with
whom. `member` and `tally` are the two sides of the pairwise protocol, `keeper` the party of the other one. `encoding`
turns updates into words of the group. `site` and `conversation` carry all that in tasks, `collect` is the setting.
"""
