"""Imports point downwards only, and the core stays free of what it must not know."""

import ast
from pathlib import Path

import winnow

ROOT = Path(winnow.__file__).parent
LAYERS = [
    *("core", "terminal_tables", "fleet", "data", "learn", "privacy", "simulate"),
    *("runs", "tracking", "report", "config", "explain", "analytics", "experiment", "progress", "vertical", "deploy"),
    *("web", "papers", "questions", "api", "cli"),
]
FORBIDDEN = {
    "core": {"torch", "socket", "time", "pathlib", "grpc"},
    "fleet": {"torch", "time", "socket"},
    "data": {"torch", "time"},
    "learn": {"time", "socket"},
    "privacy": {"time", "socket"},
    "simulate": {"time", "socket"},
}


def imported_at_module_level(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


def imported_anywhere(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} uses a relative import"
            names.add(node.module or "")
    return names


def packages(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imported_at_module_level(path)}


def modules() -> list[Path]:
    return sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def layer_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def test_modules_import_only_from_their_own_layer_or_below() -> None:
    upwards = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules()
        for name in imported_anywhere(path)
        if name.startswith("winnow.") and LAYERS.index(name.split(".")[1]) > LAYERS.index(layer_of(path))
    ]
    assert not upwards


def test_layers_do_not_know_what_they_must_not() -> None:
    strange = {
        str(path.relative_to(ROOT)): unwanted
        for path in modules()
        if (unwanted := packages(path) & FORBIDDEN.get(layer_of(path), set()))
    }
    assert not strange


def test_every_package_stands_in_the_order() -> None:
    assert {layer_of(path) for path in modules()} <= set(LAYERS)
