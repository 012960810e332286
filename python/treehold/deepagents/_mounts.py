"""Which mount holds a path, and what a pattern means inside it."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import bracex
import wcmatch.fnmatch

if TYPE_CHECKING:
    from deepagents.backends.protocol import BackendProtocol

PATTERNS_MAX = 1000
"""The most alternatives that the braces of one pattern may expand to."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A backend at a path of a composite."""

    prefix: str
    """The prefix as the application wrote it."""
    segments: tuple[str, ...]
    """The segments of the prefix."""
    backend: BackendProtocol

    @property
    def path(self) -> str:
        """The path of the mount, without a slash at its end."""
        return "/" + "/".join(self.segments)

    def holds(self, path: str) -> bool:
        """Tells whether `path` is the mount itself or lies beneath it."""
        return path.startswith(self.path) and (len(path) == len(self.path) or path[len(self.path)] == "/")

    def outer(self, inner_path: str) -> str:
        """Turns a path of the backend into one of the composite."""
        return self.path if inner_path == "/" else self.path + (inner_path if inner_path.startswith("/") else "/" + inner_path)


class Mounts:
    """The mounts of a composite, found by path in time proportional to the depth of the path."""

    def __init__(self, routes: dict[str, BackendProtocol]) -> None:
        self.all = [Mount(prefix, _segments_of(prefix), backend) for prefix, backend in routes.items()]
        self._by_path: dict[str, Mount] = {}
        for mount in self.all:
            other = self._by_path.setdefault(mount.path, mount)
            if other is not mount:
                raise ValueError(f"the routes {other.prefix!r} and {mount.prefix!r} are the same; keep one of them")

    def find(self, path: str) -> tuple[Mount | None, str]:
        """Returns the mount with the longest prefix of `path`, and the path inside it."""
        end = len(path)
        while end > 0:
            mount = self._by_path.get(path[:end])
            if mount is not None:
                return mount, path[end:] or "/"
            end = path.rfind("/", 0, end)
        return None, path

    def beneath(self, path: str) -> list[Mount]:
        """Returns the mounts beneath a directory, in the order in which the application named them."""
        base = path.rstrip("/") + "/"
        return [mount for mount in self.all if mount.path.startswith(base)]

    def children_of(self, path: str) -> list[str]:
        """Returns the paths of the directories, one level beneath `path`, that lead to mounts."""
        depth = 0 if path == "/" else path.rstrip("/").count("/")
        return sorted({"/" + "/".join(mount.segments[: depth + 1]) + "/" for mount in self.beneath(path)})

    def hides(self, mount: Mount | None, path: str) -> bool:
        """Tells whether another mount covers `path`, which `mount` or the default backend returned."""
        return self.find(path)[0] is not mount


def normal(path: str) -> str:
    """Collapses `//`, `/./` and a slash at the end of an absolute path, as every backend of this package does.

    A path with `..` is returned as it is, for the backend to refuse.
    """
    if not path.startswith("/"):
        return path
    if "//" not in path and "/." not in path:
        return path if path == "/" or not path.endswith("/") else path[:-1]
    segments = [segment for segment in path.split("/") if segment not in ("", ".")]
    return path if ".." in segments else "/" + "/".join(segments)


def inside(pattern: str, base: str, mount: Mount) -> str | None:
    """Returns what a glob from `base`, a directory above the mount, means inside the mount; `None` if it cannot match there.

    A pattern without a slash matches names at any depth, inside the mount too. Any other pattern is anchored at `base`:
    the segments that lead to the mount are consumed, and the rest is anchored at the mount.
    """
    if "/" not in pattern:
        return pattern
    way = mount.segments[0 if base == "/" else base.count("/") :]
    rests = dict.fromkeys(
        "/".join(rest) for alternative in _alternatives(pattern) for rest in _rests(alternative, way) if rest
    )
    if not rests:
        return None
    return "/" + (next(iter(rests)) if len(rests) == 1 else "{" + ",".join(rest.replace(",", "\\,") for rest in rests) + "}")


@functools.lru_cache(maxsize=256)
def _alternatives(pattern: str) -> tuple[tuple[str, ...], ...]:
    """Expands the braces of a pattern and splits the alternatives at their slashes."""
    try:
        expanded: Iterable[str] = bracex.expand(pattern, keep_escapes=True, limit=PATTERNS_MAX)
    except bracex.ExpansionLimitException:
        expanded = [pattern]
    return tuple(tuple(segment for segment in each.split("/") if segment) for each in expanded)


def _rests(pattern: Sequence[str], way: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yields what remains of a pattern after the segments that lead to a mount, once for each way to match them."""
    if not way:
        yield tuple(pattern)
    elif pattern and pattern[0] == "**":
        yield from _rests(pattern[1:], way)
        if not way[0].startswith("."):
            yield from _rests(pattern, way[1:])
    elif pattern and wcmatch.fnmatch.fnmatch(way[0], pattern[0], flags=wcmatch.fnmatch.CASE):
        yield from _rests(pattern[1:], way[1:])


def _segments_of(prefix: str) -> tuple[str, ...]:
    """Checks the prefix of a route and splits it."""
    segments = tuple(segment for segment in prefix.split("/") if segment)
    if not prefix.startswith("/") or not segments:
        raise ValueError(f"the route {prefix!r} must start with `/` and name a directory, such as `/memories/`")
    if any(segment in (".", "..") for segment in segments):
        raise ValueError(f"the route {prefix!r} must not contain `.` or `..`")
    return segments
