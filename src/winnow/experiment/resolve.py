"""From a preset or a file, an algorithm's recipe and the command line to one checked experiment.

Later layers win: the recipe's parts, the file's sections, the file's `[algorithms.NAME]` overlay for the algorithm that
runs, then `--set` and the other options.
"""

import tomllib
from collections.abc import Iterable, Mapping
from copy import deepcopy
from importlib import resources
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from winnow.core import Choice, ConfigError, Settings, suggest
from winnow.experiment.explain import explain
from winnow.experiment.schema import Experiment
from winnow.learn.algorithm import Recipe

Table = dict[str, Any]

ALTERNATIVES = ({"fraction", "count"}, {"epochs", "steps"})
"""Pairs of keys of which a section may hold one."""


def presets() -> dict[str, Table]:
    """The experiments that come with Winnow, by name."""
    return {name: tomllib.loads(text) for name, text in preset_texts().items()}


def preset_texts() -> dict[str, str]:
    """Their files, with the comments."""
    folder = resources.files("winnow.experiment") / "presets"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".toml")), key=lambda file: file.name)
    return {file.name.removesuffix(".toml"): file.read_text("utf-8") for file in files}


def preset_text(name: str) -> str:
    known = preset_texts()
    if name not in known:
        raise ConfigError(f"no preset {name!r}; {suggest(name, known)}")
    return known[name]


def read(preset_or_file: str | Path) -> tuple[Table, str]:
    """The raw table and what to call its source in messages."""
    path, name = Path(preset_or_file), str(preset_or_file)
    if path.suffix != ".toml":
        known = presets()
        if name in known:
            return known[name], f"preset {name}"
        raise ConfigError(f"no preset {name!r}; {suggest(name, known)}; or name a .toml file")
    try:
        return _anchored(tomllib.loads(path.read_text("utf-8")), path.parent), str(path)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error.__class__.__name__})") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def _anchored(table: Table, folder: Path) -> Table:
    """Files that a configuration names are looked for beside it, wherever Winnow is started or resumed."""
    for section, key in (("data", "path"), ("model", "factory"), ("fleet", "path")):
        name = table.get(section, {}).get(key) if isinstance(table.get(section), dict) else None
        if isinstance(name, str):
            table[section][key] = str(folder.absolute() / name)
    return table


def resolve(
    preset_or_file: str | Path | Mapping[str, Any],
    *,
    sets: Iterable[str] = (),
    algorithm: str | None = None,
    **options: Any,
) -> Experiment:
    """The checked experiment. `options` replace top-level keys where they are not None."""
    raw, source = (dict(preset_or_file), "settings") if isinstance(preset_or_file, Mapping) else read(preset_or_file)
    table = deepcopy(raw)
    overlays = table.pop("algorithms", {})
    overrides = _overrides(sets)
    name = overrides.get("algorithm") or algorithm or table.get("algorithm", "fedprof")
    recipe = _recipe(name, source)
    if name != table.get("algorithm", name):
        _refuse_fixed_parts(table, recipe, source)
    _check_overlays(overlays, source)
    result: Table = {}
    given = {key: value for key, value in options.items() if value is not None}
    for layer in (recipe.parts, table, overlays.get(name, {}), overrides, given, {"algorithm": name}):
        _make_room(result, layer)
        merge(result, layer)
    return check(result, source)


def check(table: Mapping[str, Any], source: str) -> Experiment:
    """The experiment that a complete table describes."""
    try:
        return Experiment.model_validate(table)
    except ValidationError as error:
        raise explain(error, source, Experiment, table) from None


def merge(into: Table, layer: Mapping[str, Any]) -> None:
    """Tables merge key by key; everything else, lists too, is replaced."""
    for key, value in layer.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = deepcopy(dict(value)) if isinstance(value, Mapping) else deepcopy(value)


def to_toml(experiment: Experiment) -> str:
    """The experiment as a configuration file that gives it again."""
    return tomli_w.dumps(experiment.model_dump(mode="json", exclude_none=True))


def _make_room(result: Table, layer: Mapping[str, Any], schema: type[Settings] = Experiment) -> None:
    """Take out what the next layer rules out, so that changing one setting is enough.

    Choosing another member of a family (`local.name = "adam"`) leaves behind what only the former one knew; saying one
    of two alternatives (`select.count`) withdraws the other.
    """
    for part, section in layer.items():
        former, kind = result.get(part), _section(schema, part)
        if kind is None or not isinstance(section, Mapping) or not isinstance(former, dict):
            continue
        if not issubclass(kind, Choice):
            _make_room(former, section, kind)
            continue
        name = section.get("name", former.get("name"))
        chosen = kind.members.get(str(name))
        if chosen is not None and name != former.get("name"):
            former = {key: value for key, value in former.items() if key in chosen.model_fields}
        withdrawn = {other for pair in ALTERNATIVES for other in pair if section.keys() & (pair - {other})}
        result[part] = {key: value for key, value in former.items() if key not in withdrawn}


def _section(schema: type[Settings], key: str) -> type[Settings] | None:
    """The settings that a section of this name holds."""
    kind = schema.model_fields[key].annotation if key in schema.model_fields else None
    return kind if isinstance(kind, type) and issubclass(kind, Settings) else None


def _recipe(name: Any, source: str) -> Recipe:
    if not isinstance(name, str) or name not in Recipe.known:
        raise ConfigError(f"{source}: algorithm = {name!r} is unknown; {suggest(str(name), Recipe.known)}")
    return Recipe.known[name]


def _check_overlays(overlays: Any, source: str) -> None:
    if not isinstance(overlays, dict):
        raise ConfigError(f"{source}: algorithms must be a table of tables such as [algorithms.fedprof.select]")
    for name, overlay in overlays.items():
        _recipe(name, source)
        if not isinstance(overlay, dict):
            raise ConfigError(f"{source}: algorithms.{name} must be a table such as [algorithms.{name}.select]")


def _refuse_fixed_parts(table: Table, recipe: Recipe, source: str) -> None:
    """A file that fixes a part for its own algorithm cannot lend itself to another one that differs in that part."""
    for part, wanted in recipe.parts.items():
        section = table.get(part, {})
        fixed = section.get("name") if isinstance(section, dict) else None
        if fixed is not None and fixed != wanted["name"]:
            raise ConfigError(
                f"{source}: {part}.name = {fixed!r} rules out algorithm {recipe.name!r}; "
                f"move it to [algorithms.{table.get('algorithm', 'fedprof')}.{part}]"
            )


def _overrides(sets: Iterable[str]) -> Table:
    """`key.path=value` options as a nested table; values are TOML, and plain words need no quotes."""
    result: Table = {}
    for option in sets:
        path, equals, text = option.partition("=")
        keys = path.strip().split(".")
        if not equals or not all(keys):
            raise ConfigError(f"--set {option}: write it as key.path=value, for example --set local.batch_size=16")
        nested: Any = _value(text.strip())
        for key in reversed(keys):
            nested = {key: nested}
        merge(result, nested)
    return result


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
