"""The installed package: its version, and the command that adds one of its extras."""

import json
import shlex
import subprocess
from importlib.metadata import distribution
from importlib.resources import files
from urllib.parse import unquote, urlsplit

DISTRIBUTION = "winnow-fl"
"""Its name for pip; `winnow` on PyPI is somebody else's."""


def installed_version() -> str:
    return distribution(DISTRIBUTION).version


def installed_commit() -> str | None:
    """The commit that this Winnow is of: written into a package when that was built, or from a clone's git."""
    source = json.loads(distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")
    if not source.get("dir_info", {}).get("editable"):
        written = files("winnow") / "commit.txt"
        return written.read_text().strip() if written.is_file() else None
    command = ["git", "-C", unquote(urlsplit(source["url"]).path), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        found = subprocess.run([*command, "--abbrev=12"], capture_output=True, text=True, timeout=10, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None


def install_command(extra: str) -> str:
    """What to type for an extra, from wherever this Winnow was installed: a clone, a wheel or an index."""
    source = json.loads(distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")
    url, folder = source.get("url", ""), source.get("dir_info")
    if folder is not None:
        editable = ["-e"] if folder.get("editable") else []
        return shlex.join(["pip", "install", *editable, f"{unquote(urlsplit(url).path)}[{extra}]"])
    return f'pip install "{DISTRIBUTION}[{extra}]{f" @ {url}" if url else ""}"'
