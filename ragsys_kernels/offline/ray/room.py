"""What the nodes of a Ray cluster have, and what fits on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# What each node has of each resource, such as "CPU" and "memory", in Ray's words and units.
Nodes = dict[str, dict[str, float]]


def totals(ray: Any) -> Nodes:
    """Return the resources of the nodes that are alive, by the id of the node."""
    return {node["NodeID"]: dict(node["Resources"]) for node in ray.nodes() if node["Alive"]}


def free(ray: Any) -> Nodes:
    """Return what no actor and no task has reserved, of the nodes that are alive."""
    # The one call of Ray that tells nodes apart; `ray.available_resources` is their sum.
    from ray._private.state import available_resources_per_node

    left = available_resources_per_node()
    return {node: left.get(node, {}) for node in totals(ray)}


def without(nodes: Nodes, demands: Sequence[dict[str, float]]) -> Nodes | None:
    """Return what is left where each demand is put on the node with the most memory left; None: they do not fit."""
    left = {node: dict(has) for node, has in nodes.items()}
    for demand in sorted(demands, key=lambda demand: -demand.get("memory", 0)):
        fitting = [has for has in left.values() if fits(has, demand)]
        if not fitting:
            return None
        most = max(fitting, key=lambda has: has.get("memory", 0))
        for name, amount in demand.items():
            most[name] = most.get(name, 0) - amount
    return left


def fits(has: dict[str, float], demand: dict[str, float]) -> bool:
    """Whether a node has all that is wanted; sums of fractions of CPUs are rounded as Ray rounds them."""
    return all(has.get(name, 0) >= amount - 1e-4 for name, amount in demand.items())


def count(nodes: Nodes, demand: dict[str, float]) -> int:
    """Return how often a demand fits."""
    wanted = {name: amount for name, amount in demand.items() if amount}
    return sum(
        min(int((has.get(name, 0) + 1e-4) / amount) for name, amount in wanted.items()) for has in nodes.values()
    )


def said(demand: dict[str, float]) -> str:
    """Return resources in words: "5,000,000 bytes of memory and 1 CPUs"."""
    words = [f"{int(demand.get('memory', 0)):,} bytes of memory", f"{demand.get('CPU', 0):g} CPUs"]
    return " and ".join([*words, *([f"{demand['GPU']:g} GPUs"] if demand.get("GPU") else [])])


def most(nodes: Nodes, ray: Any) -> str:
    """Return in words what the nodes with the most memory have."""
    names = addresses(ray)
    first = sorted(nodes, key=lambda node: -nodes[node].get("memory", 0))[:5]
    more = f", and {len(nodes) - len(first)} more with less" if len(nodes) > len(first) else ""
    return "; ".join(f"{names.get(node, node[:8])}: {said(nodes[node])}" for node in first) + more or "none"


def addresses(ray: Any) -> dict[str, str]:
    """Return how messages name nodes: by address and, for several of a machine, the first digits of their id."""
    return {node["NodeID"]: f"{node['NodeManagerAddress']} ({node['NodeID'][:8]})" for node in ray.nodes()}
