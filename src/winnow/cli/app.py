"""The commands put together, and what becomes of an error."""

import gc
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer

from winnow.cli.algorithms import algorithms
from winnow.cli.apply import apply
from winnow.cli.audit import audit
from winnow.cli.budget import budget
from winnow.cli.check import check
from winnow.cli.clients import clients
from winnow.cli.compare import compare
from winnow.cli.data import data
from winnow.cli.explain import explain
from winnow.cli.export import export
from winnow.cli.federation.job_commands import abort, clone, download, submit
from winnow.cli.federation.job_status_and_logs import jobs, logs, status
from winnow.cli.federation.local import local
from winnow.cli.federation.sites import sites
from winnow.cli.fit import fit
from winnow.cli.intersect import intersect
from winnow.cli.predict import predict
from winnow.cli.presets import presets
from winnow.cli.provision import provision
from winnow.cli.query import query
from winnow.cli.report import report
from winnow.cli.reproduce import reproduce
from winnow.cli.run import run
from winnow.cli.runs import runs
from winnow.cli.server import server
from winnow.cli.show import show
from winnow.cli.site import site
from winnow.cli.stats import stats
from winnow.cli.trees import trees
from winnow.cli.truth import truth
from winnow.cli.typer_help_patch import hide_python_types
from winnow.cli.ui import ui
from winnow.cli.usage_error import USAGE_ERROR, usage_line
from winnow.cli.version import print_version, version

EXPERIMENTS, QUESTIONS, RESULTS, CATALOGUES = "Experiments", "Questions", "Results", "Catalogues"
FEDERATIONS = "Federations"

hide_python_types()

app = typer.Typer(
    name="winnow",
    help="Federated learning that finds out, without seeing the data, which clients' data is worth learning from.",
    epilog="Start with [bold]winnow compare demo[/bold]: it takes less than a minute and needs no data.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def winnow(
    _version: bool = typer.Option(
        False, "--version", help="Print the version and exit.", callback=print_version, is_eager=True
    ),
) -> None: ...


def _examples(*lines: str) -> str:
    return "\n\n".join(["[bold]Examples[/bold]", *lines])


app.command(
    rich_help_panel=EXPERIMENTS,
    epilog=_examples(
        "winnow run demo",
        "winnow run gas-turbine --algorithm fedavg-rp --seed 3 --rounds 100",
        "winnow run mine.toml --set local.batch_size=16 --out runs/mine",
        "winnow run runs/mine --resume",
    ),
)(run)
app.command(
    rich_help_panel=EXPERIMENTS,
    epilog=_examples(
        "winnow compare demo",
        "winnow compare gas-turbine --algorithms fedprof,fedavg-rp --seeds 5 --json",
        "winnow compare mine.toml --seeds 3,7,11 --out runs/comparison --resume",
        "winnow compare demo --all --seeds 1",
    ),
)(compare)
app.command(
    rich_help_panel=EXPERIMENTS,
    epilog=_examples(
        "winnow reproduce fedprof table1 --seeds 5 --out runs/fedprof",
        "winnow reproduce fedprof --out runs/fedprof",
        "winnow reproduce fedprof --from results.jsonl --no-run",
    ),
)(reproduce)
app.command(
    rich_help_panel=EXPERIMENTS,
    epilog=_examples("winnow explain demo --set collect.name=secure", "winnow explain runs/mine"),
)(explain)
app.command(rich_help_panel=RESULTS, epilog=_examples("winnow runs", "winnow runs runs/compare-demo"))(runs)
app.command(
    rich_help_panel=QUESTIONS,
    epilog=_examples(
        "winnow stats people --in federation.toml --by sex --histograms 20 --correlation --out people.html",
        "winnow stats people --test t:age,sex --test chi2:sex,ward",
        "winnow stats people --kit kits/ana --epsilon 1.0",
    ),
)(stats)
app.command(
    rich_help_panel=QUESTIONS,
    epilog=_examples(
        "winnow fit logistic 'died ~ age + C(ward)' --in federation.toml",
        "winnow fit kmeans stays --columns age,cost --clusters 4",
        "winnow fit poisson 'visits ~ age' --kit kits/ana --table stays --out visits.json",
    ),
)(fit)
app.command(
    rich_help_panel=QUESTIONS,
    epilog=_examples(
        "winnow trees people --target income --in federation.toml --rounds 100 --depth 6 --out income.json",
        "winnow trees people --target income --holdout 0.1 --early-stopping 10 --folder runs/income",
        "winnow trees people --target income --kit kits/ana",
    ),
)(trees)
app.command(
    rich_help_panel=QUESTIONS,
    epilog=_examples(
        "winnow intersect stays --key patient --owners north,south",
        "winnow intersect stays --key patient --owners north,south --size --kit kits/ana",
    ),
)(intersect)
app.command(
    rich_help_panel=QUESTIONS,
    epilog=_examples(
        "winnow query 'SELECT ward, COUNT(*) AS n, AVG(cost) FROM stays GROUP BY ward ORDER BY n' --in federation.toml",
        "winnow query -f costs.sql --kit kits/ana --epsilon 0.5 --out answer.parquet",
        "winnow query --explain 'SELECT COUNT(*) FROM stays WHERE age >= 65'",
    ),
)(query)
app.command(
    rich_help_panel=QUESTIONS,
    epilog=_examples(
        "winnow truth answers.csv --item question --worker person --label answer --out truth.html",
        "winnow truth answers.csv --method dawid-skene --private --holders 9 --ranking",
        "winnow truth prices.csv --method crh --json",
        "winnow truth answers --kit kits/ana --worker person --ranking",
    ),
)(truth)
app.command(
    rich_help_panel=RESULTS, epilog=_examples("winnow show runs/demo-fedprof-seed0", "winnow show runs/compare-demo")
)(show)
app.command(
    rich_help_panel=RESULTS,
    epilog=_examples(
        "winnow clients runs/hospitals",
        "winnow clients runs/hospitals --verdict suspect --json",
        "winnow clients runs/hospitals --find glucose --out clients.csv",
    ),
)(clients)
app.command(
    rich_help_panel=RESULTS,
    epilog=_examples(
        "winnow check runs/hospitals ours.csv",
        "winnow check runs/hospitals ours.csv --targets outcome --json",
    ),
)(check)
app.command(
    rich_help_panel=RESULTS,
    epilog=_examples("winnow report runs/demo-fedprof-seed0", "winnow report runs/a runs/b --out both.html"),
)(report)
app.command(rich_help_panel=RESULTS, epilog=_examples("winnow ui", "winnow ui runs other --port 9000 --no-browser"))(ui)
app.command(
    rich_help_panel=RESULTS,
    epilog=_examples(
        "winnow predict runs/demo-fedprof-seed0 rows.csv",
        "winnow predict saved rows.parquet --out predicted.parquet --probabilities",
    ),
)(predict)
app.command(rich_help_panel=RESULTS, epilog=_examples("winnow export runs/demo-fedprof-seed0 --onnx model.onnx"))(
    export
)
app.command(
    rich_help_panel=FEDERATIONS,
    epilog=_examples(
        "winnow provision project.toml",
        "winnow provision project.toml --renew clinic-a",
        "winnow provision project.toml --revoke ana",
    ),
)(provision)
app.command(
    rich_help_panel=FEDERATIONS,
    epilog=_examples(
        "winnow apply bo --organisation 'Plant B' --role member",
        "winnow apply bo --collected bo.kit.json --fingerprint 3f…",
    ),
)(apply)
app.command(rich_help_panel=FEDERATIONS, epilog=_examples("winnow server kits/server-1"))(server)
app.command(rich_help_panel=FEDERATIONS, epilog=_examples("winnow site kits/clinic-a"))(site)
app.command(
    rich_help_panel=FEDERATIONS,
    epilog=_examples("winnow budget kits/clinic-a", "winnow budget kits/clinic-a --reset ana stays"),
)(budget)
app.add_typer(local, name="local", rich_help_panel=FEDERATIONS)
app.command(
    rich_help_panel=FEDERATIONS,
    epilog=_examples(
        "winnow submit mine.toml --kit kits/ana", "winnow submit mine.py --kit kits/ana --wait --out runs/mine"
    ),
)(submit)
app.command(rich_help_panel=FEDERATIONS)(jobs)
app.command(rich_help_panel=FEDERATIONS, epilog=_examples("winnow logs mine-3f9a2c --follow"))(logs)
app.command(rich_help_panel=FEDERATIONS)(abort)
app.command(rich_help_panel=FEDERATIONS)(clone)
app.command(rich_help_panel=FEDERATIONS)(download)
app.add_typer(sites, name="sites", rich_help_panel=FEDERATIONS)
app.command(rich_help_panel=FEDERATIONS)(status)
app.add_typer(audit, name="audit", rich_help_panel=FEDERATIONS)
app.add_typer(presets, name="presets", rich_help_panel=CATALOGUES)
app.command(rich_help_panel=CATALOGUES)(algorithms)
app.add_typer(data, name="data", rich_help_panel=CATALOGUES)
app.command(rich_help_panel=CATALOGUES)(version)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and leave: 0 all is well, 1 a part failed, 2 the user can mend it, 130 interrupted."""
    gc.set_threshold(50_000)  # imports make many objects and no garbage: looking less often saves a fifth of a second
    given = sys.argv[1:] if arguments is None else arguments
    try:
        with _warnings_in_one_line():
            _refuse_renamed_options(given)
            code = app(given, prog_name="winnow", standalone_mode=False)
    except typer.Abort:  # the input ended where an answer was needed
        print("winnow: aborted", file=sys.stderr)
        code = 1
    except Exception as error:
        line = _one_line(error)
        if line is None:
            raise
        if line:
            print(f"winnow: error: {_printable(line)}", file=sys.stderr)
        code = 2
    sys.exit(code if isinstance(code, int) else 0)


@contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    """Our own warnings have a line each, without the place in the code; those of others stay as they are."""
    from winnow.core import WinnowWarning

    plain = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *details: Any, **more: Any) -> None:
        if issubclass(category, WinnowWarning):
            print(f"winnow: warning: {_printable(message)}", file=sys.stderr)
        else:
            plain(message, category, *details, **more)

    with warnings.catch_warnings():
        warnings.simplefilter("always", WinnowWarning)
        warnings.showwarning = show
        yield


def _printable(text: object) -> str:
    """Messages quote names in files that may be a stranger's."""
    from winnow.core.untrusted_text import printable

    return printable(text)


def _refuse_renamed_options(arguments: Sequence[str]) -> None:
    from winnow.config.renamed_settings import OPTIONS

    for argument in arguments[1:]:
        option = argument.partition("=")[0]
        if (new := OPTIONS.get((arguments[0], option))) is not None:
            from winnow.core import ConfigError

            raise ConfigError(f"{option} is now {new}")


def _one_line(error: Exception) -> str | None:
    """What to tell the user; None for a bug, which keeps its traceback; nothing where the help was shown instead."""
    from winnow.core import WinnowError

    if isinstance(error, USAGE_ERROR):
        return "" if type(error).__name__ == "NoArgsIsHelpError" else usage_line(error)
    if isinstance(error, WinnowError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error)
    return None
