"""winnow intersect TABLE"""

from pathlib import Path
from typing import Annotated

import typer

from winnow.cli.ask_owners import ExplainOption, FederationFile, FolderOption, PersonKit
from winnow.cli.options import AsJson


def intersect(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The table's name.")],
    key: Annotated[str, typer.Option(metavar="COLUMN", help="The column to match by, declared as key.")],
    owners: Annotated[
        str | None, typer.Option(metavar="A,B", help="These owners, the first of whom asks; all of them otherwise.")
    ] = None,
    federation: FederationFile = None,
    kit: PersonKit = None,
    size: Annotated[
        bool, typer.Option("--size", help="Nobody learns which keys are in common, only how many. Two owners.")
    ] = False,
    share: Annotated[
        bool, typer.Option("--share", help="The other owners, too, learn which keys are in common.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Of simulated owners: write what each learns to OWNER.txt.")
    ] = None,
    folder: FolderOption = None,
    explain: ExplainOption = False,
    as_json: AsJson = False,
) -> None:
    """Find how many keys owners have in common. Which they are, only owners learn; of other keys nobody anything."""
    from winnow.analytics.answers import answer_errors
    from winnow.analytics.question import read_question
    from winnow.cli.ask_owners import ask, names
    from winnow.cli.console import answer, say, write_json
    from winnow.core import ConfigError
    from winnow.core.join_names import listed
    from winnow.core.untrusted_text import one_line

    if out is not None and kit is not None:
        raise ConfigError("--out writes what simulated owners learn; real ones keep it (results in site.toml)")
    question = read_question(
        {
            "kind": "intersect",
            "table": table,
            "key": key,
            "between": list(names(owners)),
            "reveal": "size" if size else "intersection",
            "share": share,
        }
    )
    if explain:
        from winnow.cli.explain_question import explain_asked

        explain_asked(question, federation=federation, kit=kit, owners=owners, as_json=as_json)
        return
    learnt: dict[str, list[str]] = {}
    found = ask(question, federation=federation, kit=kit, owners=owners, folder=folder, on_match=learnt.__setitem__)
    if out is not None:
        for owner, keys in learnt.items():
            _write_keys(out, owner, keys)
        say(f"what {listed(sorted(learnt)) or 'nobody'} learnt: {out}")
    if as_json:
        write_json(found)
        return
    with answer_errors():
        owners_named = one_line(listed(found["owners"]))
        few = f"fewer than {found['minimum']:,} keys in common; how many is not told"
        told = few if found["size"] is None else f"{found['size']:,} keys in common"
    answer(f"{owners_named} have {told}")


def _write_keys(folder: Path, owner: str, keys: list[str]) -> None:
    from winnow.core import RunError
    from winnow.runs.atomic_write import one_line_errors, write_text_atomically

    if Path(owner).name != owner or owner.startswith("."):
        raise RunError(f"owner {owner!r} cannot be the name of a file")
    path = folder / f"{owner}.txt"
    with one_line_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
        write_text_atomically(path, "".join(f"{key}\n" for key in keys))
