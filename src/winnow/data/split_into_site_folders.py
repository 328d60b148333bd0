"""A federation's worth of files: data, spread over clients as a simulation would, dealt out to sites."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import tomli_w

from winnow.core import ConfigError, DataError
from winnow.data import ClientsOnDemand, DataSettings, Examples, FederatedData, federate, load
from winnow.data.client_files import INDEX, OPEN, PREPROCESSING, REFERENCE, SERVER_LABELLED, TEST


@dataclass(frozen=True, kw_only=True)
class PartyFolder:
    """A party's folder, and how many clients and samples it holds."""

    party: str
    folder: Path
    clients: int
    samples: int


def split_into_folders(
    settings: DataSettings, seed: int, sites: int, out: Path, data_directory: Path | None = None
) -> list[PartyFolder]:
    """Write each site's clients, in the order of their numbers, and what the server holds; tells of each party.

    Every party's folder also has the configuration that names the data: site.toml or server.toml. The folder `out` is
    there when all of it is.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"{out} is not empty; choose another --out")
    if settings.local_test == "official":
        raise ConfigError("data.local_test = 'official' cannot be split over sites; use a share such as 0.2")
    spread = federate(load(settings, data_directory), settings.model_copy(update={"local_test": 0.0}), seed)
    if len(spread.clients) < sites:
        raise ConfigError(
            f"--sites {sites}: the data has only {len(spread.clients)} clients; use at most {len(spread.clients)} sites"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        parties = _write_parties(spread, settings, sites, unfinished)
        unfinished.chmod(0o755)
        unfinished.replace(out)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return [replace(party, folder=out / party.party) for party in parties]


def _write_parties(spread: FederatedData, settings: DataSettings, sites: int, out: Path) -> list[PartyFolder]:
    name, classes = settings.name, spread.clients.classes
    local_test = {"local_test": settings.local_test} if settings.local_test else {}
    parties = []
    for number, own in enumerate(np.array_split(np.arange(len(spread.clients)), sites), start=1):
        folder = out / f"site-{number}"
        samples = _write_clients(folder / name, spread, own.tolist())
        _write_preprocessing(folder / name, spread)
        _write_open(folder / name, spread)
        _write_config(folder / "site.toml", name, local_test)
        parties.append(PartyFolder(party=folder.name, folder=folder, clients=len(own), samples=samples))
    folder = out / "server"
    held = {REFERENCE: spread.reference, TEST: spread.test}
    if spread.server_labelled is not None:
        held[SERVER_LABELLED] = spread.server_labelled
    samples = _write_held(folder / name, held)
    _write_preprocessing(folder / name, spread)
    _write_open(folder / name, spread)
    _write_config(folder / "server.toml", name, {} if classes is None else {"classes": classes})
    return [*parties, PartyFolder(party=folder.name, folder=folder, clients=0, samples=samples)]


def _write_clients(folder: Path, spread: FederatedData, own: Sequence[int]) -> int:
    """A file a client, and an index that spares their readers from opening each; how many samples there are."""
    folder.mkdir(parents=True)
    clients, sizes = spread.clients, []
    for client in own:
        examples = clients.load(client) if isinstance(clients, ClientsOnDemand) else clients.client(client)
        _save(folder / f"{client}.npz", examples)
        sizes.append(len(examples))
    index: dict[str, Any] = {
        "files": np.array([f"{client}.npz" for client in own]),
        "sizes": np.array(sizes, np.int64),
    }
    if spread.owner_names is not None:
        index["names"] = np.array([spread.owner_names[client] for client in own])
    if clients.classes is not None:
        index["classes"] = np.array(clients.classes)
    np.savez(folder / INDEX, **index)
    return sum(sizes)


def _write_preprocessing(folder: Path, spread: FederatedData) -> None:
    (folder / PREPROCESSING).write_text(json.dumps(spread.preprocessing.to_json()), encoding="utf-8")


def _write_open(folder: Path, spread: FederatedData) -> None:
    if spread.open is not None:
        np.savez(folder / OPEN, x=spread.open)


def _write_held(folder: Path, held: dict[str, Examples]) -> int:
    folder.mkdir(parents=True)
    for file, examples in held.items():
        if len(examples):
            _save(folder / file, examples)
    return sum(map(len, held.values()))


def _save(path: Path, examples: Examples) -> None:
    np.savez(path, x=examples.x, y=examples.y)


def _write_config(path: Path, name: str, more: dict[str, Any]) -> None:
    path.write_text(tomli_w.dumps({"data": {name: {"folder": name, **more}}}), encoding="utf-8")
