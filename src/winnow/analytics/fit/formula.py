"""Formulas such as `income ~ age + C(ward) + log(dose) + age:ward`, and what each of their terms is made of.

A subset of Wilkinson's notation: `+`, `:` (interaction), `*` (both and their interaction), `C(x)` (a number as
category), `log(x)`, `- 1` or `+ 0` (no intercept). Names with other signs stand in backticks: `hours-per-week`.
"""

import re
from dataclasses import dataclass
from typing import Literal

from winnow.core import ConfigError
from winnow.core.untrusted_text import one_line

NAME = r"(?:[^\W\d][\w.]*|`[^`]+`)"
FACTOR = re.compile(rf"(?:(C|log)\(\s*({NAME})\s*\)|({NAME}))")
MAX_TERMS = 500
Use = Literal["as it is", "category", "log"]
QUOTED = r"(?=(?:[^`]*`[^`]*`)*[^`]*$)"
"""What follows has an even number of backticks: what stands before it is outside of quoted names."""
USES: dict[str | None, Use] = {None: "as it is", "C": "category", "log": "log"}


@dataclass(frozen=True)
class Factor:
    """A column, and how it enters."""

    column: str
    use: Use = "as it is"

    def __str__(self) -> str:
        return {"as it is": "{}", "category": "C({})", "log": "log({})"}[self.use].format(self.column)


@dataclass(frozen=True)
class Formula:
    """`terms` are products of factors; the response is a factor, or None where nothing is predicted."""

    response: Factor | None
    terms: tuple[tuple[Factor, ...], ...]
    intercept: bool = True

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that it names, once each."""
        factors = [*([] if self.response is None else [self.response]), *(each for term in self.terms for each in term)]
        return tuple(dict.fromkeys(factor.column for factor in factors))

    @property
    def interacts(self) -> bool:
        return any(len(term) > 1 for term in self.terms)


def parse_formula(text: str) -> Formula:
    left, tilde, right = text.partition("~")
    if not tilde or "~" in right or not right.strip():
        raise ConfigError(f"formula '{one_line(text)}' is not of the form 'y ~ a + b'")
    terms: list[tuple[Factor, ...]] = []
    intercept = True
    for sign, piece in _pieces(right, text):
        if piece in ("0", "1"):
            intercept = (piece == "1") == (sign == "+")
        elif sign == "-":
            raise ConfigError(f"formula '{one_line(text)}': only '- 1' can be taken away")
        else:
            terms.extend(term for term in _expanded(piece, text) if term not in terms)
    if not terms:
        raise ConfigError(f"formula '{one_line(text)}' has no inputs")
    response = _factor(left.strip(), text)
    if any(factor.column == response.column for term in terms for factor in term):
        raise ConfigError(f"formula '{one_line(text)}': '{response.column}' is on both sides")
    return Formula(response=response, terms=tuple(terms), intercept=intercept)


def _pieces(right: str, text: str) -> list[tuple[str, str]]:
    """Signs and what follows them."""
    parts = re.split(rf"([+-]){QUOTED}", right if right.strip().startswith(("+", "-")) else f"+{right}")[1:]
    pairs = [(sign, piece.strip()) for sign, piece in zip(parts[::2], parts[1::2], strict=True)]
    if any(not piece for _, piece in pairs):
        raise ConfigError(f"formula '{one_line(text)}': a '+' or '-' has nothing after it")
    return pairs


def _expanded(piece: str, text: str) -> list[tuple[Factor, ...]]:
    """a*b is a + b + a:b."""
    found: list[tuple[Factor, ...]] = [()]
    for part in re.split(rf"\*{QUOTED}", piece):
        product = tuple(dict.fromkeys(_factor(each.strip(), text) for each in re.split(rf":{QUOTED}", part)))
        if len(found) > MAX_TERMS:
            raise ConfigError(f"formula '{one_line(text)[:200]}' has more than {MAX_TERMS} terms")
        found += [tuple(dict.fromkeys((*term, *product))) for term in found]
    return sorted(found[1:], key=len)


def _factor(word: str, text: str) -> Factor:
    match = FACTOR.fullmatch(word)
    if match is None:
        raise ConfigError(
            f"formula '{one_line(text)}': cannot read '{one_line(word)}'; columns, C(), log(), +, :, * and -1 are known"
        )
    function, inside, plain = match.groups()
    return Factor((inside or plain).strip("`"), USES[function])
