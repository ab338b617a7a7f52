"""What a folder needs to be a store."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from cpr_trainer.store import CredentialsRefusedError, StoreUnreachableError, StoreUnsuitableError
from cpr_trainer.store.folder import FolderStore


def refusing(number: int, patch: pytest.MonkeyPatch) -> None:
    def link(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    patch.setattr(os, "link", link)


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_hard_links_is_named_as_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    refusing(number, monkeypatch)
    store = FolderStore(tmp_path)
    store.put("uid/part-00000", b"rows")
    with pytest.raises(StoreUnsuitableError, match="without hard links") as caught:
        store.put("uid/manifest.json", b"{}", if_absent=True)
    assert "snapshots.store" in caught.value.remedy
    assert [entry.key for entry in store.list("uid/")] == ["uid/part-00000"], "nothing half written is left"


def test_a_file_in_place_of_the_folder_is_a_store_that_fails(tmp_path: Path) -> None:
    (tmp_path / "store").touch()
    with pytest.raises(StoreUnreachableError, match="Not a directory"):
        FolderStore(tmp_path / "store").put("uid/manifest.json", b"{}", if_absent=True)


def test_a_right_that_is_missing_is_not_taken_for_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(errno.EACCES, monkeypatch)
    with pytest.raises(CredentialsRefusedError):
        FolderStore(tmp_path).put("uid/manifest.json", b"{}", if_absent=True)
