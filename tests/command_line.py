"""Commands called as a user would, in this process."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from winnow.cli import main

TINY = """
name = "tiny"
rounds = 2
target = 0.05

[data]
name = "digits"
clients = 6
reference = 100
test = 50

[model]
name = "linear"

[select]
fraction = 0.5

[quality]
evidence = []

[local]
name = "sgd"
learning_rate = 0.1
"""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    code: int
    out: str
    err: str


def write_tiny(folder: Path, more: str = "") -> str:
    path = folder / "tiny.toml"
    path.write_text(TINY + more)
    return str(path)


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> Outcome:
    capsys.readouterr()
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    return Outcome(code=int(left.value.code or 0), out=said.out, err=said.err)
