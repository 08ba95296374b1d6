"""Definitions of Kubernetes resources: whether the API server takes a resource.

Schemas are judged by a validator of JSON schemas, CEL rules by an interpreter of CEL, and defaults and unknown fields
as the API server treats them.
"""

import copy
import re

import celpy
from celpy import celtypes
from jsonschema import Draft4Validator


def schema_of(crd):
    (version,) = crd["spec"]["versions"]
    assert version["served"] and version["storage"], version["name"]
    return version["schema"]["openAPIV3Schema"]


def nodes(schema, path=""):
    """A schema and all below it, with their paths."""
    yield path, schema
    for name, below in schema.get("properties", {}).items():
        yield from nodes(below, f"{path}.{name}")
    if isinstance(schema.get("items"), dict):
        yield from nodes(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from nodes(schema["additionalProperties"], f"{path}.*")


def check_structure(crd):
    """What the API server asks of a structural schema, and bounds for what a user writes."""
    name, schema = crd["metadata"]["name"], schema_of(crd)
    spec = crd["spec"]
    assert name == f"{spec['names']['plural']}.{spec['group']}", name
    assert "status" in spec["versions"][0]["subresources"], f"{name} has no status subresource"
    for path, one in nodes(schema):
        where = f"{name} {path}"
        is_either = one.get("x-kubernetes-int-or-string", False)
        assert ("type" in one) != is_either, f"{where} needs one type"
        assert not {"$ref", "definitions", "oneOf", "allOf", "not"} & one.keys(), f"{where}: {one.keys()}"
        assert set(one.get("required", [])) <= one.get("properties", {}).keys(), f"{where} requires what it has not"
        if "default" in one:
            assert not list(Draft4Validator(judged(one)).iter_errors(one["default"])), f"{where}: bad default"
        if not path.startswith((".spec", ".status")):
            continue
        if one.get("type") == "string":
            assert {"maxLength", "enum", "pattern", "format"} & one.keys(), f"{where} is not bounded"
        if one.get("type") == "array":
            assert "maxItems" in one, f"{where} is not bounded"
        if one.get("type") in ("integer", "number"):
            assert "minimum" in one, f"{where} may be negative"
        for rule in one.get("x-kubernetes-validations", []):
            assert rule["message"] and program(rule["rule"]), where
    for column in spec["versions"][0]["additionalPrinterColumns"]:
        assert column["jsonPath"] == ".metadata.creationTimestamp" or has_path(schema, column["jsonPath"]), column
    scale = spec["versions"][0]["subresources"].get("scale", {})
    for path in scale.values():
        assert has_path(schema, path), f"{name}: scale names {path}"
    conditions = schema["properties"]["status"]["properties"]["conditions"]
    assert conditions["x-kubernetes-list-map-keys"] == ["type"], f"{name}: conditions are a map by type"


def has_path(schema, path):
    for part in re.sub(r"\[[^]]*\]", ".[]", path).strip(".").split("."):
        schema = schema.get("items") if part == "[]" else schema.get("properties", {}).get(part)
        if schema is None:
            return False
    return True


def judged(schema):
    """A schema for the validator of JSON schemas: `$` is the end of the text, as for the API server."""
    schema = copy.deepcopy(schema)
    for _, one in nodes(schema):
        if "pattern" in one:
            one["pattern"] = re.sub(r"\$$", r"\\Z", one["pattern"])
    return schema


def filled(schema, value):
    """A value with the defaults of its schema."""
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        value = {name: filled(properties.get(name, {}), one) for name, one in value.items()}
        absent = {name: one["default"] for name, one in properties.items() if "default" in one}
        return absent | value
    if isinstance(value, list):
        return [filled(schema.get("items", {}), one) for one in value]
    return value


def unknown(schema, value, path=""):
    """Fields that the schema does not have. The API server drops them, or refuses them if it is asked to be strict."""
    if isinstance(value, dict) and "properties" in schema and path != ".metadata":
        for name, one in value.items():
            if name in schema["properties"]:
                yield from unknown(schema["properties"][name], one, f"{path}.{name}")
            else:
                yield f"{path}.{name}: unknown field"
    if isinstance(value, list):
        for one in value:
            yield from unknown(schema.get("items", {}), one, f"{path}[]")


PROGRAMS = {}


def program(rule):
    if rule not in PROGRAMS:
        environment = celpy.Environment()
        PROGRAMS[rule] = environment.program(environment.compile(rule))
    return PROGRAMS[rule]


def in_cel(schema, value):
    """A value in CEL, with the types of the schema: a number is a double, also if it is whole."""
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        pairs = {name: in_cel(properties.get(name, {}), one) for name, one in value.items()}
        return celtypes.MapType({celtypes.StringType(name): one for name, one in pairs.items()})
    if isinstance(value, list):
        return celtypes.ListType([in_cel(schema.get("items", {}), one) for one in value])
    return celtypes.DoubleType(value) if schema.get("type") == "number" else celpy.json_to_cel(value)


def broken_rules(schema, value, old, path=""):
    """Messages of CEL rules that do not hold. Rules about changes count only where there is an old value."""
    for rule in schema.get("x-kubernetes-validations", []):
        names = {"self": in_cel(schema, value)}
        if "oldSelf" in rule["rule"]:
            if old is None:
                continue
            names["oldSelf"] = in_cel(schema, old)
        if not program(rule["rule"]).evaluate(names):
            yield f"{path}: {rule['message']}"
    for name, below in schema.get("properties", {}).items():
        if isinstance(value, dict) and name in value:
            before = old.get(name) if isinstance(old, dict) else None
            yield from broken_rules(below, value[name], before, f"{path}.{name}")


def refusals(crd, resource, old=None):
    """Why the API server would refuse a resource; nothing if it takes it."""
    schema = schema_of(crd)
    resource = filled(schema, resource)
    found = list(unknown(schema, resource))
    for error in Draft4Validator(judged(schema)).iter_errors(resource):
        found.append(f".{'.'.join(map(str, error.absolute_path))}: {error.message}")
    # Rules are judged only on what the schema takes.
    return found or list(broken_rules(schema, resource, None if old is None else filled(schema, old)))
