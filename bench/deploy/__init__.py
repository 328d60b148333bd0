"""Deployments: many connected sites, a model of 1 GB in bounded memory, and the time that a round takes."""

from bench.deploy import large, rounds, sites

BENCHES = {"sites": sites, "large": large, "rounds": rounds}
