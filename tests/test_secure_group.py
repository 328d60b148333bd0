"""Words modulo 2^p: packed and unpacked without loss, refused where they are none; masks that look like chance."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from parties import plain_sum, random_vector
from winnow.privacy.secagg.errors import ProtocolError
from winnow.privacy.secagg.masks import CHUNK, add_mask
from winnow.privacy.secagg.modular_vectors import (
    ModularVector,
    Segment,
    VectorGroup,
    pack_words,
    unpack_words,
    vector_group,
)

segments = st.lists(st.tuples(st.integers(0, 200), st.integers(1, 64)), min_size=1, max_size=4)


@settings(max_examples=150, deadline=None)
@given(lengths=segments, seed=st.integers(0, 2**32))
def test_a_vector_comes_out_of_its_bytes_as_it_went_in(lengths: list[tuple[int, int]], seed: int) -> None:
    group = vector_group(lengths)
    vector = random_vector(group, seed)
    packed = group.pack(vector)
    assert len(packed) == group.packed_bytes == sum((count * bits + 7) // 8 for count, bits in lengths)
    for before, after in zip(vector, group.unpack(packed), strict=True):
        assert np.array_equal(before, after)
        assert before.dtype == after.dtype


@settings(max_examples=80, deadline=None)
@given(bits=st.integers(1, 64), values=st.lists(st.integers(0, 2**64 - 1), max_size=70))
def test_words_lie_side_by_side_lowest_bit_first(bits: int, values: list[int]) -> None:
    segment = Segment(len(values), bits)
    words = np.array([value & segment.top for value in values], segment.dtype)
    number = sum(int(word) << (bits * i) for i, word in enumerate(words))
    assert pack_words(words, segment) == number.to_bytes(segment.packed_bytes, "little")
    assert np.array_equal(unpack_words(pack_words(words, segment), segment), words)


@settings(max_examples=50, deadline=None)
@given(lengths=segments, clients=st.integers(1, 12))
def test_sums_are_right_in_the_group_whatever_happens_above_it(lengths: list[tuple[int, int]], clients: int) -> None:
    group, vectors = vector_group(lengths), []
    total = group.zeros()
    for client in range(clients):
        vectors.append(random_vector(group, client))
        group.add(total, vectors[-1])
    assert [words.tolist() for words in group.reduce(total)] == plain_sum(group, vectors)


GROUP = vector_group([(9, 5), (3, 40)])


@pytest.mark.parametrize("change", [b"", b"\0"])
def test_bytes_of_the_wrong_length_are_refused(change: bytes) -> None:
    packed = GROUP.pack(GROUP.zeros())
    with pytest.raises(ProtocolError, match=r"the vector has \d+ bytes, not 21"):
        GROUP.unpack(packed + change if change else packed[:-1])


def test_bits_beyond_the_last_word_are_refused() -> None:
    packed = bytearray(GROUP.pack(GROUP.zeros()))
    packed[5] |= 0x80
    with pytest.raises(ProtocolError, match=r"words outside the group modulo 2\^5"):
        GROUP.unpack(bytes(packed))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda v: [v[0]], "the vector has 1 segments, not 2"),
        (lambda v: [v[0][1:], v[1]], r"a segment of the vector has shape \(8,\), not \(9,\)"),
        (lambda v: [v[0] + 32, v[1]], r"words outside the group modulo 2\^5"),
        (lambda v: [v[0].astype(np.uint32), v[1]], r"words outside the group modulo 2\^5"),
    ],
)
def test_what_is_no_vector_of_the_group_is_not_packed(spoil, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        GROUP.pack(spoil(GROUP.zeros()))


def test_a_group_has_at_most_64_bits() -> None:
    with pytest.raises(ProtocolError, match="words of 65 bits"):
        vector_group([(1, 65)])


@pytest.mark.parametrize("bits", [3, 8, 15, 33, 64])
def test_a_mask_is_its_seeds_keystream_and_taken_off_again(bits: int) -> None:
    group = vector_group([(CHUNK + 11, bits), (5, 64)])
    vector = random_vector(group, 7)
    total = [words.copy() for words in vector]
    add_mask(total, b"s" * 32, group, sign=1)
    add_mask(total, b"t" * 32, group, sign=-1)
    assert not np.array_equal(group.reduce(total)[0], vector[0])
    add_mask(total, b"t" * 32, group, sign=1)
    add_mask(total, b"s" * 32, group, sign=-1)
    assert all(np.array_equal(one, other) for one, other in zip(group.reduce(total), vector, strict=True))


def mask_of(seed: bytes, group: VectorGroup) -> ModularVector:
    mask = group.zeros()
    add_mask(mask, seed, group, sign=1)
    return group.reduce(mask)


def test_different_parts_of_a_mask_never_repeat() -> None:
    long = mask_of(b"s" * 32, vector_group([(4 * CHUNK, 8)]))[0].reshape(4, -1)
    assert len({row.tobytes() for row in long}) == 4
    assert np.array_equal(mask_of(b"s" * 32, vector_group([(4 * CHUNK, 8)]))[0].reshape(4, -1), long)


@pytest.mark.parametrize("bits", [4, 9, 13])
def test_a_mask_is_uniform_over_the_group(bits: int) -> None:
    words = mask_of(b"u" * 32, VectorGroup((Segment(200_000, bits),)))[0]
    assert chisquare(np.bincount(words, minlength=1 << bits)).pvalue > 1e-4
