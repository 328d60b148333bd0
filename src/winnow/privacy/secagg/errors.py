"""What a party of the protocol will not do, or will not accept."""


class ProtocolError(ValueError):
    """One line that says what was refused, and why; it never holds anything private."""


def too_few_error(number: int, who: str, needed: int) -> ProtocolError:
    """So many members, survivors … do not make a sum."""
    are = f"{who} is" if number == 1 else f"{who}s are"
    return ProtocolError(f"{number} {are} too few for a sum, {needed} are needed")
