"""Numbers as people and other parties write them."""


def is_number(text: str) -> bool:
    """Whether Python reads it as one."""
    try:
        float(text)
    except ValueError:
        return False
    return True
