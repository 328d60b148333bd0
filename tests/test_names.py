"""One word for one thing: names that a reader has to tell apart are different names."""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import winnow

ROOT = Path(winnow.__file__).parent
MODULES = sorted(path for path in ROOT.rglob("*.py") if path.stem not in {"__init__", "__main__"})

REPEATED_MODULES = {
    **dict.fromkeys(["config", "errors", "schema", "settings", "options", "plan", "steps"], "role"),
    **dict.fromkeys(["report", "tables", "figures", "results"], "role"),
    "app": "role",
    "build": "package",  # of an experiment, of the native library
    "collect": "protocol",
    "download": "package",  # of a data set, of a job's results
    "execution": "package",
    "federation": "interface",
    "local": "package",  # local privacy, a local federation
    "server_round": "protocol",
    "site": "protocol",
    "workflow": "interface",
}
"""Module names that may repeat, and why: a role that many packages have, a protocol's own part of the same kind, an
interface beside what implements it, or a package whose name says which."""

METAPHORS = {
    *("throne", "reign", "estate", "office", "room", "labour", "notary", "desk", "door", "departure", "slope", "crown"),
    *("undoing", "people", "fence", "wish", "wishes", "workplace", "workshop", "letter", "judge", "conduct"),
    *("disclosure", "handover"),
}
METAPHOR_MODULES = METAPHORS | {
    "place",
    "work",
    "subject",
    "answering",
    "divide",
    "chance",
    "pace",
    "reach",
    "orders",
}
METAPHOR_CLASSES = METAPHORS | {"did", "said", "facts", "look"}
METAPHOR_IDENTIFIERS = METAPHORS - {
    "fence",  # a leader's fencing token, the field's own word
    "letter",  # of a text
    "people",  # a setting of policies and projects: persons
    "room",  # left for more of something
    "slope",  # of a function
} | {"letters", "chance", "judged", "depose", "fewest"}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


@cache
def nodes() -> list[ast.AST]:
    return [node for path in ROOT.rglob("*.py") for node in ast.walk(tree(path))]


def public_classes() -> dict[str, list[str]]:
    """Each public class at module level, with the modules that define it."""
    found = defaultdict(list)
    for path in MODULES:
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(ROOT)))
    return found


def public_functions() -> dict[str, list[str]]:
    """Each public function at module level, with the modules that define it; a command is called like what it runs."""
    found = defaultdict(list)
    for path in MODULES:
        where = path.relative_to(ROOT)
        for node in tree(path).body if where.parts[0] != "cli" else ():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
                found[node.name].append(".".join(("winnow", *where.with_suffix("").parts)))
    return found


def bare_imports() -> set[tuple[str, str]]:
    """The module and the name of whatever is imported by its name, and so is used without its module's."""
    found = (node for node in nodes() if isinstance(node, ast.ImportFrom) and node.module)
    return {(node.module, alias.name) for node in found for alias in node.names}


def identifiers() -> set[str]:
    """Every name that the package gives: to functions, classes, parameters, attributes and variables."""
    found = set()
    for node in nodes():
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                found.add(name)
    return found


def words(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)}


def test_no_public_class_name_occurs_twice() -> None:
    assert not {name: where for name, where in public_classes().items() if len(where) > 1}


def test_functions_of_one_name_are_called_through_their_modules() -> None:
    """One of them may be imported by its name; of the others the module says what is meant: `shamir.combine`."""
    imported = bare_imports()
    by_name = {
        name: [where for where in found if (where, name) in imported] for name, found in public_functions().items()
    }
    assert by_name["choose_execution"], "packages import what they offer from its module"
    assert not {name: found for name, found in by_name.items() if len(found) > 1}


def test_module_names_repeat_only_where_the_package_says_which() -> None:
    found = defaultdict(list)
    for path in MODULES:
        where = path.relative_to(ROOT)
        if where.parts[0] != "cli":  # a command is called like what it runs
            found[path.stem].append(str(where))
    assert not {name: where for name, where in found.items() if len(where) > 1 and name not in REPEATED_MODULES}


def test_no_metaphor_is_left_in_a_name() -> None:
    modules = {path.relative_to(ROOT) for path in MODULES}
    parts = {part.removesuffix(".py") for path in modules for part in path.parts}
    assert not {name for name in parts if words(name) & METAPHOR_MODULES}
    assert not {name for name in public_classes() if words(name) & METAPHOR_CLASSES}
    assert not {name for name in identifiers() if words(name) & METAPHOR_IDENTIFIERS}
