"""Commands that need the extra "deploy" say so before anything else."""

from collections.abc import Callable
from functools import wraps
from importlib.util import find_spec
from typing import ParamSpec, TypeVar

PACKAGES = ("grpc", "cryptography", "sqlalchemy", "alembic", "psycopg", "prometheus_client")

Given = ParamSpec("Given")
Answer = TypeVar("Answer")


def needs_deploy(command: Callable[Given, Answer]) -> Callable[Given, Answer]:
    """A command that is refused, in one line, where a package of the extra is not installed."""

    @wraps(command)
    def checked(*arguments: Given.args, **options: Given.kwargs) -> Answer:
        from winnow.core import ConfigError

        missing = [name for name in PACKAGES if find_spec(name) is None]
        if missing:
            raise ConfigError(f'federations need {", ".join(missing)}: pip install "winnow[deploy]"')
        return command(*arguments, **options)

    return checked
