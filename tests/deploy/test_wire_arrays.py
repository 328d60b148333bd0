"""Files of arrays agree with the safetensors library both ways, and are not believed before they are checked."""

import gc
import json
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from winnow.deploy.wire.dtypes import DTYPES
from winnow.deploy.wire.errors import WireError
from winnow.deploy.wire.safetensors_files import StoredArrays, write_arrays, write_parts

SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)


def tensor(dtype: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    raw = np.random.default_rng(seed).integers(0, 2, size=shape)
    return torch.as_tensor(np.asarray(raw)).to(getattr(torch, dtype))


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, torch.Tensor]:
    names = draw(
        st.lists(st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1), unique=True)
    )
    kinds = st.sampled_from([dtype.torch for dtype in DTYPES.values()])
    return {
        name: tensor(draw(kinds), draw(SHAPES), number) for number, name in enumerate(names) if name != "__metadata__"
    }


def equal(one: Any, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())


@given(tensors())
def test_the_library_reads_what_we_write_and_we_read_what_it_writes(
    tmp_path_factory: pytest.TempPathFactory, arrays: dict[str, torch.Tensor]
) -> None:
    folder = tmp_path_factory.mktemp("arrays")
    blob = write_arrays(folder / "ours", arrays)
    content = (folder / "ours").read_bytes()
    assert (blob.digest, blob.size) == (sha256(content).hexdigest(), len(content))
    theirs = safetensors.torch.load_file(folder / "ours")
    assert theirs.keys() == arrays.keys()
    assert all(equal(theirs[name], array) for name, array in arrays.items())

    safetensors.torch.save_file(arrays, folder / "theirs", metadata={"made": "by the library"})
    with StoredArrays(folder / "theirs") as stored:
        assert set(stored) == set(arrays)
        for name, array in arrays.items():
            assert equal(stored[name], array)
            dtype, shape = stored.dtype_and_shape(name)
            assert shape == tuple(array.shape)
            assert dtype.torch == str(array.dtype).removeprefix("torch.")


def test_equal_arrays_give_equal_bytes(tmp_path: Path) -> None:
    arrays = {"b": torch.ones(3), "a": torch.zeros(2, dtype=torch.int8), "c": torch.ones(2, dtype=torch.float64)}
    one = write_arrays(tmp_path / "one", arrays)
    other = write_arrays(tmp_path / "other", dict(reversed(arrays.items())))
    assert one == other
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["one", "other"]


def test_numpy_arrays_and_odd_layouts(tmp_path: Path) -> None:
    grid = np.arange(12, dtype=np.float32).reshape(3, 4)
    arrays = {
        "big-endian": grid.astype(">f4"),
        "columns": grid.T,
        "steps": grid[::2, ::3],
        "scalar": np.float64(3.5),
        "torch-steps": torch.as_tensor(grid)[:, ::2],
        "with-gradient": torch.ones(2, requires_grad=True),
        "broadcast": torch.ones(1, 3).expand(4, 3),
    }
    write_arrays(tmp_path / "file", arrays)
    with StoredArrays(tmp_path / "file") as stored:
        for name, array in arrays.items():
            expected = array.detach().numpy() if isinstance(array, torch.Tensor) else array
            np.testing.assert_array_equal(stored[name].numpy(), expected)
            np.testing.assert_array_equal(stored.numpy(name), expected)


def test_bfloat16_has_no_numpy_and_strange_kinds_do_not_travel(tmp_path: Path) -> None:
    write_arrays(tmp_path / "file", {"x": torch.ones(3, dtype=torch.bfloat16)})
    with StoredArrays(tmp_path / "file") as stored:
        assert equal(stored["x"], torch.ones(3, dtype=torch.bfloat16))
        with pytest.raises(WireError, match="BF16"):
            stored.numpy("x")
    for strange in (torch.ones(2, dtype=torch.complex64), np.array(["text"]), np.array([object()])):
        with pytest.raises(WireError, match="cannot be sent"):
            write_arrays(tmp_path / "strange", {"x": strange})
    assert not (tmp_path / "strange").exists()


def test_parts_of_a_payload(tmp_path: Path) -> None:
    payload = {"model": {"w/1": torch.ones(2), "b": torch.zeros(1)}, "profile": {"mean": torch.arange(3)}}
    write_parts(tmp_path / "file", payload)
    with StoredArrays(tmp_path / "file") as stored:
        parts = stored.parts()
        assert {part: set(arrays) for part, arrays in parts.items()} == {"model": {"w/1", "b"}, "profile": {"mean"}}
        assert equal(parts["model"]["w/1"], torch.ones(2))
        assert parts["profile"].dtype_and_shape("mean") == (DTYPES["I64"], (3,))
    with pytest.raises(WireError, match="not a valid name for a part"):
        write_parts(tmp_path / "bad", {"a/b": {}})
    write_arrays(tmp_path / "flat", {"loose": torch.ones(1)})
    with StoredArrays(tmp_path / "flat") as stored, pytest.raises(WireError, match="not of the form part/name"):
        stored.parts()


def test_a_file_may_be_removed_while_it_is_read(tmp_path: Path) -> None:
    write_arrays(tmp_path / "file", {"x": torch.ones(3)})
    with StoredArrays(tmp_path / "file") as stored:
        (tmp_path / "file").unlink()
        assert equal(stored["x"], torch.ones(3))


def test_files_are_closed_with_their_last_reader(tmp_path: Path) -> None:
    write_parts(tmp_path / "file", {"model": {"w": torch.ones(2)}})
    before = len(list(Path("/proc/self/fd").iterdir()))
    part = StoredArrays(tmp_path / "file").parts()["model"]
    assert equal(part["w"], torch.ones(2))
    del part
    with StoredArrays(tmp_path / "file") as stored:
        assert len(stored) == 1
    (tmp_path / "bad").write_bytes(b"bad")
    with pytest.raises(WireError):
        StoredArrays(tmp_path / "bad")
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def entry(begin: int, end: int, dtype: object = "U8", shape: object = None) -> dict[str, object]:
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape, "data_offsets": [begin, end]}


def hostile(header: object, data: int = 8) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(data)


HOSTILE = {
    "nothing": b"",
    "seven bytes": b"1234567",
    "a huge header": (2**63).to_bytes(8, "little") + b"{}",
    "a header longer than the file": (100).to_bytes(8, "little") + b"{}",
    "a pickle": b"\x80\x04\x95" + bytes(100),
    "no JSON": hostile(b"{{{{"),
    "no UTF-8": hostile(b'{"\xff": 1}'),
    "a list": hostile([]),
    "leading space": hostile(b" {}", data=0),
    "deep nesting": hostile(b'{"a":' + b"[" * 100_000),
    "a long number": hostile(b'{"a":' + b"9" * 10_000 + b"}"),
    "a name twice": hostile(b'{"a":%s,"a":%s}' % ((json.dumps(entry(0, 8)).encode(),) * 2)),
    "no name": hostile({"": entry(0, 8)}),
    "a name of two lines": hostile({"a\nb": entry(0, 8)}),
    "half a surrogate": hostile(b'{"\\ud800":%s}' % json.dumps(entry(0, 8)).encode()),
    "no fields": hostile({"a": {}}),
    "more fields": hostile({"a": {**entry(0, 8), "code": "x"}}),
    "fields as a list": hostile({"a": ["dtype", "shape", "data_offsets"]}),
    "an unknown dtype": hostile({"a": entry(0, 8, "object")}),
    "a dtype that is a list": hostile({"a": entry(0, 8, ["F32"])}),
    "a shape too large": hostile({"a": entry(0, 8, shape=[9])}),
    "a shape too small": hostile({"a": entry(0, 8, shape=[7])}),
    "a negative shape": hostile({"a": entry(0, 8, shape=[-2, -4])}),
    "a shape of truths": hostile({"a": entry(0, 1, shape=[True])}, data=1),
    "a shape of fractions": hostile({"a": entry(0, 8, shape=[8.0])}),
    "an overflowing shape": hostile({"a": entry(0, 0, shape=[0, 2**53, 2**53])}, data=0),
    "too many dimensions": hostile({"a": entry(0, 8, shape=[8] + [1] * 40)}),
    "offsets backwards": hostile({"a": {"dtype": "U8", "shape": [8], "data_offsets": [8, 0]}}),
    "three offsets": hostile({"a": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8, 8]}}),
    "beyond the file": hostile({"a": entry(0, 9)}),
    "an overlap": hostile({"a": entry(0, 8), "b": entry(4, 8)}),
    "the same bytes twice": hostile({"a": entry(0, 8), "b": entry(0, 8)}),
    "a gap": hostile({"a": entry(0, 2), "b": entry(4, 8)}),
    "a gap in front": hostile({"a": entry(4, 8)}),
    "bytes left over": hostile({"a": entry(0, 4)}),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=list(HOSTILE))
def test_a_hostile_header_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(WireError) as error:
        StoredArrays(tmp_path / "file")
    assert "\n" not in str(error.value)


@given(st.data())
def test_a_mutated_file_is_refused_or_read_within_its_bounds(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("mutated") / "file"
    write_arrays(path, {"a": torch.ones(3), "b": torch.ones(2, dtype=torch.bool)})
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(len(content) - 3, len(content)))])
    with suppress(WireError), StoredArrays(path) as stored:
        for name in stored:
            assert stored[name].numel() <= len(content)


def test_booleans_are_zero_or_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(hostile({"a": entry(0, 2, "BOOL")}, data=0) + b"\x01\x07")
    with StoredArrays(tmp_path / "file") as stored, pytest.raises(WireError, match="not booleans"):
        stored["a"]


def test_a_file_that_is_cut_later_is_noticed(tmp_path: Path) -> None:
    write_arrays(tmp_path / "file", {"x": torch.ones(3)})
    with StoredArrays(tmp_path / "file") as stored:
        with (tmp_path / "file").open("r+b") as file:
            file.truncate(70)
        with pytest.raises(WireError, match="truncated within"):
            stored["x"]


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(WireError, match="cannot use"):
        write_arrays(tmp_path / "missing" / "file", {"x": torch.ones(3)})
    with pytest.raises(WireError, match="not a valid name for an array"):
        write_arrays(tmp_path / "file", {"a\nb": torch.ones(3)})
    assert list(tmp_path.iterdir()) == []
