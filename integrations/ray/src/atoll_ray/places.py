"""Places of replicas: the placement groups of a graph's copies."""

from __future__ import annotations

import threading

import ray
from ray.util import placement_group, placement_group_table, remove_placement_group
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

#: Ray's strategies for the bundles of a group.
STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


class Places:
    """A placement group for each copy of a graph, with one bundle of resources for each stage.

    Groups have names, by which an actor that Ray has restarted finds those of its predecessor.
    """

    def __init__(self, name: str, bundles: list[dict[str, float]], strategy: str, is_restarted: bool) -> None:
        self._name = name
        self._bundles = bundles
        self._strategy = strategy
        self._lock = threading.Lock()
        self._groups: dict[int, PlacementGroup] = {}
        if is_restarted:
            self._groups = groups(name)
        else:
            # They are of an earlier graph with this name, whose actor ended without removing them.
            remove(name)

    def strategy(self, copy: int, stage: int) -> PlacementGroupSchedulingStrategy:
        """Where the replica of a stage in a copy runs. Creates the group of the copy if there is none.

        Another program may have removed a group. Then each replica in it would die at its start, so there is a new one.
        """
        with self._lock:
            group = self._groups.get(copy)
            if group is None or state(group) in (None, "REMOVED"):
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
        return {copy: state(group) or "UNKNOWN" for copy, group in groups.items()}


def state(group: PlacementGroup) -> str | None:
    """The state of a group, as Ray names it; ``None`` if Ray does not have it."""
    found: str | None = placement_group_table(group).get("state")
    return found


def group_name(graph: str, copy: int) -> str:
    """The name of a copy's group. Graphs have no `/` in their names."""
    return f"atoll/{graph}/{copy}"


def groups(graph: str) -> dict[int, PlacementGroup]:
    """The groups of a graph that Ray has, with the copies that they are of.

    Ray finds groups by their names only for programs of one namespace, and so they are found in its table here.
    """
    start = group_name(graph, 0)[:-1]
    found = {}
    for entry in placement_group_table().values():
        copy = entry["name"].removeprefix(start)
        if entry["state"] != "REMOVED" and entry["name"].startswith(start) and copy.isdigit():
            id_ = ray.PlacementGroupID(bytes.fromhex(entry["placement_group_id"]))
            found[int(copy)] = PlacementGroup(id_)
    return found


def remove(graph: str) -> None:
    """Removes all groups of a graph."""
    for group in groups(graph).values():
        remove_placement_group(group)


def nodes_of(copy: int, graph: str) -> list[str]:
    """The machines of a copy's bundles, as Ray names them, in the order of the stages. Empty if there is no group."""
    group = groups(graph).get(copy)
    if group is None:
        return []
    nodes: dict[int, str] = placement_group_table(group)["bundles_to_node_id"]
    return [nodes[at] for at in sorted(nodes)]
