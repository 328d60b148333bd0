"""Colours that colour-blind readers can tell apart, on light and on dark paper (after Okabe and Ito)."""

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#888888")
SCORE_COLOUR_SCALE = "Cividis"


def colour(index: int) -> str:
    return PALETTE[index % len(PALETTE)]


def translucent(hexadecimal: str, opacity: float) -> str:
    """The colour as a translucent one."""
    red, green, blue = (int(hexadecimal[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, {opacity})"
