"""The base of every part of the resource: a frozen model with camelCase names, and bounded field types.

Every list and string has a bound, because the API server estimates the cost of CEL rules by the largest value that the
schema allows.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, Never, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema
from pydantic.alias_generators import to_camel

#: More shards with a common parity save little memory, and a rebuild reads from more shards.
MAX_DATA_SHARDS = 16
#: Bounded because each prefetched step holds the vectors of a batch in memory.
MAX_PREFETCH = 16
MAX_RESTARTS = 1000

#: The name of an object in the job's namespace.
ObjectName = Annotated[str, Field(max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
#: A column of the data.
ColumnName = Annotated[str, Field(min_length=1, max_length=128)]

#: package.module:factory, in Python identifiers.
_ENTRYPOINT = r"^[A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$"
Entrypoint = Annotated[str, Field(max_length=256, pattern=_ENTRYPOINT)]
_FILES = r"((s3|gs|hdfs)://[^/]+/.+|abfss://[^/@]+@[^/@]+/.+|file:///.+|/.+)"
#: The location of files: in a store, or on a disk.
Uri = Annotated[str, Field(max_length=1024, pattern=f"^{_FILES}$")]
#: The location of files, or of a topic.
DataUri = Annotated[str, Field(max_length=1024, pattern=f"^({_FILES}|kafka://[^/]+/.+)$")]

#: Integers beyond this are not exact in every JSON reader.
EXACT = 2**53 - 1


class Model(BaseModel):
    """A part of the resource: camelCase in JSON, snake_case in Python. The docstring of a field is in the CRD."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        frozen=True,
        use_attribute_docstrings=True,
        validate_by_alias=True,
        validate_by_name=True,
        validate_default=True,
    )

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values by the names of the API, without absent values."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    def evolve(self, **changes: Never) -> Self:
        """Return a copy with other values of some fields, or the model itself if it has these values.

        Nothing is validated; tools/mypy_evolve.py makes mypy check names and types.
        """
        fields: dict[str, object] = dict(changes)
        if all(getattr(self, name) == value for name, value in fields.items()):
            return self
        return self.model_copy(update=fields)


class SpecModel(Model):
    """A part of spec: an unknown field is an error, never ignored."""

    model_config = ConfigDict(extra="forbid")


def parse_time(value: object) -> object:
    """Convert an RFC 3339 string to seconds since the epoch, and leave anything else to pydantic."""
    return datetime.fromisoformat(value).timestamp() if isinstance(value, str) else value


def epoch(timestamp: str | None) -> float | None:
    """Return an RFC 3339 time in seconds since the epoch; None without one."""
    return datetime.fromisoformat(timestamp).timestamp() if timestamp else None


def format_time(seconds: float) -> str:
    """Convert seconds since the epoch to RFC 3339 in UTC, to the millisecond."""
    stamp = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return stamp.replace("+00:00", "Z")


def cut(length: int) -> Callable[[object], object]:
    """Return a validator that shortens strings to `length` characters and leaves anything else to pydantic."""
    return lambda value: value[:length] if isinstance(value, str) else value


#: Seconds since the epoch in Python, RFC 3339 in JSON.
Timestamp = Annotated[
    float,
    BeforeValidator(parse_time),
    PlainSerializer(format_time, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]

Count = Annotated[int, Field(ge=0, le=EXACT)]
Positive = Annotated[int, Field(ge=1, le=EXACT)]
Seconds = Annotated[float, Field(ge=0)]
Portion = Annotated[float, Field(ge=0, le=1)]
#: Foreign text (of a kubelet or a process) is truncated, because a status must always be writable.
Word = Annotated[str, BeforeValidator(cut(64)), Field(max_length=64)]
MetricName = Annotated[str, BeforeValidator(cut(160)), Field(max_length=160)]
Name = Annotated[str, Field(max_length=253)]
Key = Annotated[str, Field(max_length=1024)]
Sentence = Annotated[str, BeforeValidator(cut(1024)), Field(max_length=1024)]
