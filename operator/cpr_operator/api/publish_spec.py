"""`spec.publish`: models that are served while the job trains."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from cpr_contract.choices import ExportFormat
from cpr_operator.api.base import SpecModel

#: Seconds between two publications, if neither a time nor a number of samples is stated.
DEFAULT_EVERY_S = 60


class Publish(SpecModel):
    """A chain of models that grows while the job trains: whole models, and the rows that changed since."""

    to: Annotated[
        str, Field(max_length=1024, pattern=r"^(s3://[a-z0-9][-a-z0-9.]*(/[-._/a-zA-Z0-9]*)?|file:///[^/].*)$")
    ]
    """The place of the chain: s3://bucket/prefix, at the endpoint and with the credentials of snapshots.store, or
    file:///folder, such as a volume of the pods. Each job has a place of its own."""
    every_seconds: Annotated[int, Field(ge=1, le=604800)] | None = None
    """The minimum time between two publications. The newest anchor is published, so a shorter time than
    snapshots.interval has no effect. Default: 60, without everySamples."""
    every_samples: Annotated[int, Field(ge=1, le=2**53 - 1)] | None = None
    """The minimum number of samples between two publications, instead of a time."""
    format: ExportFormat = "safetensors"
    """The format of the dense network, as of `cprjob export`. onnx and torch-export contain a program."""
    keep: Annotated[int, Field(ge=1, le=1000)] = 2
    """Number of whole models to keep, each with all rows that were published after it."""
