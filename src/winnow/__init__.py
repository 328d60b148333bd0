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
    from winnow.experiment.comparison import Comparison
    from winnow.experiment.run import Result
    from winnow.experiment.run_workflow import run_workflow
    from winnow.experiment.saved_model import SavedModel
    from winnow.experiment.saved_model import load_model as load
    from winnow.learn.algorithm import Algorithm
    from winnow.learn.metrics import Metric
    from winnow.questions import fit, intersect, load_fit, query, stats, truth
    from winnow.vertical.split import split
    from winnow.vertical.transfer import transfer

    __version__: str

__all__ = [
    "Algorithm",
    "Comparison",
    "Connection",
    "Metric",
    "OnDemand",
    "Result",
    "SavedModel",
    "WinnowError",
    "__version__",
    "compare",
    "connect",
    "data",
    "fit",
    "intersect",
    "load",
    "load_fit",
    "load_trees",
    "query",
    "run",
    "run_workflow",
    "split",
    "stats",
    "transfer",
    "trees",
    "truth",
]

_HOMES = {
    "Algorithm": "winnow.learn.algorithm",
    "Comparison": "winnow.experiment.comparison",
    "Connection": "winnow.deploy.client.connection",
    "Metric": "winnow.learn.metrics",
    "OnDemand": "winnow.data",
    "Result": "winnow.experiment.run",
    "SavedModel": "winnow.experiment.saved_model",
    "WinnowError": "winnow.core",
    "compare": "winnow.api",
    "run_workflow": "winnow.experiment.run_workflow",
    "connect": "winnow.deploy.client.connection",
    "fit": "winnow.questions",
    "intersect": "winnow.questions",
    "load": "winnow.api",
    "load_fit": "winnow.questions",
    "load_trees": "winnow.questions",
    "query": "winnow.questions",
    "run": "winnow.api",
    "split": "winnow.vertical.split",
    "stats": "winnow.questions",
    "transfer": "winnow.vertical.transfer",
    "trees": "winnow.questions",
    "truth": "winnow.questions",
}


def __getattr__(name: str) -> Any:
    if name == "data":
        return import_module("winnow.data")
    if name == "__version__":
        return import_module("winnow.core.installed_package").installed_version()
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name == "conduct":
        raise AttributeError("winnow.conduct is now winnow.run_workflow")
    raise AttributeError(f"module 'winnow' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
