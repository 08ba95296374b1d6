#!/usr/bin/env python3
"""Writes the software bill of materials of the package, as SPDX 2.3 in JSON, to standard output.

It has every crate that the programs and libraries of the package are built from, on this kind of machine and with the
features that are on by default: its version, its licence, and the digest of its source in Cargo.lock. Crates that only
tests or build scripts use are not in it. Libraries of the system, such as LLVM, are dependencies of the package.
"""

import datetime
import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# The crates whose programs and libraries `deb/build.sh` installs.
INSTALLED = ["atoll", "atoll-interpose", "atoll-cudart", "atoll-cublas", "atoll-cudnn", "atoll-stand-in-cuda", "atoll-ring-c"]


def run(*command):
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def metadata():
    host = re.search(r"^host: (.*)$", run("rustc", "-vV"), re.MULTILINE)[1]
    cargo = os.environ.get("CARGO", "cargo")
    offline = ["--offline"] if "--offline" in sys.argv[1:] else []
    return json.loads(run(cargo, "metadata", "--format-version", "1", "--locked", "--filter-platform", host, *offline))


def linked(metadata):
    """The ids of the installed crates and all crates that they use, and the ids of those that each uses."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    members = set(metadata["workspace_members"])
    todo = [p["id"] for p in metadata["packages"] if p["id"] in members and p["name"] in INSTALLED]
    if len(todo) != len(INSTALLED):
        sys.exit(f"sbom.py: the workspace lacks one of {', '.join(INSTALLED)}")
    uses = {}
    while todo:
        crate = todo.pop()
        if crate in uses:
            continue
        # The kind of a dependency is null, "dev" or "build".
        normal = [d["pkg"] for d in nodes[crate]["deps"] if any(kind["kind"] is None for kind in d["dep_kinds"])]
        uses[crate] = sorted(normal)
        todo += normal
    return uses


def checksums():
    """The digests of the sources of crates, by name and version."""
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    return {(p["name"], p["version"]): p["checksum"] for p in lock["package"] if "checksum" in p}


def package(crate, digest):
    licence = (crate["license"] or "NOASSERTION").replace("/", " OR ")
    entry = {
        "SPDXID": identifier(crate),
        "name": crate["name"],
        "versionInfo": crate["version"],
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": licence,
        "licenseDeclared": licence,
        "copyrightText": "NOASSERTION",
    }
    if digest:
        name, version = crate["name"], crate["version"]
        entry["checksums"] = [{"algorithm": "SHA256", "checksumValue": digest}]
        locator = f"pkg:cargo/{name}@{version}"
        reference = {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": locator}
        entry["externalRefs"] = [reference]
    return entry


def identifier(crate):
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", f"{crate['name']}-{crate['version']}")


def relationship(from_, kind, to):
    return {"spdxElementId": from_, "relationshipType": kind, "relatedSpdxElement": to}


def last_change():
    """The time of the last commit in seconds; "0" without git, as in a container that builds the package."""
    try:
        return run("git", "log", "-1", "--format=%ct").strip()
    except (OSError, subprocess.CalledProcessError):
        return "0"


def main():
    data = metadata()
    crates = {p["id"]: p for p in data["packages"]}
    uses = linked(data)
    order = sorted(uses, key=lambda id: (crates[id]["name"], crates[id]["version"]))
    digests = checksums()
    roots = [id for id in order if crates[id]["name"] in INSTALLED]
    packages = [package(crates[id], digests.get((crates[id]["name"], crates[id]["version"]))) for id in order]
    relations = [relationship("SPDXRef-DOCUMENT", "DESCRIBES", identifier(crates[id])) for id in roots]
    relations += [
        relationship(identifier(crates[id]), "DEPENDS_ON", identifier(crates[other]))
        for id in order
        for other in uses[id]
    ]
    # The same sources give the same document; builds that need an older time set the usual variable.
    seconds = os.environ.get("SOURCE_DATE_EPOCH") or last_change()
    created = datetime.datetime.fromtimestamp(int(seconds), datetime.timezone.utc)
    digest = hashlib.sha256(json.dumps([packages, relations]).encode()).hexdigest()
    version = next(crates[id]["version"] for id in roots if crates[id]["name"] == "atoll")
    document = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"atoll-{version}",
        "documentNamespace": f"https://atoll.invalid/spdx/{version}-{digest}",
        "creationInfo": {"created": created.strftime("%Y-%m-%dT%H:%M:%SZ"), "creators": ["Tool: packaging/sbom.py"]},
        "packages": packages,
        "relationships": relations,
    }
    json.dump(document, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
