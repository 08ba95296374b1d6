"""The Helm chart of integrations/kubernetes: what it renders to, by our own renderer of the few forms that its
templates have, and by Helm's library where it is installed."""

import re
import subprocess
import sys

import yaml
from kubernetes_files import ROOT, UniqueKeys, load, manifests, of_program


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
    driver = chart_with({"draDriver": {"enabled": True}})
    wanted = of_program("dra-driver")
    assert driver.keys() - own.keys() == wanted.keys(), driver.keys()
    assert all(driver[key] == one for key, one in wanted.items()), "the chart renders the driver to something else"
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    gpus = {"device": "cuda", "memoryLimit": "", "runtimeClassName": "nvidia", "env": env}
    found = chart_with(gpus | {"networkPolicy": {"enabled": False}})
    assert own.keys() - found.keys() == {("NetworkPolicy", "atoll")}, found.keys()
    pod = found["DaemonSet", "atoll"]["spec"]["template"]["spec"]
    daemon = pod["containers"][0]
    assert pod["runtimeClassName"] == "nvidia" and "--device=cuda" in daemon["args"] and daemon["env"] == env, pod
    assert not [one for one in daemon["args"] if one.startswith("--memory-limit")], daemon["args"]
