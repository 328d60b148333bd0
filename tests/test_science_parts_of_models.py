"""What Winnow says of frozen encoders and of phones, on reduced cases, with a seed that nothing was tuned with."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from support.needs import data_set
from winnow.config.resolve import resolve
from winnow.core import stream
from winnow.data import DataSet, DataSettings, load
from winnow.data.text import encode_texts, words_of
from winnow.data.text_sets import read_sst2
from winnow.experiment.build_training_workflow import RunInputs
from winnow.experiment.run import run_experiment
from winnow.papers.phones.party_rows import FILE, FOLDER
from winnow.papers.phones.prepare import WORD_LENGTH, WORDS
from winnow.papers.phones.speech import BANDS, FRAMES, lexicon
from winnow.papers.phones.text_phones import LENGTH, phone_numbers, phones_of_words
from winnow.papers.phones.transfer_runs import TransferSetting, measure_row
from winnow.papers.phones.transfer_table import ROWS

SEED = 2_000
TESTED, SENTENCES = 400, 4_000


@pytest.mark.slow(part="science")
def test_an_adapter_is_ahead_of_zero_shot_on_a_style_that_nobody_trained_on(data_directory: Path) -> None:
    """Published, on all pictures, with five seeds: 85.3 and 68.0 % of photographs, 19.7 points over all styles."""
    data_set(data_directory, "pacs")
    whole = load(DataSettings(name="pacs"), data_directory)
    assert isinstance(whole, DataSet)
    rows = np.sort(stream(SEED, "pictures").permutation(len(whole))[:600])
    assert whole.owners is not None
    some = replace(whole, x=whole.x[rows], y=whole.y[rows], owners=whole.owners[rows])
    scores = []
    for kind, rounds in (("none", 1), ("attention", 15)):
        sets = ("data.left_out=['photo']", f"model.kind={kind}")
        wanted = resolve("fedclip-pacs", sets=sets, seed=SEED, rounds=rounds)
        best = run_experiment(wanted, inputs=RunInputs(dataset=some)).summary.test_best
        assert best is not None
        scores.append(best.value)
    assert scores[1] > scores[0] + 0.05, scores


@pytest.fixture
def written_sentences(data_directory: Path, tmp_path: Path) -> Path:
    """Sentences as text, with phones, 400 of them for tests. The speech party, which nobody asks, is silent."""
    data_set(data_directory, "sentiment")
    raw, known = read_sst2(data_directory / "sentiment"), lexicon()
    texts, labels = list(raw.x), np.asarray(raw.y)
    long = np.flatnonzero([4 <= len(words_of(text)) <= 14 for text in texts])
    rows = stream(SEED, "sentences").permutation(long)[: TESTED + SENTENCES]
    chosen = [texts[row] for row in rows]
    (tmp_path / FOLDER).mkdir()
    np.savez(
        tmp_path / FOLDER / FILE,
        speech_frames=np.zeros((len(rows), FRAMES, BANDS), np.uint8),
        speech_phones=np.zeros((len(rows), LENGTH), np.uint8),
        speech_labels=labels[rows],
        text_words=encode_texts(chosen, WORDS, WORD_LENGTH, "SST-2"),
        text_phones=np.stack([phone_numbers(phones_of_words(words_of(text), known)) for text in chosen]),
        text_labels=labels[rows],
        tested=np.array(TESTED),
    )
    return tmp_path


@pytest.mark.slow(part="science")
def test_phones_help_a_party_with_text(written_sentences: Path) -> None:
    """Published, with 16,331 sentences and five seeds: an F1 of 67.2 with phones, 57.3 without."""
    setting = TransferSetting(item="text", speech=1, text=SENTENCES, rounds=8, directory=written_sentences)
    rows = {row.name: row for row in ROWS}
    without, with_phones = (
        measure_row(setting, rows[name], SEED).values["text"] for name in ("alone-text", "phones-text")
    )
    assert with_phones > without + 2
