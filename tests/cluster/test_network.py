"""The bare cluster's network, without the cluster: in a network namespace of the test's own."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

LIB = Path(__file__).parent / "lib.sh"
# Each node that joins has a lower address than those before it.
NODES_JOIN = f"""
. {LIB}
mac() {{ ip -oneline link show cprjob | grep -o 'link/ether [^ ]*'; }}
bridge cprjob 10.213.0.1/24
mac
for i in 9 5 1; do
  ip link add port$i address 02:00:00:00:00:0$i type veth peer name node$i
  ip link set port$i master cprjob up
  mac
done
"""


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="network namespaces need root and unshare")
def test_nodes_that_join_do_not_change_the_bridge_s_address() -> None:
    shown = subprocess.run(["unshare", "--net", "bash", "-c", NODES_JOIN], capture_output=True, text=True, check=True)
    macs = shown.stdout.split("\n")[:-1]
    assert len(macs) == 4
    assert len(set(macs)) == 1, macs
