"""What a wheel must do in an environment that has nothing else. Run by `scripts/python.sh` with each interpreter."""

import asyncio
import tempfile
from pathlib import Path

import treehold
from treehold.traces import DatabaseTraceStore, NewMessage


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with await treehold.Store.aopen(f"sqlite:{Path(directory) / 'agent.db'}") as store:
            memories = treehold.StoreBackend(store, ("ada", "memories"))
            tree = treehold.CompositeBackend(treehold.StateBackend(), {"/memories": memories})
            await tree.awrite("/memories/AGENTS.md", "Answer in French.\n")
            await tree.aedit("/memories/AGENTS.md", "French", "Dutch")
            assert (await tree.aread("/memories/AGENTS.md")).text() == "Answer in Dutch.\n"
            assert [path for path, _, _ in (await tree.agrep("Dutch")).matches] == ["/memories/AGENTS.md"]
            traces = DatabaseTraceStore(store, user="ada")
            trace = await traces.acreate_trace("translate")
            await traces.aadd_message(trace, NewMessage("user", "hello"))
            assert [message.content for message in await traces.aget_main_path_messages(trace)] == ["hello"]
            try:
                tree.read("/missing")
            except FileNotFoundError as error:
                assert isinstance(error, treehold.NotFound) and error.code == "not_found" and error.path == "/missing"
            else:
                raise AssertionError("a missing file was read")


asyncio.run(main())
