#!/bin/sh
# Pack the plugin of krew and its manifest: pack.sh VERSION RELEASES FOLDER. The same input gives the same bytes.
#   RELEASES  the address below which releases are downloaded
set -eu
here=$(cd "$(dirname "$0")" && pwd) version=$1 releases=$2 out=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sed "s/@VERSION@/$version/" "$here/kubectl-cprjob" >"$work/kubectl-cprjob"
cp "$here/../../LICENSE" "$work"
chmod 755 "$work/kubectl-cprjob"
chmod 644 "$work/LICENSE"
mkdir -p "$out"
archive=$out/kubectl-cprjob-$version.tar.gz
tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$work" -cf - LICENSE kubectl-cprjob | gzip -n >"$archive"
sha=$(sha256sum "$archive" | cut -d ' ' -f 1)
sed "s|@VERSION@|$version|g; s|@RELEASES@|$releases|; s|@SHA256@|$sha|" "$here/cprjob.yaml" >"$out/cprjob-krew.yaml"
