"""The documentation is true: its examples run, its links lead somewhere, and the reference names every setting.

Each page runs in a process and a folder of its own, its blocks one after another, as a reader would try them.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic.fields import FieldInfo

from winnow.config.schema import Experiment
from winnow.core import Choice, Settings

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(
    r"(?:<!-- not executed: (?P<why>[^\n]+) -->\n)?"
    r"^```(?P<kind>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```",
    flags=re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block: a program, commands with their output, or a file to be saved."""

    kind: str
    title: str | None
    text: str
    why_not: str | None


def blocks_of(page: Path) -> list[Block]:
    found = BLOCK.finditer(page.read_text("utf-8"))
    return [Block(kind=m["kind"], title=m["title"], text=m["text"], why_not=m["why"]) for m in found]


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


# Examples -----------------------------------------------------------------------------------------------------------

READER = """
import contextlib, gc, io, json, os, random, runpy, shlex, sys
import duckdb, pandas, plotly.graph_objects, scipy.stats, sklearn.datasets, sklearn.linear_model, sqlglot
import torch.fx.experimental.symbolic_shapes, winnow.analytics.sql.query_question, winnow.api
from winnow.cli import main

def command(line):
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            program, *arguments = shlex.split(line)
            if program == "python":
                runpy.run_path(arguments[0], run_name="__main__")
            else:
                main(arguments)
        except SystemExit as left:
            code = int(left.code or 0)
    return {"line": line, "code": code, "out": out.getvalue(), "err": err.getvalue()}

def read(blocks):
    names, record = {"__name__": "page"}, []
    for kind, title, text in blocks:
        if title:
            with open(title, "w", encoding="utf-8") as file:
                file.write(text)
        elif kind == "python":
            with contextlib.redirect_stdout(sys.stderr):
                exec(compile(text, "example", "exec"), names)
        elif kind == "console":
            record += [command(line[2:]) for line in text.splitlines() if line.startswith("$ ")]
    return record

gc.freeze()  # what is never looked at by the collector stays shared with the copies
for line in sys.stdin:
    page = json.loads(line)
    child = os.fork()
    if child == 0:
        os.chdir(page["folder"])
        os.sched_setaffinity(0, {random.choice([*os.sched_getaffinity(0)])})  # so that a comparison starts one worker
        os.dup2(os.open(page["errors"], os.O_WRONLY | os.O_CREAT), 2)
        with open(page["record"], "w") as file:
            json.dump(read(page["blocks"]), file)
        sys.stderr.flush()
        os._exit(0)  # nothing of what was loaded needs to be taken down
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
gc.unfreeze()
"""


@pytest.fixture(scope="module")
def reader() -> Iterator["subprocess.Popen[str]"]:
    """A process that has imported what pages need, and copies itself for each: imports take longer than most pages."""
    environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", "-c", READER]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def write_patients(folder: Path) -> None:
    """The table of the pages about own data, by the program that a page shows for it."""
    program = next(block for block in blocks_of(ROOT / "docs" / "ask-a-question.md") if block.kind == "python")
    with chdir(folder):
        exec(program.text, {})


def shown_outputs(text: str) -> list[str]:
    """What a console block shows after each command."""
    return [part.partition("\n")[2] for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]]


def shape(output: str) -> str:
    """Output without its numbers, which may differ between machines, and without its spacing."""
    return " ".join(re.sub(r"\d+(\.\d+)?(e-\d+)?|[─\s]+", lambda m: "#" if m[0][0].isdigit() else " ", output).split())


def is_executed(block: Block) -> bool:
    return block.kind in ("python", "console") and not block.why_not


EXECUTED = [page for page in PAGES if any(map(is_executed, blocks_of(page)))]


LONG = (
    *("algorithms", "architecture", "between-two-hospitals", "deployment", "encryption", "fedaq", "few-labels"),
    *("frozen-encoders", "personal", "split-learning", "tracking", "truth", "use-the-model", "without-labels"),
    *("workflows", "your-own"),
)
"""Pages whose examples take long; what they show is tested elsewhere, too."""


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow(part="docs") if page.stem in LONG else ()) for page in EXECUTED],
    ids=page_name,
)
def test_examples_do_what_the_page_says(page: Path, tmp_path: Path, reader: "subprocess.Popen[str]") -> None:
    folder, errors, record = tmp_path / "page", tmp_path / "errors.txt", tmp_path / "record.json"
    folder.mkdir()
    write_patients(folder)
    blocks = [block for block in blocks_of(page) if not block.why_not]
    asked = {
        "folder": str(folder),
        "errors": str(errors),
        "record": str(record),
        "blocks": [(block.kind, block.title, block.text) for block in blocks],
    }
    assert reader.stdin is not None
    assert reader.stdout is not None
    print(json.dumps(asked), file=reader.stdin, flush=True)
    assert reader.stdout.readline() == "0\n", errors.read_text()
    expected = [shown for block in blocks if block.kind == "console" for shown in shown_outputs(block.text)]
    for shown, was in zip(expected, json.loads(record.read_text()), strict=True):
        mistake = shown.startswith("winnow: error:")
        assert was["code"] == (2 if mistake else 0), was
        if mistake:
            assert shown == was["err"]
        elif shown:
            assert shape(shown) == shape(was["out"]), was["line"]


def test_console_blocks_run_winnow_or_a_program_of_the_page_or_say_why_they_are_not_run() -> None:
    for page in PAGES:
        blocks = blocks_of(page)
        titles = {block.title for block in blocks if block.kind == "python"}
        for block in blocks:
            if block.kind == "console" and not block.why_not:
                commands = re.findall(r"^\$ (\w+) ?(\S*)", block.text, flags=re.MULTILINE)
                assert commands, page
                for program, argument in commands:
                    assert program == "winnow" or (program == "python" and argument in titles), page


def test_own_model_and_data_take_fifteen_lines() -> None:
    for page in ("README.md", "docs/your-own.md"):
        first = next(block for block in blocks_of(ROOT / page) if "winnow.run(" in block.text)
        assert "patients.csv" in first.text
        assert len(first.text.strip().splitlines()) <= 15


def test_the_front_page_is_short() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    blocks = blocks_of(ROOT / "README.md")
    outputs = "".join(shown for block in blocks if block.kind == "console" for shown in shown_outputs(block.text))
    assert len(text.split()) - len(outputs.split()) <= 900
    assert all(len(block.text.splitlines()) <= 15 for block in blocks)


def test_an_algorithm_takes_forty_lines() -> None:
    example = next(block for block in blocks_of(ROOT / "docs" / "architecture.md") if "Recipe(" in block.text)
    assert len(example.text.strip().splitlines()) <= 40


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text("utf-8")):
        file, _, anchor = target.partition("#")
        linked = page.parent / file if file else page
        assert linked.is_file(), target
        headings = re.findall(r"^#+ (.+)$", linked.read_text("utf-8"), flags=re.MULTILINE) if anchor else []
        anchors = {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
        assert not anchor or anchor in anchors, target


# The reference of settings ------------------------------------------------------------------------------------------

Key = tuple[str, str, str]
"""Section, member of a family ("" for what all have in common), key ("–" where a member has none of its own)."""


def walk(settings: type[Settings], path: str = "") -> Iterator[tuple[Key, FieldInfo | None]]:
    """Every key of a group of settings and of those below it."""
    for name, field in settings.model_fields.items():
        below = f"{path}.{name}".lstrip(".")
        nested = nested_settings(field.annotation)
        if nested is None or path:
            yield (path, "", name), field
        if nested is not None:
            yield from family(nested, below) if issubclass(nested, Choice) else walk(nested, below)


def family(choice: type[Choice], path: str) -> Iterator[tuple[Key, FieldInfo | None]]:
    """What all members have in common, then what is each one's own or has another default."""
    common = {name: field for name, field in choice.model_fields.items() if name != "name"}
    yield from (((path, "", name), field) for name, field in common.items())
    for member, kind in choice.members.items():
        own = {
            name: field
            for name, field in kind.model_fields.items()
            if name != "name" and (name not in common or field.default != common[name].default)
        }
        yield from (((path, member, name), field) for name, field in own.items())
        for name, field in own.items():
            nested = nested_settings(field.annotation)
            if nested is not None and not issubclass(nested, Choice):
                yield from walk(nested, f"{path}.{name}")
        if not own:
            yield (path, member, "–"), None


def nested_settings(annotation: Any) -> type[Settings] | None:
    kinds = [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type)]
    return next((kind for kind in kinds if issubclass(kind, Settings)), None)


def documented() -> dict[Key, tuple[str, str]]:
    """Type and default of every row of the page's tables."""
    found, sections, columns = {}, [""], 0
    for line in (ROOT / "docs" / "configuration.md").read_text("utf-8").splitlines():
        if line.startswith("#"):
            sections = [word.strip("[]") for word in re.findall(r"`([^`]+)`", line)] or [""]
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if cells and cells[0] in ("key", "name"):
            columns = len(cells)
        elif cells and not cells[0].startswith("---"):
            member, key, kind, default = ["", *cells[:3]] if columns == 4 else cells[:4]
            found |= {(section, member.strip("`"), key.strip("`")): (kind, default) for section in sections}
    return found


def as_toml(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if value is None:
        return "none"
    if isinstance(value, Settings):
        inside = ", ".join(f"{key} = {json.dumps(each)}" for key, each in value.model_dump().items())
        return f"`{{ {inside} }}`"
    return f"`{json.dumps(value)}`"


def test_every_promise_of_security_names_a_test_that_attacks_it() -> None:
    rows = [line for line in (ROOT / "docs/security.md").read_text("utf-8").splitlines() if "test_" in line]
    named = [match for row in rows for match in re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", row)]
    assert len(named) > len(rows) > 20
    for file, test in named:
        wanted = f"def {test}(" if test else "def test_"
        assert wanted in (ROOT / "tests" / file).read_text("utf-8"), f"{file}::{test}"


def test_every_test_file_that_a_page_names_exists() -> None:
    named = {match for page in PAGES for match in re.findall(r"tests/[\w/]+\.py", page.read_text("utf-8"))}
    assert len(named) > 5
    assert not [name for name in sorted(named) if not (ROOT / name).is_file()]


def test_the_reference_names_every_setting_and_no_other() -> None:
    assert dict(walk(Experiment)).keys() == documented().keys()


def test_what_pages_set_are_settings() -> None:
    known: dict[str, set[str]] = {}
    for path, _, key in dict(walk(Experiment)):
        section, *below = path.split(".")
        known.setdefault(section, {"name"}).update((*below, key))
    del known[""]
    known["select"].add("power")  # of the algorithm that docs/architecture.md adds
    assignment = re.compile(rf"(?<![\w./\[])({'|'.join(known)})\.([a-z_.]+)\s*=")
    pages = {*PAGES, *(ROOT / "docs").rglob("*.md")} - {ROOT / "CHANGELOG.md"}  # which tells of former names, too
    found = [(page, match) for page in pages for match in assignment.finditer(page.read_text("utf-8"))]
    assert len(found) > 100
    assert not [(page_name(page), m[0]) for page, m in found if not set(m[2].split(".")) <= known[m[1]]]


def test_the_reference_gives_defaults_and_choices() -> None:
    rows = documented()
    for key, field in walk(Experiment):
        if field is None:
            continue
        kind, default = rows[key]
        assert default == as_toml(field), key
        literals = [a for a in (field.annotation, *get_args(field.annotation)) if get_origin(a) is Literal]
        for choice in (each for literal in literals for each in get_args(literal)):
            assert (f'`"{choice}"`' if isinstance(choice, str) else f"`{choice}`") in kind, key
