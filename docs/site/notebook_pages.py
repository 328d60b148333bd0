"""Notebooks as pages: each is run when the site is built, and what its cells show is put below them.

notebook_pages.py NOTEBOOK FOLDER runs one in a folder and prints it with its outputs.
"""

import json
import sys
import tempfile
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import nbformat
import plotly.io
from jupyter_client import AsyncKernelManager
from nbclient import NotebookClient

SECONDS_PER_CELL = 300
PLOTLY = "application/vnd.plotly.v1+json"
PLOTLY_FILE = "plotly.min.js"


def execute_notebook(path: Path, folder: Path) -> nbformat.NotebookNode:
    """The notebook with what its cells show, run in a folder of its own. A cell that fails raises."""
    notebook = nbformat.read(path, as_version=4)
    where, seconds = {"metadata": {"path": str(folder)}}, SECONDS_PER_CELL
    with tempfile.TemporaryDirectory() as sockets:  # no port that others on this machine could connect to
        manager = AsyncKernelManager(
            transport="ipc", ip=f"{sockets}/kernel", connection_file=f"{sockets}/connection.json"
        )
        client = NotebookClient(notebook, km=manager, timeout=seconds, startup_timeout=seconds, resources=where)
        return client.execute()


@cache
def notebook_page(path: Path, changed: float) -> str:
    """The page's Markdown. A notebook that has not changed is not run again while the site is served."""
    with tempfile.TemporaryDirectory() as folder:
        notebook = execute_notebook(path, Path(folder))
    pieces = [f'<script src="../{PLOTLY_FILE}"></script>']
    for cell in notebook.cells:
        pieces.append(cell.source if cell.cell_type == "markdown" else f"```python\n{cell.source}\n```")
        pieces += [f'<div class="output">{shown}</div>' for shown in map(_shown, cell.get("outputs", ())) if shown]
    pieces.insert(2, f"[Download this notebook]({path.name}); below, it was run with Winnow as it is here.")
    return "\n\n".join(pieces) + "\n"


def _shown(output: Any) -> str:
    """The richest form that an output has."""
    if output.output_type == "stream":
        return f"<pre>{escape(output.text)}</pre>" if output.name == "stdout" else ""
    data = output.data
    if PLOTLY in data:
        figure = plotly.io.from_json(json.dumps({key: data[PLOTLY][key] for key in ("data", "layout")}))
        return str(plotly.io.to_html(figure, include_plotlyjs=False, full_html=False))
    html = data.get("text/html")
    return html if html is not None else f"<pre>{escape(data.get('text/plain', ''))}</pre>"


if __name__ == "__main__":
    sys.stdout.write(nbformat.writes(execute_notebook(Path(sys.argv[1]), Path(sys.argv[2]))))
