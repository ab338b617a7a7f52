"""The chart, rendered by helm without a cluster: what it installs, what it allows, what it refuses."""

import re

import pytest
import yaml

from support.chart import CHART, Object, default, documented, helm, notes, of_kind, render, table

CRD = CHART.parents[1] / "crds" / "cprjobs.cprjob.io.yaml"

SERVED = {
    ("cprjob.io", "cprjobs"): {"get", "list", "watch", "patch", "delete"},
    ("cprjob.io", "cprjobs/status"): {"update", "patch"},
    ("", "pods"): {"get", "list", "watch", "create", "delete", "patch"},
    ("policy", "poddisruptionbudgets"): {"get", "create", "patch", "delete"},
    ("scheduling.k8s.io", "podgroups"): {"get", "create", "patch", "delete"},
    ("networking.k8s.io", "networkpolicies"): {"get", "create", "patch", "delete"},
    ("", "events"): {"create", "patch", "list"},
    ("events.k8s.io", "events"): {"create", "patch"},
    ("", "secrets"): {"create"},
}
QUEUES = {
    ("kueue.x-k8s.io", "workloads"): {"get", "list", "watch", "create", "patch", "delete"},
    ("kueue.x-k8s.io", "workloads/status"): {"patch"},
}
CERTIFICATES = {("cert-manager.io", "certificaterequests"): {"get", "create", "delete"}}
OF_QUEUES = {("kueue.x-k8s.io", each): {"get"} for each in ("resourceflavors", "workloadpriorityclasses")}
LEASE = {("coordination.k8s.io", "leases"): {"create", "get", "update"}}
OWN_CRD = {("apiextensions.k8s.io", "customresourcedefinitions"): {"get"}}


def rights(role: Object) -> dict[tuple[str, str], set[str]]:
    """Return the verbs of a role, by group and resource; two rules for one resource add up."""
    granted: dict[tuple[str, str], set[str]] = {}
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                granted.setdefault((group, resource), set()).update(rule["verbs"])
    return granted


def operator(objects: list[Object]) -> Object:
    (deployment,) = of_kind(objects, "Deployment")
    pod: Object = deployment["spec"]["template"]["spec"]
    return pod


def environment(objects: list[Object]) -> dict[str, str | None]:
    """The operator's variables."""
    return {each["name"]: each.get("value") for each in operator(objects)["containers"][0]["env"]}


def test_lint_finds_nothing() -> None:
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout


def test_crd_is_the_generated_one_and_survives_uninstall() -> None:
    source = yaml.safe_load(CRD.read_text())
    (crd,) = of_kind(render(), "CustomResourceDefinition")
    assert crd["spec"] == source["spec"]
    assert crd["metadata"]["name"] == source["metadata"]["name"]
    annotations = source["metadata"].get("annotations", {}) | {"helm.sh/resource-policy": "keep"}
    assert crd["metadata"]["annotations"] == annotations
    assert of_kind(render("crds.install=false"), "CustomResourceDefinition") == []


def own_role(objects: list[Object]) -> Object:
    """The operator's own ClusterRole."""
    (binding,) = of_kind(objects, "ClusterRoleBinding")
    (role,) = [
        each for each in of_kind(objects, "ClusterRole") if each["metadata"]["name"] == binding["roleRef"]["name"]
    ]
    return role


def test_users_rights_are_added_to_the_cluster_s_own_roles() -> None:
    added: dict[str, dict[tuple[str, str], set[str]]] = {}
    for role in of_kind(render(), "ClusterRole"):
        for label in role["metadata"]["labels"]:
            if label.startswith("rbac.authorization.k8s.io/aggregate-to-"):
                for what, verbs in rights(role).items():
                    added.setdefault(label.rpartition("-")[2], {}).setdefault(what, set()).update(verbs)
    read = {"get", "list", "watch"}
    change = {"create", "update", "patch", "delete", "deletecollection"}
    scale = ("cprjob.io", "cprjobs/scale")
    view = {("cprjob.io", "cprjobs"): read, ("cprjob.io", "cprjobs/status"): read, scale: {"get"}}
    edit = view | {("cprjob.io", "cprjobs"): read | change, scale: {"get", "update", "patch"}}
    assert added == {"view": view, "edit": edit, "admin": edit}
    assert of_kind(render("rbac.create=false"), "ClusterRole") == []


@pytest.mark.parametrize(
    ("values", "everywhere", "of_namespaces"),
    [
        ((), SERVED, {}),
        (("watchNamespaces={a,b}",), {}, {"a": SERVED, "b": SERVED}),
        (("kueue.enabled=true",), SERVED | QUEUES | OF_QUEUES, {}),
        (("kueue.enabled=true", "watchNamespaces={a}"), OF_QUEUES, {"a": SERVED | QUEUES}),
        (("certManager.enabled=true",), SERVED | CERTIFICATES, {}),
        (("certificates.issuerRef.name=ca", "watchNamespaces={a}"), {}, {"a": SERVED | CERTIFICATES}),
    ],
    ids=["all namespaces", "chosen namespaces", "queues", "queues in a chosen namespace", "issuers", "an issuer"],
)
def test_operator_has_these_rights_and_no_others(
    values: tuple[str, ...], everywhere: dict[tuple[str, str], set[str]], of_namespaces: dict[str, Object]
) -> None:
    objects = render(*values)
    cluster_role = own_role(objects)
    assert rights(cluster_role) == everywhere | OWN_CRD
    (own,) = [rule for rule in cluster_role["rules"] if rule["apiGroups"] == ["apiextensions.k8s.io"]]
    assert own["resourceNames"] == ["cprjobs.cprjob.io"]
    roles = [each["metadata"] | {"rights": rights(each)} for each in of_kind(objects, "Role")]
    found = {
        role["namespace"]: role["rights"] for role in roles if role["name"] not in {"cprjob-lease", "cprjob-identity"}
    }
    assert found == of_namespaces
    bindings = [*of_kind(objects, "RoleBinding"), *of_kind(objects, "ClusterRoleBinding")]
    account = {"kind": "ServiceAccount", "name": "cprjob", "namespace": "operators"}
    assert [binding["subjects"] for binding in bindings] == [[account]] * (3 + len(of_namespaces))
    assert environment(objects)["CPR_OPERATOR_KUEUE"] == str("kueue.enabled=true" in values).lower()
    assert environment(objects).get("CPR_OPERATOR_NAMESPACES", "") == ",".join(of_namespaces)


@pytest.mark.parametrize("values", [(), ("watchNamespaces={a,operators}",)])
def test_lease_is_the_operator_s_own_in_its_own_namespace(values: tuple[str, ...]) -> None:
    objects = render(*values)
    (role,) = [each for each in of_kind(objects, "Role") if each["metadata"]["name"] == "cprjob-lease"]
    assert role["metadata"]["namespace"] == "operators"
    assert rights(role) == LEASE
    bound = [rule for rule in role["rules"] if rule["verbs"] != ["create"]]
    assert [rule["resourceNames"] for rule in bound] == [["cprjob"]]
    assert environment(objects)["CPR_OPERATOR_LEASE"] == "operators/cprjob"
    others = [each for each in objects if each["kind"] in {"Role", "ClusterRole"} and each != role]
    assert not any(("coordination.k8s.io", "leases") in rights(each) for each in others)


@pytest.mark.parametrize("values", [(), ("watchNamespaces={a}", "encryption=TLS")])
def test_operator_reads_no_secret_but_its_own(values: tuple[str, ...]) -> None:
    objects = render(*values)
    roles = [each for each in objects if each["kind"] in {"Role", "ClusterRole"}]
    rules = [
        (role["metadata"].get("namespace"), rule)
        for role in roles
        for rule in role["rules"]
        if "secrets" in rule["resources"] and set(rule["verbs"]) - {"create", "delete"}
    ]
    own = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["cprjob-identity"], "verbs": ["get"]}
    assert rules == [("operators", own)]
    namespace, _, lease = (environment(objects)["CPR_OPERATOR_LEASE"] or "").partition("/")
    assert (namespace, f"{lease}-identity") == ("operators", "cprjob-identity")
    (role,) = [each for each in roles if each["metadata"]["name"] == "cprjob-identity"]
    assert rights(role) == {("", "secrets"): {"create", "get"}}


def test_requests_for_the_lease_have_the_priority_of_elections() -> None:
    objects = render("serviceAccount.name=own")
    (schema,) = of_kind(objects, "FlowSchema")
    assert schema["apiVersion"] == "flowcontrol.apiserver.k8s.io/v1"
    assert schema["metadata"]["name"] == "operators-cprjob-lease"
    assert schema["spec"]["priorityLevelConfiguration"] == {"name": "leader-election"}
    assert schema["spec"]["matchingPrecedence"] < 9000
    (rule,) = schema["spec"]["rules"]
    account = {"name": "own", "namespace": "operators"}
    assert rule["subjects"] == [{"kind": "ServiceAccount", "serviceAccount": account}]
    assert rule["resourceRules"] == [
        {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "verbs": ["get", "create", "update"],
            "namespaces": ["operators"],
        }
    ]
    assert of_kind(render("flowSchema.create=false"), "FlowSchema") == []


def test_replicas_run_on_different_nodes_and_one_is_always_available() -> None:
    objects = render()
    (deployment,) = of_kind(objects, "Deployment")
    spec = deployment["spec"]
    assert spec["replicas"] == 2
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    (term,) = operator(objects)["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["podAffinityTerm"] == {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": spec["selector"],
    }
    (budget,) = of_kind(objects, "PodDisruptionBudget")
    assert budget["spec"] == {"maxUnavailable": 1, "selector": spec["selector"]}
    (alone,) = of_kind(render("replicas=1"), "Deployment")
    assert alone["spec"]["replicas"] == 1


def test_replica_on_a_lost_node_is_replaced_soon() -> None:
    for values in ((), ("tolerations[0].key=dedicated", "tolerations[0].operator=Exists")):
        tolerations = operator(render(*values))["tolerations"]
        soon = {each["key"]: each["tolerationSeconds"] for each in tolerations if each.get("effect") == "NoExecute"}
        assert soon == {"node.kubernetes.io/not-ready": 15, "node.kubernetes.io/unreachable": 15}
        assert len(tolerations) == 2 + len(values) // 2


def test_image_s_digest_wins_over_its_tag() -> None:
    digest = f"sha256:{'a' * 64}"
    settings = {
        (): "cprjob-operator:0.1.0",
        ("image.registry=registry.example:5000/team", "image.tag=x"): "registry.example:5000/team/cprjob-operator:x",
        ("image.repository=other", "image.tag=x", f"image.digest={digest}"): f"other@{digest}",
    }
    for values, image in settings.items():
        objects = render(*values)
        (test,) = of_kind(objects, "Pod")
        assert [pod["containers"][0]["image"] for pod in (operator(objects), test["spec"])] == [image, image]


def test_names_follow_the_overrides() -> None:
    names = {
        (): ("cprjob", "cprjob"),
        ("nameOverride=trainer",): ("cprjob-trainer", "trainer"),
        ("fullnameOverride=own",): ("own", "cprjob"),
        ("fullnameOverride=own", "nameOverride=trainer"): ("own", "trainer"),
    }
    for values, (full, name) in names.items():
        objects = render(*values)
        (deployment,) = of_kind(objects, "Deployment")
        assert deployment["metadata"]["name"] == full
        assert deployment["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"] == name
        assert environment(objects)["CPR_OPERATOR_LEASE"] == f"operators/{full}"
        (service,) = of_kind(objects, "Service")
        assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
        named = (each["metadata"]["name"] for each in objects if each["kind"] != "CustomResourceDefinition")
        assert all(each.removeprefix("operators-").startswith(full) for each in named)


@pytest.mark.parametrize("kind", ["Deployment", "Pod"])
def test_pods_have_the_restricted_profile_and_a_memory_limit(kind: str) -> None:
    objects = render()
    pod = operator(objects) if kind == "Deployment" else of_kind(objects, "Pod")[0]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "memory" in container["resources"]["limits"]


def test_probes_metrics_and_service_share_the_port() -> None:
    objects = render("httpPort=9090", "serviceMonitor.enabled=true")
    (container,) = operator(objects)["containers"]
    assert container["ports"] == [{"name": "http", "containerPort": 9090}]
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    assert {"name": "CPR_OPERATOR_HTTP_PORT", "value": "9090"} in container["env"]
    (service,) = of_kind(objects, "Service")
    assert service["spec"]["ports"] == [{"name": "http", "port": 9090, "targetPort": "http"}]
    (monitor,) = of_kind(objects, "ServiceMonitor")
    endpoint = {"port": "http", "path": "/metrics", "interval": "30s", "honorLabels": True}
    assert monitor["spec"]["endpoints"] == [endpoint]


def test_optional_objects_are_off() -> None:
    kinds = {each["kind"] for each in render()}
    optional = {"ServiceMonitor", "PodMonitor", "PrometheusRule", "ConfigMap", "NetworkPolicy"}
    assert not kinds & {*optional, "Secret", "Namespace"}
    assert of_kind(render("networkPolicy.enabled=true"), "NetworkPolicy")


@pytest.mark.parametrize(
    "value",
    [
        "unknown=1",
        "log.level=loud",
        "log.format=xml",
        "image.digest=sha256:abc",
        "image.registry=https://registry.example",
        "fullnameOverride=No_Name",
        "extraEnv[0].name=CPR_OPERATOR_HTTP_PORT",
        "podMonitor.interval=often",
        "serviceMonitor.interval=null",
        "image.name=x",
        "httpPort=80",
        "replicas=0",
        "watchNamespaces={No_Name}",
        "crds.instal=false",
        "flowSchema.matchingPrecedence=0",
        "image.pullPolicy=Maybe",
        "restrictTemplates=yes",
        "templateServiceAccounts={No_Name}",
        "jobPeers[0].namespace=x",
        "encryption=Mutual",
        "certificates.issuerRef.kind=issuer",
    ],
)
def test_schema_refuses(value: str) -> None:
    done = helm("template", "cprjob", str(CHART), "--set", value)
    assert done.returncode != 0
    assert "values don't meet the specifications of the schema" in done.stderr


def test_every_value_has_a_default_and_the_readme_lists_it() -> None:
    assert all(schema["description"].endswith(".") for _, schema in documented())
    assert [path for path, _ in documented() if default(path) is None] == []
    values = (CHART / "README.md").read_text("utf-8").partition("\n## Values\n")[2]
    assert re.findall(r"^\| `.*$", values, re.MULTILINE) == table()


PEERS = "jobPeers[0].namespaceSelector.matchLabels.team=m"


@pytest.mark.parametrize(
    ("values", "present", "absent"),
    [
        (
            (),
            ("kubectl apply", "kubectl get cprjobs --all-namespaces --watch", "docs/operator.md", "--take-ownership"),
            ("jobPeers",),
        ),
        (("crds.install=false", "watchNamespaces={a}"), (), ("--take-ownership",)),
        (("podMonitor.enabled=true",), ("name it in jobPeers",), ()),
        (("podMonitor.enabled=true", PEERS), (), ("jobPeers",)),
        (("prometheusRule.enabled=true",), ("serviceMonitor.enabled",), ()),
        (("prometheusRule.enabled=true", "serviceMonitor.enabled=true"), (), ("serviceMonitor.enabled",)),
    ],
    ids=lambda values: ",".join(values) or "default",
)
def test_notes_name_the_next_steps(values: tuple[str, ...], present: tuple[str, ...], absent: tuple[str, ...]) -> None:
    found = notes(*values)
    assert [words for words in present if words not in found] == []
    assert [words for words in absent if words in found] == []


@pytest.mark.parametrize(
    ("values", "variables"),
    [
        (
            (),
            {
                "RESTRICT_TEMPLATES": "true",
                "SERVICE_ACCOUNTS": "",
                "REPORT_PEERS": "[]",
                "LOG_LEVEL": "info",
                "LOG_FORMAT": "text",
                "ENCRYPTION": "None",
                "ISSUER": "",
            },
        ),
        (
            ("restrictTemplates=false", "templateServiceAccounts={a,b}"),
            {"RESTRICT_TEMPLATES": "false", "SERVICE_ACCOUNTS": "a,b"},
        ),
        (
            ("encryption=TLS", "certificates.issuerRef.name=ca"),
            {"ENCRYPTION": "TLS", "ISSUER": "ClusterIssuer.cert-manager.io/ca"},
        ),
        ((PEERS,), {"REPORT_PEERS": '[{"namespaceSelector":{"matchLabels":{"team":"m"}}}]'}),
        (("log.level=debug", "log.format=json"), {"LOG_LEVEL": "debug", "LOG_FORMAT": "json"}),
    ],
    ids=["default", "templates", "encryption", "peers", "log"],
)
def test_values_become_variables_of_the_operator(values: tuple[str, ...], variables: dict[str, str]) -> None:
    objects = render(*values, "extraEnv[0].name=HTTPS_PROXY", "extraEnv[0].value=http://proxy")
    expected = {f"CPR_OPERATOR_{name}": value for name, value in variables.items()} | {"HTTPS_PROXY": "http://proxy"}
    assert environment(objects).items() >= expected.items()
    (container,) = operator(objects)["containers"]
    fields = [each["valueFrom"] for each in container["env"] if each["name"] == "CPR_OPERATOR_NAMESPACE"]
    assert fields == [{"fieldRef": {"fieldPath": "metadata.namespace"}}]


def test_values_place_the_operator_and_add_volumes() -> None:
    pod = operator(
        render(
            "affinity.nodeAffinity.x=y",
            "priorityClassName=system-cluster-critical",
            "nodeSelector.a=b",
            "topologySpreadConstraints[0].maxSkew=1",
            "topologySpreadConstraints[0].topologyKey=zone",
            "topologySpreadConstraints[0].whenUnsatisfiable=ScheduleAnyway",
            "extraVolumes[0].name=ca",
            "extraVolumes[0].configMap.name=company-ca",
            "extraVolumeMounts[0].name=ca",
            "extraVolumeMounts[0].mountPath=/etc/ca",
        )
    )
    assert pod["affinity"] == {"nodeAffinity": {"x": "y"}}
    assert pod["priorityClassName"] == "system-cluster-critical"
    assert pod["nodeSelector"] == {"a": "b"}
    assert pod["topologySpreadConstraints"] == [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    ]
    assert "topologySpreadConstraints" not in operator(render())
    assert pod["volumes"][1:] == [{"name": "ca", "configMap": {"name": "company-ca"}}]
    mounts = pod["containers"][0]["volumeMounts"]
    assert mounts == [{"name": "tmp", "mountPath": "/tmp"}, {"name": "ca", "mountPath": "/etc/ca"}]  # noqa: S108
