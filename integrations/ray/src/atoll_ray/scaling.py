"""Settings of a deployment whose number of replicas follows its load, and the sizes of replicas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

#: Most replicas of a deployment.
REPLICAS_MAX = 1000

#: Shortest interval of decisions, and longest of all times, in milliseconds.
INTERVAL_MS_MIN, MS_MAX = 100, 86_400_000

#: Largest headroom in percent.
HEADROOM_PERCENT_MAX = 900


@dataclass(frozen=True)
class Size:
    """The share of a replica: compute units in percent, and the fraction of the time that it always gets."""

    sm: float
    quota: float

    @property
    def area(self) -> float:
        """The part of a device, in percent."""
        return self.sm * self.quota


@dataclass(frozen=True)
class Scaling:
    """When a deployment is scaled, and how far. The rule is that of the daemon's autoscaler (``atoll lease scale``)."""

    #: Target of the 99th percentile of latency, in milliseconds.
    latency_ms: int
    #: Fewest replicas. With 0, a deployment without requests has none, and the next request waits for the start of one.
    min_replicas: int = 1
    #: Most replicas. At this number, replicas are replaced by larger ones.
    max_replicas: int = 8
    #: Capacity beyond the predicted load, in percent of it.
    headroom_percent: int = 30
    #: Time between two decisions, in milliseconds.
    interval_ms: int = 1000
    #: How long there must be a surplus before replicas are removed, in milliseconds.
    cool_down_ms: int = 30_000
    #: Time without a request after which the last replica is removed, in milliseconds.
    idle_ms: int = 60_000

    @classmethod
    def of(cls, value: Scaling | Mapping[str, Any]) -> Scaling:
        """Checked settings, from themselves or from a mapping. Raises ``ValueError``."""
        if not isinstance(value, Scaling):
            known = [field.name for field in fields(cls)]
            unknown = [name for name in value if name not in known]
            if unknown or "latency_ms" not in value:
                missing = f"there is no {unknown[0]!r}" if unknown else "latency_ms is missing"
                raise ValueError(f"scaling: {missing}; the settings are {', '.join(known)}")
            value = cls(**value)
        value._check()
        return value

    def _check(self) -> None:
        limits = {
            "latency_ms": (1, MS_MAX),
            "min_replicas": (0, REPLICAS_MAX),
            "max_replicas": (1, REPLICAS_MAX),
            "headroom_percent": (0, HEADROOM_PERCENT_MAX),
            "interval_ms": (INTERVAL_MS_MIN, MS_MAX),
            "cool_down_ms": (0, MS_MAX),
            "idle_ms": (0, MS_MAX),
        }
        for name, (least, most) in limits.items():
            found = getattr(self, name)
            if not isinstance(found, int) or isinstance(found, bool) or not least <= found <= most:
                raise ValueError(f"scaling: {name} is {found!r}; whole numbers from {least} to {most} are possible")
        if self.min_replicas > self.max_replicas:
            raise ValueError(f"scaling: min_replicas {self.min_replicas} exceeds max_replicas {self.max_replicas}")

    def settings(self, size: Size) -> dict[str, Any]:
        """The settings as the rule has them. Without a profile, replicas have this size, in whole percent."""
        return {
            "latency_ms": self.latency_ms,
            "min_instances": self.min_replicas,
            "max_instances": self.max_replicas,
            "headroom_percent": self.headroom_percent,
            "interval_ms": self.interval_ms,
            "cool_down_ms": self.cool_down_ms,
            "idle_ms": self.idle_ms,
            "sm_partition": max(1, round(size.sm)),
            "quota_request": max(1, round(size.quota * 100)) / 100,
        }
