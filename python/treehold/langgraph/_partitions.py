"""The partitions of items, and their versions.

A partition is the first two components of a namespace, and what one commit can change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from treehold._io import CurrentVersion, Namespace, Steps

from ._keys import root_of
from ._plan import Place, Plan
from ._vectors import Versions

T = TypeVar("T")


def partitions_read(root: Namespace, plan: Plan) -> list[Namespace]:
    """Returns the partitions that the reads of a batch name."""
    read = [(*root, *get.namespace) for get in plan.gets.values()]
    prefixes = [search.prefix for search in plan.searches.values()] + [listed.prefix for listed in plan.lists.values()]
    above = [(*root, *prefix) for prefix in prefixes]
    return sorted({root_of(place)[:2] for place in read} | {place[:2] for place in above if len(place) > 1})


def by_partition(root: Namespace, rows: Mapping[Place, T]) -> dict[Namespace, dict[Place, T]]:
    """Groups what concerns rows by the partition of the rows, in the order of the first of each."""
    groups: dict[Namespace, dict[Place, T]] = {}
    for place, about in rows.items():
        groups.setdefault((*root, *place[0])[:2], {})[place] = about
    return groups


def versions_of(partitions: Iterable[Namespace]) -> Steps[Versions]:
    """Reads the versions of partitions."""
    versions: list[tuple[Namespace, int]] = []
    for partition in partitions:
        version: int = yield CurrentVersion(partition if partition[-1] else partition[:1])
        versions.append((partition, version))
    return tuple(versions)
