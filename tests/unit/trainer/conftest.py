"""Fixtures of all tests of a trainer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.wait_limit import wait_limit


@pytest.fixture(autouse=True)
def _wait_limit() -> Iterator[None]:
    """Limit each wait: it then fails its test before the test's own timeout leaves threads behind."""
    with wait_limit(200.0):
        yield
