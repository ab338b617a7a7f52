"""`spec.snapshots.store` and `spec.data.store`: stores of objects, and the credentials for them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from cpr_operator.api.base import ObjectName, SpecModel


class SecretKey(SpecModel):
    """One key of a Secret in the job's namespace."""

    name: ObjectName
    """The Secret's name."""
    key: Annotated[str, Field(max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")] = "ca.crt"
    """The key in the Secret."""


class Endpoint(SpecModel):
    """An S3-compatible endpoint with its credentials."""

    endpoint: Annotated[str, Field(max_length=1024, pattern=r"^https?://[^/?#]+/?$")]
    """https://host[:port] or http://host[:port]. The scheme says whether TLS is used."""
    region: Annotated[str, Field(max_length=64)] | None = None
    """The store's region, if it needs one."""
    ca_bundle: SecretKey | None = None
    """The Secret with the CA bundle (PEM) to verify the store's certificate with."""
    credentials_secret: ObjectName | None = None
    """A Secret in the job's namespace with accessKey, secretKey and, if needed, sessionToken. Default: the pods'
    workload identity."""


class Store(Endpoint):
    """An S3-compatible store, or a folder that all pods share."""

    endpoint: Annotated[str, Field(max_length=1024, pattern=r"^(https?://[^/?#]+/?|file:///.+)$")]
    """https://host[:port], http://host[:port] or file:///folder. The scheme says whether TLS is used."""
    bucket: Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
    """The bucket, which must exist. For a folder endpoint: the first folder below it."""
    prefix: Annotated[str, Field(max_length=512, pattern=r"^[-._/a-zA-Z0-9]*$")] = ""
    """The prefix of all keys of this job. The job's uid follows it."""
