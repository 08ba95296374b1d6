#!/usr/bin/env python3
"""Checks the manifests of integrations/kubernetes.

kubernetes_manifests.py [ATOLL PLUGIN CONTROLLER DRIVER]

Definitions of resources are judged by their schemas and CEL rules on resources that are right and on wrong ones, the
other manifests by each other and by the help of the programs, and the Helm chart by what it renders to. Where the
packages kubernetes-validate and helm-python-sdk are installed (`make test-full`), the schemas of Kubernetes and Helm
itself judge them, too. Exits with 1 and says what is wrong.
"""

import copy
import itertools
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from kubernetes_chart import check_chart
from kubernetes_files import ROOT, manifests, of_kind, of_program
from kubernetes_schema import check_structure, refusals, schema_of

GROUP = "atoll.dev/v1alpha1"
FLAG = re.compile(r"^--([a-z-]+)(=|$)")


# Definitions of resources.


def changed(resource, path, value):
    """A copy in which one field has another value, or is gone if the value is None."""
    resource = copy.deepcopy(resource)
    *above, last = path.split(".")
    place = resource
    for part in above:
        place = place.setdefault(part, {})
    if value is None:
        del place[last]
    else:
        place[last] = value
    return resource


#: Wrong values of a share, below `spec.share`, and what the refusal says.
BAD_SHARES = [
    ("smPartition", 130, "greater than the maximum of 100"),
    ("smPartition", 0, "less than the minimum of 1"),
    ("smPartition", -30, "less than the minimum"),
    ("smPartition", "30", "not of type 'integer'"),
    ("smPartition", 30.5, "not of type 'integer'"),
    ("gpuMem", "-2Gi", "does not match"),
    ("gpuMem", -5, "less than the minimum of 1"),
    ("gpuMem", 0, "less than the minimum of 1"),
    ("gpuMem", "0", "does not match"),
    ("gpuMem", "2GB", "does not match"),
    ("gpuMem", "1.5Gi", "does not match"),
    ("gpuMem", "2Gi\n", "does not match"),
    ("gpuMem", True, "not valid under any"),
    ("gpuMem", None, "'gpuMem' is a required property"),
    ("quota", None, "'quota' is a required property"),
    ("quota", {}, "'request' is a required property"),
    ("quota", {"request": 0}, "minimum of 0"),
    ("quota", {"request": -0.1}, "minimum of 0"),
    ("quota", {"request": 1.2}, "greater than the maximum of 1"),
    ("quota", {"request": 0.8, "limit": 0.4}, "at most its limit"),
    ("quota", {"request": 0.4, "limit": 2}, "greater than the maximum of 1"),
    ("quota", {"request": "half"}, "not of type 'number'"),
    ("class", "fast", "is not one of"),
    ("realTimeSlots", -1, "less than the minimum of 0"),
    ("realTimeSlots", 0, "at least one real-time slot"),
    ("ttlSeconds", 4, "less than the minimum of 5"),
    ("ttlSeconds", 601, "greater than the maximum of 600"),
    ("sm", 30, "unknown field"),
]

#: Values of a share that are possible although they are at a border.
GOOD_SHARES = [
    ("smPartition", 1),
    ("smPartition", 100),
    ("gpuMem", 1),
    ("gpuMem", "16Ti"),
    ("quota", {"request": 1}),
    ("quota", {"request": 0.01, "limit": 0.01}),
    ("realTimeSlots", 1),
    ("ttlSeconds", 5),
    ("ttlSeconds", 600),
]

BAD_FUNCTIONS = [
    ("spec", {}, "required property"),
    ("spec.function", "a/b", "does not match"),
    ("spec.function", "", "does not match"),
    ("spec.function", "-a", "does not match"),
    ("spec.function", "a" * 129, "is too long"),
    ("spec.replicas", -1, "less than the minimum of 0"),
    ("spec.replicas", 1001, "greater than the maximum"),
    ("spec.replicas", 1.5, "not of type 'integer'"),
    ("spec.spread", "Random", "is not one of"),
    ("spec.bundle.digest", "sha256:12", "does not match"),
    ("spec.bundle.digest", None, "'digest' is a required property"),
    ("spec.bundle.url", "file:///etc/passwd", "does not match"),
    ("spec.bundle.url", "http://models.example/a.kg", "does not match"),
    ("spec.nodeSelector", {"gpu": 1}, "not of type 'string'"),
    ("spec.nodeSelector", {f"label{at}": "x" for at in range(33)}, "too many properties"),
    ("spec.function_name", "a", "unknown field"),
    ("status", {"readyReplicas": -1}, "less than the minimum of 0"),
    ("status", {"conditions": [{"type": "Ready", "status": "Yes"}]}, "is not one of"),
]

BAD_INSTANCES = [
    ("spec.nodeName", None, "'nodeName' is a required property"),
    ("spec.nodeName", "GPU_1", "does not match"),
    ("spec.replicas", 2, "unknown field"),
    ("status", {"lease": {"lease": 0}}, "less than the minimum of 1"),
    ("status", {"lease": {"lease": 1, "epoch": 2}}, "'holder' is a required property"),
]

#: Changes of resources that are not possible.
BAD_CHANGES = [
    ("AtollFunction", "spec.function", "other", "does not change"),
    ("AtollFunction", "spec.bundle", None, "neither added nor removed"),
    ("AtollInstance", "spec.nodeName", "gpu-2", "does not change"),
    ("AtollInstance", "spec.share.smPartition", 20, "does not change"),
]

CONDITION = {"type": "Ready", "status": "False", "reason": "NoRoom", "message": "no device has 30 % of its units"}
LEASE = {"lease": 1, "epoch": 2, "holder": "h", "instance": "lease-1", "device": "host:0"}
GOOD_CHANGES = [
    ("AtollFunction", "spec.replicas", 0),
    ("AtollFunction", "spec.share.smPartition", 20),
    ("AtollFunction", "status", {"conditions": [CONDITION | {"lastTransitionTime": "2026-01-01T00:00:00Z"}]}),
    ("AtollInstance", "status", {"lease": LEASE}),
]


def check_resources(crds):
    resources = [(path, one) for path, one in manifests() if one["apiVersion"] == GROUP]
    for path, one in resources:
        found = refusals(crds[one["kind"]], one)
        assert not found, f"{path}: {found}"
    assert {one["kind"] for _, one in resources} == crds.keys(), "each kind has an example"
    first = {}
    for _, one in resources:
        first.setdefault(one["kind"], one)
    bad = [("AtollFunction", *one) for one in BAD_FUNCTIONS] + [("AtollInstance", *one) for one in BAD_INSTANCES]
    bad += [(kind, f"spec.share.{path}", *rest) for kind in crds for path, *rest in BAD_SHARES]
    for kind, path, value, says in bad:
        found = refusals(crds[kind], changed(first[kind], path, value))
        assert any(says in one for one in found), f"{kind} with {path} {value!r}: {says!r} is not in {found}"
    for kind, path, value in [(kind, f"spec.share.{path}", value) for kind in crds for path, value in GOOD_SHARES]:
        found = refusals(crds[kind], changed(first[kind], path, value))
        assert not found, f"{kind} with {path} {value!r}: {found}"
    for kind, path, value, says in BAD_CHANGES:
        found = refusals(crds[kind], changed(first[kind], path, value), old=first[kind])
        assert any(says in one for one in found), f"{kind}, {path} becomes {value!r}: {says!r} is not in {found}"
    for kind, path, value in GOOD_CHANGES:
        found = refusals(crds[kind], changed(first[kind], path, value), old=first[kind])
        assert not found, f"{kind}, {path} becomes {value!r}: {found}"
    shares = [schema_of(crd)["properties"]["spec"]["properties"]["share"] for crd in crds.values()]
    assert all(share == shares[0] for share in shares), "the kinds have different shares"
    return len(bad) + len(BAD_CHANGES)


# The other manifests.


def containers(pod):
    return pod.get("initContainers", []) + pod.get("containers", [])


def check_pod(where, pod):
    """What a pod names is there, and it may no more than it needs."""
    volumes = {volume["name"] for volume in pod.get("volumes", [])}
    mounted = {mount["name"] for one in containers(pod) for mount in one.get("volumeMounts", [])}
    assert mounted == volumes, f"{where}: volumes {volumes}, and mounted are {mounted}"
    for one in containers(pod):
        ports = {port.get("name"): port["containerPort"] for port in one.get("ports", [])}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            port = one.get(probe, {}).get("httpGet", {}).get("port")
            assert port is None or port in ports or f"--metrics-port={port}" in one["args"], f"{where}: {probe}"
        context = one.get("securityContext")
        if context is not None:
            assert context["allowPrivilegeEscalation"] is False, where
            assert context["capabilities"]["drop"] == ["ALL"] and context["readOnlyRootFilesystem"], where


def matches(selector, labels):
    return selector.items() <= labels.items()


def check_daemon():
    """The manifests of the daemon fit each other."""
    (daemonset,) = of_kind("DaemonSet")
    template = daemonset["spec"]["template"]
    labels, pod = template["metadata"]["labels"], template["spec"]
    assert matches(daemonset["spec"]["selector"]["matchLabels"], labels)
    assert of_kind("ServiceAccount", pod["serviceAccountName"])[0]["automountServiceAccountToken"] is False
    for volume in pod["volumes"]:
        if "configMap" in volume:
            of_kind("ConfigMap", volume["configMap"]["name"])
    daemon = next(one for one in pod["containers"] if one["name"] == "daemon")
    plugin = next(one for one in pod["containers"] if one["name"] == "device-plugin")
    ports = {port["name"]: port["containerPort"] for port in daemon["ports"]}
    for port in ports:
        assert f"--{port}-port={ports[port]}" in daemon["args"], port
    socket = next(one for one in daemon["args"] if one.startswith("--control-socket="))
    assert socket in plugin["args"], "the plugin asks the daemon of its pod"
    # The plugin asks over the socket as a member of its group.
    settings = tomllib.loads(of_kind("ConfigMap", "atoll")[0]["data"]["atoll.toml"])
    assert settings["socket_mode"] == 0o660 and pod["securityContext"]["fsGroup"] == 65532
    assert plugin["securityContext"]["runAsUser"] == 0 and "add" not in plugin["securityContext"]["capabilities"]
    (service,) = [one for one in of_kind("Service") if one["spec"].get("clusterIP") != "None"]
    assert service["spec"]["internalTrafficPolicy"] == "Local", "a pod reaches the daemon of its node"
    metadata = service["metadata"]
    url = f"--url=http://{metadata['name']}.{metadata['namespace']}.svc:{service['spec']['ports'][0]['port']}"
    assert url in plugin["args"], url
    for service in of_kind("Service"):
        assert matches(service["spec"]["selector"], labels)
        for port in service["spec"]["ports"]:
            assert port["port"] == ports[port["targetPort"]], port
    (policy,) = of_kind("NetworkPolicy")
    assert matches(policy["spec"]["podSelector"]["matchLabels"], labels) and policy["spec"]["egress"] == []
    opened = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
    assert opened == set(ports.values()) and all(rule["from"] for rule in policy["spec"]["ingress"]), opened
    (monitor,) = of_kind("ServiceMonitor")
    (metrics,) = [one for one in of_kind("Service") if one["spec"].get("clusterIP") == "None"]
    assert matches(monitor["spec"]["selector"]["matchLabels"], metrics["metadata"]["labels"])
    assert [one["port"] for one in monitor["spec"]["endpoints"]] == [port["name"] for port in metrics["spec"]["ports"]]


def check_policy(policy, labels):
    """A network policy lets the pods with these labels reach the daemons, and says nothing about what they reach."""
    (daemonset,) = of_kind("DaemonSet")
    assert matches(policy["spec"]["podSelector"]["matchLabels"], daemonset["spec"]["template"]["metadata"]["labels"])
    assert matches(policy["spec"]["ingress"][0]["from"][0]["podSelector"]["matchLabels"], labels)


def check_schemas(resources):
    """Judges resources by the schemas of Kubernetes, where they are installed."""
    try:
        import kubernetes_validate
    except ImportError:
        return
    for key, one in resources.items():
        try:
            kubernetes_validate.validate(one, "1.37", strict=True)
        except kubernetes_validate.ValidationError as error:
            raise AssertionError(f"{key}: {error.message}") from error


def check_driver():
    """The manifests of the driver of dynamic resource allocation fit each other, the daemons and the example."""
    found = of_program("dra-driver")
    daemonset = found["DaemonSet", "atoll-dra-driver"]
    template = daemonset["spec"]["template"]
    labels, pod = template["metadata"]["labels"], template["spec"]
    check_pod("the driver", pod)
    assert matches(daemonset["spec"]["selector"]["matchLabels"], labels)
    (others,) = of_kind("DaemonSet")
    assert others["spec"]["template"]["spec"]["nodeSelector"].items() <= pod["nodeSelector"].items(), "beside a daemon"
    account = found["ServiceAccount", pod["serviceAccountName"]]
    assert account["automountServiceAccountToken"] is False and pod["automountServiceAccountToken"] is True
    binding = found["ClusterRoleBinding", "atoll-dra-driver"]
    subject = {"kind": "ServiceAccount"} | {name: account["metadata"][name] for name in ("name", "namespace")}
    assert binding["roleRef"]["name"] == "atoll-dra-driver" and binding["subjects"] == [subject], binding
    # Its slices are of its own node, which the policy checks by the name of its account.
    policy = found["ValidatingAdmissionPolicy", "atoll-dra-driver"]["spec"]
    user = f"system:serviceaccount:{subject['namespace']}:{subject['name']}"
    assert user in policy["matchConditions"][0]["expression"], policy["matchConditions"]
    (rule,) = policy["matchConstraints"]["resourceRules"]
    assert rule["resources"] == ["resourceslices"] and set(rule["operations"]) == {"CREATE", "UPDATE", "DELETE"}, rule
    of_policy = found["ValidatingAdmissionPolicyBinding", "atoll-dra-driver"]["spec"]
    assert (of_policy["policyName"], of_policy["validationActions"]) == ("atoll-dra-driver", ["Deny"]), of_policy
    check_policy(found["NetworkPolicy", "atoll-dra-driver"], labels)
    (container,) = pod["containers"]
    daemon = others["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == daemon["image"], container["image"]
    plugin = next(one for one in others["spec"]["template"]["spec"]["containers"] if one["name"] == "device-plugin")
    (url,) = [one for one in plugin["args"] if one.startswith("--url=")]
    assert url in container["args"], url
    # Its files are at the same place on the node and in its pod, since the container runtime reads the paths.
    volumes = {one["name"]: one["hostPath"]["path"] for one in pod["volumes"] if "hostPath" in one}
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert all(mounts[name] == path for name, path in volumes.items()), mounts
    (device_class,) = [one for (kind, _), one in found.items() if kind == "DeviceClass"]
    driver = device_class["metadata"]["name"]
    assert device_class["spec"]["selectors"] == [{"cel": {"expression": f'device.driver == "{driver}"'}}], device_class
    (claim,) = of_kind("ResourceClaimTemplate")
    devices = claim["spec"]["spec"]["devices"]
    (request,) = devices["requests"]
    assert request["exactly"]["deviceClassName"] == driver, request
    assert set(request["exactly"]["capacity"]["requests"]) == {"sm", "memory", "realTimeSlots"}, request
    (config,) = devices["config"]
    assert config["requests"] == [request["name"]] and config["opaque"]["driver"] == driver, config
    check_schemas(found)


def check_controller(crds):
    """The controller's manifests fit each other and the daemons, and its account has few rights."""
    found = of_program("controller")
    deployment = found["Deployment", "atoll-controller"]
    template = deployment["spec"]["template"]
    labels, pod = template["metadata"]["labels"], template["spec"]
    check_pod("the controller", pod)
    assert matches(deployment["spec"]["selector"]["matchLabels"], labels)
    account = found["ServiceAccount", pod["serviceAccountName"]]
    assert account["automountServiceAccountToken"] is False and pod["automountServiceAccountToken"] is True
    for kind, role in (("ClusterRoleBinding", "ClusterRole"), ("RoleBinding", "Role")):
        binding = found[kind, "atoll-controller"]
        assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) == (role, "atoll-controller")
        subject = {"kind": "ServiceAccount"} | {name: account["metadata"][name] for name in ("name", "namespace")}
        assert binding["subjects"] == [subject], binding
        for rule in found[role, "atoll-controller"]["rules"]:
            assert "*" not in rule["verbs"] + rule["resources"] and "secrets" not in rule["resources"], rule
    resources = {crd["spec"]["names"]["plural"] for crd in crds.values()}
    rules = found["ClusterRole", "atoll-controller"]["rules"]
    own = {one.partition("/")[0] for rule in rules if rule["apiGroups"] == ["atoll.dev"] for one in rule["resources"]}
    assert own == resources, own
    check_policy(found["NetworkPolicy", "atoll-controller"], labels)
    (daemonset,) = of_kind("DaemonSet")
    daemon = next(one for one in daemonset["spec"]["template"]["spec"]["containers"] if one["name"] == "daemon")
    assert pod["containers"][0]["image"] == daemon["image"]
    namespaces = {one["metadata"].get("namespace", "atoll-system") for one in found.values()}
    assert namespaces == {"atoll-system"}, namespaces
    check_schemas(found)


def check_rights(crds):
    resources = {crd["spec"]["names"]["plural"] for crd in crds.values()}
    for role in of_kind("ClusterRole"):
        for rule in role["rules"]:
            assert rule["apiGroups"] == ["atoll.dev"] and "*" not in rule["verbs"] + rule["resources"], role
            assert {one.partition("/")[0] for one in rule["resources"]} <= resources, role
    assert not [one for _, one in manifests() if one["kind"].endswith("RoleBinding")], "no account gets rights"


def check_all():
    """What holds for every manifest."""
    seen = set()
    for path, one in manifests():
        if one["kind"] == "Kustomization":
            for resource in one["resources"]:
                assert (path.parent / resource).is_file(), f"{path} names {resource}"
            there = {str(file.relative_to(path.parent)) for file in path.parent.rglob("*.yaml")} - {path.name}
            assert there == set(one["resources"]), f"{path} leaves out {there - set(one['resources'])}"
            continue
        key = (one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"])
        assert key not in seen, f"{path}: {key} is there twice"
        seen.add(key)
        assert "latest" not in [part.partition(":")[2] for part in images(one)], f"{path} has an image without version"
        if one["kind"] == "Pod":
            check_pod(path, one["spec"])
        elif one["kind"] == "DaemonSet":
            check_pod(path, one["spec"]["template"]["spec"])
        elif one["kind"].endswith("ServingRuntime"):
            check_pod(path, one["spec"])
    try:
        import kubernetes_validate
    except ImportError:
        return
    own = ("atoll.dev/", "kustomize.config.k8s.io/", "monitoring.coreos.com/", "serving.kserve.io/")
    for path, one in manifests():
        if not one["apiVersion"].startswith(own):
            try:
                kubernetes_validate.validate(one, "1.37", strict=True)
            except kubernetes_validate.ValidationError as error:
                raise AssertionError(f"{path}: {error.message}") from error


def images(value):
    if isinstance(value, dict):
        yield from (one for key, one in value.items() if key == "image" and isinstance(one, str))
        for one in value.values():
            yield from images(one)
    if isinstance(value, list):
        for one in value:
            yield from images(one)


# The program.


def flags_of(text):
    """The flags in a text, as in a help."""
    return set(re.findall(r"--([a-z][a-z-]*)", text)) - {"help", "version"}


def help_of(command):
    return subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout


def flags_in_guide(guide, program):
    """The flags in the table of a program."""
    lines = guide[guide.index(f"The program `{program}` has these flags:") :].splitlines()[1:]
    begin = next(at for at, line in enumerate(lines) if line.startswith("|"))
    table = itertools.takewhile(lambda line: line.startswith("|"), lines[begin:])
    return {flag for line in table if line.startswith("| `--") for flag in flags_of(line)}


def check_program(atoll, *programs):
    """The programs have the commands and flags of the manifests and of the guide, and take the settings of the
    ConfigMap."""
    helps = {(Path(one).name,): help_of([one]) for one in programs}
    assert helps.keys() == {("atoll-device-plugin",), ("atoll-controller",), ("atoll-dra-driver",)}, helps.keys()
    guide = (ROOT / "../../docs/guide/kubernetes.md").read_text()
    for (program,), text in list(helps.items()):
        told = flags_in_guide(guide, program)
        of_help = {flag[1] for flag in re.finditer(r"^ *--([a-z-]+)", text, re.MULTILINE)} - {"help", "version"}
        assert told == of_help, f"the guide has {told}, {program} has {of_help}"
    pods = [one["spec"]["template"]["spec"] for one in of_kind("DaemonSet")] + [one["spec"] for one in of_kind("Pod")]
    pods += [one["spec"] for kind in ("ServingRuntime", "ClusterServingRuntime") for one in of_kind(kind)]
    others = [*of_program("controller").items(), *of_program("dra-driver").items()]
    pods += [one["spec"]["template"]["spec"] for (kind, _), one in others if kind in ("Deployment", "DaemonSet")]
    for one in (one for pod in pods for one in containers(pod)):
        command = one.get("command", [])
        if command[:1] != ["atoll"] and tuple(command) not in helps:
            continue
        words = tuple(command)
        if words not in helps:
            helps[words] = help_of([atoll, *words[1:]])
        for argument in one["args"]:
            flag = FLAG.match(argument)
            assert flag and flag[1] in flags_of(helps[words]), f"`{' '.join(words)}` has no {argument}"
    text = of_kind("ConfigMap", "atoll")[0]["data"]["atoll.toml"]
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "atoll.toml"
        settings.write_text(text)
        keys = ["--config", str(settings), "--auth-keys", str(Path(folder) / "keys.json")]
        command = [atoll, "auth", "create", *keys, "--tenant", "apps"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"atoll.toml of the ConfigMap: {done.stderr}"


def main():
    crds = {one["spec"]["names"]["kind"]: one for one in of_kind("CustomResourceDefinition")}
    for crd in crds.values():
        check_structure(crd)
    refused = check_resources(crds)
    check_all()
    check_daemon()
    check_rights(crds)
    check_controller(crds)
    check_driver()
    check_chart()
    if len(sys.argv) > 1:
        check_program(*sys.argv[1:5])
    print(f"all manifests are right: {len(manifests())}; wrong resources that are refused: {refused}")


if __name__ == "__main__":
    main()
