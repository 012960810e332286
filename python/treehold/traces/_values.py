"""The values of traces, with the field names of the original. Fields that treehold does not know are kept in `other`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, TypedDict, TypeVar, cast, overload

from treehold.errors import InvalidArgument

if TYPE_CHECKING:
    from typing_extensions import Self

TraceMode: TypeAlias = Literal["call", "agent"]
"""What a trace records: one call of a model, or a run of an agent."""

TraceStatus: TypeAlias = Literal["running", "completed", "failed", "stopped"]
"""How far a trace is."""

GoalStatus: TypeAlias = Literal["pending", "in_progress", "completed", "abandoned"]
"""How far a goal is."""

Reader: TypeAlias = Callable[[Any], Any]


class Value:
    """A value of a trace."""

    _readers: ClassVar[Mapping[str, Reader]] = {}
    """How fields are read that are values themselves."""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Makes the value from its fields in JSON. Fields that the class lacks are kept if it has `other`."""
        names = _names(cls)
        known = {name: _read(cls._readers.get(name), data[name]) for name in names if name in data and name != "other"}
        if "other" in names:
            known["other"] = {name: value for name, value in data.items() if name not in names}
        return cls(**known)

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as JSON has them."""
        fields = {name: _written(getattr(self, name)) for name in _names(type(self)) if name != "other"}
        return {**getattr(self, "other", {}), **fields}


class New(Value):
    """A value to add. What is `None` is left to the store."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as JSON has them, without those that are `None`."""
        return {name: value for name, value in super().to_dict().items() if value is not None}


def _names(cls: type[Any]) -> tuple[str, ...]:
    return tuple(each.name for each in dataclasses.fields(cls))


def _read(reader: Reader | None, value: Any) -> Any:
    return value if reader is None or value is None else reader(value)


def _written(value: Any) -> Any:
    if isinstance(value, Value):
        return value.to_dict()
    if isinstance(value, list):
        return [_written(item) for item in cast("Iterable[Any]", value)]
    return value


def _each(reader: Reader) -> Reader:
    def read(values: list[Any]) -> list[Any]:
        return [reader(value) for value in values]

    return read


@dataclass
class SequenceRange(Value):
    """A span of sequences, both ends included."""

    first: int
    """The first sequence."""
    last: int
    """The last sequence."""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Makes the span from its form in JSON, `{"from", "to"}`."""
        return cls(data["from"], data["to"])

    def to_dict(self) -> dict[str, Any]:
        """Returns the form in JSON, `{"from", "to"}`."""
        return {"from": self.first, "to": self.last}


@dataclass
class Trace(Value):
    """A trace without its messages, goals and events."""

    trace_id: str
    """The id; qualified if the trace lives elsewhere."""
    mode: TraceMode = "agent"
    """What it records."""
    task: str | None = None
    """The task of the agent."""
    parent_trace_id: str | None = None
    """The trace that started this one."""
    parent_goal_id: str | None = None
    """The goal of the parent that this trace works on."""
    agent_type: str | None = None
    """The kind of agent."""
    uid: str | None = None
    """The user that it belongs to."""
    status: TraceStatus = "running"
    """How far it is."""
    total_messages: int = 0
    """The number of messages, side branches included."""
    total_tokens: int = 0
    """The sum of the tokens of all messages."""
    total_cost: float = 0.0
    """The sum of the costs of all messages, in the currency of the runner."""
    total_duration_ms: int = 0
    """How long its runs took in all, in milliseconds."""
    last_sequence: int = 0
    """The sequence of the newest message, 0 without messages."""
    last_event_id: int = 0
    """The id of the newest event, 0 without events."""
    current_goal_id: str | None = None
    """The goal at work."""
    head_sequence: int = 0
    """The end of the main path, 0 without messages."""
    created_at: str | None = None
    """When it was created, in ISO 8601."""
    completed_at: str | None = None
    """When it ended, in ISO 8601."""
    run_config: Any = None
    """The configuration of its runner, as the runner wrote it."""
    remote: bool = False
    """Whether it came from elsewhere."""
    stale: bool = False
    """Whether it came from a cache although its owner did not answer."""
    other: dict[str, Any] = field(default_factory=dict[str, Any])
    """Fields that treehold does not know."""


@dataclass
class NewTrace(New):
    """A trace to create."""

    task: str | None = None
    """The task of the agent."""
    trace_id: str | None = None
    """The id; random by default."""
    mode: TraceMode = "agent"
    """What it records."""
    parent_trace_id: str | None = None
    """The trace that starts this one."""
    parent_goal_id: str | None = None
    """The goal of the parent that this trace works on."""
    agent_type: str | None = None
    """The kind of agent."""
    run_config: Any = None
    """The configuration of its runner."""
    other: dict[str, Any] = field(default_factory=dict[str, Any])
    """Fields that treehold does not know."""


class TraceUpdate(TypedDict, total=False):
    """Changes to a trace. What is missing or `None` stays."""

    status: TraceStatus | None
    """A final status also sets the time of completion, and `running` clears it."""
    task: str | None
    """The task."""
    current_goal_id: str | None
    """The goal at work; an empty text for none."""
    add_duration_ms: int | None
    """Milliseconds to add to the duration of its runs."""
    run_config: Any
    """The configuration of its runner."""
    head_sequence: int | None
    """The end of the main path, for a rewind without a message: the sequence of a message, or 0."""


@dataclass
class Message(Value):
    """A message of a trace."""

    message_id: str
    """The id, unique in the trace."""
    trace_id: str
    """The trace."""
    role: str
    """Who speaks: `system`, `user`, `assistant`, `tool` or another role."""
    sequence: int
    """Its number. Sequences of a trace start at 1, have no gaps and are never used again."""
    parent_sequence: int | None = None
    """The sequence of the message before it on its path; `None` for the first of a path."""
    goal_id: str | None = None
    """The goal that it belongs to."""
    tool_call_id: str | None = None
    """The tool call that it answers."""
    content: Any = None
    """The content: `{text, tool_calls}` of an assistant, a text of a tool."""
    tokens: int | None = None
    """How many tokens it took."""
    cost: float | None = None
    """What it cost, in the currency of the runner."""
    branch_type: str | None = None
    """The kind of side branch that it is part of. Messages of a side branch do not move the head."""
    summarizes: SequenceRange | None = None
    """The messages that it stands for on the main path, if it is the summary of a compaction."""
    created_at: str | None = None
    """When it was added, in ISO 8601."""
    other: dict[str, Any] = field(default_factory=dict[str, Any])
    """Fields that treehold does not know."""

    _readers: ClassVar[Mapping[str, Reader]] = {"summarizes": SequenceRange.from_dict}


@dataclass
class NewMessage(New):
    """A message to add."""

    role: str
    """Who speaks."""
    content: Any = None
    """The content."""
    message_id: str | None = None
    """The id; by default `{trace id}-{sequence}` with at least four digits."""
    parent_sequence: int | None = None
    """The sequence of its parent: the head by default, 0 for the beginning of a new path."""
    goal_id: str | None = None
    """The goal that it belongs to."""
    tool_call_id: str | None = None
    """The tool call that it answers."""
    tokens: int | None = None
    """How many tokens it took."""
    cost: float | None = None
    """What it cost."""
    branch_type: str | None = None
    """The kind of side branch, if it must not move the head."""
    summarizes: SequenceRange | None = None
    """The messages of the main path that it replaces as their summary. The span ends at the head."""
    other: dict[str, Any] = field(default_factory=dict[str, Any])
    """Fields that treehold does not know."""

    _readers: ClassVar[Mapping[str, Reader]] = {"summarizes": SequenceRange.from_dict}


class MessageUpdate(TypedDict, total=False):
    """Changes to a message. What is missing or `None` stays. Sequence and parent never change."""

    content: Any
    """The content."""
    goal_id: str | None
    """The goal; an empty text for none."""
    tokens: int | None
    """How many tokens it took."""
    cost: float | None
    """What it cost."""


@dataclass
class GoalStats(Value):
    """What messages took."""

    message_count: int = 0
    """The number of messages."""
    total_tokens: int = 0
    """The sum of their tokens."""
    total_cost: float = 0.0
    """The sum of their costs."""
    other: dict[str, Any] = field(default_factory=dict[str, Any])
    """Fields that treehold does not know."""


@dataclass
class Goal(Value):
    """A goal."""

    id: str
    """The id, unique in the trace."""
    description: str = ""
    """What is to be reached."""
    parent_id: str | None = None
    """The goal above it."""
    type: str | None = None
    """The kind: `normal`, `agent_call` or another one."""
    reason: str | None = None
    """Why."""
    status: GoalStatus = "pending"
    """How far it is."""
    summary: str | None = None
    """What came out."""
    self_stats: GoalStats = field(default_factory=GoalStats)
    """What its own messages took. The store keeps it."""
    cumulative_stats: GoalStats = field(default_factory=GoalStats)
    """What its messages and those of the goals below it took. The store keeps it."""
    sub_trace_ids: list[str] = field(default_factory=list[str])
    """The traces that were started for it."""
    other: dict[str, Any] = field(default_factory=dict[str, Any])
    """Fields that treehold does not know."""

    _readers: ClassVar[Mapping[str, Reader]] = {"self_stats": GoalStats.from_dict, "cumulative_stats": GoalStats.from_dict}


@dataclass
class NewGoal(New):
    """A goal to add."""

    description: str
    """What is to be reached."""
    id: str | None = None
    """The id; by default the next free number."""
    parent_id: str | None = None
    """The goal above it."""
    type: str | None = None
    """The kind."""
    reason: str | None = None
    """Why."""
    other: dict[str, Any] = field(default_factory=dict[str, Any])
    """Fields that treehold does not know."""


class GoalUpdate(TypedDict, total=False):
    """Changes to a goal. What is missing or `None` stays."""

    status: GoalStatus | None
    """How far it is."""
    description: str | None
    """What is to be reached."""
    summary: str | None
    """What came out."""
    add_sub_trace: str | None
    """A trace that was started for it, to add."""


@dataclass
class GoalTree(Value):
    """The goals of a trace."""

    mission: str = ""
    """What the whole trace is for."""
    current_id: str | None = None
    """The goal at work."""
    goals: list[Goal] = field(default_factory=list[Goal])
    """The goals, parents before their children."""
    other: dict[str, Any] = field(default_factory=dict[str, Any])
    """Fields that treehold does not know."""

    _readers: ClassVar[Mapping[str, Reader]] = {"goals": _each(Goal.from_dict)}

    def find(self, id: str) -> Goal | None:
        """Returns a goal, or `None` if there is none with this id."""
        return next((goal for goal in self.goals if goal.id == id), None)


@dataclass
class TraceEvent(Value):
    """An event of a trace."""

    event_id: int
    """Its number. Event ids of a trace start at 1, rise by one, and are never used again."""
    event: str
    """The kind, such as `message_added`, `goal_added`, `trace_completed`. Runners may add others."""
    ts: str | None = None
    """When it happened, in ISO 8601."""
    other: dict[str, Any] = field(default_factory=dict[str, Any])
    """What it tells, by its kind."""


T = TypeVar("T")


class Page(Value, Sequence[T]):
    """A page of a listing, which is a sequence of its entries."""

    def _entries(self) -> list[T]:
        raise NotImplementedError

    def __iter__(self) -> Iterator[T]:
        return iter(self._entries())

    def __len__(self) -> int:
        return len(self._entries())

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        return self._entries()[index]


@dataclass
class TracePage(Page[Trace]):
    """A page of traces, newest first."""

    traces: list[Trace] = field(default_factory=list[Trace])
    """The traces."""
    total: int = 0
    """How many traces there are in all with the status and mode of the query."""
    next: str | None = None
    """The `cursor` of the next page; `None` at the end."""

    _readers: ClassVar[Mapping[str, Reader]] = {"traces": _each(Trace.from_dict)}

    def _entries(self) -> list[Trace]:
        return self.traces


@dataclass
class MessagesPage(Page[Message]):
    """A page of messages, earlier ones first."""

    messages: list[Message] = field(default_factory=list[Message])
    """The messages."""
    earlier: int | None = None
    """In a page of the main path, the `head_sequence` of the page before this one; `None` if the path begins on it."""
    more: bool = False
    """Otherwise, whether more messages follow."""
    stale: bool = False
    """Whether it came from a cache although the owner of the trace did not answer."""

    _readers: ClassVar[Mapping[str, Reader]] = {"messages": _each(Message.from_dict)}

    def _entries(self) -> list[Message]:
        return self.messages


@dataclass
class EventsPage(Page[TraceEvent]):
    """A page of events, in order."""

    events: list[TraceEvent] = field(default_factory=list[TraceEvent])
    """The events."""
    more: bool = False
    """Whether more follow."""

    _readers: ClassVar[Mapping[str, Reader]] = {"events": _each(TraceEvent.from_dict)}

    def _entries(self) -> list[TraceEvent]:
        return self.events


@dataclass
class Added(Value):
    """The result of adding messages."""

    messages: list[Message]
    """The messages as they are stored, in the order of the call."""
    head_sequence: int
    """The head after the call."""
    repeated: bool = False
    """Whether an earlier call with the same idempotency key added them."""

    _readers: ClassVar[Mapping[str, Reader]] = {"messages": _each(Message.from_dict)}


@dataclass
class RunRequest(Value):
    """What to run."""

    messages: list[NewMessage] = field(default_factory=list[NewMessage])
    """What the agent is asked. The messages are in the trace already when a runner sees them."""
    after_sequence: int | None = None
    """The sequence after which the run continues; the head by default."""
    config: Any = None
    """The configuration of the runner, which it interprets."""
    branch_type: str | None = None
    """The kind of side branch that the run works on. By default the run continues the main path."""

    _readers: ClassVar[Mapping[str, Reader]] = {"messages": _each(NewMessage.from_dict)}


@dataclass
class RunResult(New):
    """How a run ended."""

    status: TraceStatus
    """The status of the trace after the run."""
    summary: str | None = None
    """What the run says about its outcome, at most 16 KiB."""
    error: str | None = None
    """Why it failed, at most 16 KiB."""

    @classmethod
    def completed(cls, summary: str) -> RunResult:
        """Makes the result of a run that ended well."""
        return cls("completed", summary)

    @classmethod
    def failed(cls, error: str) -> RunResult:
        """Makes the result of a run that failed."""
        return cls("failed", error=error)


@dataclass
class Unmoved(Value):
    """Something of a directory that was not imported or exported."""

    name: str
    """The entry of the directory, or the trace."""
    code: str
    """The code of the error, such as `corrupt`."""
    message: str
    """What went wrong."""


@dataclass
class Damage(Value):
    """A file, line or field that was not imported as it is."""

    path: str
    """The file beneath the directory of the trace."""
    line: int | None
    """The line, from 1; `None` for the whole file."""
    reason: str
    """Why."""


@dataclass
class ImportedTrace(Value):
    """A trace that was imported."""

    id: str
    """The id."""
    repeated: bool
    """Whether an earlier call imported the same files."""
    messages: int
    """How many messages this call took."""
    events: int
    """How many events this call took."""
    other_files: int
    """How many other files were kept, damaged ones included."""
    damages: list[Damage]
    """What was not taken as it is, the first 1,000 of `damages_count`."""
    damages_count: int
    """How many damages there are."""

    _readers: ClassVar[Mapping[str, Reader]] = {"damages": _each(Damage.from_dict)}


@dataclass
class ImportReport(Value):
    """The result of importing a directory."""

    traces: list[ImportedTrace]
    """The traces that are there now, those of earlier imports included."""
    failures: list[Unmoved]
    """The entries that were not imported."""
    left_out: int
    """How many traces were left out because they belong to other users."""

    _readers: ClassVar[Mapping[str, Reader]] = {
        "traces": _each(ImportedTrace.from_dict),
        "failures": _each(Unmoved.from_dict),
    }


@dataclass
class ExportedTrace(Value):
    """A trace that was exported."""

    id: str
    """The id."""
    written: int
    """How many files were written. Files that had their content already are not among them."""


@dataclass
class ExportReport(Value):
    """The result of exporting traces."""

    traces: list[ExportedTrace]
    """The traces that were written."""
    failures: list[Unmoved]
    """The traces that were not written, or only in part."""

    _readers: ClassVar[Mapping[str, Reader]] = {
        "traces": _each(ExportedTrace.from_dict),
        "failures": _each(Unmoved.from_dict),
    }


_CLASSES: Mapping[str, type[Value]] = {
    kind.__name__: kind
    for kind in (
        Added,
        EventsPage,
        ExportReport,
        Goal,
        GoalTree,
        ImportReport,
        Message,
        MessagesPage,
        RunRequest,
        RunResult,
        Trace,
        TraceEvent,
        TracePage,
    )
}


def loaded(kind: str, text: str) -> Value:
    """Makes a value from JSON. The native module calls it."""
    return _CLASSES[kind].from_dict(json.loads(text))


def dumped(value: object) -> str:
    """Returns a value, or what JSON can hold, as JSON. The native module calls it."""
    try:
        return json.dumps(value, allow_nan=False, default=_plain)
    except ValueError as error:
        raise InvalidArgument(f"the value cannot be written as JSON: {error}") from error


def _plain(value: object) -> object:
    if isinstance(value, Value):
        return value.to_dict()
    if isinstance(value, Mapping):
        return dict(cast("dict[Any, Any]", value))
    if isinstance(value, (Sequence, set, frozenset)) and not isinstance(value, (str, bytes, bytearray)):
        return list(cast("Iterable[Any]", value))
    raise TypeError(f"`{type(value).__name__}` is no value of JSON")
