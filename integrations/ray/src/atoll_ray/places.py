"""Places of replicas: the placement groups of a graph's copies."""

from __future__ import annotations

import threading
from typing import Any

from ray.util import get_placement_group, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

#: Ray's strategies for the bundles of a group.
STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


class Places:
    """A placement group for each copy of a graph, with one bundle of resources for each stage.

    Groups have names, so an actor that Ray has restarted finds those of its predecessor.
    """

    def __init__(self, name: str, bundles: list[dict[str, float]], strategy: str, is_restarted: bool) -> None:
        self._name = name
        self._bundles = bundles
        self._strategy = strategy
        self._lock = threading.Lock()
        self._groups: dict[int, Any] = {}
        names = group_names(name)
        for group in names:
            if is_restarted:
                self._groups[names[group]] = get_placement_group(group)
            else:
                # It is of an earlier graph with this name, whose actor ended without removing it.
                remove_placement_group(get_placement_group(group))

    def strategy(self, copy: int, stage: int) -> PlacementGroupSchedulingStrategy:
        """Where the replica of a stage in a copy runs. Creates the group of the copy if there is none."""
        with self._lock:
            group = self._groups.get(copy)
            if group is None:
                group = placement_group(
                    self._bundles, strategy=self._strategy, name=group_name(self._name, copy), lifetime="detached"
                )
                self._groups[copy] = group
        return PlacementGroupSchedulingStrategy(
            placement_group=group, placement_group_bundle_index=stage, placement_group_capture_child_tasks=False
        )

    def trim(self, copies: int, in_use: set[int]) -> None:
        """Removes the groups of copies that are not wanted and have no replicas."""
        with self._lock:
            for copy in [copy for copy in self._groups if copy >= copies and copy not in in_use]:
                remove_placement_group(self._groups.pop(copy))

    def states(self) -> dict[int, str]:
        """The state of each copy's group, as Ray names it."""
        with self._lock:
            groups = dict(self._groups)
        return {copy: placement_group_table(group).get("state", "UNKNOWN") for copy, group in groups.items()}


def group_name(graph: str, copy: int) -> str:
    """The name of a copy's group. Graphs have no `/` in their names."""
    return f"atoll/{graph}/{copy}"


def group_names(graph: str) -> dict[str, int]:
    """The groups of a graph that Ray has, with the copies that they are of."""
    start = group_name(graph, 0)[:-1]
    names = [one["name"] for one in placement_group_table().values() if one["state"] != "REMOVED"]
    return {name: int(name[len(start) :]) for name in names if name.startswith(start) and name[len(start) :].isdigit()}


def remove(graph: str) -> None:
    """Removes all groups of a graph, for example if its actor has ended without doing so."""
    for name in group_names(graph):
        remove_placement_group(get_placement_group(name))


def node_of(copy: int, graph: str) -> list[str]:
    """The machines of a copy's bundles, as Ray names them, in the order of the stages."""
    group = get_placement_group(group_name(graph, copy))
    found: dict[int, str] = placement_group_table(group)["bundles_to_node_id"]
    return [found[at] for at in sorted(found)]
