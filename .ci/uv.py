"""Run uv with pip's settings: uv reads neither pip's files nor its variables.

python .ci/uv.py pip install …
"""

import ast
import os
import subprocess
import sys
from pathlib import Path

SECTIONS = ("global", "install", ":env:")
"""Of pip's settings; a later one overrides an earlier one."""
VARIABLES = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "cert": ("SSL_CERT_FILE", " "),
}
"""Of uv, and how each separates its values, by pip's names."""


def settings_of_pip() -> dict[str, str]:
    """Return the settings that have a variable of uv."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], check=True, capture_output=True, text=True)
    found = {}
    for line in listed.stdout.splitlines():
        name, _, value = line.partition("=")
        found[name] = ast.literal_eval(value)
    settings = {}
    for section in SECTIONS:
        for name in VARIABLES:
            if f"{section}.{name}" in found:
                settings[name] = found[f"{section}.{name}"]
    return settings


def main() -> None:
    variables = {"UV_INDEX_STRATEGY": "unsafe-best-match"}  # the best version of all indexes, as pip takes it
    for name, value in settings_of_pip().items():
        variable, separator = VARIABLES[name]
        variables[variable] = separator.join(value.split())
    uv = Path(sys.executable).with_name("uv")
    os.execve(uv, [uv, *sys.argv[1:]], variables | os.environ)  # noqa: S606 - the program of this environment


if __name__ == "__main__":
    main()
