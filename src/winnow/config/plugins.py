"""Python files of the user's own that make algorithms, or any other parts, known by name.

A file is run once in a process, before a configuration that names it is checked. It is a module under a name that
depends on its path alone, so that processes can send each other what it defines.
"""

import sys
from collections.abc import Iterable
from hashlib import sha256
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from winnow.core import ConfigError
from winnow.core.user_code_error import place_of_error, text_of_error
from winnow.simulate.ray_workers import PLUGIN_MODULE_PREFIX


def load_plugins(files: Iterable[str | Path], source: str) -> None:
    """Run each file that has not been run yet; a mistake in one is a single line that begins with the source."""
    for file in files:
        path = Path(file).absolute()
        if _module_name(path) not in sys.modules:
            _load(path, source)


def plugin_files(table: Any, source: str) -> list[str]:
    """The files that a configuration names."""
    files = table.get("plugins", [])
    if not isinstance(files, list | tuple) or not all(isinstance(file, str | Path) for file in files):
        raise ConfigError(f'{source}: plugins = {files!r} must be a list of Python files such as ["mine.py"]')
    return [str(file) for file in files]


def _module_name(path: Path) -> str:
    return f"{PLUGIN_MODULE_PREFIX}{path.stem}_{sha256(str(path).encode()).hexdigest()[:12]}"


def _load(path: Path, source: str) -> None:
    if path.suffix != ".py" or not path.is_file():
        what = "no such file" if not path.exists() else "not a Python file (.py)"
        raise ConfigError(f"{source}: plugin {path}: {what}")
    spec = spec_from_file_location(_module_name(path), path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[module.__name__] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a user's code may fail in any way
        del sys.modules[module.__name__]
        place = place_of_error(error, str(path).__eq__)
        line = f", line {place[1]}" if place else ""
        raise ConfigError(f"{source}: plugin {path}{line}: {text_of_error(error)}") from error
