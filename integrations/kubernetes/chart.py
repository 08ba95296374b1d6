#!/usr/bin/env python3
"""Makes the Helm chart from the plain manifests.

chart.py          writes the folder `chart`
chart.py --check  exits with 1 if the folder is not what would be written

A template is the text of a manifest in which some values are replaced. Each replacement has to be found as often as it
says, so a manifest that changes cannot lose one unnoticed.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
NOTE = "# Made by integrations/kubernetes/chart.py from the plain manifests.\n"

CHART = """\
apiVersion: v2
name: atoll
description: Deep-learning models as preemptible functions on shared GPUs, a daemon on each node
type: application
version: 0.1.0
appVersion: 0.1.0
kubeVersion: '>=1.29.0-0'
"""

#: Values with their comments. `@NAME@` is taken from the manifests.
VALUES = """\
image:
  repository: atoll
  tag: 0.1.0
  pullPolicy: IfNotPresent

# Device of the daemons: host, cuda or hip.
device: host
# Memory of each device that is used. Empty for all of it, as on GPUs.
memoryLimit: 4G
# For GPUs of NVIDIA: nvidia, or what the class is called in the cluster.
runtimeClassName: ''
# More variables of the daemon, as in {name: NVIDIA_VISIBLE_DEVICES, value: all}.
env: []

# Nodes that have a daemon.
nodeSelector:
@nodeSelector@
tolerations:
@tolerations@
resources:
  daemon:
@daemonResources@
  devicePlugin:
@pluginResources@
  draDriver:
@driverResources@

# The secret with keys.json, which `atoll auth create` writes.
keysSecret: atoll-keys
# atoll.toml: tenants and their rights.
config: |
@config@

devicePlugin:
  # Names of resources: atoll, or hami for those of HAMi.
  names: atoll
  # Device memory of one `atoll.dev/gpu-mem-…`.
  memoryUnit: 64M

# The driver of dynamic resource allocation (Kubernetes 1.34 or newer), on its own nodes.
draDriver:
  enabled: false
  nodeSelector:
@driverNodeSelector@
  # How claims share a device: auto, capacity, counters or whole.
  sharing: auto
  # The secret with a token for each namespace whose claims may have leases.
  tokensSecret: atoll-tokens

networkPolicy:
  enabled: true
  # Label of namespaces that may send requests.
  clientLabel: atoll.dev/client
  # Namespace of Prometheus.
  monitoringNamespace: monitoring

# A ServiceMonitor, for the operator of Prometheus.
serviceMonitor:
  enabled: false

# A ClusterServingRuntime, for KServe.
kserve:
  enabled: false
"""

#: A text of a manifest, what stands in the template instead, and how often it is there.
Replacement = tuple[str, str, int]

IMAGE = "{{ .Values.image.repository }}:{{ .Values.image.tag }}"
#: The manifests of the driver of dynamic resource allocation.
DRIVER = "dra-driver/manifests"
NAMESPACE: Replacement = ("namespace: atoll-system", "namespace: {{ .Release.Namespace }}", 1)


def block(key: str, value: str, indent: int) -> str:
    """A key whose value is a structure of the values."""
    return f"{key}:\n{' ' * indent}{{{{- toYaml .Values.{value} | nindent {indent} }}}}"


def templates() -> dict[str, tuple[str, list[Replacement], str | None]]:
    """For each template its manifest, its replacements, and the value that switches it on."""
    manifest = (HERE / "manifests/daemonset.yaml").read_text()
    selector, tolerations, resources = parts(manifest)
    daemonset: list[Replacement] = [
        NAMESPACE,
        ("image: atoll:0.1.0", f"image: {IMAGE}", 3),
        ("imagePullPolicy: IfNotPresent", "imagePullPolicy: {{ .Values.image.pullPolicy }}", 3),
        (
            "      serviceAccountName: atoll\n",
            "      serviceAccountName: atoll\n"
            "      {{- with .Values.runtimeClassName }}\n      runtimeClassName: {{ . }}\n      {{- end }}\n",
            1,
        ),
        (
            "          ports:\n",
            "          {{- with .Values.env }}\n          env:\n            {{- toYaml . | nindent 12 }}\n"
            "          {{- end }}\n          ports:\n",
            1,
        ),
        (f"nodeSelector:\n{selector}", block("nodeSelector", "nodeSelector", 8) + "\n", 1),
        (f"tolerations:\n{tolerations}", block("tolerations", "tolerations", 8) + "\n", 1),
        (f"resources:\n{resources[0]}", block("resources", "resources.daemon", 12) + "\n", 1),
        (f"resources:\n{resources[1]}", block("resources", "resources.devicePlugin", 12) + "\n", 1),
        ("--device=host", "--device={{ .Values.device }}", 1),
        (
            "            - --memory-limit=4G\n",
            "            {{- with .Values.memoryLimit }}\n            - --memory-limit={{ . }}\n            {{- end }}\n",
            1,
        ),
        ("atoll.atoll-system.svc", "atoll.{{ .Release.Namespace }}.svc", 1),
        ("--names=atoll", "--names={{ .Values.devicePlugin.names }}", 1),
        ("--memory-unit=64M", "--memory-unit={{ .Values.devicePlugin.memoryUnit }}", 1),
        ("secretName: atoll-keys", "secretName: {{ .Values.keysSecret }}", 1),
    ]
    config = (HERE / "manifests/config.yaml").read_text()
    driver_manifest = (HERE / DRIVER / "daemonset.yaml").read_text()
    driver: list[Replacement] = [
        NAMESPACE,
        ("image: atoll:0.1.0", f"image: {IMAGE}", 1),
        ("imagePullPolicy: IfNotPresent", "imagePullPolicy: {{ .Values.image.pullPolicy }}", 1),
        (
            f"nodeSelector:\n{below(driver_manifest, '      nodeSelector:')}",
            block("nodeSelector", "draDriver.nodeSelector", 8) + "\n",
            1,
        ),
        (f"tolerations:\n{tolerations}", block("tolerations", "tolerations", 8) + "\n", 1),
        (
            f"resources:\n{below(driver_manifest, '          resources:')}",
            block("resources", "resources.draDriver", 12) + "\n",
            1,
        ),
        ("atoll.atoll-system.svc", "atoll.{{ .Release.Namespace }}.svc", 1),
        ("--sharing=auto", "--sharing={{ .Values.draDriver.sharing }}", 1),
        ("secretName: atoll-tokens", "secretName: {{ .Values.draDriver.tokensSecret }}", 1),
    ]
    account = ("serviceaccount:atoll-system:", "serviceaccount:{{ .Release.Namespace }}:", 1)
    return {
        "rbac.yaml": ("manifests/rbac.yaml", [NAMESPACE], None),
        "config.yaml": (
            "manifests/config.yaml",
            [NAMESPACE, (f"|\n{settings(config)}", "|\n    {{- .Values.config | nindent 4 }}\n", 1)],
            None,
        ),
        "daemonset.yaml": ("manifests/daemonset.yaml", daemonset, None),
        "service.yaml": ("manifests/service.yaml", [(*NAMESPACE[:2], 2)], None),
        "networkpolicy.yaml": (
            "manifests/networkpolicy.yaml",
            [
                NAMESPACE,
                ("atoll.dev/client: 'true'", "{{ .Values.networkPolicy.clientLabel }}: 'true'", 1),
                (
                    "kubernetes.io/metadata.name: monitoring",
                    "kubernetes.io/metadata.name: {{ .Values.networkPolicy.monitoringNamespace }}",
                    1,
                ),
            ],
            "networkPolicy.enabled",
        ),
        "servicemonitor.yaml": ("monitoring/servicemonitor.yaml", [NAMESPACE], "serviceMonitor.enabled"),
        "clusterservingruntime.yaml": (
            "kserve/clusterservingruntime.yaml",
            [("image: atoll:0.1.0", f"image: {IMAGE}", 1)],
            "kserve.enabled",
        ),
        "dra-rbac.yaml": (f"{DRIVER}/rbac.yaml", [(*NAMESPACE[:2], 2), account], "draDriver.enabled"),
        "dra-deviceclass.yaml": (f"{DRIVER}/deviceclass.yaml", [], "draDriver.enabled"),
        "dra-daemonset.yaml": (f"{DRIVER}/daemonset.yaml", driver, "draDriver.enabled"),
        "dra-networkpolicy.yaml": (f"{DRIVER}/networkpolicy.yaml", [NAMESPACE], "draDriver.enabled"),
    }


def below(text: str, head: str) -> str:
    """The lines below the first line `head` that are indented further than it."""
    lines = text.splitlines(keepends=True)
    at = lines.index(head + "\n")
    indent = len(head) - len(head.lstrip())
    found = []
    for line in lines[at + 1 :]:
        if line.strip() and len(line) - len(line.lstrip()) <= indent:
            break
        found.append(line)
    return "".join(found)


def parts(manifest: str) -> tuple[str, str, list[str]]:
    """The parts of the DaemonSet that are values: selector of nodes, tolerations, resources of the containers."""
    _, _, containers = manifest.partition("\n      containers:\n")
    daemon, _, plugin = containers.partition("        - name: device-plugin\n")
    resources = [below(text, "          resources:") for text in (daemon, plugin)]
    return below(manifest, "      nodeSelector:"), below(manifest, "      tolerations:"), resources


def settings(manifest: str) -> str:
    """The text of atoll.toml, indented as in the ConfigMap."""
    return below(manifest, "  atoll.toml: |")


def indented(text: str, indent: int) -> str:
    """The text with its first line at this indentation."""
    lines = text.rstrip("\n").splitlines()
    first = len(lines[0]) - len(lines[0].lstrip())
    return "\n".join(" " * indent + line[first:] if line.strip() else "" for line in lines)


def replaced(text: str, replacements: list[Replacement], name: str) -> str:
    """The text of a template."""
    for old, new, count in replacements:
        found = text.count(old)
        if found != count:
            raise SystemExit(f"chart.py: {name} has {old.splitlines()[0]!r} {found} times, and {count} were expected")
        text = text.replace(old, new)
    return text


def files() -> dict[str, str]:
    """The files of the chart, by path."""
    made = {"Chart.yaml": NOTE + CHART}
    selector, tolerations, resources = parts((HERE / "manifests/daemonset.yaml").read_text())
    driver = (HERE / DRIVER / "daemonset.yaml").read_text()
    values = {
        "driverNodeSelector": indented(below(driver, "      nodeSelector:"), 4),
        "driverResources": indented(below(driver, "          resources:"), 4),
        "nodeSelector": indented(selector, 2),
        "tolerations": indented(tolerations, 2),
        "daemonResources": indented(resources[0], 4),
        "pluginResources": indented(resources[1], 4),
        "config": indented(settings((HERE / "manifests/config.yaml").read_text()), 2),
    }
    made["values.yaml"] = NOTE + re.sub(r"@(\w+)@", lambda found: values[found[1]], VALUES)
    for crd in sorted((HERE / "manifests/crds").glob("*.yaml")):
        made[f"crds/{crd.name}"] = NOTE + crd.read_text()
    for name, (source, replacements, switch) in templates().items():
        text = (HERE / source).read_text()
        if "{{" in text:
            raise SystemExit(f"chart.py: {source} has {{{{, which Helm would take for a template")
        text = replaced(text, replacements, source)
        if switch is not None:
            text = f"{{{{- if .Values.{switch} }}}}\n{text}{{{{- end }}}}\n"
        made[f"templates/{name}"] = NOTE + text
    return made


def main() -> int:
    chart = HERE / "chart"
    wanted = files()
    there = {str(path.relative_to(chart)): path for path in chart.rglob("*") if path.is_file()}
    stale = sorted(there.keys() - wanted.keys())
    changed = [name for name, text in wanted.items() if name not in there or there[name].read_text() != text]
    if sys.argv[1:] == ["--check"]:
        for name in stale + changed:
            print(f"chart/{name} is not what the manifests say; run integrations/kubernetes/chart.py")
        return 1 if stale or changed else 0
    for name in stale:
        there[name].unlink()
    for name in changed:
        path = chart / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[name])
    return 0


if __name__ == "__main__":
    sys.exit(main())
