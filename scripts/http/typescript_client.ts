// Files over HTTP, with types that openapi-typescript generated from /openapi.json, and openapi-fetch: typescript_client.js BASE [TOKEN]

import assert from "node:assert/strict";
import createClient from "openapi-fetch";
import type { paths } from "./treehold.js";

const [base, token] = process.argv.slice(2);
const headers = token ? { authorization: `Bearer ${token}` } : {};
const client = createClient<paths>({ baseUrl: base, headers });
const path = "memories/typescript.md";
// Send bytes unchanged, and read text if it is known to be text.
const bytes = { bodySerializer: (body: unknown) => body as BodyInit, headers: { "content-type": "application/octet-stream" } };

// Write a file.
const written = await client.PUT("/v1/fs/{path}", {
  params: { path: { path }, header: { "Idempotency-Key": "typescript-1" } },
  body: "the theme colour is blue\n",
  ...bytes,
});
assert.equal(written.data?.path, "/memories/typescript.md");

// Read it with its tag. A second read with the tag transfers nothing.
const read = await client.GET("/v1/fs/{path}", { params: { path: { path } }, parseAs: "text" });
assert.equal(read.data, "the theme colour is blue\n");
const tag = read.response.headers.get("etag") ?? "";
const known = await client.GET("/v1/fs/{path}", { params: { path: { path }, header: { "If-None-Match": tag } }, parseAs: "text" });
assert.equal(known.response.status, 304);

// Edit it if it still has that version.
const edited = await client.PATCH("/v1/fs/{path}", {
  params: { path: { path }, header: { "If-Match": tag } },
  body: { edits: [{ old: "blue", new: "green" }] },
});
assert.equal(edited.data?.replacements, 1);

// A late writer with the old tag is refused and overwrites nothing.
const late = await client.PUT("/v1/fs/{path}", { params: { path: { path }, header: { "If-Match": tag } }, body: "late", ...bytes });
assert.deepEqual([late.response.status, late.error?.code], [412, "conflict"]);

// Find it.
const found = await client.POST("/v1/grep", { body: { pattern: "GREEN", path: "/memories", include: ["typescript.md"], case: "insensitive" } });
assert.equal(found.data?.files?.[0]?.lines?.[0]?.text, "the theme colour is green");

// Make several changes at once in a separate thread, and a checkpoint.
const thread = { header: { "treehold-thread": "typescript" } };
const applied = await client.POST("/v1/apply", {
  params: thread,
  body: { changes: [{ operation: "write", path: "/plan.md", content: "1. ask\n" }] },
});
assert.equal(applied.data?.changed[0]?.created, true);
const made = await client.POST("/v1/threads/{thread}/checkpoints", {
  params: { path: { thread: "typescript" } },
  body: { label: "asked" },
});
assert.equal(made.data?.label, "asked");

// Call a tool as a model would.
const output = await client.POST("/v1/tools/{name}", { params: { path: { name: "read_file" }, ...thread }, body: { path: "/plan.md" } });
assert.equal(output.data?.is_error, false);
console.log("typescript:", output.data?.text.trim());
