"""A mistake in the words of a command as one line, in the place of Typer's box."""

import re
from difflib import get_close_matches
from typing import Any

import typer

USAGE_ERROR = typer.BadParameter.__mro__[1]
"""Its base: which package defines it depends on the version of Typer."""
NUMBERS = {
    "int_parsing": "is not a whole number",
    "float_parsing": "is not a number",
    "greater_than_equal": "is less than {ge}",
    "less_than_equal": "is more than {le}",
}
"""What pydantic's kinds of faults mean."""
UNQUOTED_OPTION = re.compile(r"^option '(.*?)' ")
UNKNOWN_COMMAND = re.compile(r"No such command '(.*?)'", re.DOTALL)


def usage_line(error: Any) -> str:
    """What is wrong, and the option that was meant or where the help is."""
    context: Any = error.ctx
    what, near = " ".join(_what(error).split()), _nearest(error)
    if near:
        return f"{what}; did you mean {near}?"
    return what if context is None else f"{what}; see {context.command_path} --help"


def _what(error: Any) -> str:
    parameter: Any = getattr(error, "param", None)
    message = error.message.rstrip(".")
    if parameter is not None:
        named = _name(parameter)
        if parameter.required and not message:
            return f"{named} is missing{_from_environment(parameter)}"
        return f"{named}: {_of_pydantic(error) or message}"
    if (option := _unknown_option(error)) is not None:
        return f"there is no option {option}"
    if (command := UNKNOWN_COMMAND.match(error.message)) is not None:
        return f"there is no command {command[1]}"
    return UNQUOTED_OPTION.sub(r"\1 ", message[:1].lower() + message[1:])


def _of_pydantic(error: Any) -> str | None:
    """What is wrong with a number, where pydantic found it, as newer versions of Typer have it do."""
    from pydantic import ValidationError

    if not isinstance(error.__cause__, ValidationError):
        return None
    fault: Any = error.__cause__.errors()[0]
    words = NUMBERS.get(fault["type"])
    return words and f"{fault['input']} {words.format(**fault.get('ctx', {}))}"


def _name(parameter: Any) -> str:
    """An option as people type it; an argument as the help calls it."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    return str(max(parameter.opts, key=len))


def _from_environment(parameter: Any) -> str:
    variable = getattr(parameter, "envvar", None)
    return f"; give it, or set {variable}" if isinstance(variable, str) else ""


def _unknown_option(error: Any) -> str | None:
    return error.option_name if type(error).__name__ == "NoSuchOption" else None


def _nearest(error: Any) -> str | None:
    """The option or command that is nearest to one that there is not."""
    command: Any = None if error.ctx is None else error.ctx.command
    if command is None:
        return None
    if (option := _unknown_option(error)) is not None:
        return _closest(option, [name for each in command.params for name in (*each.opts, *each.secondary_opts)])
    if (typed := UNKNOWN_COMMAND.match(error.message)) is not None:
        return _closest(typed[1], [name for name, each in command.commands.items() if not each.hidden])
    return None


def _closest(word: str, known: list[str]) -> str | None:
    return next(iter(get_close_matches(word, known, n=1)), None)
