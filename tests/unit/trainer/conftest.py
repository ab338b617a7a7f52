"""What holds for all tests of a trainer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.patience import patience


@pytest.fixture(autouse=True)
def _patience() -> Iterator[None]:
    """A wait that does not end fails its test, before the test's own timeout leaves threads behind."""
    with patience(60.0):
        yield
