"""The codes of compressed updates: exact sizes, bounds of what is lost, expectations, and strict reading."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from winnow.privacy.compress.bit_packing import (
    indices_bytes,
    pack_bits,
    packed_bytes,
    read_indices,
    unpack_bits,
    write_indices,
)
from winnow.privacy.compress.errors import PacketError
from winnow.privacy.compress.packet import HEADER, PacketFormat
from winnow.privacy.compress.quantise import QSGD, BFloat16, Float16, Float32, MinMax
from winnow.privacy.compress.sparsify import KeepAll, RandomK, TopK
from winnow.privacy.compress.zstandard_coding import compress_bytes, decompress_bytes

VECTORS = st.lists(st.floats(-1e4, 1e4, width=32), max_size=300).map(lambda values: np.array(values, np.float32))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


class TestBits:
    @given(st.integers(1, 40).flatmap(lambda w: st.tuples(st.just(w), st.lists(st.integers(0, 2**w - 1), max_size=50))))
    def test_numbers_come_back_and_take_no_more_than_their_bits(self, case: tuple[int, list[int]]) -> None:
        width, numbers = case
        data = pack_bits(np.array(numbers, np.int64), width)
        assert len(data) == packed_bytes(len(numbers), width) == -(-len(numbers) * width // 8)
        assert unpack_bits(data, len(numbers), width).tolist() == numbers

    def test_the_layout_is_that_of_a_plain_calculation(self) -> None:
        numbers, width = [5, 0, 7, 2, 6], 3
        whole = sum(number << (width * place) for place, number in enumerate(numbers))
        assert pack_bits(np.array(numbers), width).tobytes() == whole.to_bytes(2, "little")

    def test_bits_behind_the_last_number_must_be_zero(self) -> None:
        data = pack_bits(np.array([1, 2, 3]), 3)
        data[-1] |= 0x80
        with pytest.raises(PacketError, match="not zero"):
            unpack_bits(data, 3, 3)

    @given(st.integers(1, 5000).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), max_size=200))))
    def test_places_come_back_in_the_stated_bytes(self, case: tuple[int, set[int]]) -> None:
        count, chosen = case
        places = np.array(sorted(chosen), np.int64)
        data = write_indices(places, count)
        assert len(data) == indices_bytes(len(places), count)
        assert read_indices(data, len(places), count).tolist() == sorted(chosen)

    def test_places_take_two_bits_more_than_their_spacing(self) -> None:
        assert 8 * indices_bytes(1_000, 1_000_000) / 1_000 < np.log2(1_000) + 2.1

    @given(st.binary(min_size=5, max_size=5))
    def test_any_bytes_are_read_as_ascending_places_or_refused(self, data: bytes) -> None:
        kept, count = 7, 60
        assert indices_bytes(kept, count) == 5
        try:
            places = read_indices(np.frombuffer(data, np.uint8), kept, count)
        except PacketError:
            return
        assert len(places) == kept
        assert (np.diff(places) > 0).all()
        assert places[0] >= 0
        assert places[-1] < count
        assert write_indices(places, count).tobytes() == data


def sizes(*counts: int) -> np.ndarray:
    return np.array(counts, np.int64)


class TestNumbers:
    @given(VECTORS)
    def test_floats_lose_no_more_than_their_digits(self, values: np.ndarray) -> None:
        for numbers, digits in ((Float32(), 24), (Float16(), 11), (BFloat16(), 8)):
            data = numbers.write(values, sizes(len(values)), rng())
            assert len(data) == numbers.nbytes(len(values), 1)
            lost = np.abs(numbers.read(data, sizes(len(values))).astype(np.float64) - values)
            assert (lost <= np.abs(values) * 2.0**-digits + 2.0**-25).all()

    @given(VECTORS)
    def test_bfloat16_is_torchs(self, values: np.ndarray) -> None:
        theirs = torch.from_numpy(values).to(torch.bfloat16).to(torch.float32).numpy()
        numbers = BFloat16()
        assert np.array_equal(
            numbers.read(numbers.write(values, sizes(len(values)), rng()), sizes(len(values))), theirs
        )

    def test_what_half_precision_cannot_hold_is_truncated(self) -> None:
        numbers = Float16()
        assert numbers.read(numbers.write(np.array([1e6, -1e6], np.float32), sizes(2), rng()), sizes(2)).tolist() == [
            65504,
            -65504,
        ]

    @given(VECTORS, st.integers(1, 200), st.integers(1, 64), st.sampled_from(["largest", "euclidean"]))
    @settings(max_examples=60)
    def test_qsgd_stays_within_a_level(self, values: np.ndarray, levels: int, bucket: int, norm: str) -> None:
        numbers = QSGD(levels=levels, bucket=bucket, norm=norm)
        data = numbers.write(values, sizes(len(values)), rng())
        assert len(data) == numbers.nbytes(len(values), 1)
        assert len(data) == 4 * -(-len(values) // bucket) + -(-len(values) * int(2 * levels).bit_length() // 8)
        read = numbers.read(data, sizes(len(values)))
        for start in range(0, len(values), bucket):
            own, back = values[start : start + bucket].astype(np.float64), read[start : start + bucket]
            size = np.abs(own).max() if norm == "largest" else np.linalg.norm(own)
            assert (np.abs(back - own) <= size / levels * (1 + 1e-5) + 1e-30).all()
            assert (np.sign(back) * np.sign(own) >= 0).all()

    @pytest.mark.parametrize("norm", ["largest", "euclidean"])
    def test_qsgd_is_unbiased_and_varies_as_its_lemma_says(self, norm: str) -> None:
        values = rng(1).normal(0, 1, 256).astype(np.float32)
        numbers, draws = QSGD(levels=2, bucket=64, norm=norm), 4_000
        source = rng(2)
        read = np.array(
            [numbers.read(numbers.write(values, sizes(256), source), sizes(256)) for _ in range(draws)], np.float64
        )
        error = (read.mean(0) - values) / (read.std(0) / np.sqrt(draws) + 1e-9)
        assert np.abs(error).max() < 4.5
        assert error.std() < 1.25
        if norm == "euclidean":  # lemma 3.1: E‖Q(v) − v‖² ≤ min(n/s², √n/s)·‖v‖²
            assert ((read - values) ** 2).sum(1).mean() <= min(64 / 4, 8 / 2) * (values.astype(float) ** 2).sum()

    def test_qsgd_refuses_what_no_client_writes(self) -> None:
        numbers = QSGD(levels=1, bucket=4)
        good = numbers.write(np.ones(4, np.float32), sizes(4), rng())
        for spoilt in (float("nan"), float("inf"), -1.0):
            bad = good.copy()
            bad[:4] = np.frombuffer(np.float32(spoilt).tobytes(), np.uint8)
            with pytest.raises(PacketError, match="norm"):
                numbers.read(bad, sizes(4))
        bad = good.copy()
        bad[4] = 0xFF
        with pytest.raises(PacketError, match="level"):
            numbers.read(bad, sizes(4))

    @given(VECTORS, st.integers(1, 16), st.integers(0, 100))
    @settings(max_examples=60)
    def test_min_max_is_the_nearest_level_of_each_tensor(self, values: np.ndarray, bits: int, cut: int) -> None:
        numbers, first = MinMax(bits=bits), min(cut, len(values))
        split = sizes(first, len(values) - first)
        data = numbers.write(values, split, rng())
        assert len(data) == numbers.nbytes(len(values), 2) == 16 + -(-len(values) * bits // 8)
        for own, back in zip(np.split(values, [first]), np.split(numbers.read(data, split), [first]), strict=True):
            if len(own):
                levels = np.linspace(own.min(), own.max(), 2**bits, dtype=np.float64)
                nearest = np.abs(levels[:, None] - own[:: max(1, len(own) // 8)]).min(0)
                lost = np.abs(back - own.astype(np.float64))[:: max(1, len(own) // 8)]
                assert (lost <= nearest + 1e-6 * np.abs(own).max()).all()

    def test_min_max_refuses_what_no_client_writes(self) -> None:
        numbers = MinMax(bits=2)
        good = numbers.write(np.array([-1, 0, 2], np.float32), sizes(3), rng())
        for low, high in ((float("nan"), 2.0), (0.0, float("inf")), (2.0, -1.0)):
            bad = good.copy()
            bad[:8] = np.frombuffer(np.array([low, high], np.float32).tobytes(), np.uint8)
            with pytest.raises(PacketError, match="range"):
                numbers.read(bad, sizes(3))


class TestKeeping:
    @given(VECTORS.filter(len), st.floats(0.01, 1))
    def test_top_k_keeps_the_largest(self, values: np.ndarray, fraction: float) -> None:
        keep = TopK(fraction=fraction)
        data, places = keep.choose(values, rng())
        assert len(places) == keep.kept(len(values)) == max(1, round(fraction * len(values)))
        left = np.delete(np.abs(values), places)
        assert not len(left) or np.abs(values)[places].min() >= left.max()
        assert np.array_equal(keep.read(data, len(values)), places)

    def test_random_k_draws_every_place_alike_and_is_unbiased(self) -> None:
        keep, source = RandomK(fraction=0.1, error_feedback=False), rng(3)
        hits = np.zeros(50)
        for _ in range(2_000):
            data, places = keep.choose(np.ones(50, np.float32), source)
            assert len(data) == keep.nbytes(50) == 8
            assert np.array_equal(keep.read(data, 50), places)
            hits[places] += keep.stretch(50)
        assert np.abs(hits / 2_000 - 1).max() < 4.5 * np.sqrt((1 / 0.1 - 1) / 2_000)

    def test_what_feeds_back_is_not_stretched(self) -> None:
        assert RandomK(fraction=0.1, error_feedback=True).stretch(50) == 1.0
        assert RandomK(fraction=0.1).stretch(50) == 10.0


LIKE = {
    "weight": torch.zeros(6, 5),
    "bias": torch.zeros(6),
    "batches": torch.zeros((), dtype=torch.int64),
    "frozen": torch.zeros(4, dtype=torch.float64),
}
BUFFERS = {**LIKE, "batches": torch.tensor(7)}
FORMATS = [
    PacketFormat(sparsify=keep, quantise=numbers, level=level)
    for keep in (KeepAll(), TopK(fraction=0.2), RandomK(fraction=0.2, error_feedback=False))
    for numbers in (Float32(), Float16(), BFloat16(), QSGD(levels=3, bucket=16), MinMax(bits=3))
    for level in (None, 3)
]


def format_name(form: PacketFormat) -> str:
    return f"{form.sparsify.name}-{form.quantise.name}-{form.level}"


def changes(seed: int = 0) -> np.ndarray:
    vector = rng(seed).normal(0, 1, 40).astype(np.float32)
    vector[6:10] = 0  # nothing happened to the frozen variable, which comes after the bias by its name
    return vector


def reading(form: PacketFormat, data: np.ndarray) -> str:
    """Why a packet is refused; nothing if it can be read."""
    try:
        read, _ = form.read(data, LIKE)
    except PacketError as error:
        return str(error)
    assert read.shape == (40,)
    return ""


@pytest.mark.parametrize("form", FORMATS, ids=format_name)
class TestPackets:
    def test_a_packet_says_what_it_was_told(self, form: PacketFormat) -> None:
        sealed = form.write(changes(), BUFFERS, LIKE, rng())
        read, buffers = form.read(sealed.data, LIKE)
        assert buffers["batches"].item() == 7
        assert buffers["batches"].dtype == torch.int64
        assert not read[~sealed.sent].any()
        assert sealed.sent.sum() == form.sparsify.kept(36)
        stretched = changes()[sealed.sent] * form.sparsify.stretch(36)
        tolerance = {"float32": 1e-6, "float16": 1e-3, "bfloat16": 1e-2, "qsgd": np.abs(stretched).max() / 3}
        tolerance["min-max"] = tolerance["qsgd"]
        assert np.abs(read[sealed.sent] - stretched).max() <= tolerance[form.quantise.name] * 5.01

    def test_both_sides_need_not_have_the_names_in_one_order(self, form: PacketFormat) -> None:
        """Files sort them; a module does not."""
        there = {name: LIKE[name] for name in sorted(LIKE, reverse=True)}
        sealed = form.write(changes(), BUFFERS, LIKE, rng())
        np.testing.assert_array_equal(form.read(sealed.data, there)[0], form.read(sealed.data, LIKE)[0])
        np.testing.assert_array_equal(form.write(changes(), BUFFERS, there, rng()).data, sealed.data)

    def test_its_size_is_stated_beforehand(self, form: PacketFormat) -> None:
        told = {name: tensor for name, tensor in LIKE.items() if name != "frozen"}
        data = form.write(changes(), BUFFERS, LIKE, rng()).data
        kept = form.sparsify.kept(36)
        by_hand = 22 + 1 + 8 + form.sparsify.nbytes(36) + form.quantise.nbytes(kept, 2)
        assert form.nbytes(told, LIKE) == by_hand
        assert len(data) == by_hand if form.level is None else len(data) <= by_hand

    def test_no_changes_at_all(self, form: PacketFormat) -> None:
        sealed = form.write(np.zeros(40, np.float32), BUFFERS, LIKE, rng())
        assert not form.read(sealed.data, LIKE)[0].any()
        assert not sealed.sent.any()

    def test_whatever_arrives_is_read_or_refused_in_one_line(self, form: PacketFormat) -> None:
        data, source = form.write(changes(), BUFFERS, LIKE, rng()).data, rng(5)
        refused = 0
        for trial in range(300):
            bad = data.copy()
            bad[source.integers(len(bad), size=1 + trial % 3)] = source.integers(256)
            bad = bad[: source.integers(len(bad) + 1)] if trial % 4 == 0 else bad
            bad = np.concatenate([bad, bad[:5]]) if trial % 7 == 0 else bad
            said = reading(form, bad)
            refused += bool(said)
            assert "\n" not in said
        assert refused > 100

    def test_other_settings_are_noticed(self, form: PacketFormat) -> None:
        data = form.write(changes(), BUFFERS, LIKE, rng()).data
        for other in FORMATS:
            if other != form:
                with pytest.raises(PacketError):
                    other.read(data, LIKE)


def test_the_header_is_read_strictly() -> None:
    form = PacketFormat(sparsify=KeepAll(), quantise=Float32(), level=None)
    data = form.write(changes(), BUFFERS, LIKE, rng()).data
    for place, value, message in (
        (0, 0, "not an update"),
        (4, 2, "version 2"),
        (5, 1, "entropy coding is off"),
        (6, 9, "does not match"),
    ):
        bad = data.copy()
        bad[place] = value
        with pytest.raises(PacketError, match=message):
            form.read(bad, LIKE)
    with pytest.raises(PacketError, match="header"):
        form.read(data[: HEADER.size], LIKE)
    with pytest.raises(PacketError, match="bytes"):
        form.read(data.astype(np.float32), LIKE)


class TestEntropy:
    def test_it_saves_bytes_where_there_is_something_to_save(self) -> None:
        data = np.repeat(np.arange(10, dtype=np.uint8), 100)
        squeezed = compress_bytes(data, 3)
        assert len(squeezed) < 60
        assert np.array_equal(decompress_bytes(squeezed, 1000), data)

    def test_a_bomb_is_not_unpacked(self) -> None:
        bomb = compress_bytes(np.zeros(10_000_000, np.uint8), 19)
        assert len(bomb) < 2_000
        with pytest.raises(PacketError, match="10000000 bytes instead of 50"):
            decompress_bytes(bomb, 50)

    def test_nothing_may_follow_the_frame(self) -> None:
        data = np.arange(50, dtype=np.uint8)
        with pytest.raises(PacketError, match="valid"):
            decompress_bytes(np.concatenate([compress_bytes(data, 3), data[:3]]), 50)

    def test_sparse_levels_code_well(self) -> None:
        """Quantised changes are mostly zero: entropy coding finds what fixed widths leave."""
        values = (rng(4).normal(0, 1, 20_000) ** 3).astype(np.float32)
        plain, coded = (PacketFormat(sparsify=KeepAll(), quantise=QSGD(levels=127), level=level) for level in (None, 3))
        like = {"w": torch.zeros(20_000)}
        lengths = [len(form.write(values, {}, like, rng()).data) for form in (plain, coded)]
        assert lengths[1] < 0.8 * lengths[0]
