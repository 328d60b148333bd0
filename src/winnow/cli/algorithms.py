"""winnow algorithms"""

from winnow.cli.options import AsJson


def algorithms(as_json: AsJson = False) -> None:
    """List the named algorithms."""
    from winnow.cli.console import answers, write_json
    from winnow.experiment.schema import Experiment as _  # noqa: F401  # makes the named algorithms known
    from winnow.experiment.terminal import table
    from winnow.learn.algorithm import Recipe

    recipes = [recipe for _name, recipe in sorted(Recipe.known.items())]
    if as_json:
        write_json([{"name": recipe.name, "summary": recipe.summary, "parts": recipe.parts} for recipe in recipes])
    else:
        answers().print(table(("Algorithm", "What it is"), [(r.name, r.summary) for r in recipes], numbers=False))
