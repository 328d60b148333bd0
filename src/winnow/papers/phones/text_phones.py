"""Phones of text: by a lexicon, and for words that are not in it by the longest parts that are."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

PHONES = (
    *("AA", "AE", "AH", "AO", "AW", "AY", "B", "CH", "D", "DH", "EH", "ER", "EY", "F", "G", "HH", "IH", "IY", "JH"),
    *("K", "L", "M", "N", "NG", "OW", "OY", "P", "R", "S", "SH", "T", "TH", "UH", "UW", "V", "W", "Y", "Z", "ZH"),
)
"""ARPAbet, as cmudict and pocketsphinx have it; a phone's number is its place, from 1 on."""
PHONE_COUNT = len(PHONES) + 1
"""With 0, which is no phone: the filling behind the last."""
LENGTH = 64
NUMBERS = {phone: number for number, phone in enumerate(PHONES, start=1)}


def phones_of_words(words: Iterable[str], lexicon: Mapping[str, Sequence[str]]) -> list[str]:
    """Forward maximum matching (section 3.2 of the paper): the longest known beginning of what is left, again and
    again; a letter that begins no word is passed over.
    """
    found: list[str] = []
    for word in words:
        left = word
        while left:
            known = next((left[:end] for end in range(len(left), 0, -1) if left[:end] in lexicon), None)
            found += [] if known is None else lexicon[known]
            left = left[len(known or left[0]) :]
    return found


def phone_numbers(phones: Iterable[str]) -> NDArray[np.uint8]:
    """[LENGTH] numbers; silence and noises, which text has not, are left out."""
    numbers = [NUMBERS[phone] for phone in phones if phone in NUMBERS][:LENGTH]
    return np.pad(np.array(numbers, np.uint8), (0, LENGTH - len(numbers)))
