"""Commands that need the extra "deploy" check for it first."""

from collections.abc import Callable
from functools import wraps
from importlib.util import find_spec
from typing import ParamSpec, TypeVar

DEPLOY_PACKAGES = ("grpc", "cryptography", "sqlalchemy", "alembic", "psycopg", "prometheus_client")

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")


def requires_deploy_extra(command: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
    """Refuse a command, in one line, if a package of the extra is not installed."""

    @wraps(command)
    def checked(*arguments: Arguments.args, **options: Arguments.kwargs) -> Returned:
        from winnow.core import ConfigError
        from winnow.core.installed_package import install_command

        missing = [name for name in DEPLOY_PACKAGES if find_spec(name) is None]
        if missing:
            raise ConfigError(f"federations need {', '.join(missing)}: {install_command('deploy')}")
        return command(*arguments, **options)

    return checked
