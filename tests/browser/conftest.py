"""Fixtures of the tests that look at pages in Chromium."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from support.browser import browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One for a module: an event loop runs here until it is closed, and no test of another one could run its own."""
    with browser() as opened:
        yield opened
