"""LangGraph's checkpointer and store on any treehold store.

    from treehold.langgraph import TreeholdSaver, TreeholdStore

    with TreeholdSaver.from_conn_string("sqlite:agent.db") as saver, TreeholdStore.from_conn_string("sqlite:agent.db") as store:
        graph = builder.compile(checkpointer=saver, store=store)
"""

from ._items import InvalidNamespace, TreeholdItem, TreeholdSearchItem
from ._vectors import TreeholdIndexConfig
from .saver import TreeholdSaver
from .store import NamespacesPage, SearchPage, TreeholdStore

__all__ = [
    "InvalidNamespace",
    "NamespacesPage",
    "SearchPage",
    "TreeholdIndexConfig",
    "TreeholdItem",
    "TreeholdSaver",
    "TreeholdSearchItem",
    "TreeholdStore",
]
