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
    from winnow.experiment.saved_model import SavedModel
    from winnow.experiment.saved_model import load_model as load
    from winnow.learn.algorithm import Algorithm

    __version__: str

__all__ = [
    "Algorithm",
    "Comparison",
    "Connection",
    "OnDemand",
    "Result",
    "SavedModel",
    "WinnowError",
    "__version__",
    "compare",
    "connect",
    "data",
    "load",
    "run",
    "run_workflow",
]

_HOMES = {
    "Algorithm": "winnow.learn.algorithm",
    "Comparison": "winnow.experiment.compare",
    "Connection": "winnow.deploy.client.connection",
    "OnDemand": "winnow.data",
    "Result": "winnow.experiment.run",
    "SavedModel": "winnow.experiment.saved_model",
    "WinnowError": "winnow.core",
    "compare": "winnow.api",
    "run_workflow": "winnow.experiment.run_workflow",
    "connect": "winnow.deploy.client.connection",
    "load": "winnow.experiment.saved_model:load_model",
    "run": "winnow.api",
}


def __getattr__(name: str) -> Any:
    if name == "data":
        return import_module("winnow.data")
    if name == "__version__":
        return import_module("winnow.core.distribution").installed_version()
    if name in _HOMES:
        home, _, its_name = _HOMES[name].partition(":")
        return getattr(import_module(home), its_name or name)
    if name == "conduct":
        raise AttributeError("winnow.conduct is now winnow.run_workflow")
    raise AttributeError(f"module 'winnow' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
