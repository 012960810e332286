"""Traces of agents across devices: one id, wherever the trace lives.

>>> from treehold.traces import DatabaseTraceStore, NewMessage
>>> traces = DatabaseTraceStore("memory:", user="ada")
>>> trace_id = traces.create_trace("make tea")
>>> message_id = traces.add_message(trace_id, NewMessage("user", "hello"))
>>> [message.content for message in traces.get_main_path_messages(trace_id)]
['hello']

Every method has an asynchronous twin of the same name with an `a` in front: `await traces.aget_trace(trace_id)`.
"""

from treehold._native import (
    AgentTool,
    CachedRemoteStore,
    DatabaseTraceStore,
    HybridTraceStore,
    Peers,
    RemoteTraceStore,
    RunContext,
    TraceRuns,
    TraceStore,
    TraceWatch,
    parse_trace_id,
)
from treehold.errors import BadTraceId, ForeignTrace, UnknownAgent
from treehold.traces._runner import TraceRunner
from treehold.traces._values import (
    Added,
    Damage,
    EventsPage,
    ExportedTrace,
    ExportReport,
    Goal,
    GoalStats,
    GoalStatus,
    GoalTree,
    GoalUpdate,
    ImportedTrace,
    ImportReport,
    Message,
    MessagesPage,
    MessageUpdate,
    NewGoal,
    NewMessage,
    NewTrace,
    Page,
    RunRequest,
    RunResult,
    SequenceRange,
    Trace,
    TraceEvent,
    TraceMode,
    TracePage,
    TraceStatus,
    TraceUpdate,
    Unmoved,
    Value,
)

__all__ = [
    "Added",
    "AgentTool",
    "BadTraceId",
    "CachedRemoteStore",
    "Damage",
    "DatabaseTraceStore",
    "EventsPage",
    "ExportReport",
    "ExportedTrace",
    "ForeignTrace",
    "Goal",
    "GoalStats",
    "GoalStatus",
    "GoalTree",
    "GoalUpdate",
    "HybridTraceStore",
    "ImportReport",
    "ImportedTrace",
    "Message",
    "MessageUpdate",
    "MessagesPage",
    "NewGoal",
    "NewMessage",
    "NewTrace",
    "Page",
    "Peers",
    "RemoteTraceStore",
    "RunContext",
    "RunRequest",
    "RunResult",
    "SequenceRange",
    "Trace",
    "TraceEvent",
    "TraceMode",
    "TracePage",
    "TraceRunner",
    "TraceRuns",
    "TraceStatus",
    "TraceStore",
    "TraceUpdate",
    "TraceWatch",
    "UnknownAgent",
    "Unmoved",
    "Value",
    "parse_trace_id",
]
