"""Moves a LangGraph or deepagents store, or the checkpoints of a saver, into treehold and back.

    from treehold import migrate
    from treehold.langgraph import TreeholdStore

    with migrate.open_store("memories.db") as source, TreeholdStore.from_conn_string("sqlite:agent.db") as target:
        report = migrate.copy_store(source, target)

The source is only read. A move that was interrupted goes on with `resume=True`. The same from a shell:
`python -m treehold.migrate --help`.
"""

from ._api import copy_saver, copy_store, open_saver, open_store, verify_saver, verify_store
from ._engine import Difference, Progress, Report

__all__ = [
    "Difference",
    "Progress",
    "Report",
    "copy_saver",
    "copy_store",
    "open_saver",
    "open_store",
    "verify_saver",
    "verify_store",
]
