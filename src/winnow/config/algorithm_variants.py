"""Which algorithm a name stands for: one with a recipe of its own, or a variant that a configuration makes of one."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from winnow.config.renamed_settings import ALGORITHMS
from winnow.core import ConfigError, suggest
from winnow.learn.algorithm import Recipe

VARIANT_NAME = re.compile(r"\w[\w.+-]*")
"""Variants name folders, and stand in lists with commas."""


@dataclass(frozen=True, kw_only=True)
class NamedAlgorithm:
    """An algorithm by its name: the recipe, and what the configuration says of it alone, later layers last."""

    recipe: Recipe
    overlays: tuple[Mapping[str, Any], ...]
    base: str | None = None
    """The algorithm that it varies; None if it is not a variant."""


def find_algorithm(name: Any, base: Any, overlays: Mapping[str, Any], source: str) -> NamedAlgorithm:
    """The algorithm of this name. `base` makes it a variant, as the overlay's own `base` does.

    A variant has what the configuration says of its base, too, so that the two differ in the variant's overlay alone.
    """
    overlay = overlays.get(name, {}) if isinstance(name, str) else {}
    own = {key: value for key, value in overlay.items() if key != "base"}
    where, base = (f"algorithms.{name}.base", overlay.get("base")) if base is None else ("base", base)
    if base is None:
        return NamedAlgorithm(recipe=_recipe(name, overlays, source), overlays=(own,))
    if not isinstance(name, str) or not VARIANT_NAME.fullmatch(name):
        raise ConfigError(f"{source}: {name!r} is not a valid variant name; use letters, digits, _ . + and -")
    if name in Recipe.known:
        raise ConfigError(
            f"{source}: {where} = {base!r}, but {name!r} is an algorithm; choose another name for the variant"
        )
    if isinstance(base, str) and base not in Recipe.known and base in overlays:
        raise ConfigError(f"{source}: {where} = {base!r} is itself a variant; set base to a known algorithm")
    if not isinstance(base, str) or base not in Recipe.known:
        raise ConfigError(f"{source}: {where} = {base!r} is unknown; {_instead(str(base), Recipe.known)}")
    return NamedAlgorithm(recipe=Recipe.known[base], overlays=(overlays.get(base, {}), own), base=base)


def checked_overlays(overlays: Any, source: str) -> Mapping[str, Any]:
    """What a configuration says of single algorithms; every name in it is known, or a variant of a known one."""
    if not isinstance(overlays, Mapping):
        raise ConfigError(f"{source}: algorithms must be a table of tables such as [algorithms.fedprof.select]")
    for name, overlay in overlays.items():
        if not isinstance(overlay, Mapping):
            raise ConfigError(f"{source}: algorithms.{name} must be a table such as [algorithms.{name}.select]")
        if name not in Recipe.known and "base" not in overlay:
            hint = f'{_instead(name, Recipe.known)}; for a variant add base = "fedprof", or another known one'
            raise ConfigError(f"{source}: algorithms.{name}: no such algorithm; {hint}")
        find_algorithm(name, None, overlays, source)
    return overlays


def _recipe(name: Any, overlays: Mapping[str, Any], source: str) -> Recipe:
    if isinstance(name, str) and name in Recipe.known:
        return Recipe.known[name]
    known = {*Recipe.known, *overlays}
    words = re.split(r"[\s,;]+", str(name).strip())
    several = f"compare several with: winnow compare --algorithms {','.join(words)}"
    hint = several if len(words) > 1 and not known.isdisjoint(words) else _instead(str(name), known)
    raise ConfigError(f"{source}: algorithm = {name!r} is unknown; {hint}")


def _instead(name: str, known: Iterable[str]) -> str:
    return f"it is now {ALGORITHMS[name]!r}" if name in ALGORITHMS else suggest(name, known)
