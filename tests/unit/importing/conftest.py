"""One process without rights for all tests of a file: it takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from cpr_trainer.importing import sources
from cpr_trainer.importing.isolated import IsolatedReader, isolated_reader


@pytest.fixture(scope="module")
def reader() -> Iterator[IsolatedReader]:
    with isolated_reader() as started:
        yield started


@pytest.fixture
def one_reader(reader: IsolatedReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "isolated_reader", lambda: nullcontext(reader))
