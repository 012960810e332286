"""treehold in agents of LangChain, with or without deepagents: tools, memory, large results, and consent.

    workspace = treehold.Workspace.open("treehold.toml")
    sessions = Sessions(workspace, user="ada")
    agent = create_agent(
        model,
        middleware=[
            MemoryMiddleware(sessions),
            FilesystemMiddleware(sessions, workspace=workspace),
            ApprovalMiddleware(sessions),
        ],
        checkpointer=checkpointer,
    )
"""

from treehold.langchain._approval import ApprovalMiddleware
from treehold.langchain._files import FilesystemMiddleware
from treehold.langchain._memory import MemoryMiddleware
from treehold.langchain._sessions import Sessions, SessionSource
from treehold.langchain._toolkit import TreeholdToolkit

__all__ = ["ApprovalMiddleware", "FilesystemMiddleware", "MemoryMiddleware", "SessionSource", "Sessions", "TreeholdToolkit"]
