#!/usr/bin/env bash
# PyYAML writes some strings without quotes that kubectl reads as numbers or booleans.
#
# Versions: PyYAML 6.0.3, sigs.k8s.io/yaml 1.6.0 (with which kubectl and the API machinery turn YAML into JSON), Go.
# Expected: a manifest that a Python program dumped means on the cluster what it meant in the program. Both libraries
#   follow YAML 1.1, and PyYAML does put quotes around "1.5", "yes" and "0x1F".
# Seen: strings such as an abbreviated commit ("1e3", "12e45") and the answers "y" and "n" are dumped bare. PyYAML's
#   number needs a dot before the exponent, and its boolean has no one-letter words. sigs.k8s.io/yaml has both, so a
#   label becomes a number or a boolean, which the API server refuses, or an environment variable another text.
set -euo pipefail
folder=$(mktemp -d); trap 'chmod -R u+w "$folder"; rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyyaml==6.0.3
"$folder/venv/bin/python" >"$folder/dumped" <<'PYTHON'
import sys

import yaml

labels = {"answer": "y", "commit": "1e3", "longer": "12e45", "quoted": "yes", "version": "1.5"}
yaml.safe_dump(labels, sys.stdout)
assert yaml.safe_load(yaml.safe_dump(labels)) == labels
PYTHON
mkdir "$folder/read"; cd "$folder/read"
export GOPATH="$folder/go" GOCACHE="$folder/cache" GOFLAGS=-mod=mod
cat >main.go <<'GO'
package main

import (
	"fmt"
	"io"
	"os"

	"sigs.k8s.io/yaml"
)

func main() {
	text, _ := io.ReadAll(os.Stdin)
	json, err := yaml.YAMLToJSON(text)
	fmt.Println(string(json), err)
}
GO
go mod init read >/dev/null 2>&1
go get sigs.k8s.io/yaml@v1.6.0 >/dev/null 2>&1
{ cat "$folder/dumped"; go run . <"$folder/dumped"; } >"$folder/seen"
diff - "$folder/seen" <<'SEEN'
answer: y
commit: 1e3
longer: 12e45
quoted: 'yes'
version: '1.5'
{"answer":true,"commit":1000,"longer":1.2e+46,"quoted":"yes","version":"1.5"} <nil>
SEEN
echo "as seen"
