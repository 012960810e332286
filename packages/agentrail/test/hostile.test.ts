// Ids that break stores which join, trim or decode them. Each is kept exactly or refused with a typed error, by every method.

import { describe, expect, test } from "vitest";
import {
  createSessionRef,
  resolveSessionRef,
  TreeholdInspector,
  TreeholdOrchestration,
  TreeholdSessionStore,
  TreeholdTraceStore,
} from "../src/index.js";
import { assistant, client, failure, fresh, toolResult, user } from "./world.js";

const store = new TreeholdSessionStore(client());

const kept = [
  "a:b",
  "a/b",
  "../up",
  "a%2Fb",
  "%",
  "%2e%2e",
  "...",
  " a ",
  "a?b=c#d&e",
  "a\\b",
  "日本",
  "\u{1f375}",
  "e\u0301",
  "\u00e9",
  "\ufeffa",
  "__proto__",
  "constructor",
  "null",
  "-",
  "~",
  "_default",
  "__anon__",
  "messages",
  "x".repeat(255),
  "é".repeat(127),
];

const refused = [
  "",
  ".",
  "..",
  "_treehold",
  "a\u0000b",
  "a\nb",
  "\u007f",
  "\u0085",
  "x".repeat(256),
  "é".repeat(128),
  "\ud83c",
];

describe.each(kept.map((id) => [id]))("id %j", (id) => {
  test("is_kept_as_tenant_user_agent_and_session", async () => {
    // A part is unique, so that tests can run twice on one store.
    const made = await store.getOrCreate(id, id, id, id);
    expect(made).toEqual({ sessionId: id, sessionRef: createSessionRef(id, id) });
    expect(resolveSessionRef(made.sessionRef)).toEqual({ tenantId: id, sessionId: id });
    expect(await store.readSessionInfo(id, id)).toMatchObject({ tenantId: id, userId: id, agentId: id, sessionId: id });
    expect((await store.listSessionsByUser(id, id)).map((one) => one.sessionId)).toEqual([id]);
    await store.appendMessages(id, id, [user(id)]);
    expect(await store.loadAllMessages(id, id)).toEqual([user(id)]);
    await store.writeMemoryDocument(id, id, "session", "NOTES.md", id);
    await store.writeMemoryDocument(id, id, "user", "USER.md", `user ${id}`);
    expect(await store.readMemoryDocument(id, id, "session", "NOTES.md")).toBe(id);
    expect(await store.readMemoryDocument(id, id, "user", "USER.md")).toBe(`user ${id}`);
    const inspected = await new TreeholdInspector(client()).listSessions();
    expect(inspected.filter((item) => item.tenantId === id && item.sessionId === id)).toHaveLength(1);
  });

  test("is_kept_as_agent_of_an_orchestration", async () => {
    const tenant = fresh("tenant");
    const { sessionRef } = await store.getOrCreate(tenant, "ada", "helper");
    const orchestration = new TreeholdOrchestration(client(), sessionRef);
    const event = {
      eventId: "e",
      type: "input_enqueued" as const,
      agentId: id,
      occurredAt: "t",
      inputId: "i",
      payload: {},
    };
    await orchestration.appendMailboxEvent(id, event);
    await orchestration.writeMailboxState(id, { processedEventCount: 1, closeRequested: null });
    await orchestration.writeAgentHistory(id, [user(id)]);
    expect(await orchestration.loadMailboxEvents(id)).toEqual([event]);
    expect((await orchestration.loadMailboxState(id)).processedEventCount).toBe(1);
    expect(await orchestration.loadAgentHistory(id)).toEqual([user(id)]);
  });

  test("is_kept_as_id_of_a_tool_call", async () => {
    const tenant = fresh("tenant");
    const { sessionId, sessionRef } = await store.getOrCreate(tenant, "ada", "helper");
    await store.appendMessages(tenant, sessionId, [assistant("call", [id]), toolResult(id, "result")]);
    if (Buffer.byteLength(id) < 240) {
      await store.writeToolResultArtifact(sessionRef, id, id);
      expect(await store.readToolResultArtifact(sessionRef, id)).toBe(id);
      expect(await store.listToolResultArtifactIds(sessionRef)).toEqual([id]);
    } else {
      await failure(store.writeToolResultArtifact(sessionRef, id, id), "invalid_argument");
    }
  });
});

describe.each(refused.map((id) => [id]))("id %j", (id) => {
  test("is_refused_by_every_method", async () => {
    const summarize = async () => "s";
    const calls: [string, () => Promise<unknown>][] = [
      ["tenant", () => store.getOrCreate(id, "u", "a")],
      ["user", () => store.getOrCreate("t", id, "a")],
      ["agent", () => store.getOrCreate("t", "u", id)],
      ["session", () => store.getOrCreate("t", "u", "a", id)],
      ["loadMessages", () => store.loadMessages("t", id)],
      ["loadMessages of a tenant", () => store.loadMessages(id, "s")],
      ["loadMessagesWithBudget", () => store.loadMessagesWithBudget("t", id)],
      ["loadAllMessages", () => store.loadAllMessages("t", id)],
      ["loadFullSessionMessages", () => store.loadFullSessionMessages("t", id)],
      ["loadCompactedMessages", () => store.loadCompactedMessages("t", id)],
      ["appendMessages", () => store.appendMessages("t", id, [user("a")])],
      ["recordTurn", () => store.recordTurn("t", id, user("a") as never)],
      ["compactIfNeeded", () => store.compactIfNeeded("t", id, summarize)],
      ["compactSession", () => store.compactSession("t", id, summarize)],
      ["listSessionsByUser", () => store.listSessionsByUser("t", id)],
      ["listSessionsByUser of a tenant", () => store.listSessionsByUser(id, "u")],
      ["readSessionInfo", () => store.readSessionInfo("t", id)],
      ["setTitle", () => store.setTitle("t", id, "title")],
      ["deleteSession", () => store.deleteSession("t", id)],
      ["buildMemoryIndex", () => store.buildMemoryIndex("t", id)],
      ["readMemoryDocument", () => store.readMemoryDocument("t", id, "session", "NOTES.md")],
      ["readMemoryDocument of a user", () => store.readMemoryDocument("t", id, "user", "USER.md")],
      ["writeMemoryDocument", () => store.writeMemoryDocument("t", id, "session", "NOTES.md", "x")],
      ["appendMemoryDocument", () => store.appendMemoryDocument("t", id, "user", "USER.md", "x")],
      ["exportSession", () => store.exportSession("t", id)],
      ["loadTraceEnvelopes", () => new TreeholdInspector(client()).loadTraceEnvelopes("t", id)],
    ];
    for (const [name, call] of calls) {
      await failure(call(), "invalid_argument").catch((error: Error) => {
        throw new Error(`${name}: ${error.message}`);
      });
    }
  });

  test("is_refused_as_agent_of_an_orchestration", async () => {
    const { sessionRef } = await store.getOrCreate(fresh("tenant"), "ada", "helper");
    const orchestration = new TreeholdOrchestration(client(), sessionRef);
    for (const call of [
      () => orchestration.loadMailboxEvents(id),
      () => orchestration.loadMailboxState(id),
      () => orchestration.writeMailboxState(id, { processedEventCount: 1, closeRequested: null }),
      () => orchestration.loadAgentHistory(id),
      () => orchestration.writeAgentHistory(id, []),
    ]) {
      await failure(call(), "invalid_argument");
    }
  });
});

test("tenant_and_session_are_never_joined", async () => {
  const tenant = fresh("tenant");
  await store.getOrCreate(`${tenant}:b`, "ada", "helper", "c");
  await store.getOrCreate(tenant, "ada", "helper", "b:c");
  await store.appendMessages(tenant, "b:c", [user("mine")]);
  expect(await store.loadAllMessages(`${tenant}:b`, "c")).toEqual([]);
  expect(createSessionRef(`${tenant}:b`, "c")).not.toBe(createSessionRef(tenant, "b:c"));
});

test.each([
  "",
  ":",
  "a",
  "a:",
  ":b",
  "a:b:c",
  "%:a",
  "a:%zz",
  "a:.",
  "..:a",
])("reference_%j_is_refused", (reference) => {
  expect(() => resolveSessionRef(reference)).toThrowError(expect.objectContaining({ code: "invalid_argument" }));
  expect(() => new TreeholdTraceStore(client(), reference)).toThrow();
  expect(() => new TreeholdOrchestration(client(), reference)).toThrow();
});

test("values_that_are_no_text_are_refused_as_ids", async () => {
  for (const bad of [null, 7, {}, [], true, Symbol("s")] as never[]) {
    await failure(store.loadAllMessages("t", bad), "invalid_argument");
    await failure(store.loadAllMessages(bad, "s"), "invalid_argument");
  }
});
