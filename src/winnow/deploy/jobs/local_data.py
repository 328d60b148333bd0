"""The data of a party, as its own configuration describes them: a site's clients, a server's reference and test sets.

A table has a `folder` (an .npz a client) or a `file` (.csv, .parquet or .npz), and what Winnow's [data] section says of
files: targets, features, owner, task, tokens. The rows of a file are one client's, or with `owner` each owner's.
`classes` is how many classes there are, or their labels in the order of their numbers: sites must number them alike.
`local_test` is the share of its samples that each client evaluates on. `scale` is "none" or numbers that all share.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winnow.core import DataError
from winnow.data import ClientData, ClientsOnDemand, DataSettings, Examples
from winnow.data.client_files import REFERENCE, TEST, ClientFiles, read_index, read_pair
from winnow.data.federate import split_local_tests
from winnow.data.file_io import own_file_type
from winnow.data.load import load
from winnow.data.on_demand import OnDemand
from winnow.data.tables import open_table
from winnow.deploy.wire.messages import DataDescription

SOURCES = ("folder", "file")
MAX_IN_MEMORY_BYTES = 1 << 28
"""Data of no more bytes are read once; larger ones when they are needed."""

DEPLOYMENT_KEYS = {*SOURCES, "classes", "local_test", "reference", "test", "scale"}
"""Keys of a table that the [data] section does not have."""


@dataclass(frozen=True, kw_only=True)
class SiteData:
    """What a site's clients hold."""

    clients: ClientData | ClientsOnDemand
    local_test: ClientData | None
    tokens: bool
    columns: str = ""
    labels: str = ""

    def description(self) -> DataDescription:
        """What a job may know."""
        like = self.clients.template if isinstance(self.clients, ClientsOnDemand) else self.clients
        classes = self.clients.classes
        return DataDescription(
            sizes=self.clients.sizes.tolist(),
            local_test_sizes=[] if self.local_test is None else self.local_test.sizes.tolist(),
            sample_shape=list(like.x.shape[1:]),
            outputs=classes if classes is not None else like.y.shape[1],
            classification=classes is not None,
            tokens=self.tokens,
            columns=self.columns,
            labels=self.labels,
        )


def load_site_data(name: str, table: Mapping[str, Any], seed: int, salt: str = "") -> SiteData:
    """The clients that a site hosts. The `salt`, a job's name, goes into the digests of its columns and labels."""
    source = _source(name, table)
    clients: ClientData | ClientsOnDemand
    if source == "folder":
        files = _of_folder(name, table)
        small = int(files.sizes.sum()) * files.sample_bytes < MAX_IN_MEMORY_BYTES
        clients = files.gather(np.arange(len(files))) if small else files
    else:
        clients = _of_file(name, Path(table["file"]), table)
    columns = _columns(Path(table["file"]), table) if source == "file" else []
    labels = table["classes"] if isinstance(table.get("classes"), list) else []
    local_test = None
    share = table.get("local_test", 0.0)
    if share:
        if isinstance(clients, ClientsOnDemand):
            clients = clients.gather(np.arange(len(clients)))
        clients, local_test = split_local_tests(clients, float(share), seed)
    return SiteData(
        clients=clients,
        local_test=local_test,
        tokens=bool(table.get("tokens", False)),
        columns=_digest(salt, columns),
        labels=_digest(salt, labels),
    )


def _digest(salt: str, names: Sequence[Any]) -> str:
    """Tells lists apart without telling what is in them, and differs from job to job."""
    return sha256(json.dumps([salt, *map(str, names)]).encode()).hexdigest()[:32] if names else ""


def _columns(path: Path, table: Mapping[str, Any]) -> list[str]:
    """The names of a table's features, in the order in which the model gets them."""
    if own_file_type(path) == ".npz":
        return []
    named, apart = table.get("features"), {*_as_list(table.get("targets", [])), table.get("owner")}
    return _as_list(named) if named else [each for each in open_table(path).columns if each not in apart]


def _as_list(names: Any) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def load_server_data(name: str, table: Mapping[str, Any]) -> tuple[Examples | None, Examples | None]:
    """The server's reference set and test set, as far as it has them: of a folder, or files of their own."""
    folder = Path(table["folder"]) if "folder" in table else None
    held: list[Examples | None] = []
    for key, file in (("reference", REFERENCE), ("test", TEST)):
        path = Path(table[key]) if key in table else folder and folder / file
        if key in table and not (path and path.is_file()):
            raise DataError(f"data.{name}.{key}: there is no file {path}")
        held.append(_held(name, path, table) if path and path.is_file() else None)
    return held[0], held[1]


def _held(name: str, path: Path, table: Mapping[str, Any]) -> Examples:
    """A file of the server's, read as a site reads its own."""
    if own_file_type(path) == ".npz" and "targets" not in table:
        x, y = read_pair(path)
        classes, tokens = _classes(name, table, y), bool(table.get("tokens", False))
        part = OnDemand(
            clients=1, sizes=1, load=lambda client: (x, y), classes=classes, reference=(x, y), tokens=tokens, name=name
        ).to_federated(reference_at_clients=False)
        return Examples(x=_scaled(name, part.reference.x, table), y=part.reference.y)
    data = _of_file(name, path, table)
    return Examples(x=data.x[data.rows], y=data.y[data.rows])


def _source(name: str, table: Mapping[str, Any]) -> str:
    named = [key for key in SOURCES if key in table]
    if len(named) != 1:
        raise DataError(f"data.{name}: say where the data are by one of {', '.join(SOURCES)}")
    return named[0]


def _of_folder(name: str, table: Mapping[str, Any]) -> ClientsOnDemand:
    folder = Path(table["folder"])
    if not folder.is_dir():
        raise DataError(f"data.{name}.folder: there is no folder {folder}")
    files, index = ClientFiles.of(folder), read_index(folder)
    classes = int(index["classes"]) if "classes" in index else _classes(name, table, files(0)[1])
    spread = OnDemand(
        clients=len(files),
        sizes=files.sizes(),
        load=files,
        classes=classes,
        tokens=bool(table.get("tokens", False)),
        name=name,
    ).to_federated(reference_at_clients=True)
    assert isinstance(spread.clients, ClientsOnDemand)
    return spread.clients


def _classes(name: str, table: Mapping[str, Any], labels: NDArray[Any]) -> int | None:
    """How many classes there are; None for a regression."""
    said = table.get("classes")
    if said is not None:
        return len(said) if isinstance(said, list) else int(said)
    if labels.dtype.kind == "f":
        return None
    raise DataError(f"data.{name}: the targets are classes; say how many there are in all: classes = …")


def _of_file(name: str, path: Path, table: Mapping[str, Any]) -> ClientData:
    told = {key: value for key, value in table.items() if key not in DEPLOYMENT_KEYS}
    settings = DataSettings(**told, scale="none", name=name, path=path, clients=1)
    data = load(settings)
    assert not isinstance(data, OnDemand)
    x, y, classes = _scaled(name, data.x, table), data.y, data.classes
    if classes is not None:  # they were numbered by this file alone
        y, classes = _numbered(name, _labels(path, settings), table)
    owner = np.zeros(len(data), np.int64) if data.owners is None else data.owners
    offsets = np.concatenate([[0], np.cumsum(np.bincount(owner))])
    return ClientData(x=x, y=y, rows=np.argsort(owner, kind="stable"), offsets=offsets, classes=classes)


def _scaled(name: str, x: NDArray[Any], table: Mapping[str, Any]) -> Any:
    """Features by numbers that all parties share: (x − mean) / sd, a column each. A party's own numbers would hide how
    it differs from the others, and fit nobody else's samples.
    """
    scale = table.get("scale", "none")
    if scale == "none":
        return x
    mean, sd = (scale.get(key) for key in ("mean", "sd")) if isinstance(scale, Mapping) else (None, None)
    width = x.shape[1] if x.ndim == 2 else -1
    if mean is None or sd is None or len(mean) != width or len(sd) != width or min(sd) <= 0:
        raise DataError(
            f"data.{name}.scale: write 'none', or numbers that all sites share, one of each a feature: "
            "scale = { mean = […], sd = […] }"
        )
    return ((x - np.asarray(mean)) / np.asarray(sd)).astype(np.float32)


def _labels(path: Path, settings: DataSettings) -> NDArray[Any]:
    """The classes of a file's rows, as the file calls them."""
    return read_pair(path)[1] if own_file_type(path) == ".npz" else open_table(path).column(settings.targets[0])


def _numbered(name: str, labels: NDArray[Any], table: Mapping[str, Any]) -> tuple[NDArray[np.int64], int]:
    """Labels under the numbers that all sites agree on, and how many there are."""
    said = table.get("classes")
    if said is None:
        raise DataError(
            f"data.{name}: the targets are classes; say which there are, in an order that all sites share: "
            'classes = ["no", "yes"] (or how many, where they are the numbers 0, 1, …)'
        )
    names = [str(each) for each in (said if isinstance(said, list) else range(said))]
    number = {label: place for place, label in enumerate(names)}
    distinct, place = np.unique(labels, return_inverse=True)
    strange = [str(label) for label in distinct if _text(label) not in number]
    if strange:
        raise DataError(f"data.{name}: there is a class {strange[0]!r}, which is not among classes = {said}")
    return np.array([number[_text(label)] for label in distinct], np.int64)[place.reshape(-1)], len(names)


def _text(label: Any) -> str:
    """A label as a configuration writes it: 1.0 is 1."""
    return str(int(label)) if isinstance(label, float | np.floating) and label == int(label) else str(label)
