"""winnow presets, winnow presets show NAME"""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from winnow.cli.options import AsJson, preset_names


class _Group(TyperGroup):
    """A preset in the place of a command is one to be shown."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in preset_names():
            from winnow.core import ConfigError

            raise ConfigError(f"presets {args[0]}: did you mean: winnow presets show {args[0]}")
        return super().resolve_command(ctx, args)


presets = typer.Typer(
    cls=_Group,
    help="List the experiments that come with Winnow, or print one as a starting point for your own.",
    epilog="[bold]Examples[/bold]\n\nwinnow presets\n\nwinnow presets show demo > mine.toml",
    rich_markup_mode="rich",
)


@presets.callback(invoke_without_command=True)
def list_presets(context: typer.Context, as_json: AsJson = False) -> None:
    if context.invoked_subcommand is not None:
        return
    from winnow.cli.console import stdout_console, write_json
    from winnow.config.resolve import presets as known
    from winnow.terminal_tables import table

    records = [
        {
            "name": name,
            "description": preset.get("description", ""),
            "rounds": preset.get("rounds"),
            "clients": preset.get("data", {}).get("clients"),
            "algorithm": preset.get("algorithm"),
        }
        for name, preset in known().items()
    ]
    if as_json:
        write_json(records)
        return
    shown = ("name", "clients", "rounds", "algorithm", "description")
    rows = [tuple(str(record[key]) for key in shown) for record in records]
    stdout_console().print(table(("Preset", "Clients", "Rounds", "Algorithm", "What it is"), rows, numbers=False))


@presets.command()
def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            autocompletion=lambda incomplete: [name for name in preset_names() if name.startswith(incomplete)],
        ),
    ],
) -> None:
    """Print a preset as a starting point for your own file."""
    from winnow.config.resolve import preset_text

    typer.echo(preset_text(name), nl=False)
