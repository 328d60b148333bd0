"""The data of a party, as its own configuration describes them: a site's clients, a server's reference and test sets.

A table has a `folder` (an .npz a client) or a `file` (.csv, .parquet or .npz), and what Winnow's [data] section says of
files: targets, features, owner, task, tokens. The rows of a file are one client's, or with `owner` each owner's.
`classes` is how many classes there are, or their labels in the order of their numbers: sites must number them alike.
`local_test` is the share of its samples that each client evaluates on. `client_names` lets jobs know what clients are
called: their owners, or their files. `scale` is "none" or numbers that all share.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winnow.core import DataError
from winnow.core.untrusted_text import one_line
from winnow.data import ClientData, ClientsOnDemand, DataSet, DataSettings, Examples, Preprocessing
from winnow.data.client_files import (
    OPEN,
    PREPROCESSING,
    REFERENCE,
    SERVER_LABELLED,
    TEST,
    ClientFiles,
    read_index,
    read_pair,
)
from winnow.data.federate import split_local_tests
from winnow.data.file_formats import own_file_type, read_npz
from winnow.data.hidden_labels import all_labelled, clients_at, labelled, labelled_rows
from winnow.data.interpret_targets_and_owners import number_labels
from winnow.data.load import load
from winnow.data.on_demand import OnDemand
from winnow.data.preprocessing import NO_LABEL, Affine, label_array
from winnow.data.tables import as_text, open_table
from winnow.data.types import AS_IT_IS, Features
from winnow.deploy.wire.messages import MAX_CLIENT_NAME, DataDescription

SOURCES = ("folder", "file")
MAX_IN_MEMORY_BYTES = 1 << 28
"""Data of no more bytes are read once; larger ones when they are needed."""

MAX_NAMED_CLIENTS = 10_000
"""Names of more clients than this are not told: they would fill a message."""

DEPLOYMENT_KEYS = {*SOURCES, "classes", "client_names", "local_test", "reference", "test", "labelled", "open", "scale"}
"""Keys of a table that the [data] section does not have."""


@dataclass(frozen=True, kw_only=True)
class SiteData:
    """What a site's clients hold."""

    clients: ClientData | ClientsOnDemand
    local_test: ClientData | None
    tokens: bool
    preprocessing: Preprocessing = AS_IT_IS
    columns: str = ""
    labels: str = ""
    client_names: tuple[str, ...] = ()
    """What its clients are called, where the site lets jobs know."""
    open: Features | None = None
    """Samples without labels that all parties have."""

    def labelled_rows(self, method: str) -> tuple["SiteData", str]:
        """The data for a method that learns from labels alone, and a line for the site's log where rows are left out.

        Samples that are loaded when they are needed are checked then.
        """
        if isinstance(self.clients, ClientsOnDemand):
            return replace(self, clients=all_labelled(self.clients, method)), ""
        found = labelled_rows(self.clients, method)
        return replace(
            self,
            clients=found.clients,
            local_test=self.local_test and clients_at(self.local_test, found.kept),
            client_names=tuple(self.client_names[client] for client in found.kept.tolist() if self.client_names),
        ), found.notice

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
            client_names=list(self.client_names),
        )


def load_site_data(
    name: str,
    table: Mapping[str, Any],
    seed: int,
    salt: str = "",
    stated: Preprocessing | None = None,
    *,
    alone: bool = False,
) -> SiteData:
    """The clients that a site hosts, with the preprocessing that the job states, if it does.

    The `salt`, a job's name, goes into the digests of its columns and labels. `alone` reads data without a job, where
    nothing needs to be the same at all sites.
    """
    source = _source(name, table)
    clients: ClientData | ClientsOnDemand
    if source == "folder":
        if stated is not None:
            raise DataError(f"data.{name}: the job states a preprocessing, which files of arrays have no use for")
        files, preprocessing, names = _of_folder(name, table)
        small = int(files.sizes.sum()) * files.sample_bytes < MAX_IN_MEMORY_BYTES
        clients = files.gather(np.arange(len(files))) if small else files
    else:
        clients, understood = _of_file(name, Path(table["file"]), table, stated, alone=alone)
        preprocessing, names = understood.preprocessing, understood.owner_names or ()
    columns = [column.name for column in preprocessing.columns] if source == "file" else []
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
        tokens=preprocessing.tokens,
        preprocessing=preprocessing,
        columns=column_digest(salt, columns),
        labels=column_digest(salt, labels),
        client_names=_told(names) if table.get("client_names", False) else (),
        open=_open_samples(Path(table["folder"]) / OPEN) if source == "folder" else None,
    )


def _told(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(one_line(name)[:MAX_CLIENT_NAME] for name in names) if len(names) <= MAX_NAMED_CLIENTS else ()


def column_digest(salt: str, names: Sequence[Any]) -> str:
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


@dataclass(frozen=True, kw_only=True)
class ServerData:
    """What the server holds itself, as far as it has it, and how it was understood."""

    reference: Examples | None
    test: Examples | None
    labelled: Examples | None
    """Samples that it trains on itself."""
    open: Features | None
    """Samples without labels that all parties have."""
    preprocessing: Preprocessing
    feature_scaling: Affine | None = None
    """By which it standardised an encoder's features of what it scores, if it did."""


def load_server_data(name: str, table: Mapping[str, Any], stated: Preprocessing | None = None) -> ServerData:
    """The server's own samples: of a folder, or files of their own."""
    folder = Path(table["folder"]) if "folder" in table else None
    held: list[Examples | None] = []
    preprocessing = stated or AS_IT_IS
    made_by = _made_by(folder) if folder else None
    for key, file in (("reference", REFERENCE), ("test", TEST), ("labelled", SERVER_LABELLED)):
        path = _server_file(name, table, key, file)
        examples = None
        if path is not None:
            examples, preprocessing = _held(name, path, table, stated, made_by)
            if not (known := labelled(examples.y)).all():
                raise DataError(f"data.{name}: row {int(np.argmin(known)) + 1} of {path} has no label; remove it")
        held.append(examples)
    shown = _server_file(name, table, "open", OPEN)
    return ServerData(
        reference=held[0],
        test=held[1],
        labelled=held[2],
        open=None if shown is None else _open_samples(shown),
        preprocessing=(made_by if stated is None else None) or preprocessing,
    )


def _server_file(name: str, table: Mapping[str, Any], key: str, file: str) -> Path | None:
    """A file of the server's by its own key, or in the folder."""
    if key in table:
        if not Path(table[key]).is_file():
            raise DataError(f"data.{name}.{key}: there is no file {table[key]}")
        return Path(table[key])
    inside = Path(table["folder"]) / file if "folder" in table else None
    return inside if inside is not None and inside.is_file() else None


def _open_samples(path: Path) -> Features | None:
    """The array x of a file, as models take it; None where there is no file."""
    if not path.is_file():
        return None
    x = read_npz(path, ("x",))["x"]
    return x.astype(np.int64) if x.dtype.kind in "iu" else x.astype(np.float32)


def _held(
    name: str, path: Path, table: Mapping[str, Any], stated: Preprocessing | None, made_by: Preprocessing | None
) -> tuple[Examples, Preprocessing]:
    """A file of the server's, read as a site reads its own."""
    if own_file_type(path) == ".npz" and "targets" not in table and stated is None:
        x, y = read_pair(path)
        classes, tokens = _classes(name, table, y), _are_tokens(table, made_by)
        part = OnDemand(
            clients=1, sizes=1, load=lambda client: (x, y), classes=classes, reference=(x, y), tokens=tokens, name=name
        ).to_federated(reference_at_clients=False)
        held = part.reference
        whole = DataSet(name=name, x=held.x, y=held.y, classes=classes, preprocessing=part.preprocessing)
        scaled = _scaled(name, whole, table)
        return Examples(x=scaled.x, y=scaled.y), scaled.preprocessing
    data, understood = _of_file(name, path, table, stated)
    return Examples(x=data.x[data.rows], y=data.y[data.rows]), understood.preprocessing


def _source(name: str, table: Mapping[str, Any]) -> str:
    named = [key for key in SOURCES if key in table]
    if len(named) != 1:
        raise DataError(f"data.{name}: say where the data are by one of {', '.join(SOURCES)}")
    return named[0]


def _of_folder(name: str, table: Mapping[str, Any]) -> tuple[ClientsOnDemand, Preprocessing, tuple[str, ...]]:
    folder = Path(table["folder"])
    if not folder.is_dir():
        raise DataError(f"data.{name}.folder: there is no folder {folder}")
    files, index, made_by = ClientFiles.of(folder), read_index(folder), _made_by(folder)
    classes = int(index["classes"]) if "classes" in index else _classes(name, table, files(0)[1])
    spread = OnDemand(
        clients=len(files),
        sizes=files.sizes(),
        load=files,
        classes=classes,
        tokens=_are_tokens(table, made_by),
        name=name,
    ).to_federated(reference_at_clients=True)
    assert isinstance(spread.clients, ClientsOnDemand)
    return spread.clients, made_by or spread.preprocessing, files.owner_names()


def _are_tokens(table: Mapping[str, Any], made_by: Preprocessing | None) -> bool:
    """Whether features are identifiers: as the party says, or else what made its folder's arrays, as words of texts."""
    return bool(table.get("tokens", made_by is not None and made_by.tokens))


def _made_by(folder: Path) -> Preprocessing | None:
    """What made a folder's arrays out of raw rows, if the folder says so: a model can then be used on such rows."""
    path = folder / PREPROCESSING
    if not path.is_file():
        return None
    try:
        return Preprocessing.from_json(json.loads(path.read_bytes()))
    except ValueError as error:
        raise DataError(f"{path} is damaged: {error}; split the data again, or remove it") from error


def _classes(name: str, table: Mapping[str, Any], labels: NDArray[Any]) -> int | None:
    """How many classes there are; None for a regression."""
    said = table.get("classes")
    if said is not None:
        return len(said) if isinstance(said, list) else int(said)
    if labels.dtype.kind == "f":
        return None
    raise DataError(f"data.{name}: the targets are classes; say how many there are in all: classes = …")


def _of_file(
    name: str, path: Path, table: Mapping[str, Any], stated: Preprocessing | None, *, alone: bool = False
) -> tuple[ClientData, DataSet]:
    """The clients of a file, and the data set as it was understood."""
    told = {key: value for key, value in table.items() if key not in DEPLOYMENT_KEYS}
    if stated is not None:
        _check_stated(name, path, table, stated)
        told = {key: value for key, value in told.items() if key in ("targets", "owner")}
    scale: dict[str, Any] = {} if stated else {"scale": "none"}
    data = load(DataSettings(**told, **scale, name=name, path=path, clients=1, preprocessing=stated))
    assert not isinstance(data, OnDemand)
    if stated is None:
        unshared = columns_to_state(data.preprocessing)
        if unshared and not alone:
            column, what = unshared[0]
            raise DataError(
                f"data.{name}: column '{column}' has {what}, and all sites must encode it alike: let the job state "
                "how (preprocessing=…), or leave it out of features"
            )
        if not unshared:
            data = _scaled(name, data, table)
        if not alone or "classes" in table:
            data = _with_shared_classes(name, data, table)
    owner = np.zeros(len(data), np.int64) if data.owners is None else data.owners
    offsets = np.concatenate([[0], np.cumsum(np.bincount(owner))])
    rows = np.argsort(owner, kind="stable")
    return ClientData(x=data.x, y=data.y, rows=rows, offsets=offsets, classes=data.classes), data


def _check_stated(name: str, path: Path, table: Mapping[str, Any], stated: Preprocessing) -> None:
    """What a job states may choose among the columns that the site offers, and not contradict what the site says."""
    if table.get("scale", "none") != "none":
        raise DataError(
            f"data.{name}: the job states a preprocessing, and scale = … is set here; remove one of the two"
        )
    asked, offered = [*(column.name for column in stated.columns), *stated.input_names], _columns(path, table)
    if own_file_type(path) != ".npz":
        if not asked:  # it would get all columns, whatever the site offers
            raise DataError(f"data.{name}: the job's preprocessing names no columns, and the data are a table")
        if strange := [each for each in asked if each not in offered]:
            raise DataError(f"data.{name}: the job asks for the column '{strange[0]}', which is not among the features")
    said = table.get("classes")
    own = [str(each) for each in (said if isinstance(said, list) else range(said or 0))]
    if said is not None and own != as_text(label_array(stated.classes or ())).tolist():
        raise DataError(f"data.{name}: classes = {said}, but the job states others")


def columns_to_state(found: Preprocessing) -> list[tuple[str, str]]:
    """Columns that only a job can encode alike for all sites, and what they have: categories and fills that a site
    finds in its own rows would differ from other sites'.
    """
    return [
        (column.name, "text" if column.kind == "category" else "missing values")
        for column in found.columns
        if column.kind == "category" or column.marks_missing
    ]


def _scaled(name: str, data: DataSet, table: Mapping[str, Any]) -> DataSet:
    """Features by numbers that all parties share: (x − mean) / sd, a column each. A party's own numbers would hide how
    it differs from the others, and fit nobody else's samples.
    """
    scale = table.get("scale", "none")
    if scale == "none":
        return data
    mean, sd = (scale.get(key) for key in ("mean", "sd")) if isinstance(scale, Mapping) else (None, None)
    width = data.x.shape[1] if data.x.ndim == 2 else -1
    if mean is None or sd is None or len(mean) != width or len(sd) != width or min(sd) <= 0:
        raise DataError(
            f"data.{name}.scale: write 'none', or numbers that all sites share, one of each a feature: "
            "scale = { mean = […], sd = […] }"
        )
    told = data.preprocessing
    if told.columns:
        pairs = zip(told.columns, mean, sd, strict=True)
        columns = tuple(column.model_copy(update={"shift": m, "width": s}) for column, m, s in pairs)
        told = told.model_copy(update={"columns": columns})
    elif told.array is not None:
        scaling = Affine(shift=tuple(mean), width=tuple(sd))
        told = told.model_copy(update={"array": told.array.model_copy(update={"scaling": scaling})})
    x = ((data.x - np.asarray(mean)) / np.asarray(sd)).astype(np.float32)
    return replace(data, x=x, preprocessing=told)


def _with_shared_classes(name: str, data: DataSet, table: Mapping[str, Any]) -> DataSet:
    """Labels under the numbers that all sites agree on: a file alone would number only those that it has."""
    found = data.preprocessing.classes
    if data.classes is None or found is None:
        return data
    said = table.get("classes")
    if said is None:
        raise DataError(
            f"data.{name}: the targets are classes; say which there are, in an order that all sites share: "
            'classes = ["no", "yes"] (or how many, where they are the numbers 0, 1, …)'
        )
    labels = tuple(said if isinstance(said, list) else range(said))
    numbers = np.append(number_labels(label_array(found), labels, f"data.{name}"), NO_LABEL)
    told = data.preprocessing.model_copy(update={"classes": labels})
    return replace(data, y=numbers[data.y], classes=len(labels), preprocessing=told)  # NO_LABEL is the last place
