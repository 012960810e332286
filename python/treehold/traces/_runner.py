"""What runs an agent."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from treehold._native import RunContext
    from treehold.traces._values import RunRequest, RunResult


class TraceRunner(Protocol):
    """What runs an agent on a trace, usually by a coroutine function `run`.

    A run reads the main path of its trace, calls its model and tools, and adds what they say. The messages of the request are in the
    trace already. Coroutines run on one event loop in a thread of its own. They are cancelled when their run is stopped or late. A plain
    function is not cancelled, but its calls of `context.traces` are refused from then on.
    """

    def run(self, context: RunContext, request: RunRequest, /) -> Awaitable[RunResult | str] | RunResult | str:
        """Runs an agent on a trace until the run ends, and returns how. A text is the summary of a run that ended well.

        An exception ends the run with the status `failed` and its text.
        """
        ...
