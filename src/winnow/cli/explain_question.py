"""How a question is explained, by `winnow explain RUN` and `winnow stats --explain`."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from winnow.analytics.question import MergedTerms, Question


def answered_question(run: Path) -> "tuple[Question, MergedTerms] | None":
    """The question of a run folder, and its owners' terms as the federation file has them now; None for a training."""
    from winnow.runs import RunFolder, file_names
    from winnow.runs.run_identity_record import TRAINING

    if not (run / file_names.LABEL).is_file():
        return None
    view = RunFolder.open(run)
    if view.label.kind == TRAINING:
        return None
    from winnow.analytics.question import read_question
    from winnow.core import RunError

    if "federation" not in view.config:
        raise RunError(f"{run} was answered by a real federation, whose terms are not kept with it")
    question = read_question(view.config["question"])
    return question, _terms(question, Path(view.config["federation"]), tuple(view.config["owners"]))


def explain_asked(
    question: "Question", *, federation: Path | None, kit: Path | None, owners: str | None, as_json: bool
) -> None:
    """Explain a question that has not been put, to these owners or to all."""
    from winnow.cli.ask_owners import names
    from winnow.core import ConfigError
    from winnow.questions import FEDERATION_FILE

    if kit is not None:
        raise ConfigError("--explain takes the owners' terms from a federation file; use --in instead of --kit")
    show_explanation(question, _terms(question, federation or Path(FEDERATION_FILE), names(owners)), as_json=as_json)


def _terms(question: "Question", federation: Path, owners: tuple[str, ...]) -> "MergedTerms":
    from winnow.analytics.question import merge_terms
    from winnow.analytics.simulated_tables import simulated_tables
    from winnow.analytics.tables.federation_file import load_federation

    return merge_terms(question, simulated_tables(question, load_federation(federation), owners)[1])


def show_explanation(question: "Question", terms: "MergedTerms", *, as_json: bool) -> None:
    from msgspec import to_builtins
    from rich.text import Text

    from winnow.analytics.explain_question import explain_question
    from winnow.cli.console import stdout_console, write_json
    from winnow.terminal_tables import plain_text

    explanation = explain_question(question, terms)
    if as_json:
        write_json(to_builtins(explanation))
        return
    console = stdout_console()
    console.print(plain_text(f"{explanation.title} · {len(terms.owners)} owners, at least {terms.minimum} rows a cell"))
    console.print(Text("\nSteps, at most", style="bold"))
    for number, step in enumerate(explanation.steps, start=1):
        console.print(plain_text(f"  {number}  {step}"))
    if not explanation.complete:
        console.print("     … and further ones, which follow from what is opened")
    console.print(Text("\nWho learns what", style="bold"))
    for who, learns in explanation.learns.items():
        console.print(plain_text(f"  {who}"))
        for each in learns:
            console.print(plain_text(f"    · {each}"))
    console.print(plain_text(f"\n{explanation.cost}"))
