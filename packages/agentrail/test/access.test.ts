// Tokens on a server that requires them: who may act for whom, and what a token without the right cannot reach.

import { execFileSync } from "node:child_process";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { binary, freshStore, type Server, type Store, serve } from "../scripts/server.mjs";
import {
  TreeholdClient,
  TreeholdInspector,
  TreeholdOrchestration,
  TreeholdSessionStore,
  TreeholdTraceStore,
} from "../src/index.js";
import { failure, texts, usage, user } from "./world.js";

let data: Store;
let server: Server;

beforeAll(async () => {
  data = freshStore();
  server = await serve(data, ["--tokens"]);
});

afterAll(async () => {
  await server.stop();
  data.remove();
});

function token(...options: string[]): string {
  const cwd = join(data.directory, "tree");
  return execFileSync(binary(), ["token", "create", ...options], { cwd, env: data.env, encoding: "utf8" }).trim();
}

function storeOf(...options: string[]): TreeholdSessionStore {
  return new TreeholdSessionStore(new TreeholdClient({ baseUrl: server.baseUrl, token: token(...options) }));
}

/** A host that acts for everyone, with a session of ada's. */
async function host() {
  const host = storeOf("--access", "admin", "--acts-for", "all", "--tenant", "ops", "--user", "host");
  const made = await host.getOrCreate("acme", "ada", "helper", "tea");
  await host.append("acme", "tea", [user("secret")], { idempotencyKey: "once" });
  return { host, ...made };
}

test("missing_and_wrong_tokens_are_refused", async () => {
  for (const token of [undefined, "wrong", "th_0_0"]) {
    const store = new TreeholdSessionStore(new TreeholdClient({ baseUrl: server.baseUrl, token }));
    const error = await failure(store.loadAllMessages("acme", "tea"), "permission_denied");
    expect(error.status).toBe(401);
  }
});

test("host_that_acts_for_all_reaches_sessions_of_every_tenant_by_tenant_and_id", async () => {
  const { host: store } = await host();
  expect(texts(await store.loadAllMessages("acme", "tea"))).toEqual(["secret"]);
  await store.getOrCreate("other", "bob", "helper", "tea");
  expect(await store.loadAllMessages("other", "tea")).toEqual([]);
  const listed = await new TreeholdInspector(store.client).listSessions();
  expect(listed.map((item) => `${item.tenantId}/${item.userId}/${item.sessionId}`).sort()).toEqual([
    "acme/ada/tea",
    "other/bob/tea",
  ]);
});

test("host_that_acts_for_its_tenant_reaches_all_its_users_and_no_other_tenant", async () => {
  await host();
  const store = storeOf("--access", "write", "--acts-for", "tenant", "--tenant", "acme", "--user", "host");
  expect(texts(await store.loadAllMessages("acme", "tea"))).toEqual(["secret"]);
  expect((await store.listSessionsByUser("acme", "ada")).map((one) => one.sessionId)).toEqual(["tea"]);
  await failure(store.loadAllMessages("other", "tea"), "permission_denied");
  await failure(store.getOrCreate("other", "bob", "helper"), "permission_denied");
});

test("token_of_a_user_reaches_only_the_sessions_of_the_user", async () => {
  const { sessionRef } = await host();
  const ada = storeOf("--access", "write", "--tenant", "acme", "--user", "ada");
  expect(texts(await ada.loadAllMessages("acme", "tea"))).toEqual(["secret"]);
  await ada.recordTurn("acme", "tea", usage(1, 1));
  const eve = storeOf("--access", "write", "--tenant", "acme", "--user", "eve");
  expect(await eve.loadAllMessages("acme", "tea")).toEqual([]);
  expect(await eve.readSessionInfo("acme", "tea")).toBeNull();
  expect(await eve.readMemoryDocument("acme", "tea", "session", "NOTES.md")).toBeNull();
  expect(await eve.readToolResultArtifact(sessionRef, "c1")).toBeNull();
  expect(await new TreeholdTraceStore(eve.client, sessionRef).loadEnvelopes()).toEqual([]);
  expect(await new TreeholdOrchestration(eve.client, sessionRef).loadEvents()).toEqual([]);
  expect(await new TreeholdInspector(eve.client).listSessions()).toEqual([]);
  await failure(eve.appendMessages("acme", "tea", [user("mine")]), "not_found");
  await failure(eve.getOrCreate("acme", "eve", "helper", "tea"), "permission_denied");
  await failure(eve.getOrCreate("acme", "ada", "helper", "tea"), "permission_denied");
  await failure(eve.readMemoryDocument("acme", "ada", "user", "USER.md"), "permission_denied");
  await failure(eve.listSessionsByUser("acme", "ada"), "permission_denied");
  await failure(eve.loadAllMessages("other", "tea"), "permission_denied");
});

test("token_for_reading_cannot_change_anything", async () => {
  const { sessionRef } = await host();
  const reader = storeOf("--access", "read", "--tenant", "acme", "--user", "ada");
  expect(texts(await reader.loadAllMessages("acme", "tea"))).toEqual(["secret"]);
  const orchestration = new TreeholdOrchestration(reader.client, sessionRef);
  const envelope = { id: "1", timestamp: "t", sequence: 1, source: "host" as const, event: { type: "turn_start" } };
  for (const change of [
    () => reader.getOrCreate("acme", "ada", "helper"),
    () => reader.appendMessages("acme", "tea", [user("a")]),
    () => reader.recordTurn("acme", "tea", usage(1, 1)),
    () => reader.setTitle("acme", "tea", "t"),
    () => reader.deleteSession("acme", "tea"),
    () => reader.writeMemoryDocument("acme", "tea", "session", "NOTES.md", "x"),
    () => reader.appendMemoryDocument("acme", "ada", "user", "USER.md", "x"),
    () => reader.writeToolResultArtifact(sessionRef, "c1", "x"),
    () => new TreeholdTraceStore(reader.client, sessionRef).appendEnvelope(envelope),
    () => orchestration.writeCheckpoint({ runs: {}, tasks: {}, agents: {}, waits: {}, queuedInputs: [] }),
    () => orchestration.commit({}),
  ]) {
    await failure(change(), "permission_denied");
  }
});

test("removing_a_session_needs_an_admin_token", async () => {
  const { host: admin } = await host();
  await admin.getOrCreate("acme", "ada", "helper", "old");
  const writer = storeOf("--access", "write", "--tenant", "acme", "--user", "ada");
  await failure(writer.deleteSession("acme", "old"), "permission_denied");
  await admin.deleteSession("acme", "old");
  expect(await writer.readSessionInfo("acme", "old")).toBeNull();
});
