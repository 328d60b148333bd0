"""Rows that reach their reader, and nobody else, without saying whose they are."""
