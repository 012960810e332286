"""The MCP Python client against a server, in every mode, over stdio or HTTP. Usage: python_client.py MODE URL | MODE COMMAND..."""

import asyncio
import sys
import uuid

from mcp import StdioServerParameters
from mcp.client.client import Client


async def main():
    mode, *server = sys.argv[1:]
    target = server[0] if server[0].startswith("http") else StdioServerParameters(command=server[0], args=server[1:])
    name = f"/memories/{uuid.uuid4()}.md"
    uri = f"vfs://{name}"
    async with Client(target, mode=mode) as client:
        # With a fixed protocol version, the client does not request instructions.
        assert mode not in ("auto", "legacy") or "/memories" in client.instructions
        tools = [tool.name for tool in (await client.list_tools()).tools]
        assert "read_file" in tools and "grep" in tools, tools

        async def call(tool, **arguments):
            result = await client.call_tool(tool, arguments)
            assert not result.is_error, result
            assert result.structured_content is None
            return result.content[0].text

        await call("write_file", path=name, content='one "quoted"\ntwo\n')
        assert await call("read_file", path=name) == 'one "quoted"\ntwo\n'
        await call("edit_file", path=name, old_string="two", new_string="three")
        assert await call("grep", pattern="three", path="/memories") == f"{name}:2:three\n"
        missing = await client.call_tool("read_file", {"path": "/none"})
        assert missing.is_error and missing.content[0].text.startswith("error [not_found]")
        uris = [str(resource.uri) for resource in (await client.list_resources()).resources]
        assert uris[:2] == ["vfs:///", "vfs:///memories"], uris
        assert (await client.read_resource(uri)).contents[0].text == 'one "quoted"\nthree\n'
        if client.protocol_version >= "2026-07-28":
            async with client.listen(resource_subscriptions=[uri]) as events:
                await call("write_file", path=name, content="changed\n")
                async with asyncio.timeout(30):
                    async for event in events:
                        assert str(event.uri) == uri, event
                        break
        else:
            await client.subscribe_resource(uri)
            await client.unsubscribe_resource(uri)
        await call("delete", path=name)
    print(f"python client, {mode}: ok")


asyncio.run(main())
