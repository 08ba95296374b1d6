"""The manifests of integrations/kubernetes."""

from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2] / "integrations/kubernetes"


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


def of_program(name):
    """The documents of the controller or of the driver, which are installed on their own, by kind and name."""
    folder = ROOT / name / "manifests"
    (names,) = load(folder / "kustomization.yaml")
    there = {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml"}
    assert there == set(names["resources"]), f"the kustomization of {name} names {names['resources']}"
    found = [one for path in names["resources"] for one in load(folder / path)]
    return {(one["kind"], one["metadata"]["name"]): one for one in found}
