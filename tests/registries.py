"""Undo what plugins register: other tests of the same process must not see it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import winnow.learn.algorithms  # noqa: F401 - all recipes are known before any test puts back what was known
from winnow.core import Choice
from winnow.learn.algorithm import Recipe
from winnow.simulate.ray_workers import PLUGIN_MODULE_PREFIX


@contextmanager
def restored() -> Iterator[None]:
    """Forget at the end every part, recipe and plugin module that became known in between."""
    families = [family for family in Choice.__subclasses__() if "members" in vars(family)]
    members, recipes, modules = [dict(family.members) for family in families], dict(Recipe.known), set(sys.modules)
    try:
        yield
    finally:
        for family, before in zip(families, members, strict=True):
            family.members.clear()
            family.members.update(before)
        Recipe.known.clear()
        Recipe.known.update(recipes)
        for name in {*sys.modules} - modules:
            if name.startswith(PLUGIN_MODULE_PREFIX):
                del sys.modules[name]
