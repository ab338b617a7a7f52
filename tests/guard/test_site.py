"""The site of `make docs`: it builds strictly, has every page and every word of the resource, and fetches nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from cpr_operator.cli.app import app

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("docs/**/*.ipynb"))]
#: The attributes with URLs that a browser loads by itself, by element.
LOADED = {"link": "href", "script": "src", "img": "src", "object": "data", "iframe": "src", "source": "src"}

pytestmark = pytest.mark.timeout(600)


def make(site: Path, *more: str, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run `make docs` as it is, but for the environment, which is this one."""
    command = ["make", "--old-file=env", "docs", f"SITE={site}", f"BIN={ROOT}/.venv/bin", *more]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "docs"
    done = make(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Page(HTMLParser):
    """The files that a page loads, and its text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loads, self.text = list[str](), ""
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        has = {name: value or "" for name, value in attrs}
        if LOADED.get(tag, "") in has:
            self.loads.append(has[LOADED[tag]])

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in site.rglob("*.html")}


def test_every_page_is_in_the_site(pages: dict[Path, Page], site: Path) -> None:
    """The strict build also demands each in the navigation."""
    assert len(PAGES) > 50
    assert {(site / page.relative_to(ROOT)).with_suffix(".html") for page in PAGES} <= set(pages)


def test_pages_fetch_nothing(pages: dict[Path, Page], site: Path) -> None:
    for path, page in pages.items():
        for each in (load for load in page.loads if load != "#"):
            assert not re.match(r"(\w+:)?//", each), f"{path}: {each}"
            assert (path.parent / each.partition("?")[0]).resolve().is_file(), f"{path}: {each}"
    styles = "".join(path.read_text("utf-8") for path in site.rglob("*.css"))
    assert re.findall(r"(?:@import|url\(\W?(?:https?:)?//)[^;)]*", styles) == []


def test_every_diagram_is_drawn(pages: dict[Path, Page], site: Path) -> None:
    drawn = {each for page in pages.values() for each in page.loads if each.endswith(".svg") and "mermaid" in each}
    fences = sum(path.read_text("utf-8").count("```mermaid") for path in PAGES)
    assert len(drawn) == fences > 0
    pictures = [path.read_text("utf-8") for path in site.rglob("mermaid-*.svg")]
    assert len(pictures) == fences
    words = re.findall(r"participant \w+ as (\w+)", (ROOT / "docs" / "architecture.md").read_text("utf-8"))
    assert words
    assert [word for word in words if not any(word in picture for picture in pictures)] == []


def fields(schema: Any) -> Iterator[str]:
    for name, field in schema.get("properties", {}).items():
        yield name
        yield from fields(field.get("items", field))


def messages(schema: Any) -> Iterator[str]:
    yield from (rule["message"] for rule in schema.get("x-kubernetes-validations", ()))
    for field in (*schema.get("properties", {}).values(), *(schema[each] for each in ("items",) if each in schema)):
        yield from messages(field)


def test_reference_has_every_field_and_every_rule(pages: dict[Path, Page], site: Path) -> None:
    text = " ".join(pages[site / "docs" / "reference" / "resource.html"].text.split())
    (version,) = yaml.safe_load((ROOT / "crds" / "cprjobs.cprjob.io.yaml").read_text("utf-8"))["spec"]["versions"]
    root = version["schema"]["openAPIV3Schema"]
    names = {name for part in ("spec", "status") for name in fields(root["properties"][part])}
    assert len(names) > 200
    assert {name for name in names if not re.search(rf"\b{name}\b", text)} == set()
    rules = list(messages(root))
    assert len(rules) > 50
    assert [rule for rule in rules if " ".join(rule.replace("`", "").split()) not in text] == []


def words(command: Any, name: str) -> Iterator[str]:
    """The full name of each command, and its options."""
    if hasattr(command, "commands"):
        for each in command.commands.values():
            yield from words(each, f"{name} {each.name}")
    else:
        yield name
        yield from (option for parameter in command.params for option in parameter.opts if option[0] == "-")


def test_reference_has_every_option_of_every_command(pages: dict[Path, Page], site: Path) -> None:
    text = pages[site / "docs" / "reference" / "commands.html"].text
    found = set(words(get_command(app), "cprjob"))
    assert len(found) > 60
    assert {word for word in found if word not in text} == set()


def test_build_fails_at_dead_links_and_pages_outside_the_navigation(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "docs/site", "crds", "requirements"):
        source, target = ROOT / name, tmp_path / name
        target.parent.mkdir(exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
    (tmp_path / "docs" / "index.md").write_text("# Start\n\n[dead](nowhere.md) and [dead](#nothing)\n")
    (tmp_path / "docs" / "alone.md").write_text("# Alone\n\n[dead](index.md#nowhere)\n")
    done = make(tmp_path / "site", root=tmp_path)
    assert done.returncode != 0
    for warning in ("nowhere.md", "nothing", "nowhere", "alone.md: WARNING: document isn't included in any toctree"):
        assert warning in done.stderr
