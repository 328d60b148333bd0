"""From `winnow run` to the first training step: few calls, in few modules."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from winnow.cli.app import main
from winnow.learn.local_optimiser import Sgd

MAX_CALLS, MAX_MODULES = 12, 9


class FirstStepError(BaseException):
    """Raised in the place of the first step; nothing on the way catches it by mistake."""

    def __init__(self) -> None:
        super().__init__("the first step")
        frame, self.way = sys._getframe(2), []
        while frame is not None:
            module = frame.f_globals.get("__name__", "")
            if module.startswith("winnow.") and module != "winnow.cli.app":  # from the command's own function on
                self.way.insert(0, (module, frame.f_code.co_qualname))
            frame = frame.f_back


def stop(*_: Any, **__: Any) -> None:
    raise FirstStepError


def test_from_the_command_to_the_first_step_there_are_few_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sgd, "step", stop)
    with pytest.raises(FirstStepError) as stopped:
        main(["run", "demo", "--set", "engine.execution=stacked", "--out", str(tmp_path / "run"), "--quiet"])
    way = stopped.value.way
    print(*(f"{number:2} {module} {function}" for number, (module, function) in enumerate(way, 1)), sep="\n")
    assert way[0] == ("winnow.cli.run", "run")
    assert len(way) <= MAX_CALLS
    assert len({module for module, _ in way}) <= MAX_MODULES
    assert documented() == [f"{module.removeprefix('winnow.')}.{function}" for module, function in way]


def documented() -> list[str]:
    """The calls that docs/architecture.md lists."""
    page = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text("utf-8")
    table = page.partition("\n| call |")[2].partition("\n\n")[0]
    cells = (row.split("|")[1] for row in table.splitlines() if row.startswith("| `"))
    return [".".join(re.findall(r"`([^`]+)`", cell)) for cell in cells]
