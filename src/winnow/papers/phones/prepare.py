"""Makes the data of `winnow reproduce phones`: `python -m winnow.papers.phones.prepare --out phones.npz`.

A speech party has sentences of SST-2 as speech (synthetic: espeak-ng), a text party has others as text; GLUE's
development set is what both are tested on. Speech takes about a fifth of a second a sentence on one core. What was done
is kept in blocks beside the result, so that a command that was stopped goes on where it was.
"""

import argparse
import signal
import sys
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winnow.core import ConfigError, WinnowError, stream
from winnow.data.directories import data_directories, fetch_set, find_known_set
from winnow.data.known_sets import known_set
from winnow.data.text import encode_texts, words_of
from winnow.papers.phones.prepare_sizes import LARGE
from winnow.papers.phones.speech import PhoneRecogniser, Speaker, acoustic_features, lexicon, speak
from winnow.papers.phones.text_phones import phone_numbers, phones_of_words
from winnow.runs.atomic_write import one_line_errors, write_atomically

WORDS, WORD_LENGTH = 4096, 24
BLOCK = 64
TEST_SENTENCES = 872
SENTENCE_WORDS = (4, 14)
"""How many words a sentence of training has: of a word or two nothing much is heard."""
SEED = 0

Arrays = dict[str, Any]


def spoken_block(texts: list[str], first: int) -> Arrays:
    """Acoustic features and recognised phones of sentences, each with a speaker of its own."""
    recogniser = PhoneRecogniser()
    frames, phones = [], []
    for place, text in enumerate(texts):
        samples = speak(text, Speaker.drawn(stream(SEED, "speaker", first + place)))
        frames.append(acoustic_features(samples))
        phones.append(phone_numbers(recogniser.phones(samples)))
    return {"frames": np.stack(frames), "phones": np.stack(phones)}


def _spoken(given: tuple[list[str], int]) -> Arrays:
    return spoken_block(*given)


def prepare(out: Path, speech: int, text: int, processes: int) -> None:
    texts, labels, test = _sentences()
    chosen = stream(SEED, "phones").permutation(_long_enough(texts, test))
    spoken, written = np.concatenate([test, chosen[:speech]]), np.concatenate([test, chosen[-text:]])
    if speech + text > len(chosen):
        raise ConfigError(f"SST-2 has {len(chosen)} sentences for both parties; ask for fewer")
    heard = _all_blocks(out, [texts[row] for row in spoken], processes)
    words = [texts[row] for row in written]
    known = lexicon()
    arrays = {
        "speech_frames": heard["frames"],
        "speech_phones": heard["phones"],
        "speech_labels": labels[spoken].astype(np.uint8),
        "text_words": encode_texts(words, WORDS, WORD_LENGTH, "SST-2").astype(np.uint16),
        "text_phones": np.stack([phone_numbers(phones_of_words(words_of(each), known)) for each in words]),
        "text_labels": labels[written].astype(np.uint8),
        "tested": np.array(len(test)),
    }
    _save(out, arrays)
    print(f"{out}: {len(spoken)} spoken and {len(written)} written sentences, {len(test)} of each for tests")


def _sentences() -> tuple[list[str], NDArray[np.int64], NDArray[np.int64]]:
    sst2 = known_set("sst2")
    raw = sst2.read(find_known_set(sst2, data_directories()) or fetch_set(sst2))
    assert raw.test_rows is not None
    return list(raw.x), np.asarray(raw.y), np.asarray(raw.test_rows)


def _long_enough(texts: list[str], test: NDArray[np.int64]) -> NDArray[np.int64]:
    least, most = SENTENCE_WORDS
    tested = set(test.tolist())
    rows = [row for row, each in enumerate(texts) if row not in tested and least <= len(words_of(each)) <= most]
    return np.array(rows, np.int64)


def _all_blocks(out: Path, texts: list[str], processes: int) -> Arrays:
    """The blocks of sentences, of which those are made that are not there yet."""
    folder = out.with_suffix(".blocks")
    with one_line_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    starts = range(0, len(texts), BLOCK)
    files = {first: folder / f"{first:06d}-{len(texts[first : first + BLOCK]):03d}.npz" for first in starts}
    missing = [first for first, path in files.items() if not path.is_file()]
    with Pool(processes, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:  # Ctrl-C is this process's business
        made = pool.imap(_spoken, [(texts[first : first + BLOCK], first) for first in missing])
        for done, (first, block) in enumerate(zip(missing, made, strict=True), start=1):
            _save(files[first], block)
            print(f"\r{done * BLOCK} of {len(missing) * BLOCK} sentences", end="", file=sys.stderr, flush=True)
    blocks = [_load(path) for path in files.values()]
    return {name: np.concatenate([block[name] for block in blocks]) for name in ("frames", "phones")}


def _load(path: Path) -> Arrays:
    with np.load(path) as held:
        return dict(held)


def _save(path: Path, arrays: Arrays) -> None:
    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.savez_compressed(file, **arrays)

    write_atomically(path, write)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the file to write (.npz)")
    parser.add_argument(
        "--speech", type=int, default=LARGE, help="spoken sentences for training (default: %(default)s)"
    )
    parser.add_argument("--text", type=int, default=LARGE, help="written sentences for training (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=1, help="how many speak and hear at once")
    given = parser.parse_args()
    try:
        prepare(given.out, given.speech, given.text, given.processes)
    except WinnowError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("\nstopped; the same command goes on where it was")


if __name__ == "__main__":
    main()
