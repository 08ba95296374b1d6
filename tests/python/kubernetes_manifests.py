#!/usr/bin/env python3
"""Checks the manifests of integrations/kubernetes.

kubernetes_manifests.py [ATOLL PLUGIN CONTROLLER]

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

import yaml
from kubernetes_schema import check_structure, refusals, schema_of

ROOT = Path(__file__).resolve().parents[2] / "integrations/kubernetes"
GROUP = "atoll.dev/v1alpha1"
FLAG = re.compile(r"^--([a-z-]+)(=|$)")


class UniqueKeys(yaml.SafeLoader):
    """Refuses a key that is there twice, of which PyYAML would take the last."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep) for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1}
        assert not twice, f"{node.start_mark}: {twice} is there twice"
        return super().construct_mapping(node, deep)


def load(path):
    """The documents of a file, in order."""
    found = [one for one in yaml.load_all(path.read_text(), UniqueKeys) if one is not None]
    assert found, f"{path} has no document"
    return found


def manifests():
    """All manifests with their paths, without the templates of the chart."""
    folders = ["manifests", "monitoring", "kserve", "examples"]
    paths = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.yaml"))
    return [(path, one) for path in paths for one in load(path)]


def of_kind(kind, name=None):
    found = [one for _, one in manifests() if one["kind"] == kind and name in (None, one["metadata"]["name"])]
    assert found, f"there is no {kind} {name or ''}"
    return found


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


def of_controller():
    """The documents of the controller, which are installed on their own."""
    folder = ROOT / "controller/manifests"
    (names,) = load(folder / "kustomization.yaml")
    there = {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml"}
    assert there == set(names["resources"]), f"the controller's kustomization names {names['resources']}"
    return [one for name in names["resources"] for one in load(folder / name)]


def check_controller(crds):
    """The controller's manifests fit each other and the daemons, and its account has few rights."""
    found = {(one["kind"], one["metadata"]["name"]): one for one in of_controller()}
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
    policy = found["NetworkPolicy", "atoll-controller"]["spec"]
    (daemonset,) = of_kind("DaemonSet")
    of_daemon = daemonset["spec"]["template"]
    assert matches(policy["podSelector"]["matchLabels"], of_daemon["metadata"]["labels"])
    assert matches(policy["ingress"][0]["from"][0]["podSelector"]["matchLabels"], labels)
    daemon = next(one for one in of_daemon["spec"]["containers"] if one["name"] == "daemon")
    assert pod["containers"][0]["image"] == daemon["image"]
    namespaces = {one["metadata"].get("namespace", "atoll-system") for one in found.values()}
    assert namespaces == {"atoll-system"}, namespaces
    try:
        import kubernetes_validate
    except ImportError:
        return
    for key, one in found.items():
        try:
            kubernetes_validate.validate(one, "1.37", strict=True)
        except kubernetes_validate.ValidationError as error:
            raise AssertionError(f"{key}: {error.message}") from error


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


def check_program(atoll, plugin, controller):
    """The programs have the commands and flags of the manifests and of the guide, and take the settings of the
    ConfigMap."""
    helps = {("atoll-device-plugin",): help_of([plugin]), ("atoll-controller",): help_of([controller])}
    guide = (ROOT / "../../docs/guide/kubernetes.md").read_text()
    for (program,), text in list(helps.items()):
        told = flags_in_guide(guide, program)
        of_help = {flag[1] for flag in re.finditer(r"^ *--([a-z-]+)", text, re.MULTILINE)} - {"help", "version"}
        assert told == of_help, f"the guide has {told}, {program} has {of_help}"
    pods = [one["spec"]["template"]["spec"] for one in of_kind("DaemonSet")] + [one["spec"] for one in of_kind("Pod")]
    pods += [one["spec"] for kind in ("ServingRuntime", "ClusterServingRuntime") for one in of_kind(kind)]
    pods += [one["spec"]["template"]["spec"] for one in of_controller() if one["kind"] == "Deployment"]
    for one in (one for pod in pods for one in containers(pod)):
        command = one.get("command", [])
        if command[:1] not in (["atoll"], ["atoll-device-plugin"], ["atoll-controller"]):
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


# The chart.


def rendered(text, values):
    """What Helm makes of a template, for the few forms that ours have."""

    def value(path):
        found = {"Values": values, "Release": {"Namespace": "atoll-system"}}
        for part in path.strip(".").split("."):
            found = found[part]
        return found

    def structure(given, indent):
        dumped = given if isinstance(given, str) else yaml.safe_dump(given)
        return "\n" + "\n".join(" " * indent + line if line else "" for line in dumped.rstrip("\n").split("\n"))

    def part(found):
        given = value(found[2])
        if not given:
            return ""
        # Below `with` the dot is its value.
        body = found[3]
        body = re.sub(r"\s*\{\{- toYaml \. \| nindent (\d+) \}\}", lambda to: structure(given, int(to[1])), body)
        return body.replace("{{ . }}", str(given))

    text = re.sub(r"\s*\{\{- (if|with) (\.[\w.]+) \}\}(.*?)\s*\{\{- end \}\}", part, text, flags=re.DOTALL)
    pattern = r"\s*\{\{- (?:toYaml )?(\.[\w.]+) \| nindent (\d+) \}\}"
    text = re.sub(pattern, lambda found: structure(value(found[1]), int(found[2])), text)
    text = re.sub(r"\{\{ (\.[\w.]+) \}\}", lambda found: str(value(found[1])), text)
    assert "{{" not in text, f"a form of templates that this test does not know: {text[text.index('{{'):][:60]}"
    return [one for one in yaml.load_all(text, UniqueKeys) if one is not None]


def merged(values, others):
    """Values with those of a user over them, as Helm merges them."""
    if not isinstance(values, dict) or not isinstance(others, dict):
        return others
    return values | {name: merged(values.get(name), one) for name, one in others.items()}


def chart_with(others):
    """What the chart renders to with the values of a user, by kind and name. Where Helm's library is installed, it
    renders the same."""
    (values,) = load(ROOT / "chart/values.yaml")
    templates = sorted((ROOT / "chart/templates").iterdir())
    found = [one for path in templates for one in rendered(path.read_text(), merged(values, others))]
    found = {(one["kind"], one["metadata"]["name"]): one for one in found}
    try:
        import helm_python
    except ImportError:
        return found
    with helm_python.Chart.load(str(ROOT / "chart")) as chart:
        texts = chart.render(others, name="atoll", namespace="atoll-system").values()
    of_helm = [one for text in texts for one in yaml.load_all(text, UniqueKeys) if one is not None]
    assert found == {(one["kind"], one["metadata"]["name"]): one for one in of_helm}, f"Helm renders {of_helm}"
    return found


def check_chart():
    """The chart is current, and with its own values it is the plain manifests."""
    done = subprocess.run([sys.executable, ROOT / "chart.py", "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    plain = {(one["kind"], one["metadata"]["name"]): one for _, one in manifests() if one["kind"] != "Kustomization"}
    own = chart_with({})
    assert all(one == plain[key] for key, one in own.items()), "the chart renders to something else"
    # All but the definitions and the namespace.
    wanted = [one for path in (ROOT / "manifests").glob("*.yaml") for one in load(path)]
    others = ("Namespace", "Kustomization")
    wanted = {(one["kind"], one["metadata"]["name"]) for one in wanted if one["kind"] not in others}
    assert own.keys() == wanted, f"the chart has {own.keys()}"
    more = chart_with({"serviceMonitor": {"enabled": True}, "kserve": {"enabled": True}})
    assert more.keys() - own.keys() == {("ServiceMonitor", "atoll"), ("ClusterServingRuntime", "atoll")}, more.keys()
    assert all(one == plain[key] for key, one in more.items()), "the chart renders to something else"
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    gpus = {"device": "cuda", "memoryLimit": "", "runtimeClassName": "nvidia", "env": env}
    found = chart_with(gpus | {"networkPolicy": {"enabled": False}})
    assert own.keys() - found.keys() == {("NetworkPolicy", "atoll")}, found.keys()
    pod = found["DaemonSet", "atoll"]["spec"]["template"]["spec"]
    daemon = pod["containers"][0]
    assert pod["runtimeClassName"] == "nvidia" and "--device=cuda" in daemon["args"] and daemon["env"] == env, pod
    assert not [one for one in daemon["args"] if one.startswith("--memory-limit")], daemon["args"]


def main():
    crds = {one["spec"]["names"]["kind"]: one for one in of_kind("CustomResourceDefinition")}
    for crd in crds.values():
        check_structure(crd)
    refused = check_resources(crds)
    check_all()
    check_daemon()
    check_rights(crds)
    check_controller(crds)
    check_chart()
    if len(sys.argv) > 1:
        check_program(*sys.argv[1:4])
    print(f"all manifests are right: {len(manifests())}; wrong resources that are refused: {refused}")


if __name__ == "__main__":
    main()
