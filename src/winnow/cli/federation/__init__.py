"""Commands for users of a federation: submit jobs, follow them, download their results."""
