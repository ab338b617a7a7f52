"""Credentials of a job: mounted files that change, users without rights, and refusals."""

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
from support.store_suite import errors_of

pytestmark = pytest.mark.store

PART = bytes(range(256)) * 4096


@pytest.mark.parametrize(("access", "secret"), [("another-user", "else-entirely"), (ACCESS_KEY, "wrong-secret")])
def test_wrong_credentials_are_refused(spec: StoreSpec, tmp_path: Path, access: str, secret: str) -> None:
    store = open_store(spec, write_credentials(tmp_path, access, secret), None)
    found = errors_of(store)
    assert [error.reason for error in found] == ["CredentialsRefused"] * 5
    assert "credentialsSecret" in found[0].remedy
    with pytest.raises(CredentialsRefusedError, match=spec.bucket):
        store.put("job/a", bytes(64 << 20))  # the server answers, and closes, before it is all sent


def test_credentials_are_read_anew_for_each_request(spec: StoreSpec, tmp_path: Path) -> None:
    folder = write_credentials(tmp_path, "another-user", "else-entirely")
    store = open_store(spec, folder, None)
    with pytest.raises(CredentialsRefusedError):
        store.put("job/a", b"a")
    write_credentials(folder, ACCESS_KEY, SECRET_KEY)
    store.put("job/a", b"a")
    assert store.get("job/a") == b"a"


def test_save_continues_when_its_user_is_replaced(server_of: ServerOf, tmp_path: Path) -> None:
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


def test_temporary_credentials_need_their_token(server_of: ServerOf, tmp_path: Path) -> None:
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


def test_user_without_rights_is_refused(server_of: ServerOf, tmp_path: Path) -> None:
    server = server_of("minio")
    with user(server, policy="readonly") as reader:
        store = open_store(server.new_bucket(), write_credentials(tmp_path, *reader), None)
        with pytest.raises(CredentialsRefusedError, match="may do in this bucket"):
            store.put("job/a", PART)
