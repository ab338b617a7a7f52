"""The allowed contents of restricted pod templates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from cpr_operator.api.validate import parse_spec
from cpr_operator.desired.template import Restriction
from simulation.control_plane.workload import spec

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted(ROOT.glob("examples/**/*.yaml"))


def main(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "main", **fields}]}}


def side(**fields: Any) -> dict[str, Any]:
    return {"spec": {"initContainers": [{"name": "side", "image": "i", **fields}]}}


def volume(**source: Any) -> dict[str, Any]:
    return {"spec": {"volumes": [{"name": "v", **source}]}}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"spec": {"hostNetwork": True}}, "spec.hostNetwork"),
    ({"spec": {"hostPID": True}}, "spec.hostPID"),
    ({"spec": {"hostIPC": True}}, "spec.hostIPC"),
    ({"spec": {"nodeName": "node-1"}}, "spec.nodeName"),
    ({"spec": {"shareProcessNamespace": True}}, "spec.shareProcessNamespace"),
    ({"spec": {"serviceAccountName": "ns-admin"}}, "spec.serviceAccountName"),
    ({"spec": {"serviceAccount": "ns-admin"}}, "spec.serviceAccount"),
    ({"spec": {"priorityClassName": "system-node-critical"}}, "spec.priorityClassName"),
    ({"spec": {"securityContext": {"sysctls": [{"name": "kernel.msgmax"}]}}}, "spec.securityContext.sysctls"),
    ({"spec": {"aFieldOfALaterRelease": 1}}, "spec.aFieldOfALaterRelease"),
    ({"metadata": {"finalizers": ["x/y"]}}, "metadata.finalizers"),
    (
        {"metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/main": "unconfined"}}},
        "metadata.annotations.container.apparmor.security.beta.kubernetes.io/main",
    ),
    (volume(hostPath={"path": "/"}), "spec.volumes[0].hostPath"),
    (volume(nfs={"server": "s", "path": "/"}), "spec.volumes[0].nfs"),
    (volume(csi={"driver": "d"}), "spec.volumes[0].csi"),
    (
        volume(projected={"sources": [{"secret": {"name": "s"}}, {"serviceAccountToken": {"path": "t"}}]}),
        "spec.volumes[0].projected.sources[1].serviceAccountToken",
    ),
    (side(securityContext={"privileged": True}), "spec.initContainers[0].securityContext.privileged"),
    (side(securityContext={"runAsUser": 0}), "spec.initContainers[0].securityContext.runAsUser"),
    (side(securityContext={"runAsNonRoot": False}), "spec.initContainers[0].securityContext.runAsNonRoot"),
    (
        side(securityContext={"allowPrivilegeEscalation": True}),
        "spec.initContainers[0].securityContext.allowPrivilegeEscalation",
    ),
    (
        main(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}}),
        "spec.containers[0].securityContext.capabilities.add",
    ),
    (main(securityContext={"procMount": "Unmasked"}), "spec.containers[0].securityContext.procMount"),
    (
        main(securityContext={"seccompProfile": {"type": "Unconfined"}}),
        "spec.containers[0].securityContext.seccompProfile.type",
    ),
    (main(ports=[{"containerPort": 1, "hostPort": 80}]), "spec.containers[0].ports[0].hostPort"),
    (
        main(volumeMounts=[{"mountPath": "/x", "name": "v", "mountPropagation": "Bidirectional"}]),
        "spec.containers[0].volumeMounts[0].mountPropagation",
    ),
    (main(livenessProbe={"httpGet": {"host": "10.0.0.1"}}), "spec.containers[0].livenessProbe.httpGet.host"),
    (
        side(lifecycle={"preStop": {"tcpSocket": {"host": "10.0.0.1"}}}),
        "spec.initContainers[0].lifecycle.preStop.tcpSocket.host",
    ),
]


@pytest.mark.parametrize("role", ["trainers", "shards"])
@pytest.mark.parametrize(("template", "field"), REFUSED, ids=[field for _, field in REFUSED])
def test_template_that_grants_more_is_refused_by_field(role: str, template: dict[str, Any], field: str) -> None:
    refusal = str(Restriction().refuses(parse_spec(spec(**{f"{role}__template": template}))))
    assert refusal.startswith(f"spec.{role}.template.{field}: ")
    assert "restrictTemplates" in refusal


ALLOWED: dict[str, dict[str, Any]] = {
    "nothing": {},
    "places": {
        "metadata": {"labels": {"team": "ads"}, "annotations": {"note": "mine"}},
        "spec": {
            "nodeSelector": {"disk": "fast"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
            "topologySpreadConstraints": [],
            "priorityClassName": "batch",
            "runtimeClassName": "gvisor",
            "schedulerName": "volcano",
            "imagePullSecrets": [{"name": "registry"}],
            "serviceAccountName": "default",
            "hostNetwork": False,
            "securityContext": {"runAsNonRoot": True, "fsGroup": 1, "seccompProfile": {"type": "RuntimeDefault"}},
        },
    },
    "a main container": main(
        resources={"limits": {"nvidia.com/gpu": 1}},
        env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
        volumeMounts=[{"name": "v", "mountPath": "/v", "subPath": "x"}],
        livenessProbe={"periodSeconds": 30},
        securityContext={"capabilities": {"drop": ["ALL"]}, "runAsUser": 1000, "allowPrivilegeEscalation": False},
    ),
    "a side container": side(command=["sleep", "1"], ports=[{"containerPort": 9000}]),
    **{
        kind: volume(**{kind: {}})
        for kind in ("emptyDir", "persistentVolumeClaim", "configMap", "secret", "downwardAPI", "ephemeral")
    },
    "projected": volume(projected={"sources": [{"configMap": {"name": "c"}}, {"secret": {"name": "s"}}]}),
}


@pytest.mark.parametrize("template", ALLOWED.values(), ids=ALLOWED)
def test_fields_that_jobs_need_are_allowed(template: dict[str, Any]) -> None:
    assert Restriction().refuses(parse_spec(spec(trainers__template=template, shards__template=template))) is None


def test_devices_are_for_trainers() -> None:
    claims = {"spec": {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]}}
    claims["spec"] |= main(resources={"claims": [{"name": "gpu"}]})["spec"]
    assert Restriction().refuses(parse_spec(spec(trainers__template=claims))) is None
    refusal = str(Restriction().refuses(parse_spec(spec(shards__template=claims))))
    assert refusal.startswith("spec.shards.template.spec.resourceClaims: ")


def test_accounts_that_the_operator_s_administrator_named_are_allowed() -> None:
    job = parse_spec(spec(trainers__template={"spec": {"serviceAccountName": "to-the-bucket"}}))
    assert Restriction(frozenset({"to-the-bucket"})).refuses(job) is None
    assert Restriction(frozenset({"another"})).refuses(job) is not None


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_all_examples_are_allowed(path: Path) -> None:
    jobs = [each for each in yaml.safe_load_all(path.read_text("utf-8")) if each and each["kind"] == "CPRJob"]
    assert [Restriction().refuses(parse_spec(job["spec"])) for job in jobs] == [None] * len(jobs)
