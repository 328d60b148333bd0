"""Statistics of a table that several owners hold."""
