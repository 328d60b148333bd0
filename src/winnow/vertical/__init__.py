"""Learning where owners hold different columns of the same rows."""
