"""winnow budget KIT"""

from pathlib import Path
from typing import Annotated

import typer

from winnow.cli.federation.options import to_the_minute
from winnow.cli.federation.require_deploy_extra import requires_deploy_extra
from winnow.cli.options import AsJson


@requires_deploy_extra
def budget(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The site's start-up kit, a folder.")],
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The site's settings; default: site.toml beside the kit.")
    ] = None,
    reset: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="PERSON TABLE",
            help="Let what this person has spent on this table no longer count. Stop the site's agent first.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="With --reset: do not ask for a confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what people have spent of their privacy budgets at a site; reset one."""
    from winnow.cli.console import answer, stdout_console, write_json
    from winnow.deploy.site.budget_command import read_budgets, reset_budget
    from winnow.terminal_tables import table

    if reset is not None:
        person, name = reset
        question = f"Everything that {person} learnt about {name} stays learnt. Let it no longer count?"
        if not yes and not typer.confirm(question, err=True):
            raise typer.Exit(1)
        count = reset_budget(kit, person, name, config)
        answer(f"{person} may ask about {name} anew: {count} question{'s'[: count != 1]} no longer count")
        return
    lines = read_budgets(kit, config)
    if as_json:
        write_json(
            [
                {
                    "person": line.spending.person,
                    "table": line.spending.table,
                    "questions": line.spending.questions,
                    "rho": line.spending.rho,
                    "epsilon": None if line.limit is None else line.limit.epsilon,
                    "left": line.left,
                    "last": line.spending.last,
                }
                for line in lines
            ]
        )
        return
    if not lines:
        typer.echo("no question with noise has been answered here")
        return
    rows = [
        (
            line.spending.person,
            line.spending.table,
            str(line.spending.questions),
            "no rule" if line.limit is None else f"{line.left:g} of {line.limit.epsilon:g}",
            to_the_minute(line.spending.last),
        )
        for line in lines
    ]
    stdout_console().print(table(("Person", "Table", "Questions", "ε left", "Last (UTC)"), rows, numbers=False))
