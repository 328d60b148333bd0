"""The documentation as a site: it builds without a warning, finds words, and asks nobody for anything."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow(part="docs")
def test_the_site_builds_from_the_pages_and_is_complete(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = {path.stem for path in tmp_path.rglob("*.html")}
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} <= pages
    words = json.loads((tmp_path / "search" / "search_index.json").read_text())["docs"]
    assert any("winnow.api.run" in entry["location"] for entry in words), "the Python reference is searched, too"
    for page in tmp_path.rglob("*.html"):
        fetched = re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"(https?:[^\"]+)", page.read_text("utf-8"))
        assert not [address for address in fetched if "canonical" not in address], page.name


@pytest.mark.slow(part="docs")
def test_the_gallery_is_made_from_what_winnow_brings(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "docs" / "site" / "make_gallery.py", tmp_path], check=True)
    linked = re.findall(r"href=\"gallery/([a-z-]+\.html)\"", (ROOT / "docs" / "gallery.md").read_text())
    assert sorted(linked) == sorted(path.name for path in tmp_path.iterdir())
