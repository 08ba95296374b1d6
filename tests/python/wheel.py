#!/usr/bin/env python3
"""What an index demands of a wheel, and what users of the package `atoll` expect in it.

wheel.py WHEEL PYPROJECT.toml      exits with 1 and prints the differences

PYPROJECT.toml is that of the package; the wheel has its metadata.
"""

import base64
import csv
import hashlib
import io
import sys
import tomllib
import zipfile
from pathlib import Path

from packaging.metadata import Metadata
from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename

FILES = ["__init__.py", "__main__.py", "_native.pyi", "_native.abi3.so", "py.typed", "bin/atoll"]


def digest(content):
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def metadata(text, project, readme):
    """The fields, which `packaging` checks as an index does."""
    found = Metadata.from_email(text, validate=True)
    assert found.name == project["name"] and str(found.version) == project["version"], (found.name, found.version)
    assert found.summary == project["description"] and len(found.summary) < 512
    assert str(found.requires_python) == project["requires-python"], found.requires_python
    assert set(found.requires_dist) == {Requirement(each) for each in project["dependencies"]}, found.requires_dist
    assert found.license_expression == project["license"], found.license_expression
    assert set(project["classifiers"]) <= set(found.classifiers or ()), found.classifiers
    assert found.description_content_type.startswith("text/markdown"), found.description_content_type
    assert found.description.strip() == readme.strip(), "the description is not README.md"


def main(wheel, pyproject):
    project = tomllib.loads(Path(pyproject).read_text())["project"]
    readme = Path(pyproject).with_name(project["readme"]).read_text()
    name, version, _, tags = parse_wheel_filename(Path(wheel).name)
    assert (name, str(version)) == (project["name"], project["version"]), (name, version)
    assert {(tag.interpreter, tag.abi) for tag in tags} == {("cp311", "abi3")}, tags
    # The program needs libraries of this system, so that the wheel must claim no portability.
    assert all(tag.platform.startswith("linux_") for tag in tags), tags
    folder = f"{project['name']}-{project['version']}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        contents = {each.filename: archive.read(each) for each in archive.infolist() if not each.is_dir()}
        mode = archive.getinfo("atoll/bin/atoll").external_attr >> 16
    assert mode & 0o111, f"the program has the mode {mode:o}"
    lacking = [each for each in FILES if f"atoll/{each}" not in contents]
    assert not lacking, lacking
    sources = {path.name for path in (Path(pyproject).parent / "python/atoll").glob("*.py")}
    assert sources == {each.removeprefix("atoll/") for each in contents if each.endswith(".py")}, sources
    stray = [each for each in contents if "__pycache__" in each or not each.startswith(("atoll/", f"{folder}/"))]
    assert not stray, stray
    metadata(contents[f"{folder}/METADATA"].decode(), project, readme)
    assert b"Root-Is-Purelib: false" in contents[f"{folder}/WHEEL"]
    (command, place), *others = project["scripts"].items()
    assert f"{command}={place}" in contents[f"{folder}/entry_points.txt"].decode().replace(" ", "") and not others
    # The record names each file with its digest.
    record = list(csv.reader(io.StringIO(contents[f"{folder}/RECORD"].decode())))
    assert {row[0] for row in record} == set(contents), "RECORD and the contents differ"
    for path, hashed, size in record:
        if path != f"{folder}/RECORD":
            assert hashed == f"sha256={digest(contents[path])}" and int(size) == len(contents[path]), path
    print("all of it holds")


if __name__ == "__main__":
    main(*sys.argv[1:])
