"""The error of a party that refuses a step or a message of the protocol."""


class ProtocolError(ValueError):
    """One line that says what was refused and why; it contains nothing private."""


def too_few_error(number: int, who: str, needed: int) -> ProtocolError:
    """There are too few members, survivors … for a sum."""
    are = f"{who} is" if number == 1 else f"{who}s are"
    return ProtocolError(f"{number} {are} too few for a sum, {needed} are needed")
