"""Texts under a public vocabulary, sets of texts and pictures by owner, and owners who are left out."""

import gzip
import io
import json
import tarfile
from hashlib import blake2b

import numpy as np
import pytest
from PIL import Image

import winnow
from winnow.core import DataError
from winnow.data import DataSettings, Preprocessing, federate, from_frame, load
from winnow.data.text import TextSettings, encode_texts, words_of


@pytest.fixture(autouse=True)
def _no_other_folders(monkeypatch, tmp_path):
    monkeypatch.delenv("WINNOW_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def identifier(word: str, words: int) -> int:
    return 1 + int(blake2b(word.encode(), digest_size=8).hexdigest(), 16) % (words - 1)


def test_words_are_lower_case_without_markup():
    assert words_of("It's <br />GREAT!! (a_b) naïve <3") == ["it's", "great", "!", "!", "a", "b", "naïve", "3"]


def test_a_word_is_its_hash_and_never_padding():
    found = encode_texts(["good film", None, "a b c d e"], 50, 3, "here")
    expected = [["good", "film"], [], ["a", "b", "c"]]
    assert found.tolist() == [[identifier(w, 50) for w in row] + [0] * (3 - len(row)) for row in expected]
    many = encode_texts([f"word{i}" for i in range(500)], 5, 1, "here")
    assert set(many.flatten().tolist()) == {1, 2, 3, 4}


def test_nobody_else_s_texts_change_an_encoding():
    """A vocabulary that is made of the data would."""
    frame = {"said": ["good film", "bad film"], "mood": ["+", "-"]}
    alone = from_frame(frame, targets="mood", text=TextSettings(words=100, length=4))
    more = {"said": [*frame["said"], "secret name", "so so"], "mood": ["+", "-", "+", "-"]}
    together = from_frame(more, targets="mood", text=TextSettings(words=100, length=4))
    assert np.array_equal(alone.x, together.x[:2])
    assert alone.preprocessing == together.preprocessing
    assert "secret" not in json.dumps(together.preprocessing.to_json())
    again = Preprocessing.from_json(json.loads(json.dumps(alone.preprocessing.to_json())))
    assert np.array_equal(again.transform({"said": ["film good"]}), alone.x[:1][:, [1, 0, 2, 3]])


def test_texts_of_a_file_with_owners(tmp_path):
    rows = "\n".join(f'"nice, day {i}",happy,u{i % 3}\n"sad day",sad,u{i % 3}' for i in range(6))
    (tmp_path / "said.csv").write_text(f"said,mood,user\n{rows}\n")
    settings = DataSettings(path=tmp_path / "said.csv", targets=("mood",), owner="user", text=TextSettings(length=8))
    data = load(settings)
    assert data.x[0].tolist() == [identifier(word, 20_000) for word in ("nice", "day", "0")] + [0] * 5
    assert (data.owner_names, data.tokens, data.preprocessing.tokens) == (("u0", "u1", "u2"), True, True)


def test_numbers_are_no_texts(tmp_path):
    with pytest.raises(DataError, match=r"column 'said', data row 1 holds 3, not a text; leave it out of features"):
        from_frame({"said": [3, 4], "mood": ["+", "-"]}, targets="mood", text=TextSettings())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tokens": True}, "tokens has no effect on texts"),
        ({"scale": "minmax"}, "scale has no effect on texts"),
        ({"text": {"length": 0}}, "greater than or equal to 1"),
        ({"text": {"words": 1 << 25}}, "less than or equal to"),
    ],
)
def test_settings_without_effect_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        DataSettings(name="sst2", **{"text": TextSettings(), **given})


def test_a_set_without_texts_has_none():
    with pytest.raises(DataError, match=r"digits holds no texts; remove data\.text"):
        load(DataSettings(name="digits", text=TextSettings()))


@pytest.mark.parametrize("header", ["sentence\tlabel", "label\tcontent"])
def test_sst2_in_either_order_of_columns(tmp_path, header):
    rows = [("it 's \"good", 1), ("dull", 0)]
    names = ("train.tsv", "dev.tsv") if "sentence" in header else ("sst2_train.tsv.gz", "sst2_dev.tsv.gz")
    for name, part in zip(names, (rows, rows[1:]), strict=True):
        lines = [f"{t}\t{y}" if "sentence" in header else f"{y}\t{t}" for t, y in part]
        text = "\n".join([header, *lines, ""]).encode()
        (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    data = load(DataSettings(name="sst2", text=TextSettings(length=2)), tmp_path)
    assert data.y.tolist() == [1, 0, 0]
    assert data.test_rows.tolist() == [2]
    assert data.x[1].tolist() == [identifier("dull", 20_000), 0]


def test_a_damaged_row_is_named(tmp_path):
    (tmp_path / "train.tsv").write_text("sentence\tlabel\nfine\t1\nodd\t7\n")
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\n")
    with pytest.raises(DataError, match=r"train\.tsv: data row 2 is not a sentence with the label 0 or 1"):
        load(DataSettings(name="sst2"), tmp_path)


def test_a_set_that_has_no_download_says_where_it_is(tmp_path):
    with pytest.raises(DataError, match=r"sst2 could not be downloaded .*get train\.tsv, dev\.tsv from https://glue"):
        load(DataSettings(name="sst2"), tmp_path)


def write_reviews(folder):
    for split, count in (("train", 3), ("test", 2)):
        for kind in ("pos", "neg", "unsup"):
            (folder / split / kind).mkdir(parents=True)
            for i in range(count):
                (folder / split / kind / f"{i}.txt").write_text(f"{kind} film {i}")


def test_reviews_in_folders(tmp_path):
    write_reviews(tmp_path / "aclImdb")
    (tmp_path / "aclImdb" / "imdb.vocab").write_text("film\n")
    data = load(DataSettings(name="imdb"), tmp_path)
    assert (len(data), data.preprocessing.classes) == (10, ("neg", "pos"))  # unlabelled reviews are left alone
    assert data.y.tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 1, 1]
    assert data.test_rows.tolist() == [6, 7, 8, 9]


def test_folders_of_the_user_s_own(tmp_path):
    for kind in ("ham", "spam", "eggs"):
        (tmp_path / "mails" / kind).mkdir(parents=True)
        for i in range(30):
            (tmp_path / "mails" / kind / f"{i}.txt").write_text(f"{kind} {kind} {i}")
    result = winnow.run(
        data={"path": tmp_path / "mails", "text": {"words": 500, "length": 4}, "clients": 4},
        model={"name": "word-mean", "vocabulary": 500},
        algorithm="fedavg",
        rounds=6,
        local={"learning_rate": 5.0, "epochs": 5, "batch_size": 8},
    )
    assert result.classes == ("eggs", "ham", "spam")
    assert result.per_class is not None
    assert result.confusion.trace() == result.confusion.sum()


def test_users_are_owners(tmp_path):
    said = {"ann": (["so happy", "sad"], [1, 0]), "bob": (["fine"], [1])}
    record = ["1", "date", "NO_QUERY", "ann"]
    held = {
        "users": list(said),
        "user_data": {user: {"x": [[*record, text] for text in texts], "y": y} for user, (texts, y) in said.items()},
    }
    (tmp_path / "sent140.json").write_text(json.dumps(held))
    data = load(DataSettings(name="sent140"), tmp_path)
    assert (data.owners.tolist(), data.owner_names, data.y.tolist()) == ([0, 0, 1], ("ann", "bob"), [1, 0, 1])
    held["user_data"]["bob"]["y"] = [1, 1]
    (tmp_path / "sent140.json").write_text(json.dumps(held))
    with pytest.raises(DataError, match="not in LEAF's format"):
        load(DataSettings(name="sent140"), tmp_path)


def write_pictures(folder, domains=("photo", "sketch"), each=4, side=16):
    rng = np.random.default_rng(0)
    with tarfile.open(folder / "pacs.tar", "w") as archive:
        for domain in domains:
            for kind in ("dog", "house"):
                for i in range(each):
                    stream = io.BytesIO()
                    Image.fromarray(rng.integers(0, 256, (side, side, 3), np.uint8)).save(stream, "PNG")
                    member = tarfile.TarInfo(f"PACS/{domain}/{kind}/{i}.png")
                    member.size = stream.tell()
                    archive.addfile(member, io.BytesIO(stream.getvalue()))
        archive.addfile(tarfile.TarInfo("PACS/readme.txt"))


def test_pictures_by_domain_and_a_domain_left_out(tmp_path):
    write_pictures(tmp_path)
    settings = DataSettings(name="pacs", left_out=("sketch",), reference=2, clients=0, partition={"name": "natural"})
    data = load(settings, tmp_path)
    assert (data.x.shape, data.owner_names[3]) == ((16, 3, 64, 64), "sketch")
    parts = federate(data, settings, seed=0)
    assert len(parts.clients) == 1
    assert parts.owner_names == ("photo",)
    assert np.array_equal(parts.test.x, data.x[data.owners == 3])
    trained = np.concatenate([parts.clients.client(0).x, parts.reference.x])
    assert sorted(trained.sum((1, 2, 3)).tolist()) == sorted(data.x[data.owners == 2].sum((1, 2, 3)).tolist())


def test_whoever_is_left_out_must_be_an_owner(tmp_path):
    write_pictures(tmp_path)
    settings = DataSettings(name="pacs", left_out=("sketches",))
    with pytest.raises(DataError, match=r"pacs: data\.left_out: .*sketch"):
        federate(load(settings, tmp_path), settings, seed=0)
    settings = DataSettings(left_out=("sketch",))
    with pytest.raises(DataError, match=r"digits: data\.left_out names owners, and these rows have none"):
        federate(load(settings), settings, seed=0)
    with pytest.raises(ValueError, match="test has no effect beside left_out"):
        DataSettings(left_out=("sketch",), test=20)


def test_a_picture_that_is_none_is_refused(tmp_path):
    with tarfile.open(tmp_path / "pacs.tar", "w") as archive:
        member = tarfile.TarInfo("PACS/photo/dog/1.png")
        member.size = 5
        archive.addfile(member, io.BytesIO(b"hello"))
    with pytest.raises(DataError, match="holds a picture that cannot be read"):
        load(DataSettings(name="pacs"), tmp_path)
    (tmp_path / "pacs.tar").write_bytes(b"no archive")
    with pytest.raises(DataError, match="truncated or damaged archive"):
        load(DataSettings(name="pacs"), tmp_path)
