"""Federated ensembles: clusters of clients, a model (leaf) for each, and what combines the leaves."""
