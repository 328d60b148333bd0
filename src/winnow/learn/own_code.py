"""Functions and classes in the user's own files."""

import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from winnow.core import ModelError, suggest
from winnow.core.split_factory_path import split_factory


def load_own_function(factory: str, what: str) -> Callable[..., Any]:
    """What `file.py:function` names; the file is run. `what` it is meant to be is for messages."""
    file, name = split_factory(factory)
    path = Path(file)
    if not path.is_file():
        raise ModelError(f"{what} file '{file}' does not exist; name it as file.py:function")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # a user's code may fail in any way
        raise ModelError(f"{what} file '{file}' cannot be run: {_what(error, path)}") from error
    name = name or _only_factory(module, file, what)
    if not callable(getattr(module, name, None)):
        found = [each for each, value in vars(module).items() if inspect.isfunction(value) or inspect.isclass(value)]
        hint = f"; {suggest(name, found, at_most=12)}" if found else ""
        raise ModelError(f"{what} file '{file}' has no function '{name}'{hint}")
    function: Callable[..., Any] = getattr(module, name)
    return function


def _what(error: Exception, path: Path) -> str:
    if isinstance(error, SyntaxError) and error.filename == str(path.absolute()):
        return f"SyntaxError, line {error.lineno}: {error.msg}"
    return repr(error)


def _only_factory(module: ModuleType, file: str, what: str) -> str:
    """The one thing in a file that can be meant: a class of modules, or a function."""
    own = {name: each for name, each in vars(module).items() if getattr(each, "__module__", "") == module.__name__}
    names = [name for name, each in own.items() if not name.startswith("_") and _may_make_model(each)]
    if len(names) == 1:
        return names[0]
    if not names:
        raise ModelError(f"{what} file '{file}' has no function and no class of models (torch.nn.Module)")
    told = f"{', '.join(names[:-1])} and {names[-1]}"
    raise ModelError(f"{what} file '{file}' has {told}; say which is the {what}: \"{file}:{names[0]}\"")


def _may_make_model(value: object) -> bool:
    return issubclass(value, nn.Module) if isinstance(value, type) else inspect.isfunction(value)
