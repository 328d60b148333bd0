"""Tables and questions need the extra "query"; whoever has not installed it is told so in one line."""

from importlib.util import find_spec

from winnow.core import ConfigError
from winnow.core.installed_package import install_command

QUERY_PACKAGES = ("duckdb", "mpyc", "pyarrow")


def require_query_extra() -> None:
    if missing := [name for name in QUERY_PACKAGES if find_spec(name) is None]:
        raise ConfigError(f"tables need {', '.join(missing)}: {install_command('query')}")
