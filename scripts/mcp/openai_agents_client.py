"""The OpenAI Agents SDK as a client of a server, without a model: lists and calls tools. Usage: openai_agents_client.py URL | COMMAND..."""

import asyncio
import sys
import uuid

from agents.mcp import MCPServerStdio, MCPServerStreamableHttp


async def main():
    server = sys.argv[1:]
    # By default, the SDK gives up after five seconds.
    patience = 60
    if server[0].startswith("http"):
        params = {"url": server[0], "timeout": patience}
        connection = MCPServerStreamableHttp(params=params, client_session_timeout_seconds=patience)
    else:
        params = {"command": server[0], "args": server[1:]}
        connection = MCPServerStdio(params=params, client_session_timeout_seconds=patience)
    async with connection as files:
        assert "apply_patch" in [tool.name for tool in await files.list_tools()]
        name = f"/memories/{uuid.uuid4()}.md"

        async def call(tool, **arguments):
            result = await files.call_tool(tool, arguments)
            assert not result.is_error, result
            return result.content[0].text

        await call("write_file", path=name, content='one "quoted"\ntwo\n')
        assert await call("read_file", path=name) == 'one "quoted"\ntwo\n'
        await call("edit_file", path=name, old_string="two", new_string="three")
        assert await call("grep", pattern="three", path="/memories") == f"{name}:2:three\n"
        await call("delete", path=name)
    print("openai agents: ok")


asyncio.run(main())
