"""Whose data is worth learning from: what clients tell of their data, how it is compared with the reference, and what
follows from it.
"""
