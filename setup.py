"""Everything is in pyproject.toml but this: a wheel knows its commit, and those of `make wheel` carry compiled kernels.

WINNOW_KERNELS names the machine that they are for. Without it a wheel has none, as `pip install .` makes it: kernels
are then compiled on first use, for the processor that is there.
"""

import os
import platform
import runpy
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

MACHINE = os.environ.get("WINNOW_KERNELS")
PACKAGE = Path("winnow", "learn", "stack", "native")


class BuildWithKernels(build_py):
    """Compiles a file for each level of processors, precision and width of blocks."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:  # nothing is built
            return
        if commit := _commit():
            (Path(self.build_lib) / "winnow" / "commit.txt").write_text(f"{commit}\n")
        if MACHINE is None:
            return
        files = runpy.run_path(str(Path("src") / PACKAGE / "kernel_compilation.py"))
        folder = Path(self.build_lib) / PACKAGE / files["PACKAGED"].name
        folder.mkdir(parents=True, exist_ok=True)
        compiler = _compiler()
        commands = [
            files["compile_command"](
                (compiler,),
                f"-march={level.name}",
                real,
                lanes,
                files["SOURCE"],
                folder / files["packaged_name"](level, real, lanes),
            )
            for level in files["LEVELS"][MACHINE]
            for real in files["REALS"]
            for lanes in level.lanes(real)
        ]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(subprocess.check_call, commands))


class WithKernels(Distribution):
    def has_ext_modules(self) -> bool:
        """Then files go where those belong that are not for every machine."""
        return MACHINE is not None or super().has_ext_modules()


class PlatformWheel(bdist_wheel):
    """For any Python 3, but one kind of machine."""

    def finalize_options(self) -> None:
        super().finalize_options()
        if MACHINE is not None:
            self.plat_name = f"linux_{MACHINE}"

    def get_tag(self) -> tuple[str, str, str]:
        python, abi, machine = super().get_tag()
        return (python, abi, machine) if MACHINE is None else ("py3", "none", machine)


def _commit() -> str | None:
    """What `winnow --version` will tell: given by WINNOW_COMMIT where git is not at hand, as in a container."""
    if given := os.environ.get("WINNOW_COMMIT"):
        return given
    command = ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        return found.stdout.strip() or None
    except OSError:
        return None


def _compiler() -> str:
    names = ("g++", "c++", "clang++") if platform.machine() == MACHINE else (f"{MACHINE}-linux-gnu-g++",)
    found = next(filter(None, map(shutil.which, names)), None)
    return found or sys.exit(f"kernels for {MACHINE} need a C++ compiler: {' or '.join(names)}")


setup(distclass=WithKernels, cmdclass={"build_py": BuildWithKernels, "bdist_wheel": PlatformWheel})
