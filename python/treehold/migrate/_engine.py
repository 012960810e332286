"""Copies and verifies records, whatever they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from treehold import Conflict, InvalidArgument

EXAMPLES_MAX = 100
"""The most differences that a report names."""


class Record(Protocol):
    """Something to move."""

    @property
    def place(self) -> str:
        """Where it is, for people."""
        ...

    @property
    def is_expired(self) -> bool:
        """Whether its time to live is over."""
        ...

    @property
    def parts(self) -> dict[str, int]:
        """What it consists of, for the counts."""
        ...


R = TypeVar("R", bound=Record)


class Source(ABC, Generic[R]):
    """A side of a move that can be read."""

    name: str
    """What it is, for people; without passwords."""

    @abstractmethod
    def batches(self, size: int) -> Iterator[list[R]]:
        """Reads all records, at most `size` at once."""

    @abstractmethod
    def find(self, records: Sequence[R]) -> list[R | None]:
        """Reads the records at the same places."""


class Target(Source[R]):
    """A side of a move that can be written."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Returns whether it holds no records."""

    @abstractmethod
    def check(self, record: R) -> None:
        """Raises an error if it cannot hold a record."""

    @abstractmethod
    def write(self, records: Sequence[R]) -> None:
        """Stores records in one commit, if it has commits."""

    @abstractmethod
    def difference(self, record: R, found: R) -> str | None:
        """Says in what a record differs from its copy here; `None` if in nothing."""

    @abstractmethod
    def is_part(self, record: R, found: R) -> bool:
        """Returns whether a copy is what an interrupted write of the record leaves."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A record that the two sides do not have alike, or that cannot be moved."""

    place: str
    reason: str


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a move is."""

    step: str
    """`copy` or `verify`."""
    records: int
    """The records read in this step."""


@dataclass(slots=True)
class Report:
    """What a move did."""

    kind: str
    """`items` or `checkpoints`."""
    source: str
    target: str
    dry_run: bool = False
    read: int = 0
    """The records read from the source."""
    written: int = 0
    """The records written, or to be written in a dry run."""
    present: int = 0
    """The records that an earlier run had moved."""
    expired: int = 0
    """The records left behind because their time to live is over."""
    parts: dict[str, int] = field(default_factory=dict[str, int])
    """What the records read consist of, such as pending writes."""
    verified: int | None = None
    """The records compared after the move; `None` without verification."""
    differences: int = 0
    """The records that differ, are missing or extra, or cannot be moved."""
    examples: list[Difference] = field(default_factory=list[Difference])
    """The first differences."""

    @property
    def is_good(self) -> bool:
        """Whether nothing differs."""
        return self.differences == 0

    def as_dict(self) -> dict[str, Any]:
        """Returns the report for JSON."""
        return {**asdict(self), "is_good": self.is_good}

    def add(self, place: str, reason: str) -> None:
        """Adds a difference."""
        self.differences += 1
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append(Difference(place, reason))


def copy(
    kind: str,
    source: Source[R],
    target: Target[R],
    *,
    resume: bool,
    dry_run: bool,
    verifies: bool,
    page: int,
    progress: Callable[[Progress], None] | None,
) -> Report:
    """Copies all records that the target does not hold yet."""
    _check_page(page)
    report = Report(kind, source.name, target.name, dry_run=dry_run)
    is_empty = target.is_empty()
    if not is_empty and not resume:
        message = f"{target.name} holds {kind} already; choose another namespace, or resume the move that wrote them"
        raise Conflict(message)
    for batch in source.batches(page):
        report.read += len(batch)
        living = [record for record in batch if not record.is_expired]
        report.expired += len(batch) - len(living)
        for record in living:
            for name, count in record.parts.items():
                report.parts[name] = report.parts.get(name, 0) + count
        missing: list[R] = []
        found = [None] * len(living) if is_empty else target.find(living)
        for record, there in zip(living, found, strict=True):
            if there is None or target.is_part(record, there):
                missing.append(record)
                continue
            reason = target.difference(record, there)
            if reason is None:
                report.present += 1
            elif dry_run:
                report.add(record.place, reason)
            else:
                message = f"{record.place} is in the target and differs ({reason}); remove it, or move into another namespace"
                raise Conflict(message)
        movable: list[R] = []
        for record in missing:
            try:
                target.check(record)
            except InvalidArgument as error:
                if not dry_run:
                    raise
                report.add(record.place, error.message)
            else:
                movable.append(record)
        if movable and not dry_run:
            target.write(movable)
        report.written += len(movable)
        if progress is not None:
            progress(Progress("copy", report.read))
    if verifies and not dry_run:
        verify_into(report, source, target, page=page, progress=progress)
    return report


def verify_into(
    report: Report,
    source: Source[R],
    target: Target[R],
    *,
    page: int,
    progress: Callable[[Progress], None] | None,
) -> None:
    """Compares every record of both sides, and adds what differs to the report."""
    _check_page(page)
    report.verified, read = 0, 0
    for batch in source.batches(page):
        for record, there in zip(batch, target.find(batch), strict=True):
            # A record may expire on one side a moment before the other.
            if record.is_expired:
                continue
            report.verified += 1
            reason = "missing in the target" if there is None else target.difference(record, there)
            if reason is not None:
                report.add(record.place, reason)
        read += len(batch)
        if progress is not None:
            progress(Progress("verify", read))
    for batch in target.batches(page):
        for record, there in zip(batch, source.find(batch), strict=True):
            if there is None and not record.is_expired:
                report.add(record.place, "missing in the source")


def _check_page(page: Any) -> None:
    if isinstance(page, bool) or not isinstance(page, int) or not 1 <= page <= 10_000:
        raise InvalidArgument(f"`page` is `{page!r}`; use a whole number from 1 to 10000")
