"""Requirements on the folder of a store."""

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
def test_file_system_without_hard_links_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    refusing(number, monkeypatch)
    store = FolderStore(tmp_path)
    store.put("uid/part-00000", b"rows")
    with pytest.raises(StoreUnsuitableError, match="without hard links") as caught:
        store.put("uid/manifest.json", b"{}", if_absent=True)
    assert "snapshots.store" in caught.value.remedy
    assert [entry.key for entry in store.list("uid/")] == ["uid/part-00000"], "nothing half written is left"


def test_file_in_place_of_the_folder_is_an_outage(tmp_path: Path) -> None:
    (tmp_path / "store").touch()
    with pytest.raises(StoreUnreachableError, match="Not a directory"):
        FolderStore(tmp_path / "store").put("uid/manifest.json", b"{}", if_absent=True)


def test_missing_permission_is_not_a_missing_ability(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(errno.EACCES, monkeypatch)
    with pytest.raises(CredentialsRefusedError):
        FolderStore(tmp_path).put("uid/manifest.json", b"{}", if_absent=True)
