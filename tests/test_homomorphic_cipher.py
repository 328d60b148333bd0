"""Sums of encrypted vectors: exact in fixed point, and nothing else comes out of a ciphertext."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from winnow.privacy import ckks
from winnow.privacy.homomorphic import encrypted_sum

SECRET = encrypted_sum.make_keys()
KEY = ckks.public_part(SECRET, to_compute=False)
PUBLIC = ckks.read_context(KEY)


def added(vectors: list[np.ndarray], count: int) -> np.ndarray:
    """The decrypted sum of vectors that were rounded and encrypted, in steps."""
    total = encrypted_sum.EncryptedSum(KEY, count)
    for vector in vectors:
        total.add(encrypted_sum.encrypt(PUBLIC, encrypted_sum.round_to_steps(vector, len(vectors))))
    return encrypted_sum.decrypt(SECRET, total.parts(), count)


@settings(max_examples=15, deadline=None)
@given(
    clients=st.integers(1, 6),
    count=st.integers(1, 2 * encrypted_sum.SLOTS + 1),
    scale=st.sampled_from([1e-6, 1e-2, 1.0, 1000.0]),
    seed=st.integers(0, 1000),
)
def test_a_sum_of_whole_steps_is_exact(clients: int, count: int, scale: float, seed: int) -> None:
    vectors = [np.random.default_rng((seed, k)).uniform(-scale, scale, count) for k in range(clients)]
    in_steps = [np.round(vector * 2**22) for vector in vectors]
    assert (added(vectors, count) == sum(in_steps)).all()


def test_the_largest_values_that_are_allowed_do_not_overflow() -> None:
    largest = np.full(encrypted_sum.SLOTS, encrypted_sum.CAPACITY / 2)
    assert (added([largest, largest], encrypted_sum.SLOTS) * encrypted_sum.STEP == encrypted_sum.CAPACITY).all()
    assert (added([-largest, -largest], encrypted_sum.SLOTS) * encrypted_sum.STEP == -encrypted_sum.CAPACITY).all()


@pytest.mark.parametrize("value", [encrypted_sum.CAPACITY / 2 * 1.001, 1e300])
def test_a_value_without_room_is_cut_off_before_it_is_encrypted(value: float) -> None:
    """That it had been refused would be told, and tell of it."""
    assert encrypted_sum.round_to_steps(np.array([0.0, value, -value]), 2).tolist() == [0.0, 8192.0, -8192.0]


def test_the_noise_leaves_a_wide_margin() -> None:
    """Measured on a sum of 64: the bound that the constants promise for the most clients is not close."""
    total = encrypted_sum.EncryptedSum(KEY, encrypted_sum.SLOTS)
    vector = encrypted_sum.round_to_steps(np.random.default_rng(0).uniform(-1, 1, encrypted_sum.SLOTS), 64)
    for _ in range(64):
        total.add(encrypted_sum.encrypt(PUBLIC, vector))
    (block,) = total.parts().values()
    noise = np.array(ckks.read(SECRET, block).decrypt()) - 64 * vector
    per_client = noise.std() / 8
    assert per_client * np.sqrt(encrypted_sum.MAX_CLIENTS) * 20 < encrypted_sum.STEP / 2
    assert np.abs(noise).max() > 0  # there is some, which rounding takes off


def test_another_key_opens_nothing() -> None:
    other = encrypted_sum.make_keys()
    encrypted = encrypted_sum.encrypt(PUBLIC, np.zeros(10))
    with pytest.raises(ckks.CiphertextError, match="a different key"):
        encrypted_sum.decrypt(other, encrypted, 10)


def test_a_ciphertext_that_is_none_is_refused_and_changes_no_sum() -> None:
    total = encrypted_sum.EncryptedSum(KEY, 2 * encrypted_sum.SLOTS)
    sound = encrypted_sum.encrypt(PUBLIC, np.ones(2 * encrypted_sum.SLOTS))
    total.add(sound)
    elsewhere = ckks.make_keys()
    wrong = [
        {},
        {"0": sound["0"]},
        {**sound, "1": np.zeros(100, np.uint8)},
        {**sound, "1": sound["1"].astype(np.float32)},
        {**sound, "1": ckks.encrypt(elsewhere, np.ones(3))},
    ]
    for parts in wrong:
        with pytest.raises(ckks.CiphertextError):
            total.add(parts)
    assert (encrypted_sum.decrypt(SECRET, total.parts(), 2 * encrypted_sum.SLOTS) == 2**22).all()


def test_a_public_key_opens_nothing_and_weighs_what_is_charged() -> None:
    assert not PUBLIC.has_secret_key()
    assert KEY.nbytes == pytest.approx(encrypted_sum.KEY_BYTES, rel=0.01)
    (block,) = encrypted_sum.encrypt(PUBLIC, np.ones(1)).values()
    assert block.nbytes == pytest.approx(encrypted_sum.CIPHERTEXT_BYTES, rel=0.01)
