"""Who follows a page: a user who has the role `edit` in one namespace, and no other right."""

import json
from pathlib import Path

from cluster.harness import Cluster, Space, until

USER = "reader"


def kubeconfig(cluster: Cluster, space: Space, folder: Path) -> Path:
    """Give the user that role; return their kubeconfig, whose default is that namespace."""
    space.apply(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": USER},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}],
        }
    )
    until("the role is in force", lambda: may(cluster, space, "create", "cprjobs"), within_s=10)
    assert not may(cluster, space, "list", "nodes")
    assert not may(cluster, space, "create", "clusterroles")
    config = json.loads(cluster.kubectl("config", "view", "--raw", "--flatten", "-o", "json"))
    for user in config["users"]:
        user["user"]["as"] = USER
    for context in config["contexts"]:
        context["context"]["namespace"] = space.name
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config), "utf-8")
    return path


def may(cluster: Cluster, space: Space, verb: str, what: str) -> bool:
    """Whether the user may do that, there or for the whole cluster."""
    said = cluster.kubectl("auth", "can-i", verb, what, f"--as={USER}", "-n", space.name, check=False)
    return "yes" in said.split()
