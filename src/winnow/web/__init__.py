"""`winnow ui`: pages about runs, served on this machine alone."""
