"""The rows of a speech party and of a text party, packed for the model `phones`, and what both are tested on."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from winnow.core import ConfigError, stream
from winnow.data.directories import data_directories

FOLDER, FILE = "phones", "phones.npz"
VALIDATED = 272
"""Of the tested sentences, those by which rates are chosen; the others are reported."""
COMMAND = "python -m winnow.papers.phones.prepare --out FOLDER/phones/phones.npz"


@dataclass(frozen=True)
class PackedRows:
    x: NDArray[np.float32]
    y: NDArray[np.int64]

    def some(self, places: NDArray[np.int64] | slice) -> "PackedRows":
        return PackedRows(self.x[places], self.y[places])


@dataclass(frozen=True, kw_only=True)
class Party:
    training: PackedRows
    validation: PackedRows
    test: PackedRows


def find_prepared(directory: Path | None) -> Path:
    for folder in data_directories(directory):
        if (path := folder / FOLDER / FILE).is_file():
            return path
    raise ConfigError(f"the speech and text of this paper are not prepared; run {COMMAND} and set WINNOW_DATA=FOLDER")


def read_parties(path: Path, speech: int, text: int, seed: int) -> dict[str, Party]:
    """Parties with at most so many sentences, drawn by the seed."""
    with np.load(path) as held:
        arrays = {name: held[name] for name in held.files}
    tested = int(arrays["tested"])
    frames = arrays["speech_frames"].reshape(len(arrays["speech_frames"]), -1) / np.float32(255)
    spoken = _packed(frames, np.zeros((len(frames), arrays["text_words"].shape[1])), arrays["speech_phones"])
    words = arrays["text_words"]
    written = _packed(np.zeros((len(words), frames.shape[1])), words, arrays["text_phones"])
    return {
        "speech": _party(PackedRows(spoken, arrays["speech_labels"].astype(np.int64)), tested, speech, seed),
        "text": _party(PackedRows(written, arrays["text_labels"].astype(np.int64)), tested, text, seed),
    }


def _packed(*parts: NDArray[np.generic]) -> NDArray[np.float32]:
    return np.concatenate([part.astype(np.float32) for part in parts], axis=1)


def _party(rows: PackedRows, tested: int, size: int, seed: int) -> Party:
    order = stream(0, "tested sentences").permutation(tested)
    drawn = tested + stream(seed, "party", size).permutation(len(rows.y) - tested)[:size]
    return Party(
        training=rows.some(drawn),
        validation=rows.some(order[: VALIDATED * tested // 872]),
        test=rows.some(order[VALIDATED * tested // 872 :]),
    )
