"""Why a pool finds no node, in words that help.

"0/5 nodes are available" sends people looking for capacity when they have misspelt a label. A selector that matches no
node is compared with the labels that the nodes do have: the same up to case, a key or value one slip away, or a device
that the node is labelled for but does not offer.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from difflib import get_close_matches

from rex_operator.placement.nodes import Node, PoolRequest, fits, selects, tolerated

_MAX_LISTED = 3


def explain(pool: PoolRequest, nodes: Sequence[Node]) -> str:
    """One sentence on how many nodes the pool matches and what keeps it from using them."""
    matching = [node for node in nodes if selects(pool.demand.node_selector, node.labels)]
    if not matching:
        text = f"pool {pool.name} matches no node ({len(nodes)} nodes seen)"
        hints = near_misses(pool, nodes)
        return f"{text}; {'; '.join(hints)}" if hints else text
    reasons = _reasons(pool, matching)
    able = sum(1 for node in matching if fits(pool.demand, node))
    text = f"pool {pool.name} matches {len(matching)} of {len(nodes)} nodes, {able} with room"
    return f"{text} ({', '.join(reasons)})" if reasons else text


def near_misses(pool: PoolRequest, nodes: Sequence[Node]) -> list[str]:
    """What the nodes carry that looks like what the pool asks for."""
    hints: list[str] = []
    keys = {key for node in nodes for key in node.labels}
    for key, value in pool.demand.node_selector.items():
        values = {node.labels[key] for node in nodes if key in node.labels}
        if value in values:
            continue
        if values:
            near = _close(value, values)
            shown = near or sorted(values)[:_MAX_LISTED]
            word = "did you mean" if near else "nodes have"
            hints.append(f"no node has {key}={value}; {word} {' or '.join(f'{key}={item}' for item in shown)}?")
        elif near := _close(key, keys):
            hints.append(f"no node has the label {key}; did you mean {' or '.join(near)}?")
        else:
            hints.append(f"no node has the label {key}")
    return hints


def _close(word: str, known: set[str]) -> list[str]:
    by_fold = {item.lower(): item for item in sorted(known)}
    return [by_fold[match] for match in get_close_matches(word.lower(), by_fold, n=_MAX_LISTED, cutoff=0.8)]


def _reasons(pool: PoolRequest, matching: Sequence[Node]) -> list[str]:
    counts: dict[str, int] = {}
    for node in matching:
        reason = _reason(pool, node)
        if reason:
            counts[reason] = counts.get(reason, 0) + 1
    return [f"{count} {reason}" for reason, count in sorted(counts.items())]


def _reason(pool: PoolRequest, node: Node) -> str:
    if not node.ready:
        return "not ready"
    if node.cordoned:
        return "cordoned"
    if not tolerated(pool.demand, node):
        return "with a taint that is not tolerated"
    for name, amount in sorted(pool.demand.requests.items()):
        if node.allocatable.get(name, Decimal(0)) < amount:
            return f"without {name} to allocate"
        if node.free.get(name, Decimal(0)) < amount:
            return f"with all {name} in use"
    return ""
