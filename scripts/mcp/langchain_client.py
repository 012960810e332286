"""langchain-mcp-adapters against a server: one session per call, text for the model. Usage: langchain_client.py URL | COMMAND..."""

import asyncio
import sys
import uuid

from langchain_mcp_adapters.client import MultiServerMCPClient


async def main():
    server = sys.argv[1:]
    if server[0].startswith("http"):
        connection = {"transport": "streamable_http", "url": server[0]}
    else:
        connection = {"transport": "stdio", "command": server[0], "args": server[1:]}
    client = MultiServerMCPClient({"files": connection})
    tools = {tool.name: tool for tool in await client.get_tools()}
    name = f"/memories/{uuid.uuid4()}.md"

    async def call(tool, **arguments):
        answer = await tools[tool].ainvoke(arguments)
        return answer if isinstance(answer, str) else "".join(block["text"] for block in answer)

    await call("write_file", path=name, content='one "quoted"\ntwo\n')
    assert await call("read_file", path=name) == 'one "quoted"\ntwo\n'
    await call("write_file", path="/own.md", content="of one thread", thread_id="langchain-1")
    assert await call("read_file", path="/own.md", thread_id="langchain-1") == "of one thread"
    await call("edit_file", path=name, old_string="two", new_string="three")
    assert await call("grep", pattern="three", path="/memories") == f"{name}:2:three\n"
    await call("delete", path=name)
    print("langchain-mcp-adapters: ok")


asyncio.run(main())
