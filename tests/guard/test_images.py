"""The images hold the packages that they should: nothing that the Dockerfile copies is kept out of its build."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COPIED = re.findall(r"^COPY (?!--)(.+) \S+$", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE)
LET_IN = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text("utf-8"), re.MULTILINE)
SOURCES = sorted({source for line in COPIED for source in line.split()})


@pytest.mark.parametrize("source", SOURCES)
def test_copied_sources_exist_and_are_not_ignored(source: str) -> None:
    assert (ROOT / source).exists()
    assert any(fnmatch(source, pattern) for pattern in LET_IN)


def test_trainer_image_has_every_package_of_its_folder() -> None:
    packages = {f"trainer_image/{path.parent.name}" for path in (ROOT / "trainer_image").glob("*/__init__.py")}
    assert packages
    assert packages <= set(SOURCES)
