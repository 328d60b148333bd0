"""A federation's worth of files: data, spread over clients as a simulation would, dealt out to sites."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from winnow.core import ConfigError, DataError
from winnow.data import DataSettings, Examples, federate, load
from winnow.data.client_files import INDEX, REFERENCE, TEST


@dataclass(frozen=True, kw_only=True)
class Dealt:
    """A party's folder, and how many clients and samples it holds."""

    party: str
    folder: Path
    clients: int
    samples: int


def divide(
    settings: DataSettings, seed: int, sites: int, out: Path, data_directory: Path | None = None
) -> Iterator[Dealt]:
    """Write each site's clients, in the order of their numbers, and what the server holds; tells of each party.

    Every party's folder also has the configuration that names the data: site.toml or server.toml.
    """
    if out.exists() and any(out.iterdir()):
        raise DataError(f"{out} is not empty; choose another --out")
    data = load(settings, data_directory)
    own_test = settings.own_test
    if own_test == "official":
        raise ConfigError("data.own_test = 'official' cannot be dealt out to sites; write a share such as 0.2")
    spread = federate(data, settings.model_copy(update={"own_test": 0.0}), seed)
    clients = spread.clients
    if len(clients) < sites:
        raise ConfigError(f"--sites {sites}: there are only {len(clients)} clients; ask for no more sites")
    name = settings.name
    for number, own in enumerate(np.array_split(np.arange(len(clients)), sites), start=1):
        folder = out / f"site-{number}"
        (folder / name).mkdir(parents=True)
        sizes = []
        for client in own.tolist():
            examples = clients.load(client) if hasattr(clients, "load") else clients.client(client)
            _save(folder / name / f"{client}.npz", examples)
            sizes.append(len(examples))
        _save_index(folder / name, own.tolist(), sizes, clients.classes)
        _save_config(folder / "site.toml", name, {"own_test": own_test} if own_test else {})
        yield Dealt(party=folder.name, folder=folder, clients=len(own), samples=sum(sizes))
    folder = out / "server"
    (folder / name).mkdir(parents=True)
    for file, examples in ((REFERENCE, spread.reference), (TEST, spread.test)):
        if len(examples):
            _save(folder / name / file, examples)
    _save_config(folder / "server.toml", name, {} if clients.classes is None else {"classes": clients.classes})
    yield Dealt(party="server", folder=folder, clients=0, samples=len(spread.reference) + len(spread.test))


def _save(path: Path, examples: Examples) -> None:
    np.savez(path, x=examples.x, y=examples.y)


def _save_index(folder: Path, clients: list[int], sizes: list[int], classes: int | None) -> None:
    files = np.array([f"{client}.npz" for client in clients])
    if classes is None:
        np.savez(folder / INDEX, files=files, sizes=np.array(sizes, np.int64))
    else:
        np.savez(folder / INDEX, files=files, sizes=np.array(sizes, np.int64), classes=np.array(classes))


def _save_config(path: Path, name: str, more: dict[str, Any]) -> None:
    path.write_text(tomli_w.dumps({"data": {name: {"folder": name, **more}}}), encoding="utf-8")
