"""Winnow against other frameworks on the same work, one after another in one run."""
