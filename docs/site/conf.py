"""Sphinx's settings for `make docs`. The sources are the pages as they are in the repository."""

import re
from pathlib import Path

project = "Conch"
extensions = ["myst_parser"]
root_doc = "docs/README"
include_patterns = ["*.md", "docs/*.md", "helm/README.md", "build_engines/demo/README.md", "tests/**.md"]
exclude_patterns = [".*", "dist", "build"]
myst_enable_extensions = ["html_image"]
myst_heading_anchors = 4  # levels
html_theme = "furo"
html_title = project
html_show_sphinx = False
html_copy_source = False
smartquotes = False


def add_contents(app, name, source):
    """Give the index a table of contents, which is the menu of the site: a part for each of its headings."""
    if name != root_doc:
        return
    parts = re.split(r"^## ", source[0], flags=re.MULTILINE)[1:]
    for part in parts:
        pages = re.findall(r"\[([^\]]+)\]\(([^)#]+)\.md\)", part)
        entries = "\n".join(f"{title} <{Path('/docs', page)}>" for title, page in pages)
        source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {part.splitlines()[0]}\n\n{entries}\n```\n"


def setup(app):
    """Connect the function above."""
    app.connect("source-read", add_contents)
