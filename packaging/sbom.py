#!/usr/bin/env python3
"""Writes the software bill of materials of the package, as SPDX 2.3 in JSON, to standard output.

It has every crate that the programs and libraries of the package are built from, on this kind of machine and with the
features that are on by default: its version, its licence, and the digest of its source in Cargo.lock. Crates that only
tests or build scripts use are not in it. Libraries of the system, such as LLVM, are dependencies of the package. The
options are for archives, which are built with other features and have libraries of the system inside.
"""

import argparse
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


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--offline", action="store_true", help="cargo uses no network")
    parser.add_argument("--packages", type=str.split, default=INSTALLED, help="crates that are installed, with spaces between")
    parser.add_argument("--features", help="features with which they are built, instead of the default ones")
    parser.add_argument(
        "--library", action="append", default=[], metavar="NAME=VERSION=LICENCE", help="a library of the system that is inside"
    )
    return parser.parse_args()


def cargo(arguments, command, *more):
    offline = ["--offline"] if arguments.offline else []
    return run(os.environ.get("CARGO", "cargo"), command, "--locked", *offline, *more)


def metadata(arguments):
    host = re.search(r"^host: (.*)$", run("rustc", "-vV"), re.MULTILINE)[1]
    return json.loads(cargo(arguments, "metadata", "--format-version", "1", "--filter-platform", host))


def with_features(arguments):
    """Names and versions of the crates that the installed ones use with the features.

    `cargo metadata` cannot say it: there a crate has all features that any crate of the workspace asks of it.
    """
    packages = [word for name in arguments.packages for word in ("--package", name)]
    features = ["--no-default-features", "--features", arguments.features]
    text = cargo(arguments, "tree", "--edges", "normal", "--prefix", "none", "--format", "{p}", *packages, *features)
    words = [line.split() for line in text.splitlines() if line]
    return {(name, version.removeprefix("v")) for name, version, *_ in words}


def linked(metadata, arguments):
    """The ids of the installed crates and all crates that they use, and the ids of those that each uses."""
    known = {p["id"]: (p["name"], p["version"]) for p in metadata["packages"]}
    used = with_features(arguments) if arguments.features else set(known.values())
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"] if known[node["id"]] in used}
    members = set(metadata["workspace_members"])
    todo = [p["id"] for p in metadata["packages"] if p["id"] in members and p["name"] in arguments.packages]
    if len(todo) != len(arguments.packages):
        sys.exit(f"sbom.py: the workspace lacks one of {', '.join(arguments.packages)}")
    uses = {}
    while todo:
        crate = todo.pop()
        if crate in uses:
            continue
        # The kind of a dependency is null, "dev" or "build".
        others = [d for d in nodes[crate]["deps"] if d["pkg"] in nodes]
        normal = [d["pkg"] for d in others if any(kind["kind"] is None for kind in d["dep_kinds"])]
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


def library(text):
    """A library of the system, of `NAME=VERSION=LICENCE`."""
    name, version, licence = text.split("=", 2)
    return package({"name": name, "version": version, "license": licence}, None)


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
    options = arguments()
    data = metadata(options)
    crates = {p["id"]: p for p in data["packages"]}
    uses = linked(data, options)
    order = sorted(uses, key=lambda id: (crates[id]["name"], crates[id]["version"]))
    digests = checksums()
    roots = [id for id in order if crates[id]["name"] in options.packages]
    packages = [package(crates[id], digests.get((crates[id]["name"], crates[id]["version"]))) for id in order]
    libraries = [library(text) for text in options.library]
    relations = [relationship("SPDXRef-DOCUMENT", "DESCRIBES", identifier(crates[id])) for id in roots]
    relations += [
        relationship(identifier(crates[id]), "DEPENDS_ON", identifier(crates[other]))
        for id in order
        for other in uses[id]
    ]
    program = next(id for id in roots if crates[id]["name"] == "atoll")
    relations += [relationship(identifier(crates[program]), "STATIC_LINK", entry["SPDXID"]) for entry in libraries]
    # The same sources give the same document; builds that need an older time set the usual variable.
    seconds = os.environ.get("SOURCE_DATE_EPOCH") or last_change()
    created = datetime.datetime.fromtimestamp(int(seconds), datetime.timezone.utc)
    packages += libraries
    digest = hashlib.sha256(json.dumps([packages, relations]).encode()).hexdigest()
    version = crates[program]["version"]
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
