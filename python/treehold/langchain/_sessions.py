"""Which session a call of an agent belongs to."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, TypeAlias, cast

from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.runnables import RunnableConfig
from langgraph.config import get_config

import treehold

OPEN_MAX: Final = 100
"""How many sessions stay open. One that is opened again costs a look at its thread."""

SessionSource: TypeAlias = "treehold.Session | Callable[[RunnableConfig], treehold.Session]"
"""One session for all calls, or a function that returns the session for the configuration of a run."""


class Sessions:
    """The sessions of a workspace, one for each thread of the agent.

    The thread is the `thread_id` of the run's configuration, as in LangGraph. `user`, `tenant` and `agent` may be overridden by
    entries of the same names in the configuration.
    """

    def __init__(
        self,
        workspace: treehold.Workspace,
        *,
        user: str | None = None,
        tenant: str | None = None,
        agent: str | None = None,
    ) -> None:
        self._workspace = workspace
        self._fixed = {"user": user, "tenant": tenant, "agent": agent}
        self._open: OrderedDict[tuple[str | None, ...], treehold.Session] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, config: RunnableConfig) -> treehold.Session:
        configurable = config.get("configurable", {})
        thread: str | None = configurable.get("thread_id")
        scope = {name: configurable.get(name, fixed) for name, fixed in self._fixed.items()}
        key = (thread, *scope.values())
        with self._lock:
            session = self._open.pop(key, None)
            if session is None:
                session = self._workspace.session(thread=thread, **scope)
            self._open[key] = session
            while len(self._open) > OPEN_MAX:
                self._open.popitem(last=False)
        return session


def config_of(request: ToolCallRequest) -> RunnableConfig:
    """Returns the configuration of the run that a call belongs to."""
    config: RunnableConfig = cast("Any", request).runtime.config
    return config


def session_of(source: SessionSource, config: RunnableConfig | None = None) -> treehold.Session:
    """Returns the session for the run whose configuration is `config`, or for the one that is going on."""
    if isinstance(source, treehold.Session):
        return source
    if config is None:
        try:
            config = get_config()
        except RuntimeError:
            config = RunnableConfig()
    return source(config)
