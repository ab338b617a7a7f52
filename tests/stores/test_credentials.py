"""Who a job is to its store: mounted files that change, the environment, and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
from minio.credentials.providers import AssumeRoleProvider

from cpr_contract.spec import StoreSpec
from cpr_trainer.store import CredentialsRefusedError, in_parallel, open_store
from support.s3_servers import (
    ACCESS_KEY,
    REGION,
    SECRET_KEY,
    ServerOf,
    administrator,
    user,
    write_credentials,
)

pytestmark = pytest.mark.store

PART = bytes(range(256)) * 4096


@pytest.mark.parametrize(("access", "secret"), [("somebody", "else-entirely"), (ACCESS_KEY, "wrong-secret")])
def test_a_large_upload_hears_that_it_is_refused(spec: StoreSpec, tmp_path: Path, access: str, secret: str) -> None:
    store = open_store(spec, write_credentials(tmp_path, access, secret), None)
    with pytest.raises(CredentialsRefusedError, match=spec.bucket):
        store.put("job/a", bytes(64 << 20))  # the server answers, and closes, before it is all sent


def test_credentials_that_are_not_there_are_refused(spec: StoreSpec, tmp_path: Path) -> None:
    store = open_store(spec, tmp_path, None)
    for operation in (lambda: store.list(""), lambda: store.put("a", b"")):
        with pytest.raises(CredentialsRefusedError, match="accessKey"):
            operation()


def test_without_files_the_environment_is_asked(spec: StoreSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    store = open_store(spec, None, None)
    store.put("job/a", b"a")
    assert [entry.key for entry in store.list("")] == ["job/a"]


def test_files_that_change_are_read_again(spec: StoreSpec, tmp_path: Path) -> None:
    folder = write_credentials(tmp_path, "somebody", "else-entirely")
    store = open_store(spec, folder, None)
    with pytest.raises(CredentialsRefusedError):
        store.put("job/a", b"a")
    write_credentials(folder, ACCESS_KEY, SECRET_KEY)
    store.put("job/a", b"a")
    assert store.get("job/a") == b"a"


def test_a_save_goes_on_when_its_user_is_replaced(server_of: ServerOf, tmp_path: Path) -> None:
    """The old user is gone for good half way, as keys that expire are; the Secret names the new one by then."""
    server = server_of("minio")
    with user(server) as old, user(server) as new:
        folder = write_credentials(tmp_path, *old)
        store = open_store(server.new_bucket(), folder, None)

        def write(number: int) -> None:
            if number == 5:
                write_credentials(folder, *new)
                administrator(server).user_remove(old[0])
            store.put(f"job/part-{number}", PART)

        in_parallel(write, range(10), threads=1)
        assert len(store.list("job/")) == 10
        write_credentials(folder, *old)
        with pytest.raises(CredentialsRefusedError):
            store.list("job/")


def test_credentials_for_a_while_come_with_a_token(server_of: ServerOf, tmp_path: Path) -> None:
    server = server_of("minio")
    with user(server) as (name, secret):
        lent = AssumeRoleProvider(
            sts_endpoint=server.endpoint, access_key=name, secret_key=secret, region=REGION
        ).retrieve()
        folder = write_credentials(tmp_path, lent.access_key, lent.secret_key)
        store = open_store(server.new_bucket(), folder, None)
        with pytest.raises(CredentialsRefusedError):
            store.put("job/a", PART)
        (folder / "sessionToken").write_text(str(lent.session_token))
        store.put("job/a", PART)
        assert store.get("job/a") == PART


def test_a_user_without_rights_is_told_so(server_of: ServerOf, tmp_path: Path) -> None:
    server = server_of("minio")
    with user(server, policy="readonly") as reader:
        store = open_store(server.new_bucket(), write_credentials(tmp_path, *reader), None)
        with pytest.raises(CredentialsRefusedError, match="may do in this bucket"):
            store.put("job/a", PART)
