"""Workers on a Ray cluster, for simulations larger than a machine. Needs the extra `ray`.

Every worker is an actor with one core and one thread. The recipe of the site, with its data, is put into Ray's object
store once, and all actors on a machine read the data there without a copy; so it is with a cohort's model.
"""

import inspect
import logging
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pickle import PickleBuffer, PicklingError
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from winnow.core import ConfigError, Handler, Task
from winnow.core.installed_package import install_command
from winnow.simulate.cohort_chunks import Indices
from winnow.simulate.out_of_band_pickling import PickledValue, pack, reduce_tensor, unpack
from winnow.simulate.worker_backend import ChunkFinished, WorkerEvent, WorkerFailure, WorkerLost, WorkerReady

PLUGIN_MODULE_PREFIX = "winnow_plugin_"
"""Python files of the user's own are modules under such names, which no other process can import."""

Site = TypeVar("Site")


class RayWorkers:
    """A backend of actors that each make the site by a recipe and answer by these handlers."""

    def __init__(
        self, make_site: Callable[[], Site], handlers: Mapping[str, Handler[Site]], address: str | None = None
    ) -> None:
        self._ray = _import_ray()
        self._actors: dict[int, Any] = {}
        self._pending: dict[Any, int] = {}
        self._tasks: Sequence[Task] = ()
        self._cohort: Any = None
        self._ours = _connect(self._ray, address)
        try:
            self._recipe = self._ray.put(_pack_with_code(self._ray, (make_site, dict(handlers))))
            self._plugins = _plugins()
            self._actor = self._ray.remote(num_cpus=1, max_restarts=0)(_Actor)
        except BaseException:
            self.stop_all()
            raise

    @property
    def cores(self) -> int:
        """How many actors the cluster has room for."""
        return int(self._ray.cluster_resources().get("CPU", 1))

    @property
    def processes(self) -> dict[int, int]:
        asked = {worker: actor.begin.remote() for worker, actor in self._actors.items()}
        return {worker: self._ray.get(answer) for worker, answer in asked.items()}

    def start(self, worker: int) -> None:
        self._actors[worker] = self._actor.remote(self._recipe, self._plugins)
        self._expect(worker, self._actors[worker].begin.remote())

    def set_cohort(self, tasks: Sequence[Task]) -> None:
        self._tasks = tasks
        self._cohort = self._ray.put(pack(tasks))

    def submit(self, worker: int, chunk: Indices) -> None:
        self._expect(worker, self._actors[worker].answer.remote([self._cohort], chunk))

    def next_event(self) -> WorkerEvent:
        (done,), _ = self._ray.wait(list(self._pending), num_returns=1)
        worker = self._pending.pop(done)
        errors = self._ray.exceptions
        try:
            message = self._ray.get(done)
        except (errors.RayActorError, errors.ObjectLostError) as error:
            self._ray.kill(self._actors.pop(worker))
            return WorkerLost(worker, str(error).splitlines()[0])
        if isinstance(message, WorkerFailure):
            raise message.exception()
        if not isinstance(message, PickledValue):
            return WorkerReady(worker)
        own = PickledValue(message.head, [np.array(each) for each in message.contents])
        return ChunkFinished(worker, unpack(own, known=self._tasks))

    def stop_all(self) -> None:
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._actors.clear()
        self._pending.clear()
        if self._ours:
            self._ray.shutdown()
        self._ours = False

    def _expect(self, worker: int, answer: Any) -> None:
        self._pending[answer] = worker


class _Actor:
    """One worker on the cluster."""

    def __init__(self, recipe: PickledValue, plugins: Mapping[str, str]) -> None:
        torch.set_num_threads(1)
        for name, text in plugins.items():
            sys.modules[name] = ModuleType(name)
            exec(compile(text, name, "exec"), vars(sys.modules[name]))  # noqa: S102  # the driver ran it, too
        warnings.filterwarnings("ignore", "The given (buffer|NumPy array) is not writable")  # nor is it written
        self._ray, self._recipe = _import_ray(), recipe
        self._site: Any = None
        self._handlers: Mapping[str, Handler[Any]] = {}
        self._cohort: Any = None
        self._tasks: Sequence[Task] = ()

    def begin(self) -> int | WorkerFailure:
        """Make the site, unless it is made; the number of this process."""
        try:
            if not self._handlers:
                make_site, self._handlers = unpack(self._recipe)
                self._site = make_site()
        except ImportError as error:
            return WorkerFailure.from_exception(
                ConfigError(f'engine.workers = "ray": {error} at a worker; install it there')
            )
        except Exception as error:
            return WorkerFailure.from_exception(error)
        return os.getpid()

    def answer(self, cohort: list[Any], chunk: Indices) -> PickledValue | WorkerFailure:
        """Inside a list the cohort comes as a reference, which is fetched and unpacked once."""
        if cohort[0] != self._cohort:
            self._cohort, self._tasks = cohort[0], unpack(self._ray.get(cohort[0]))
        tasks = [self._tasks[i] for i in chunk]
        try:
            return pack(self._handlers[tasks[0].name](tasks, self._site), known=self._tasks)
        except Exception as error:
            return WorkerFailure.from_exception(error)


def _import_ray() -> Any:
    """Ray itself, which is large and not everybody's."""
    try:
        import ray  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(f'engine.workers = "ray" needs an extra: {install_command("ray")}') from error
    return ray


def _connect(ray: Any, address: str | None) -> bool:
    """Join the cluster at an address, or start one on this machine; False if this process is part of one already."""
    if ray.is_initialized():
        return False
    try:
        ray.init(
            address=address or "local",
            log_to_driver=False,
            logging_level=logging.ERROR,
            **({} if address else {"include_dashboard": False}),
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        where = address or "on this machine"
        raise ConfigError(f"engine.ray_address: no Ray cluster {where}: {str(error).splitlines()[0]}") from error
    return True


def _plugins() -> dict[str, str]:
    """The text of every file of the user's own that this process has run: settings that come as tasks need it."""
    loaded = {name: module for name, module in sys.modules.items() if name.startswith(PLUGIN_MODULE_PREFIX)}
    return {name: inspect.getsource(module) for name, module in loaded.items()}


def _pack_with_code(ray: Any, value: object) -> PickledValue:
    """As `pack`; what was defined in a notebook or script, a model or a loss, travels with its code."""

    class _CodePacker(ray.cloudpickle.CloudPickler):  # type: ignore[misc]  # Ray is imported on use
        def reducer_override(self, part: object) -> Any:
            return reduce_tensor(part) if type(part) is Tensor else super().reducer_override(part)

    head, contents = BytesIO(), list[PickleBuffer]()
    try:
        _CodePacker(head, protocol=5, buffer_callback=contents.append).dump(value)
    except (TypeError, AttributeError, PicklingError) as error:
        raise ConfigError(
            'engine.workers = "ray": the model, the loss, the training step or the function that loads data cannot be '
            f"sent to workers: {str(error).splitlines()[0]}; make what it needs inside it"
        ) from error
    return PickledValue(head.getvalue(), [np.frombuffer(each.raw(), np.uint8) for each in contents])
