"""Which identifiers owners have in common, or only how many."""
