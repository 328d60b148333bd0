"""What the site has besides the pages of docs/: the README as its first one, others above it, and notebooks."""

import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from plotly.offline import get_plotlyjs

sys.path.append(str(Path(__file__).parent))  # a hook is a file alone, without the folder that it lies in
from notebook_pages import PLOTLY_FILE, notebook_page

ROOT = Path(__file__).parents[2]
ABOVE = {"README.md": "index.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}
"""Files of the repository, and the names of their pages."""
DEPLOY = ("deploy/README.md", "deploy.md")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, page in (*ABOVE.items(), DEPLOY):
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=_from_above(text)))
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        text = notebook_page(path, path.stat().st_mtime)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
    files.append(File.generated(config, PLOTLY_FILE, content=get_plotlyjs()))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Links of pages in docs/ to what lies above it."""
    for source, page in (*ABOVE.items(), DEPLOY):
        markdown = re.sub(rf"\]\((?:\.\./)+{re.escape(source)}", f"]({page}", markdown)
    return markdown


def _from_above(text: str) -> str:
    """The same from a page above: what it names in docs/ lies beside it here."""
    text = re.sub(r"(\]\(|src=\")(?:\.\./)?docs/", r"\1", text)
    for source, page in (*ABOVE.items(), DEPLOY):
        text = text.replace(f"]({source}", f"]({page}")
    return text
