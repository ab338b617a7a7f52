"""Credentials for an S3-compatible store: mounted files, or what the workload's surroundings offer."""

from __future__ import annotations

import contextlib
from pathlib import Path

import urllib3
from minio.credentials.credentials import Credentials
from minio.credentials.providers import ChainedProvider, EnvAWSProvider, EnvMinioProvider, IamAwsProvider, Provider

from cpr_trainer.store.protocol import JOBS_STORE, CredentialsRefusedError

_REMEDY = "Set {field}.credentialsSecret to a Secret with accessKey and secretKey, or give the pods an identity."


class FileProvider(Provider):
    """Reads accessKey, secretKey and perhaps sessionToken for every request, so that a rotated Secret is seen.

    Three small reads, beside a request over the network: not worth a cache that could be stale.
    """

    def __init__(self, folder: Path, field: str = JOBS_STORE) -> None:
        self._folder = folder
        self._remedy = _REMEDY.format(field=field)

    def retrieve(self) -> Credentials:
        """Return what the files say now, all of one version."""
        try:
            while True:
                found, version = None, _version(self._folder)
                with contextlib.suppress(FileNotFoundError):
                    found = _read_all(version)
                if version == _version(self._folder):  # else it went away in between
                    return found or _read_all(version)  # which tells what is missing
        except (OSError, ValueError) as error:
            raise CredentialsRefusedError(f"The store's credentials cannot be read: {error}.", self._remedy) from error


class WorkloadProvider(Provider):
    """The environment's variables, else the identity that the cloud gives to the pod."""

    def __init__(self, http: urllib3.PoolManager, field: str) -> None:
        self._remedy = _REMEDY.format(field=field)
        self._chain = ChainedProvider([EnvAWSProvider(), EnvMinioProvider(), IamAwsProvider(http_client=http)])

    def retrieve(self) -> Credentials:
        """Return the first that is found."""
        try:
            return self._chain.retrieve()
        except (ValueError, OSError, urllib3.exceptions.HTTPError) as error:
            raise CredentialsRefusedError(f"No credentials for the store were found: {error}.", self._remedy) from error


def _version(folder: Path) -> Path:
    """Return the folder that a mounted Secret's files lie in now: the kubelet replaces it, and its link, as a whole."""
    return (folder / "..data").resolve() if (folder / "..data").exists() else folder


def _read_all(folder: Path) -> Credentials:
    token = folder / "sessionToken"
    return Credentials(
        _read(folder / "accessKey"), _read(folder / "secretKey"), (_read(token) or None) if token.exists() else None
    )


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip()
