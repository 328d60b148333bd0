"""A table of transfer between a party with speech and one with text: F1 of both, alone and together."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from multiprocessing import get_context

from winnow.papers.page_blocks import PageBlock, TableBlock, TextBlock
from winnow.papers.paper import PaperItem, ReproductionOptions
from winnow.papers.phones.party_rows import find_prepared
from winnow.papers.phones.transfer_runs import ROUNDS, TransferRow, TransferSetting, measure_row
from winnow.papers.result_json_lines import MeasuredResultLine, ResultLines
from winnow.report import MeanAndSd
from winnow.report.number_format import mean_sd_text

SPEECH, TEXT = "speech", "text"
BOTH = ((SPEECH,), (TEXT,))
PARTIES = (SPEECH, TEXT)
ALONE, WITH_PHONES = ("alone-speech", "alone-text"), ("phones-speech", "phones-text")
NOTHING = "–"
LENGTH = 2.0
"""Of what the fusion reads of phones, where it is scaled: about that of a mean of word vectors."""
OURS = tuple(
    TransferRow(name=f"ours-{each:g}", title=f"Private fusion (ours), ε = {each:g}", parties=BOTH, epsilon=each)
    for each in (1.0, 5.0, 10.0, 15.0)
)
ROWS = (
    TransferRow(name="alone-speech", title="Alone, without phones", parties=((SPEECH,),), fused=False),
    TransferRow(name="alone-text", title="Alone, without phones", parties=((TEXT,),), fused=False),
    TransferRow(name="phones-speech", title="Alone, with phones", parties=((SPEECH,),)),
    TransferRow(name="phones-text", title="Alone, with phones", parties=((TEXT,),)),
    TransferRow(name="pooled", title="All rows pooled", parties=((SPEECH, TEXT),)),
    TransferRow(name="averaged", title="Shared part averaged, no table of sounds, ε = ∞", parties=BOTH, sounds=False),
    *OURS,
    TransferRow(name="ours-inf", title="Private fusion (ours), ε = ∞", parties=BOTH),
    TransferRow(
        name="scaled-10", title="The same, phones scaled, ε = 10", parties=BOTH, epsilon=10.0, phone_length=LENGTH
    ),
    TransferRow(name="scaled-inf", title="The same, phones scaled, ε = ∞", parties=BOTH, phone_length=LENGTH),
)


@dataclass(frozen=True, kw_only=True)
class TransferTable(PaperItem):
    speech: int
    text: int
    about: str
    rows: tuple[TransferRow, ...] = ROWS

    @property
    def names(self) -> set[str]:
        return {self.name}

    def measured(self, wanted: ReproductionOptions, lines: ResultLines) -> bool:
        return not self._missing(range(wanted.seeds), lines)

    def measure(self, wanted: ReproductionOptions, lines: ResultLines) -> Iterator[MeasuredResultLine]:
        find_prepared(wanted.data_directory)
        missing = self._missing(range(wanted.seeds), lines)
        with ProcessPoolExecutor(wanted.workers, get_context("spawn")) as pool:
            rows, seeds = zip(*missing, strict=True)
            yield from pool.map(measure_row, repeat(self._setting(wanted)), rows, seeds)

    def measure_seeds(
        self, seeds: Sequence[int], wanted: ReproductionOptions, lines: ResultLines
    ) -> Iterator[MeasuredResultLine]:
        """What the lines lack of these seeds, one after the other in this process."""
        for row, seed in self._missing(seeds, lines):
            yield measure_row(self._setting(wanted), row, seed)

    def _setting(self, wanted: ReproductionOptions) -> TransferSetting:
        return TransferSetting(
            item=self.name,
            speech=self.speech,
            text=self.text,
            rounds=wanted.rounds or ROUNDS,
            directory=wanted.data_directory,
        )

    def _missing(self, seeds: Sequence[int], lines: ResultLines) -> list[tuple[TransferRow, int]]:
        return [(row, seed) for seed in seeds for row in self.rows if (self.name, row.name, str(seed)) not in lines]

    def has_results(self, lines: ResultLines) -> bool:
        return bool(self._found(lines))

    def blocks(self, lines: ResultLines) -> list[PageBlock]:
        found = self._found(lines)
        if not found:
            return [TextBlock(self.about), TextBlock("Not run: there are no records of it.")]
        known = [row for row in self.rows if any(line.row == row.name for line in found)]
        shared = [row for row in known if row.name not in (*ALONE, *WITH_PHONES)]
        header = ("", "speech party", "text party")
        scores = "F1 (mean of both classes, in percent) ± standard deviation over seeds; their number in brackets."
        gains = "F1 less that of being alone {}, in points, paired by seed, ± the standard error of the mean."
        blocks: list[PageBlock] = [
            TextBlock(self.about),
            TableBlock(scores, header, _by_title([_counted(row, found), *_scores(row, found)] for row in known)),
        ]
        for base, words in ((WITH_PHONES, "with phones: what the other party adds"), (ALONE, "without phones")):
            cells = [[_counted(row, found), *_gains(row, base, found)] for row in shared]
            if any(cell != NOTHING for row in cells for cell in row[1:]):
                blocks.append(TableBlock(gains.format(words), header, cells))
        return blocks

    def _found(self, lines: ResultLines) -> list[MeasuredResultLine]:
        return [line for line in lines.values() if isinstance(line, MeasuredResultLine) and line.item == self.name]


def _counted(row: TransferRow, found: Sequence[MeasuredResultLine]) -> str:
    return f"{row.title} ({len({line.seed for line in found if line.row == row.name})})"


def _by_title(rows: Iterable[list[str]]) -> list[list[str]]:
    """Rows of one title, which have a party each, as one."""
    joined: dict[str, list[str]] = {}
    for title, *cells in rows:
        held = joined.get(title, [NOTHING] * len(cells))
        joined[title] = [cell if cell != NOTHING else there for cell, there in zip(cells, held, strict=True)]
    return [[title, *cells] for title, cells in joined.items()]


def _by_seed(row: str, party: str, found: Sequence[MeasuredResultLine]) -> dict[int, float]:
    return {line.seed: line.values[party] for line in found if line.row == row and party in line.values}


def _scores(row: TransferRow, found: Sequence[MeasuredResultLine]) -> list[str]:
    values = [_by_seed(row.name, party, found).values() for party in PARTIES]
    return [mean_sd_text(MeanAndSd.of(each), 1) if each else NOTHING for each in values]


def _gains(row: TransferRow, base: Sequence[str], found: Sequence[MeasuredResultLine]) -> list[str]:
    """What a row has more than the party's base, party by party."""
    cells = []
    for party, alone in zip(PARTIES, base, strict=True):
        own, theirs = _by_seed(row.name, party, found), _by_seed(alone, party, found)
        pairs = MeanAndSd.of([own[seed] - theirs[seed] for seed in own if seed in theirs])
        count = len(own.keys() & theirs.keys())
        cells.append(NOTHING if pairs is None else f"{pairs.mean:+.1f} ± {(pairs.sd or 0.0) / count**0.5:.1f}")
    return cells
