#!/usr/bin/env bash
# Install the Debian packages that a bare cluster and tests/browser need and this machine lacks. Needs root.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
packages=(containerd runc containernetworking-plugins nftables iproute2 conntrack openssl gcc libc6-dev debootstrap buildah chromium)
missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0
say "installing ${missing[*]}"
apt-get -qq update
DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null
