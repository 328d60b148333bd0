"""Winnow: federated learning that works out, without seeing the data, whose data is worth learning from.

Everything here is imported on first use, so `import winnow` is instant and loads no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from winnow import data
    from winnow.api import compare, run
    from winnow.core import WinnowError
    from winnow.data import OnDemand
    from winnow.deploy.client.connection import Connection, connect
    from winnow.experiment.compare import Comparison
    from winnow.experiment.run import Result
    from winnow.experiment.run_workflow import run_workflow
    from winnow.learn.algorithm import Algorithm

    __version__: str

__all__ = [
    "Algorithm",
    "Comparison",
    "Connection",
    "OnDemand",
    "Result",
    "WinnowError",
    "__version__",
    "compare",
    "connect",
    "data",
    "run",
    "run_workflow",
]

_HOMES = {
    "Algorithm": "winnow.learn.algorithm",
    "Comparison": "winnow.experiment.compare",
    "Connection": "winnow.deploy.client.connection",
    "OnDemand": "winnow.data",
    "Result": "winnow.experiment.run",
    "WinnowError": "winnow.core",
    "compare": "winnow.api",
    "run_workflow": "winnow.experiment.run_workflow",
    "connect": "winnow.deploy.client.connection",
    "run": "winnow.api",
}


def __getattr__(name: str) -> Any:
    if name == "data":
        return import_module("winnow.data")
    if name == "__version__":
        return import_module("winnow.core.distribution").installed_version()
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name == "conduct":
        raise AttributeError("winnow.conduct is now winnow.run_workflow")
    raise AttributeError(f"module 'winnow' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
