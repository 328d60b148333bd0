"""The installed package: its version, and the command that adds one of its extras."""

import json
import shlex
from importlib.metadata import distribution
from urllib.parse import unquote, urlsplit

DISTRIBUTION = "winnow-fl"
"""Its name for pip; `winnow` on PyPI is somebody else's."""


def installed_version() -> str:
    return distribution(DISTRIBUTION).version


def install_command(extra: str) -> str:
    """What to type for an extra, from wherever this Winnow was installed: a clone, a wheel or an index."""
    source = json.loads(distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")
    url, folder = source.get("url", ""), source.get("dir_info")
    if folder is not None:
        editable = ["-e"] if folder.get("editable") else []
        return shlex.join(["pip", "install", *editable, f"{unquote(urlsplit(url).path)}[{extra}]"])
    return f'pip install "{DISTRIBUTION}[{extra}]{f" @ {url}" if url else ""}"'
