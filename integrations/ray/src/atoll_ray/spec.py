"""The specification of a deployment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .daemon import LeaseRequest
from .node import demand
from .scaling import Scaling, Size

#: Classes by their short and long names.
CLASSES = {
    "rt": "real-time",
    "real-time": "real-time",
    "be": "best-effort",
    "best-effort": "best-effort",
}

#: Ray's strategies for placing replicas on machines.
STRATEGIES = ("SPREAD", "DEFAULT")

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True)
class Spec:
    """A deployment. Each replica requests ``request`` from its daemon, and ``resources`` from Ray."""

    name: str
    request: LeaseRequest
    replicas: int
    resources: dict[str, float]
    strategy: str
    #: Further replicas for which Ray's autoscaler should have room.
    headroom: int
    #: How it is scaled by its load. ``replicas`` are then those at first.
    scaling: Scaling | None = None

    @classmethod
    def of(
        cls,
        name: str,
        function: str,
        sm: float,
        quota: tuple[float, float],
        mem: int | str,
        class_: str,
        replicas: int,
        ttl_s: int,
        strategy: str = "SPREAD",
        headroom: int = 0,
        scaling: Scaling | Mapping[str, Any] | None = None,
    ) -> Spec:
        """A deployment. Raises ``ValueError`` for arguments that are invalid for every daemon."""
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", name):
            raise ValueError(f"name {name!r}: up to 64 letters, digits, `-`, `_` and `.` are possible")
        if class_ not in CLASSES:
            raise ValueError(f"class_ {class_!r}: it is one of {', '.join(CLASSES)}")
        if not 0 < sm <= 100:
            raise ValueError(f"sm {sm}: compute units are above 0 and at most 100 percent")
        low, high = quota
        if not 0 < low <= high <= 1:
            raise ValueError(f"quota {quota}: it is (request, limit), with 0 < request <= limit <= 1")
        check_replicas(replicas)
        check_replicas(headroom, "headroom")
        if strategy not in STRATEGIES:
            raise ValueError(f"strategy {strategy!r}: it is one of {', '.join(STRATEGIES)}")
        if not 5 <= ttl_s <= 600:
            raise ValueError(f"ttl_s {ttl_s}: 5 to 600 seconds are possible")
        if scaling is not None:
            scaling = Scaling.of(scaling)
            if not scaling.min_replicas <= replicas <= scaling.max_replicas:
                limits = f"min_replicas {scaling.min_replicas} and max_replicas {scaling.max_replicas}"
                raise ValueError(f"{replicas} replicas: scaling has {limits}")
        mem_bytes = parse_bytes(mem)
        slots = 1 if CLASSES[class_] == "real-time" else 0
        request = LeaseRequest(
            function=function,
            sm_partition=sm,
            quota_request=low,
            quota_limit=high,
            gpu_mem=mem_bytes,
            cls=CLASSES[class_],
            real_time_slots=slots,
            ttl_s=ttl_s,
        )
        return cls(name, request, replicas, demand(sm, low, mem_bytes, slots), strategy, headroom, scaling)

    def sized(self, size: Size) -> Spec:
        """The same with another share for each replica. Its limit in time is at least its request."""
        limit = max(self.request.quota_limit, size.quota)
        request = replace(self.request, sm_partition=size.sm, quota_request=size.quota, quota_limit=limit)
        resources = demand(size.sm, size.quota, request.gpu_mem, request.real_time_slots or 0)
        return replace(self, request=request, resources=resources)


def check_replicas(replicas: int, what: str = "replicas") -> None:
    """Raises ``ValueError`` if a number of replicas is invalid."""
    if not isinstance(replicas, int) or isinstance(replicas, bool) or not 0 <= replicas <= 1000:
        raise ValueError(f"{replicas!r} {what}: whole numbers from 0 to 1000 are possible")


def priority(class_: str | None) -> dict[str, Any]:
    """The parameter of a request that selects its class. Raises ``ValueError`` if there is no such class."""
    if class_ is None:
        return {}
    if class_ not in CLASSES:
        raise ValueError(f"class_ {class_!r}: it is one of {', '.join(CLASSES)}")
    return {"priority": 1 if CLASSES[class_] == "real-time" else 2}


def parse_bytes(size: int | str) -> int:
    """A size in bytes, as in ``2147483648`` or ``"2G"``."""
    match = re.fullmatch(r"(\d+)([KMGT]?)", str(size).strip())
    value = int(match[1]) * _UNITS[match[2]] if match else 0
    if not 0 < value < 1 << 63:
        raise ValueError(f'mem {size!r}: it is a number of bytes above 0, as in 2147483648 or "2G"')
    return value
