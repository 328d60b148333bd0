"""What a party of the protocol will not do, or will not accept."""


class RefusedError(ValueError):
    """One line that says what was refused, and why; it never holds anything private."""
