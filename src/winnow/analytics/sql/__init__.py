"""Federated SQL: a statement becomes a program of secure steps at every owner."""
