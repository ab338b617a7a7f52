"""Credentials in a mounted Secret, while it is replaced."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from cpr_trainer.store import CredentialsRefusedError
from cpr_trainer.store.connection import FileProvider


def mount(folder: Path, version: int) -> None:
    """Lay down a version of a Secret as the kubelet does: a folder, a link to it that is swapped, the old one gone."""
    place = folder / f"..{version}"
    place.mkdir()
    for name in ("accessKey", "secretKey", "sessionToken"):
        (place / name).write_text(f"{version}\n")
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")
    (folder / "..data_tmp").symlink_to(place.name)
    (folder / "..data_tmp").rename(folder / "..data")
    shutil.rmtree(folder / f"..{version - 1}", ignore_errors=True)


def test_secret_is_read_as_one_version_while_it_is_replaced(tmp_path: Path) -> None:
    mount(tmp_path, 0)
    done = threading.Event()
    seen: set[str] = set()
    version = 0

    def rotate() -> None:
        nonlocal version
        while version < 99 or (len(seen) < 2 and version < 10_000):
            mount(tmp_path, version + 1)
            version += 1
        done.set()

    provider = FileProvider(tmp_path)
    rotating = threading.Thread(target=rotate)
    rotating.start()
    while not done.is_set():
        found = provider.retrieve()
        assert found.access_key == found.secret_key == found.session_token
        seen.add(found.access_key)
    rotating.join()
    assert len(seen) > 1
    assert provider.retrieve().access_key == str(version)


def test_plain_folder_has_credentials_too(tmp_path: Path) -> None:
    (tmp_path / "accessKey").write_text("key\n")
    (tmp_path / "secretKey").write_text(" secret ")
    found = FileProvider(tmp_path).retrieve()
    assert (found.access_key, found.secret_key, found.session_token) == ("key", "secret", None)


@pytest.mark.parametrize("missing", ["accessKey", "secretKey"])
def test_missing_file_of_a_secret_is_named(tmp_path: Path, missing: str) -> None:
    mount(tmp_path, 0)
    (tmp_path / "..0" / missing).unlink()
    with pytest.raises(CredentialsRefusedError, match=missing):
        FileProvider(tmp_path).retrieve()
