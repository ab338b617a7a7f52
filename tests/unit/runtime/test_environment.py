"""The environment: read as it is meant, or refused with the variable's name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from cpr_contract import CONTRACT_VERSION, env
from cpr_contract.codec import MAX_PLAIN_LENGTH, is_packed, pack, to_json
from cpr_contract.roster import KEY_CHANGED, key_digest, seal
from cpr_contract.spec import NEW_FIELDS_VERSION
from cpr_trainer.runtime import (
    Access,
    BadSpecError,
    ContractVersionError,
    Environment,
    exit_code,
)
from cpr_trainer.runtime.environment import KeyChangedError
from support.shard_job import small_job

ACCESS = (env.CREDENTIALS_DIR, env.CA_FILE, env.DATA_CREDENTIALS_DIR, env.DATA_CA_FILE)
JOB = small_job(Path("/unused"))


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "key").write_bytes(b"secret")
    return {
        env.SPEC: to_json(JOB),
        env.ROSTER_FILE: "/roster/roster.json",
        env.KEY_FILE: str(tmp_path / "key"),
        env.ADDRESS: "10.0.0.7",
        env.PORT_BASE: "9000",
        env.CREDENTIALS_DIR: "/credentials",
        env.CA_FILE: "",
        env.DATA_CREDENTIALS_DIR: "/data-credentials",
        env.DATA_CA_FILE: "/data-ca/ca.crt",
        env.SCRATCH_DIR: "/scratch",
        env.TERMINATION_FILE: "/word",
    }


def test_a_complete_environment_is_read(environ: dict[str, str]) -> None:
    assert Environment.read(environ) == Environment(
        job=JOB,
        roster_file=Path("/roster/roster.json"),
        key=b"secret",
        address="10.0.0.7",
        port_base=9000,
        store_access=Access(Path("/credentials")),
        data_access=Access(Path("/data-credentials"), Path("/data-ca/ca.crt")),
        scratch_dir=Path("/scratch"),
        termination_file=Path("/word"),
        step_trace=None,
    )


def test_variables_with_a_default_are_optional(environ: dict[str, str]) -> None:
    for name in (env.PORT_BASE, env.TERMINATION_FILE, *ACCESS):
        environ.pop(name)
    read = Environment.read(environ)
    assert (read.port_base, read.store_access, read.data_access) == (7070, Access(), Access())
    assert read.termination_file == Path("/dev/termination-log")


@pytest.mark.parametrize(("pod", "accepted"), [("job-trainer-0-1", ["recorded"]), ("another", []), ("", [])])
def test_recorded_values_need_the_seal_of_the_job_key_for_this_pod(
    environ: dict[str, str], pod: str, accepted: list[str]
) -> None:
    received: list[str] = []
    receive = Environment.read(environ | {env.POD: pod}).recorded_receiver(received.append)
    for value in (
        "recorded",
        "",
        seal(b"another key", pod, "recorded"),
        seal(b"secret", "job-trainer-0-1", "recorded"),
    ):
        receive(value)
    assert received == accepted


BROKEN: list[tuple[str, Mapping[str, str], str]] = [
    *((f"no {name}", {name: ""}, name) for name in (env.SPEC, env.ROSTER_FILE, env.KEY_FILE, env.ADDRESS)),
    ("no scratch", {env.SCRATCH_DIR: ""}, env.SCRATCH_DIR),
    ("spec is not JSON", {env.SPEC: "{"}, "CPR_SPEC cannot be read"),
    ("spec lacks a field", {env.SPEC: '{"contract":1}'}, r"JobSpec\.job_uid is missing"),
    ("no key there", {env.KEY_FILE: "/no/such/key"}, env.KEY_FILE),
    ("key is empty", {env.KEY_FILE: "/dev/null"}, env.KEY_FILE),
    ("port is not a number", {env.PORT_BASE: "http"}, "'http'"),
    ("port leaves no numbers for the others", {env.PORT_BASE: "65534"}, "65534"),
    ("port is zero", {env.PORT_BASE: "0"}, env.PORT_BASE),
]


@pytest.mark.parametrize(("changes", "named"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_invalid_variable_is_named(environ: dict[str, str], changes: Mapping[str, str], named: str) -> None:
    with pytest.raises(BadSpecError, match=named) as raised:
        Environment.read({**environ, **changes})
    assert exit_code(raised.value) == 20


@pytest.mark.parametrize("version", [CONTRACT_VERSION + 1, CONTRACT_VERSION - 2])
def test_a_contract_of_another_age_is_refused(environ: dict[str, str], version: int) -> None:
    with pytest.raises(ContractVersionError, match=f"version {version}") as raised:
        Environment.read(environ | {env.SPEC: to_json(replace(JOB, contract=version))})
    assert exit_code(raised.value) == 23


def test_tables_in_bf16_raise_the_version_of_the_description(environ: dict[str, str]) -> None:
    tables = tuple(replace(table, precision="bf16") for table in JOB.model.tables)
    job = replace(JOB, contract=NEW_FIELDS_VERSION, model=replace(JOB.model, tables=tables))
    assert Environment.read(environ | {env.SPEC: to_json(job)}).job == job
    with pytest.raises(ContractVersionError):
        Environment.read(environ | {env.SPEC: to_json(replace(job, contract=NEW_FIELDS_VERSION + 1))})


def test_a_long_description_is_read_from_its_file(environ: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "job"
    packed = pack(environ.pop(env.SPEC) + MAX_PLAIN_LENGTH * " ")
    path.write_text(packed)
    environ[env.SPEC_FILE] = str(path)
    assert is_packed(packed)
    assert Environment.read(environ).job == JOB
    path.write_text(packed[:-8])
    with pytest.raises(BadSpecError, match="CPR_SPEC_FILE cannot be read"):
        Environment.read(environ)
    path.unlink()
    with pytest.raises(BadSpecError, match="CPR_SPEC_FILE cannot be read"):
        Environment.read(environ)


def test_a_key_is_used_under_its_own_name_only(environ: dict[str, str]) -> None:
    key = Environment.read(environ).key
    assert Environment.read(environ | {env.KEY_DIGEST: key_digest(key)}).key == key
    with pytest.raises(KeyChangedError, match=key_digest(key)) as raised:
        Environment.read(environ | {env.KEY_DIGEST: key_digest(b"another")})
    assert (raised.value.reason, exit_code(raised.value)) == (KEY_CHANGED, 1)


def test_previous_contract_is_accepted(environ: dict[str, str]) -> None:
    older = replace(JOB, contract=CONTRACT_VERSION - 1)
    assert Environment.read(environ | {env.SPEC: to_json(older)}).job == older
