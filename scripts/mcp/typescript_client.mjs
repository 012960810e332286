// The MCP TypeScript client against a server, for both forms of the protocol. Usage: typescript_client.mjs auto|legacy URL | COMMAND...
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

// The packages are where the calling script installed them.
const require = createRequire(`${process.cwd()}/x.mjs`);
const load = (name) => import(pathToFileURL(require.resolve(name)));
const { Client, StreamableHTTPClientTransport } = await load("@modelcontextprotocol/client");
const { StdioClientTransport } = await load("@modelcontextprotocol/client/stdio");

const [mode, ...server] = process.argv.slice(2);
const client = new Client({ name: "compare", version: "1" }, { versionNegotiation: { mode } });
const transport = server[0].startsWith("http")
  ? new StreamableHTTPClientTransport(new URL(server[0]))
  : new StdioClientTransport({ command: server[0], args: server.slice(1), env: process.env });
await client.connect(transport);
const call = async (name, args) => {
  const result = await client.callTool({ name, arguments: args });
  assert.ok(!result.isError, JSON.stringify(result));
  return result.content[0].text;
};
const name = `/memories/${randomUUID()}.md`;
assert.ok((await client.listTools()).tools.some((tool) => tool.name === "read_file"));
await call("write_file", { path: name, content: 'one "quoted"\ntwo\n' });
assert.equal(await call("read_file", { path: name }), 'one "quoted"\ntwo\n');
await call("edit_file", { path: name, old_string: "two", new_string: "three" });
assert.equal(await call("grep", { pattern: "three", path: "/memories" }), `${name}:2:three\n`);
assert.equal((await client.readResource({ uri: `vfs://${name}` })).contents[0].text, 'one "quoted"\nthree\n');
assert.deepEqual((await client.listResources()).resources.slice(0, 2).map((resource) => resource.uri), ["vfs:///", "vfs:///memories"]);
await call("delete", { path: name });
await client.close();
console.log(`typescript client, ${mode}: ok`);
