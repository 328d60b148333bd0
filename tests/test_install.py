"""The package has its own name, says how to add to itself, and its wheel trains without a compiler."""

import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import winnow
from support.needs import PROCESSOR
from winnow.core.installed_package import install_command
from winnow.learn.stack.native import load_or_compile_kernels
from winnow.learn.stack.native.kernel_compilation import LEVELS, packaged_name

ROOT = Path(__file__).parents[1]


def pretend_installed(folder: Path, monkeypatch: pytest.MonkeyPatch, direct_url: object) -> None:
    """A distribution that pip would have installed from there."""
    metadata = folder / "winnow_fl-9.9.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: winnow-fl\nVersion: 9.9\n")
    if direct_url is not None:
        (metadata / "direct_url.json").write_text(json.dumps(direct_url))
    monkeypatch.syspath_prepend(str(folder))


@pytest.mark.parametrize(
    ("direct_url", "command"),
    [
        (None, ["pip", "install", "winnow-fl[deploy]"]),
        ({"url": "file:///a%20b/clone", "dir_info": {}}, ["pip", "install", "/a b/clone[deploy]"]),
        (
            {"url": "file:///clone", "dir_info": {"editable": True}},
            ["pip", "install", "-e", "/clone[deploy]"],
        ),
        (
            {"url": "file:///w/winnow_fl-9.9.whl", "archive_info": {}},
            ["pip", "install", "winnow-fl[deploy] @ file:///w/winnow_fl-9.9.whl"],
        ),
    ],
)
def test_an_extra_comes_from_where_winnow_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct_url: object, command: list[str]
) -> None:
    pretend_installed(tmp_path, monkeypatch, direct_url)
    assert winnow.__version__ == "9.9"
    assert shlex.split(install_command("deploy")) == command


def test_every_extra_that_a_message_names_exists() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    code = "".join(path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))
    named = set(re.findall(r"install_command\(['\"](\w+)['\"]\)", code))
    assert len(named) > 5
    assert named <= set(extras)


def test_nobody_is_told_to_install_a_stranger_s_package() -> None:
    files = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.*")]
    files += [*(ROOT / "src").rglob("*.py"), ROOT / "Makefile", ROOT / "pyproject.toml"]
    stranger = re.compile(r"pip install[^\n]*\bwinnow(?!-fl)\b[\['\"\s]|\"winnow\[")
    assert [str(file) for file in files if stranger.search(file.read_text("utf-8"))] == []


# The wheel ------------------------------------------------------------------------------------------------------------

with_kernels = PROCESSOR.unless(platform.machine() in LEVELS)


def kernels_of_a_wheel(folder: Path, real: str = "float") -> list[Path]:
    """Small libraries under the names that kernels have in a wheel for this processor."""
    folder.mkdir(mode=0o755)
    features = frozenset(load_or_compile_kernels.processor_description().split())
    level = next((level for level in LEVELS[platform.machine()] if level.features <= features), None)
    if level is None:
        PROCESSOR.skip("wheels have no kernels for this one")
    paths = [folder / packaged_name(level, real, lanes, load_or_compile_kernels.SOURCE) for lanes in level.lanes(real)]
    compiler = load_or_compile_kernels.find_compiler()
    assert compiler is not None
    for path in paths:
        command = [*compiler, "-shared", "-fPIC", "-x", "c++", "-", "-o", str(path)]
        subprocess.run(command, input='extern "C" int answer() { return 7; }', text=True, check=True)
        path.chmod(0o644)
    return paths


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """As after an installation of a wheel with kernels, on a machine without a compiler and with an empty cache."""
    monkeypatch.setattr(load_or_compile_kernels, "PACKAGED", tmp_path / "compiled")
    monkeypatch.setattr(load_or_compile_kernels, "load_kernels", load_or_compile_kernels.load_kernels.__wrapped__)
    paths = kernels_of_a_wheel(load_or_compile_kernels.PACKAGED)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(load_or_compile_kernels, "find_compiler", lambda: None)
    return paths


@with_kernels
def test_the_wheel_s_kernels_are_used_and_nothing_is_compiled(installed: list[Path], tmp_path: Path) -> None:
    loaded = load_or_compile_kernels.load_kernels("float")
    assert not loaded.newly_built
    assert [library.answer() for library in loaded.libraries.values()] == [7] * len(installed)
    assert not (tmp_path / "cache").exists()


@with_kernels
def test_kernels_of_another_source_are_not_used(installed: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    changed = load_or_compile_kernels.PACKAGED.parent / "source"
    shutil.copytree(load_or_compile_kernels.SOURCE, changed)
    (changed / "native.cpp").write_text("// changed")
    monkeypatch.setattr(load_or_compile_kernels, "SOURCE", changed)
    with pytest.raises(load_or_compile_kernels.NativeUnavailableError, match=r"^no C\+\+ compiler found"):
        load_or_compile_kernels.load_kernels("float")


@with_kernels
@pytest.mark.parametrize("of", ["folder", "file", "link"])
def test_kernels_that_others_could_have_written_are_not_loaded(installed: list[Path], of: str) -> None:
    if of == "link":
        elsewhere = installed[0].rename(installed[0].parents[1] / "elsewhere.so")
        installed[0].symlink_to(elsewhere)
    else:
        (load_or_compile_kernels.PACKAGED if of == "folder" else installed[0]).chmod(0o777)
    with pytest.raises(load_or_compile_kernels.NativeUnavailableError, match="is writable by, another user"):
        load_or_compile_kernels.load_kernels("float")


@PROCESSOR.unless(platform.machine() == "x86_64")
def test_a_processor_that_can_do_less_gets_no_code_that_it_cannot_run(
    installed: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_or_compile_kernels, "processor_description", lambda: "flags: sse4_2")
    with pytest.raises(load_or_compile_kernels.NativeUnavailableError, match=r"^no C\+\+ compiler found"):
        load_or_compile_kernels.load_kernels("float")


@with_kernels
@pytest.mark.slow(part="executions")
def test_an_installed_wheel_trains_natively_without_a_compiler(tmp_path: Path) -> None:
    source = tmp_path / "source"
    left_out = shutil.ignore_patterns(".*", "build", "dist", "tests", "docs", "bench", "*.egg-info")
    shutil.copytree(ROOT, source, ignore=left_out)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    environment = {**os.environ, "WINNOW_KERNELS": platform.machine()}
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--wheel-dir", tmp_path, source], check=True, env=environment, cwd=tmp_path
    )
    wheel = next(tmp_path.glob("*.whl"))
    assert wheel.name.endswith(f"-py3-none-linux_{platform.machine()}.whl")

    fresh = tmp_path / "fresh"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", fresh], check=True)
    site = next((fresh / "lib").glob("python*/site-packages"))
    subprocess.run([*pip, "install", "--no-deps", "--target", site, wheel], check=True)
    dependencies = {str(Path(path)) for path in sys.path if path.endswith("site-packages")}
    (site / "dependencies.pth").write_text("\n".join(dependencies))
    command = [fresh / "bin" / "python", "-m", "winnow.cli", "run", "demo", "--rounds", "2", "--out", "run", "--quiet"]
    bare = {"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache"), "HOME": str(tmp_path)}
    subprocess.run(command, check=True, env=bare, cwd=tmp_path)
    assert 'execution = "native"' in (tmp_path / "run" / "config.toml").read_text()
    assert not list((tmp_path / "cache").rglob("*.so"))
