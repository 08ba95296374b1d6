"""ResourceSlices as the API server of Kubernetes takes them (resource.k8s.io/v1): what it refuses, and which fields it
leaves out when a feature is off. Numbers and rules are those that Kubernetes documents for the type."""

import re

#: Features of the API server. `CountersInSlice` is how Kubernetes 1.33 and 1.34 have partitionable devices.
CAPACITY, COUNTERS, IN_SLICE = "DRAConsumableCapacity", "DRAPartitionableDevices", "CountersInSlice"

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
IDENTIFIER = re.compile(r"([a-z0-9.-]{1,63}/)?[A-Za-z_][A-Za-z0-9_]{0,31}")
UNITS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}


def amount(text):
    """A quantity in the form that is stored: the largest unit that leaves a whole number."""
    found = re.fullmatch(r"(0|[1-9][0-9]*)(Ki|Mi|Gi|Ti)?", text)
    assert found, f"{text!r} is not a quantity"
    number = int(found[1])
    unit = found[2] or ""
    assert unit in ("", "Ti") or number % 1024, f"{text!r} is stored as another text"
    return number * UNITS[unit]


def known(one, fields):
    """The API server ignores fields that it does not know, so a wrong name would have no effect."""
    assert one.keys() <= set(fields), f"unknown fields: {one.keys() - set(fields)}"


def refuse_capacity(name, one):
    assert IDENTIFIER.fullmatch(name), f"the capacity {name!r}"
    known(one, ["value", "requestPolicy"])
    value, policy = amount(one["value"]), one.get("requestPolicy")
    if policy is None:
        return
    known(policy, ["default", "validRange", "validValues"])
    known(policy["validRange"], ["min", "max", "step"])
    least, step = (amount(policy["validRange"][key]) for key in ("min", "step"))
    default = amount(policy["default"])
    assert 0 <= least <= default <= value and least + step <= value, f"{name}: {one}"
    assert default % step == 0 and (default - least) % step == 0, f"{name}: {default} is no multiple of {step}"


def refuse_counters(counters):
    assert 0 < len(counters) <= 32, counters
    for name, one in counters.items():
        assert LABEL.fullmatch(name), f"the counter {name!r}"
        known(one, ["value"])
        amount(one["value"])


def refuse_device(device, features, sets):
    fields = ["name", "attributes", "capacity", "allowMultipleAllocations", "consumesCounters"]
    known(device, fields)
    assert LABEL.fullmatch(device["name"]), f"the device {device['name']!r}"
    assert len(device["attributes"]) + len(device["capacity"]) <= 32, device["name"]
    for name, one in device["attributes"].items():
        assert IDENTIFIER.fullmatch(name), f"the attribute {name!r}"
        ((kind, value),) = one.items()
        assert isinstance(value, {"string": str, "bool": bool, "int": int, "version": str}[kind]), (name, one)
        assert kind != "string" or len(value) <= 64, (name, one)
    for name, one in device["capacity"].items():
        refuse_capacity(name, one)
        has_policy = "requestPolicy" in one
        assert not has_policy or device.get("allowMultipleAllocations"), f"{name} has a policy, and cannot be shared"
    consumed = device.get("consumesCounters", [])
    assert len(consumed) <= 2, device["name"]
    for one in consumed:
        known(one, ["counterSet", "counters"])
        refuse_counters(one["counters"])
        assert IN_SLICE not in features or one["counterSet"] in sets, "must reference a counterSet of the ResourceSlice"


def refuse(slice, features):
    """Raises AssertionError with the reason if the API server would refuse a slice."""
    spec = slice["spec"]
    known(spec, ["driver", "nodeName", "pool", "devices", "sharedCounters"])
    assert SUBDOMAIN.fullmatch(slice["metadata"]["name"]) and len(slice["metadata"]["name"]) <= 253, slice["metadata"]
    assert SUBDOMAIN.fullmatch(spec["driver"]) and len(spec["driver"]) <= 63, spec["driver"]
    assert SUBDOMAIN.fullmatch(spec["nodeName"]), spec["nodeName"]
    pool = spec["pool"]
    known(pool, ["name", "generation", "resourceSliceCount"])
    assert len(pool["name"]) <= 253 and all(SUBDOMAIN.fullmatch(part) for part in pool["name"].split("/")), pool
    assert pool["generation"] > 0 and pool["resourceSliceCount"] > 0, pool
    devices, sets = spec.get("devices", []), spec.get("sharedCounters", [])
    if IN_SLICE not in features:
        assert not (devices and sets), "only one of `sharedCounters` or `devices` is allowed"
    assert len(sets) <= 8, "too many counter sets"
    for one in sets:
        known(one, ["name", "counters"])
        assert LABEL.fullmatch(one["name"]), one["name"]
        refuse_counters(one["counters"])
    names = [device["name"] for device in devices]
    assert len(set(names)) == len(names) <= (64 if any("consumesCounters" in one for one in devices) else 128), names
    for device in devices:
        refuse_device(device, features, {one["name"] for one in sets})


def stored(slice, features):
    """A slice as it is stored: fields of features that are off are left out, as if they had not been sent."""
    spec = slice["spec"]
    if COUNTERS not in features and IN_SLICE not in features:
        spec.pop("sharedCounters", None)
        for device in spec.get("devices", []):
            device.pop("consumesCounters", None)
    if CAPACITY not in features:
        for device in spec.get("devices", []):
            device.pop("allowMultipleAllocations", None)
            for one in device["capacity"].values():
                one.pop("requestPolicy", None)
    refuse(slice, features)
    return slice
