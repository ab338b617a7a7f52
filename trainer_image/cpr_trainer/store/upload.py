"""One upload, straight from memory to the socket.

minio's client signs a hash of the body, which costs more than sending it. Here the signature leaves the body out, as
those of presigned URLs do; a checksum header, which is signed, tells the store what has to arrive.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from urllib.parse import SplitResult, parse_qs, urlsplit

from minio import Minio
from minio.signer import sign_v4_s3

from cpr_trainer.store.buffers import size_of, slices
from cpr_trainer.store.connection import Connection
from cpr_trainer.store.s3_errors import error_of
from cpr_trainer.store.throttle import Throttle

_UNSIGNED = "UNSIGNED-PAYLOAD"


def upload(  # noqa: PLR0913, PLR0917 -- one request
    connection: Connection,
    bucket: str,
    name: str,
    views: Sequence[memoryview],
    headers: Mapping[str, str],
    throttle: Throttle | None,
) -> None:
    """Put an object of the bytes of `views`, with `headers` beside those of any upload.

    Raises S3Error and what else minio's client and urllib3 raise.
    """
    url, region = _place(connection.client, bucket, name)
    credentials = connection.credentials.retrieve()
    now = datetime.now(UTC)
    unsigned: dict[str, str | list[str] | tuple[str]] = {
        "Host": url.netloc,
        "Content-Length": str(size_of(views)),
        "Content-Type": "application/octet-stream",
        "X-Amz-Content-Sha256": _UNSIGNED,
        "X-Amz-Date": now.strftime("%Y%m%dT%H%M%SZ"),
        **headers,
    }
    if credentials.session_token:
        unsigned["X-Amz-Security-Token"] = credentials.session_token
    signed = sign_v4_s3(
        method="PUT",
        url=url,
        region=region,
        headers=unsigned,
        credentials=credentials,
        content_sha256=_UNSIGNED,
        date=now,
    )
    response = connection.http.urlopen(
        "PUT", url.geturl(), body=_paced(views, throttle), headers=signed, redirect=False
    )
    if response.status != 200:  # noqa: PLR2004 -- OK
        raise error_of(response)


def _place(client: Minio, bucket: str, name: str) -> tuple[SplitResult, str]:
    """Return an object's URL and its region: the client knows styles of addresses and asks for regions.

    It tells both in a presigned URL.
    """
    url = urlsplit(client.presigned_put_object(bucket, name))
    scope = parse_qs(url.query)["X-Amz-Credential"][0]  # key/date/region/s3/aws4_request
    return url._replace(query=""), scope.split("/")[-3]


def _paced(views: Sequence[memoryview], throttle: Throttle | None) -> Iterator[memoryview]:
    for piece in slices(views):
        if throttle:
            throttle.wait(len(piece))
        yield piece
