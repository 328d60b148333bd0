"""Learning from what is not shown: profiles that are compared under encryption."""
