"""A published job without entries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.published_chain import Case


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    made = Case(tmp_path)
    yield made
    made.follower.stop()
