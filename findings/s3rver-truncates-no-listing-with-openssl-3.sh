#!/usr/bin/env bash
# s3rver answers 500 to every listing that is longer than a page, if Node.js was built with OpenSSL 3.
#
# Versions: s3rver 3.7.1, Node.js 20.20 (any from 17 on), minio 7.2.18 (which signs the requests), Python 3.11.
# Expected: ListObjectsV2 with max-keys=1 in a bucket of three objects lists one, with IsTruncated and a token.
# Seen: InternalError. s3rver makes the token with the cipher DES, which OpenSSL 3 offers no more by default. A bucket
#   of more than 1,000 objects, the longest page, cannot be listed. ListObjects of version 1 has no token, and works.
set -euo pipefail
folder=$(mktemp -d); server=
trap '[ -z "$server" ] || { kill "$server"; wait "$server" || true; }; rm -rf "$folder"' EXIT
npm install --silent --no-audit --no-fund --prefix "$folder/npm" s3rver@3.7.1
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet minio==7.2.18
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
mkdir "$folder/data"
node "$folder/npm/node_modules/.bin/s3rver" -d "$folder/data" -a 127.0.0.1 -p "$port" >"$folder/log" 2>&1 & server=$!
until grep -q listening "$folder/log"; do kill -0 "$server"; sleep 0.1; done
"$folder/venv/bin/python" - "$port" >"$folder/seen" <<'PYTHON'
import io
import sys
from xml.etree import ElementTree as ET

import urllib3
from minio import Minio
from minio.error import S3Error

once = urllib3.PoolManager(retries=False)
client = Minio(f"127.0.0.1:{sys.argv[1]}", "S3RVER", "S3RVER", secure=False, region="us-east-1", http_client=once)
client.make_bucket("clicks")
for name in "abc":
    client.put_object("clicks", name, io.BytesIO(b"1"), 1)
for title, query in {
    "version 2, whole": {"list-type": "2"},
    "version 2, a page": {"list-type": "2", "max-keys": "1"},
    "version 1, a page": {"max-keys": "1"},
}.items():
    try:
        page = ET.fromstring(client._execute("GET", "clicks", query_params=query).data)
        print(f"{title}:", [each.text for each in page.iterfind("{*}Contents/{*}Key")])
    except S3Error as error:
        print(f"{title}:", error.response.status, error.code)
PYTHON
grep -o '"reason":"unsupported"' "$folder/log" | sort -u >>"$folder/seen"
diff - "$folder/seen" <<'SEEN'
version 2, whole: ['a', 'b', 'c']
version 2, a page: 500 InternalError
version 1, a page: ['a']
"reason":"unsupported"
SEEN
echo "as seen"
