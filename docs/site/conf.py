"""Configuration of Sphinx for the site of the pages under docs/ and in other folders: `make docs`."""

from __future__ import annotations

import shlex
import sys
import tomllib
from pathlib import Path

SITE = Path(__file__).parent
ROOT = SITE.parents[1]
sys.path.insert(0, str(SITE))

project = "CPRJob"
version = release = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
language = "en"
smartquotes = False  # words are to be copied as they are

# The checkout is the source, so that links between pages and to files are the same here and in the repository.
root_doc = "docs/index"
include_patterns = [
    "docs/**",
    "*/*/README.md",
    "benchmarks/README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
]
exclude_patterns = [".*", "build", "dist", "docs/site"]

extensions = ["myst_nb", "sphinxcontrib.mermaid", "reference"]
myst_heading_anchors = 4
# Notebooks hold their outputs; a test compares them with those of a fresh run.
nb_execution_mode = "off"

# Every reference has to lead somewhere.
nitpicky = True

# Diagrams are drawn while the site is built, so that its pages fetch nothing.
mermaid_output_format = "svg"
mermaid_cmd = shlex.quote(str(Path(sys.executable).with_name("mermaidx")))
mermaid_params = ["--theme", "neutral"]
myst_fence_as_directive = ["mermaid"]

html_theme = "furo"
html_title = f"CPRJob {version}"
html_extra_path = ["root"]
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_show_copyright = False
