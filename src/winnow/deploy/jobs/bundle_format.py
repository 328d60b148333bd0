"""A job as it travels: its configuration, the files of its own code if it has any, and its author's signature."""

import tomllib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from winnow.config.question_kinds import QUESTION_KINDS
from winnow.core.errors import ConfigError
from winnow.core.message_decoding import UnreadableError, from_msgpack
from winnow.core.split_factory_path import own_code_names, split_factory
from winnow.core.suggest import suggest
from winnow.core.untrusted_text import one_line

MAX_BUNDLE_BYTES = 64 << 20
MAX_FILES = 1_000
MAX_NAME_BYTES = 200
"""In bytes: no file system takes longer ones."""


class Bundle(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`config` is the text of an experiment file; `files` are by relative names, as a folder of Python modules."""

    config: str
    files: dict[str, bytes] = {}
    main: str = ""
    """The file that is run as the job's program, if its code is one rather than plugins of the configuration."""
    issued: float = 0.0
    """When the author signed it, in seconds since 1970."""
    certificate: bytes = b""
    """The author's, PEM."""
    signature: bytes = b""
    """Of `signed`, by the key of that certificate."""

    @property
    def signed(self) -> bytes:
        """What the author vouches for: the same bytes wherever they are put together."""
        return msgspec.msgpack.encode(["winnow job", self.config, self.main, sorted(self.files.items()), self.issued])

    @property
    def own_code(self) -> bool:
        """Whether anything of it is run that is not Winnow's own; all of that is among its files."""
        return bool(self.files)

    @property
    def named_code(self) -> list[str]:
        """The files that its configuration wants to be run."""
        table = self.settings()
        plugins = table.get("plugins", [])
        named = [*plugins] if isinstance(plugins, list) else [plugins]
        return [*map(str, named), *(split_factory(name)[0] for _, _, name in own_code_names(table))]

    def settings(self) -> dict[str, Any]:
        try:
            return tomllib.loads(self.config)
        except (ValueError, RecursionError) as error:  # numbers of too many digits, tables in tables in tables
            raise ConfigError(f"the job's configuration is not valid TOML: {one_line(error)}") from error

    @property
    def data_name(self) -> str:
        """The name by which the job asks sites for data."""
        data = self.settings().get("data", {})
        name = data.get("name") if isinstance(data, Mapping) else None
        if not isinstance(name, str) or not name:
            raise ConfigError("the job names no data; set [data] name = …")
        return name

    @property
    def named_sites(self) -> tuple[str, ...]:
        """The sites that the author wants, and no others; none if the author does not mind."""
        job = self.settings().get("job", {})
        names = job.get("sites", ()) if isinstance(job, Mapping) else ()
        return tuple(names) if isinstance(names, list) and all(isinstance(each, str) for each in names) else ()

    @property
    def question(self) -> dict[str, Any] | None:
        """The [question] section of a job that puts one to tables, with its kind; None for any other job."""
        job = self.settings().get("job", {})
        kind = job.get("kind") if isinstance(job, Mapping) else None
        if kind is None:
            return None
        section = self.settings().get("question")
        if not isinstance(section, Mapping):
            raise ConfigError(f"the job is of kind {str(kind)[:80]!r}, and has no [question] section")
        return {**section, "kind": kind}

    def write_files(self, folder: Path) -> None:
        """Lay the job's own files out; names were checked when the bundle was read."""
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def write_bundle(bundle: Bundle) -> bytes:
    _check(bundle)
    return msgspec.msgpack.encode(bundle)


def read_bundle(data: bytes) -> Bundle:
    """Refuses what is no bundle, is too large, or names files outside of its folder."""
    if len(data) > MAX_BUNDLE_BYTES:
        raise ConfigError(f"the job's bundle has {len(data)} bytes; the limit is {MAX_BUNDLE_BYTES}")
    try:
        bundle = from_msgpack(data, Bundle)
    except UnreadableError as error:
        raise ConfigError(f"not a valid job bundle: {error}") from error
    _check(bundle)
    return bundle


def _check(bundle: Bundle) -> None:
    _check_question(bundle)
    for name in filter(None, (bundle.main, *bundle.named_code)):
        if name not in bundle.files:
            raise ConfigError(f"the job runs {name[:80]!r}, which is not in its bundle")
    if len(bundle.files) > MAX_FILES:
        raise ConfigError(f"the bundle contains {len(bundle.files)} files; the limit is {MAX_FILES}")
    for name in bundle.files:
        if not _is_plain(name):
            raise ConfigError(
                f"the bundle contains a file named {name[:80]!r}; names must be relative paths without '..'"
            )
    folders = {str(parent) for name in bundle.files for parent in PurePosixPath(name).parents}
    for name in bundle.files:
        if name in folders:
            raise ConfigError(f"{name[:80]!r} is both a file and a folder in the bundle")


def _check_question(bundle: Bundle) -> None:
    """A question is answered by Winnow's own code, and says itself which table it is about."""
    question = bundle.question
    if question is None:
        return
    kind = str(question["kind"])[:80]
    if kind not in QUESTION_KINDS:
        raise ConfigError(f"[job] kind = {kind!r} is unknown; {suggest(kind, QUESTION_KINDS)}")
    if bundle.files or bundle.main or bundle.named_code:
        raise ConfigError(f"a job of kind {kind!r} has no code of its own; this bundle contains or names files")
    if question.get("table") != bundle.data_name:
        raise ConfigError("[question] table and [data] name differ; they name the same table")


def _is_plain(name: str) -> bool:
    """A relative path of ordinary names: no '..', no root, no drive, nothing unprintable."""
    parts = name.split("/")
    return (
        0 < len(name.encode(errors="replace")) <= MAX_NAME_BYTES
        and name.isprintable()
        and not any(letter in name for letter in "\\:")
        and all(part not in ("", ".", "..") for part in parts)
    )
