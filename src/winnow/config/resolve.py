"""From a preset or a file, an algorithm's recipe and the command line to one checked experiment.

Later layers win: the recipe's parts, the file's sections, the file's `[algorithms.NAME]` overlay for the algorithm that
runs (for a variant that of its base first), then `--set` and the other options. An algorithm with an optimiser or
filters of its own keeps them in a file that was not written for it.
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from importlib import resources
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from winnow.config.algorithm_variants import NamedAlgorithm, checked_overlays, find_algorithm
from winnow.config.defaults import DEFAULT_CLIENTS, defaults_for_file, is_without_config
from winnow.config.plugins import load_plugins, plugin_files
from winnow.config.schema import Experiment
from winnow.config.schema_lookup import is_text_setting, settings_class
from winnow.config.validation_error_message import config_error
from winnow.core import Choice, ConfigError, Settings, suggest
from winnow.core.join_names import listed
from winnow.core.split_factory_path import own_code_names
from winnow.data.file_formats import OWN_FILE_TYPES, own_file_type
from winnow.data.settings import settled_clients
from winnow.learn.algorithm import Recipe

TomlTable = dict[str, Any]

EXCLUSIVE_KEYS = ({"fraction", "count"}, {"epochs", "steps"})
"""Pairs of keys of which a section may hold one."""


def presets() -> dict[str, TomlTable]:
    """The experiments that come with Winnow, by name."""
    return {name: tomllib.loads(text) for name, text in preset_texts().items()}


def preset_texts() -> dict[str, str]:
    """Their files, with the comments."""
    folder = resources.files("winnow.config") / "presets"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".toml")), key=lambda file: file.name)
    return {file.name.removesuffix(".toml"): file.read_text("utf-8") for file in files}


def preset_text(name: str) -> str:
    known = preset_texts()
    if name not in known:
        raise ConfigError(f"no preset {name!r}; {suggest(name, known)}")
    return known[name]


def read_config_table(preset_or_file: str | Path) -> tuple[TomlTable, str]:
    """The raw table and what to call its source in messages."""
    path, name = Path(preset_or_file), str(preset_or_file)
    if path.suffix != ".toml":
        known = presets()
        if name in known:
            return known[name], f"preset {name}"
        if own_file_type(path) is not None:
            return defaults_for_file(path), name
        if path.suffix == ".py":
            raise ConfigError(
                f"{name} is a Python program; run it with: python {name}; or between sites with: "
                f"winnow local run {name}, or winnow submit {name} --kit KIT"
            )
        if path.is_file() or path.suffix[1:].isalpha():
            raise ConfigError(f"{name}: tables come as {listed(OWN_FILE_TYPES)} files, and configurations as .toml")
        raise ConfigError(f"no preset {name!r}; {suggest(name, known)} (a configuration file name must end in .toml)")
    try:
        return _with_absolute_paths(tomllib.loads(path.read_text("utf-8")), path.parent), str(path)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text; save it as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.__class__.__name__})") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def _with_absolute_paths(table: TomlTable, folder: Path) -> TomlTable:
    """Files that a configuration names are looked for beside it, wherever Winnow is started or resumed."""
    for section, key in (("data", "path"), ("encode", "cache"), ("fleet", "path")):
        name = table.get(section, {}).get(key) if isinstance(table.get(section), dict) else None
        if isinstance(name, str):
            table[section][key] = str(folder.absolute() / name)
    for section, key, name in own_code_names(table):
        table[section][key] = str(folder.absolute() / name)
    if isinstance(table.get("plugins"), list):
        table["plugins"] = [str(folder.absolute() / f) if isinstance(f, str) else f for f in table["plugins"]]
    return table


def resolve(
    preset_or_file: str | Path | Mapping[str, Any],
    *,
    sets: Iterable[str] = (),
    algorithm: str | None = None,
    plugins: Iterable[str | Path] = (),
    has_owners: bool = False,
    **options: Any,
) -> Experiment:
    """The checked experiment. `options` replace top-level keys where they are not None; `plugins` add to the file's.

    `has_owners` says that data which are passed in Python have owners.
    """
    table, source = _with_plugins(preset_or_file, plugins)
    overlays, own_base = checked_overlays(table.pop("algorithms", {}), source), table.pop("base", None)
    overrides = _overrides(sets)
    if "plugins" in overrides:
        raise ConfigError("--set plugins: use --plugin FILE.py instead")
    name = overrides.get("algorithm") or algorithm or table.get("algorithm", "fedprof")
    is_files_own = name == table.get("algorithm", name)
    base = overrides.get("base") or options.get("base") or (own_base if is_files_own else None)
    chosen = find_algorithm(name, base, overlays, source)
    if not is_files_own:
        _check_fixed_parts(table, chosen.recipe, source)
    result: TomlTable = {}
    given = {key: value for key, value in options.items() if value is not None}
    settled = {"algorithm": name} if chosen.base is None else {"algorithm": name, "base": chosen.base}
    recipe = chosen.recipe.table()
    own = {} if table.get("algorithm") == name else _own_parts(recipe, table)
    for given_layer in (recipe, table, own, *chosen.overlays, overrides, given, settled):
        layer = _with_select_table(given_layer, source)
        _drop_overridden(result, layer)
        merge_tables(result, layer)
    data = result.get("data", {})
    if isinstance(data, dict):
        otherwise = DEFAULT_CLIENTS if is_without_config(preset_or_file) else None
        result["data"] = settled_clients(data, has_owners=has_owners, otherwise=otherwise)
    return experiment_from_table(result, source)


def _with_select_table(layer: Mapping[str, Any], source: str) -> Mapping[str, Any]:
    """`select = 0.5` is short for a fraction, `select = 10` for a count."""
    amount = layer.get("select")
    if isinstance(amount, bool) or not isinstance(amount, int | float):
        return layer
    if isinstance(amount, int) and amount == 1:
        raise ConfigError(f"{source}: select = 1 is one client or all of them; write select.count = 1 or select = 1.0")
    return {**layer, "select": {"count" if isinstance(amount, int) else "fraction": amount}}


def algorithm_names(preset_or_file: str | Path | Mapping[str, Any], plugins: Iterable[str | Path] = ()) -> list[str]:
    """All that can be asked for: named algorithms, those of plugins, and the file's variants."""
    return sorted(known_algorithms(preset_or_file, plugins))


def known_algorithms(
    preset_or_file: str | Path | Mapping[str, Any], plugins: Iterable[str | Path] = ()
) -> dict[str, NamedAlgorithm]:
    """The same with what each name stands for there."""
    table, source = _with_plugins(preset_or_file, plugins)
    overlays = checked_overlays(table.get("algorithms", {}), source)
    known = {name: find_algorithm(name, None, overlays, source) for name in {*Recipe.known, *overlays}}
    if "base" in table:
        own = table.get("algorithm", "fedprof")
        known[own] = find_algorithm(own, table["base"], overlays, source)
    return known


def _with_plugins(preset_or_file: str | Path | Mapping[str, Any], more: Iterable[str | Path]) -> tuple[TomlTable, str]:
    """The raw table and its source; the Python files that it names, and those given beside it, have been run."""
    raw, source = (
        (preset_or_file, "settings") if isinstance(preset_or_file, Mapping) else read_config_table(preset_or_file)
    )
    table = deepcopy(dict(raw))
    files = [str(Path(file).absolute()) for file in (*plugin_files(table, source), *more)]
    table["plugins"] = list(dict.fromkeys(files))
    load_plugins(files, source)
    return table, source


def experiment_from_table(table: Mapping[str, Any], source: str) -> Experiment:
    """The experiment that a complete table describes."""
    load_plugins(plugin_files(table, source), source)
    try:
        return Experiment.model_validate(table)
    except ValidationError as error:
        raise config_error(error, source, Experiment, table) from None


def merge_tables(into: TomlTable, layer: Mapping[str, Any]) -> None:
    """Tables merge key by key; everything else, lists too, is replaced."""
    for key, value in layer.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            merge_tables(into[key], value)
        else:
            into[key] = deepcopy(dict(value)) if isinstance(value, Mapping) else deepcopy(value)


def to_toml(experiment: Experiment) -> str:
    """The experiment as a configuration file that gives it again."""
    return tomli_w.dumps(experiment.model_dump(mode="json", exclude_none=True))


def _drop_overridden(result: TomlTable, layer: Mapping[str, Any], schema: type[Settings] = Experiment) -> None:
    """Take out what the next layer overrides, so that changing one setting is enough.

    Choosing another member of a family (`local.name = "adam"`) leaves behind what only the former one knew; saying one
    of two alternatives (`select.count`) withdraws the other.
    """
    for part, section in layer.items():
        former = result.get(part)
        kind = settings_class(schema.model_fields[part].annotation) if part in schema.model_fields else None
        if kind is None or not isinstance(section, Mapping) or not isinstance(former, dict):
            continue
        if not issubclass(kind, Choice):
            _drop_overridden(former, section, kind)
            continue
        name = section.get("name", former.get("name"))
        chosen = kind.members.get(str(name))
        if chosen is not None and name != former.get("name"):
            former = {key: value for key, value in former.items() if key in chosen.model_fields}
        withdrawn = {other for pair in EXCLUSIVE_KEYS for other in pair if section.keys() & (pair - {other})}
        result[part] = {key: value for key, value in former.items() if key not in withdrawn}
        if chosen is not None:
            _drop_overridden(result[part], section, chosen)


def _check_fixed_parts(table: TomlTable, recipe: Recipe, source: str) -> None:
    """A file that fixes a part for its own algorithm cannot lend itself to another one that differs in that part."""
    for part, wanted in recipe.table().items():
        section = table.get(part, {}) if part != "local" else {}  # an algorithm's own optimiser takes over
        fixed = section.get("name") if isinstance(section, dict) else None
        if fixed is not None and fixed != wanted["name"]:
            raise ConfigError(
                f"{source}: {part}.name = {fixed!r} conflicts with algorithm {recipe.name!r}; "
                f"move it to [algorithms.{table.get('algorithm', 'fedprof')}.{part}]"
            )


def _own_parts(recipe: TomlTable, table: TomlTable) -> TomlTable:
    """What an algorithm keeps in a file that was not written for it: its optimiser, and its filters after the file's.

    So FedPAQ quantises in any file, unless the file says itself how updates are compressed.
    """
    own = {"local": recipe["local"]} if "local" in recipe else {}
    given = table.get("filters")
    if "filters" not in recipe or not isinstance(given, list):
        return own
    named = {each.get("name") for each in given if isinstance(each, Mapping)}
    return {**own, "filters": [*given, *(each for each in recipe["filters"] if each["name"] not in named)]}


def _overrides(sets: Iterable[str]) -> TomlTable:
    """`key.path=value` options as a nested table; values are TOML, and text needs no quotes."""
    result: TomlTable = {}
    for option in sets:
        path, equals, text = option.partition("=")
        keys = path.strip().split(".")
        if not equals or not all(keys):
            raise ConfigError(f"--set {option}: write it as key.path=value, for example --set local.batch_size=16")
        said: Any = _value(keys, text.strip())
        for key in reversed(keys):
            said = {key: said}
        merge_tables(result, _with_select_table(said, f"--set {option}"))
    return result


def _value(keys: Sequence[str], text: str) -> Any:
    """What an option says. Where a setting is text a number is text too: layers may be called 4 or 1.0."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return value if isinstance(value, str) or not is_text_setting(keys, Experiment) else text
