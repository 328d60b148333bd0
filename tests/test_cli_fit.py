"""`winnow fit` and `winnow intersect` as they are typed."""

import json
from pathlib import Path

import pytest

import winnow
from command_line import call

FEDERATION = """
[tables.stays]
file = "stays.csv"
owner = "hospital"
[tables.stays.columns]
patient = { level = "private", key = true, type = "text" }
age = { level = "protected", bounds = [0, 110] }
"length-of-stay" = { level = "protected", bounds = [0, 60] }
"""


@pytest.fixture(autouse=True)
def stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Length = 2 + age/10; the hospitals have patients 20 to 39 in common."""
    rows = [("north", place, 20 + place) for place in range(40)] + [
        ("south", place, 30 + place) for place in range(20, 60)
    ]
    lines = [f"{owner},p{patient},{age},{2 + age / 10}" for owner, patient, age in rows]
    (tmp_path / "stays.csv").write_text("\n".join(["hospital,patient,age,length-of-stay", *lines]) + "\n")
    (tmp_path / "federation.toml").write_text(FEDERATION)
    monkeypatch.chdir(tmp_path)


def test_a_fit_is_shown_told_as_json_and_kept(capsys: pytest.CaptureFixture[str]) -> None:
    shown = call(capsys, "fit", "linear", "`length-of-stay` ~ age")
    assert shown.code == 0, shown.err
    assert "std. error" in shown.out
    told = json.loads(call(capsys, "fit", "linear", "`length-of-stay` ~ age", "--json", "--out", "stay.json").out)
    assert [each["estimate"] for each in told["terms"]] == pytest.approx([2.0, 0.1], abs=1e-6)
    assert winnow.load_fit("stay.json").predict({"age": [50.0]}) == pytest.approx([7.0], abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("linear", "`length-of-stay` ~ agge"), "there is no column 'agge'; did you mean 'age'?"),
        (("linear", "length-of-stay ~ age"), "cannot read 'length-of-stay'"),
        (("tree", "age ~ age"), "model = 'tree' is unknown"),
        (("kmeans", "stayz"), "has no table 'stayz'; did you mean 'stays'?"),
        (("kmeans", "stays", "--table", "stays"), "leave out --table"),
        (("linear", "`length-of-stay` ~ age", "--penalty", "3"), "penalty is for ridge, not for linear"),
        (("linear", "`length-of-stay` ~ age", "--kit", "nowhere"), "name the table"),
        (("linear", "`length-of-stay` ~ age", "--out", "stay.pkl"), "name the file stay.json"),
        (("linear", "`length-of-stay` ~ age", "--out", "no/stay.json"), "there is no folder no"),
    ],
)
def test_mistakes_in_a_fit_are_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], line: str
) -> None:
    done = call(capsys, "fit", *arguments)
    assert done.code == 2
    assert line in done.err
    assert len(done.err.strip().splitlines()) == 1


def test_keys_in_common_are_counted_and_written_for_those_who_learn_them(capsys: pytest.CaptureFixture[str]) -> None:
    between = ("intersect", "stays", "--key", "patient", "--owners", "south,north")
    assert "south, north have 20 keys in common" in call(capsys, *between).out
    assert call(capsys, *between, "--share", "--out", "keys").code == 0
    common = sorted(f"p{place}" for place in range(20, 40))
    assert [Path("keys", f"{owner}.txt").read_text().split() for owner in ("south", "north")] == [common, common]
    assert call(capsys, *between, "--size", "--out", "sizes").code == 0
    assert not Path("sizes").exists()
    assert winnow.intersect("stays", "patient", reveal="size") == 20


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (("--key", "age"), "'age' is not a key at every owner"),
        (("--key", "patient", "--owners", "north,west"), "no owner 'west'"),
        (("--key", "patient", "--size", "--share"), "leaves nothing to share"),
        (("--key", "patient", "--kit", "kits/ana", "--out", "keys"), "real ones keep it"),
    ],
)
def test_mistakes_in_an_intersection_are_one_line(
    capsys: pytest.CaptureFixture[str], more: tuple[str, ...], line: str
) -> None:
    done = call(capsys, "intersect", "stays", *more)
    assert done.code == 2
    assert line in done.err
    assert len(done.err.strip().splitlines()) == 1
