import { describe, expect, test } from "vitest";
import { createSessionRef, resolveSessionRef, TreeholdSessionStore } from "../src/index.js";
import { all, assistant, client, failure, fresh, long, session, texts, toolResult, usage, user } from "./world.js";

const store = new TreeholdSessionStore(client());

describe("getOrCreate", () => {
  test("session_without_an_id_gets_a_uuid_and_a_reference", async () => {
    const tenant = fresh("tenant");
    const made = await store.getOrCreate(tenant, "ada", "helper");
    expect(Object.keys(made).sort()).toEqual(["sessionId", "sessionRef"]);
    expect(made.sessionId).toMatch(/^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
    expect(resolveSessionRef(made.sessionRef)).toEqual({ tenantId: tenant, sessionId: made.sessionId });
    expect(createSessionRef(tenant, made.sessionId)).toBe(made.sessionRef);
  });

  test("existing_session_keeps_title_agent_times_and_messages", async () => {
    const { tenantId, userId, sessionId } = await session();
    await store.setTitle(tenantId, sessionId, "Tea");
    await store.appendMessages(tenantId, sessionId, [user("a")]);
    const before = await store.readSessionInfo(tenantId, sessionId);
    await store.getOrCreate(tenantId, userId, "another agent", sessionId);
    const after = await store.readSessionInfo(tenantId, sessionId);
    expect(after).toEqual(before);
    expect(after).toMatchObject({ tenantId, userId, sessionId, agentId: "helper", title: "Tea" });
    expect(texts(await store.loadAllMessages(tenantId, sessionId))).toEqual(["a"]);
  });

  test("undefined_and_null_ids_make_new_sessions", async () => {
    const tenant = fresh("tenant");
    await store.getOrCreate(tenant, "ada", "helper", undefined);
    await store.getOrCreate(tenant, "ada", "helper", null);
    expect(await store.listSessionsByUser(tenant, "ada")).toHaveLength(2);
  });

  test("concurrent_creations_of_one_id_make_one_session", async () => {
    const tenant = fresh("tenant");
    const made = await Promise.all(Array.from({ length: 8 }, () => store.getOrCreate(tenant, "ada", "helper", "one")));
    expect(new Set(made.map((one) => one.sessionRef)).size).toBe(1);
    expect(await store.listSessionsByUser(tenant, "ada")).toHaveLength(1);
  });

  test("id_of_another_users_session_is_refused", async () => {
    const { tenantId, sessionId } = await session();
    await failure(store.getOrCreate(tenantId, "eve", "helper", sessionId), "permission_denied");
  });

  test("same_ids_in_two_tenants_are_two_sessions", async () => {
    const [one, two] = [fresh("tenant"), fresh("tenant")];
    await store.getOrCreate(one, "ada", "helper", "same");
    await store.getOrCreate(two, "ada", "helper", "same");
    await store.appendMessages(one, "same", [user("a")]);
    expect(await store.loadAllMessages(two, "same")).toEqual([]);
  });
});

describe("messages", () => {
  test("limit_gives_the_newest_messages_oldest_first", async () => {
    const { tenantId, sessionId } = await session();
    await store.appendMessages(
      tenantId,
      sessionId,
      [..."abcdef"].map((text) => user(text)),
    );
    expect(texts(await store.loadMessages(tenantId, sessionId, 2))).toEqual(["e", "f"]);
    expect(await store.loadMessages(tenantId, sessionId, 0)).toEqual([]);
    expect(texts(await store.loadMessages(tenantId, sessionId, 100))).toHaveLength(6);
  });

  test("missing_limit_gives_all_messages", async () => {
    const { tenantId, sessionId } = await session();
    await store.appendMessages(tenantId, sessionId, long(120, 8));
    expect(await store.loadMessages(tenantId, sessionId)).toHaveLength(120);
    expect(await store.loadMessages(tenantId, sessionId, undefined)).toHaveLength(120);
    expect(await store.loadMessages(tenantId, sessionId, null)).toHaveLength(120);
  });

  test("limit_over_a_page_gives_that_many_messages", async () => {
    const { tenantId, sessionId } = await session();
    await store.appendMessages(tenantId, sessionId, long(1_000, 8));
    await store.appendMessages(tenantId, sessionId, long(200, 8));
    const loaded = await store.loadMessages(tenantId, sessionId, 1_100);
    expect([loaded.length, texts(loaded)[0]?.slice(0, 4)]).toEqual([1_100, "100 "]);
  });

  test.each([-1, 1.5, Number.NaN, Number.POSITIVE_INFINITY])("limit_%s_is_refused", async (limit) => {
    await failure(store.loadMessages("t", "s", limit), "invalid_argument");
  });

  test("messages_come_back_with_fields_and_blocks_that_are_unknown", async () => {
    const { tenantId, sessionId } = await session();
    const loose = new TreeholdSessionStore<object>(client());
    const strange = [
      { role: "user", content: "é\u0000\u2028日本 \u{1f375}", timestamp: 1, mood: { good: [true, null, 1e-7] } },
      {
        role: "assistant",
        content: [
          { type: "hologram", size: [1, 2] },
          { type: "text", text: "", extra: 0.1 },
        ],
        timestamp: 2,
      },
    ];
    await loose.appendMessages(tenantId, sessionId, strange);
    expect(await loose.loadAllMessages(tenantId, sessionId)).toEqual(strange);
  });

  test("empty_append_does_nothing_even_without_a_session", async () => {
    await store.appendMessages(fresh("tenant"), "unknown", []);
    const { tenantId, sessionId } = await session();
    const before = await store.readSessionInfo(tenantId, sessionId);
    await store.appendMessages(tenantId, sessionId, []);
    expect(await store.readSessionInfo(tenantId, sessionId)).toEqual(before);
  });

  test("append_with_one_bad_message_stores_none", async () => {
    const { tenantId, sessionId } = await session();
    for (const bad of [
      { role: "oracle", content: "b", timestamp: 1 },
      toolResult("never called", "b"),
      null,
      "text",
      [1],
    ]) {
      await failure(store.appendMessages(tenantId, sessionId, [user("a"), bad as never]), "invalid_argument");
    }
    expect(await store.loadAllMessages(tenantId, sessionId)).toEqual([]);
  });

  test("append_over_the_limit_of_messages_is_refused_whole", async () => {
    const { tenantId, sessionId } = await session();
    await failure(store.appendMessages(tenantId, sessionId, long(1_001, 8)), "invalid_argument");
    expect(await store.loadAllMessages(tenantId, sessionId)).toEqual([]);
  });

  test("message_over_its_size_is_too_large", async () => {
    const { tenantId, sessionId } = await session();
    await failure(store.appendMessages(tenantId, sessionId, [user("x".repeat(2 << 20))]), "too_large");
  });

  test("unknown_session_has_no_messages_and_cannot_be_appended_to", async () => {
    const tenant = fresh("tenant");
    expect(await store.loadMessages(tenant, "unknown")).toEqual([]);
    expect(await store.loadMessagesWithBudget(tenant, "unknown")).toEqual([]);
    expect(await store.loadAllMessages(tenant, "unknown")).toEqual([]);
    expect(await store.loadFullSessionMessages(tenant, "unknown")).toEqual([]);
    expect(await store.loadCompactedMessages(tenant, "unknown")).toEqual([]);
    expect(await all(store.messages(tenant, "unknown"))).toEqual([]);
    await failure(store.appendMessages(tenant, "unknown", [user("a")]), "not_found");
    await failure(store.recordTurn(tenant, "unknown", usage(1, 1)), "not_found");
  });

  test("concurrent_appends_are_all_kept_and_each_stays_together", async () => {
    const { tenantId, sessionId } = await session();
    const batches = Array.from({ length: 10 }, (_, batch) => [0, 1, 2].map((part) => user(`${batch}.${part}`)));
    await Promise.all(batches.map((batch) => store.appendMessages(tenantId, sessionId, batch)));
    const stored = texts(await store.loadAllMessages(tenantId, sessionId));
    expect(stored).toHaveLength(30);
    for (let at = 0; at < 30; at += 3) {
      const batch = stored[at]?.split(".")[0];
      expect(stored.slice(at, at + 3)).toEqual([`${batch}.0`, `${batch}.1`, `${batch}.2`]);
    }
  });

  test("repeated_key_appends_once_and_another_content_under_it_is_refused", async () => {
    const { tenantId, sessionId } = await session();
    const options = { idempotencyKey: "turn-1" };
    const first = await store.append(tenantId, sessionId, [user("a")], options);
    expect(first.positions).toEqual({ start: 0, end: 1 });
    expect(await store.append(tenantId, sessionId, [user("a")], options)).toEqual(first);
    await expect(store.append(tenantId, sessionId, [user("b")], options)).rejects.toMatchObject({
      mayHaveEffect: false,
    });
    expect(texts(await store.loadAllMessages(tenantId, sessionId))).toEqual(["a"]);
  });

  test("pages_of_the_history_have_every_message_once", async () => {
    const { tenantId, sessionId } = await session();
    await store.appendMessages(tenantId, sessionId, long(25, 8));
    const read = await all(store.messages(tenantId, sessionId, { pageSize: 10 }));
    expect(read).toEqual(await store.loadAllMessages(tenantId, sessionId));
    expect(await all(store.messages(tenantId, sessionId, { from: 20 }))).toEqual(read.slice(20));
  });
});

describe("budget", () => {
  test("budget_gives_the_longest_tail_within_it", async () => {
    const { tenantId, sessionId } = await session();
    await store.appendMessages(tenantId, sessionId, long(10, 100));
    expect(await store.loadMessagesWithBudget(tenantId, sessionId, 350)).toHaveLength(3);
    expect(await store.loadMessagesWithBudget(tenantId, sessionId, 300)).toHaveLength(3);
    expect(await store.loadMessagesWithBudget(tenantId, sessionId, 299)).toHaveLength(2);
  });

  test("default_budget_is_100_000_tokens", async () => {
    const { tenantId, sessionId } = await session();
    await store.appendMessages(tenantId, sessionId, long(12, 10_000));
    expect(await store.loadMessagesWithBudget(tenantId, sessionId)).toHaveLength(10);
    expect(await store.loadMessagesWithBudget(tenantId, sessionId, undefined)).toHaveLength(10);
    expect(await store.loadMessagesWithBudget(tenantId, sessionId, null)).toHaveLength(10);
  });

  test("newest_message_over_the_budget_is_given", async () => {
    const { tenantId, sessionId } = await session();
    await store.appendMessages(tenantId, sessionId, long(3, 100));
    expect(await store.loadMessagesWithBudget(tenantId, sessionId, 1)).toHaveLength(1);
    expect(await store.loadMessagesWithBudget(tenantId, sessionId, 0)).toHaveLength(1);
  });

  test("tool_result_is_never_given_without_its_call", async () => {
    const { tenantId, sessionId } = await session();
    const call = assistant("calling", ["c1", "c2"]);
    await store.appendMessages(tenantId, sessionId, [user("a"), call, toolResult("c1", "r1"), toolResult("c2", "r2")]);
    for (const budget of [0, 1, 15, 25, 40]) {
      const [first] = await store.loadMessagesWithBudget(tenantId, sessionId, budget);
      expect(first?.role, `budget ${budget}`).not.toBe("toolResult");
    }
    expect(texts(await store.loadMessagesWithBudget(tenantId, sessionId, 1))).toEqual([
      "calling toolCall toolCall",
      "r1",
      "r2",
    ]);
  });
});

describe("turns", () => {
  test("turns_have_indexes_without_gaps_even_when_recorded_at_once", async () => {
    const { tenantId, sessionId } = await session();
    await Promise.all(Array.from({ length: 8 }, (_, index) => store.recordTurn(tenantId, sessionId, usage(index, 1))));
    const turns = await all(store.turns(tenantId, sessionId, { pageSize: 3 }));
    expect(turns.map((turn) => turn.turnIndex)).toEqual([0, 1, 2, 3, 4, 5, 6, 7]);
    expect(turns.map((turn) => turn.inputTokens).sort()).toEqual([0, 1, 2, 3, 4, 5, 6, 7]);
  });

  test("messages_and_their_turn_are_one_append", async () => {
    const { tenantId, sessionId } = await session();
    const done = await store.append(tenantId, sessionId, [user("a"), assistant("b")], { usage: usage(7, 3) });
    expect(done.turnIndex).toBe(0);
    await failure(
      store.append(tenantId, sessionId, [toolResult("no call", "c")], { usage: usage(1, 1) }),
      "invalid_argument",
    );
    expect(await all(store.turns(tenantId, sessionId))).toMatchObject([{ inputTokens: 7, outputTokens: 3 }]);
  });

  test("context_usage_is_that_of_the_last_turn", async () => {
    const { tenantId, sessionId } = await session();
    expect(await store.getLastContextUsage(tenantId, sessionId)).toBeNull();
    const last = { ...usage(20_000, 10_000), cacheReadTokens: 50_000, cacheWriteTokens: 20_000 };
    await store.recordTurn(tenantId, sessionId, usage(1, 1));
    await store.recordTurn(tenantId, sessionId, last);
    expect(await store.getLastContextUsage(tenantId, sessionId)).toEqual({
      inputTokens: 90_000,
      outputTokens: 10_000,
      budgetUsedPct: 50,
    });
    expect(await store.getLastContextUsage(tenantId, "unknown")).toBeNull();
  });

  test("turns_of_an_unknown_session_are_none", async () => {
    expect(await all(store.turns(fresh("tenant"), "unknown"))).toEqual([]);
  });
});

describe("the list of sessions", () => {
  test("sessions_are_listed_newest_first_for_their_user_only", async () => {
    const tenant = fresh("tenant");
    for (const id of ["one", "two", "three"]) {
      await store.getOrCreate(tenant, "ada", "helper", id);
    }
    await store.getOrCreate(tenant, "eve", "helper", "hers");
    await store.appendMessages(tenant, "one", [user("a")]);
    const listed = await store.listSessionsByUser(tenant, "ada");
    expect(listed.map((one) => one.sessionId)[0]).toBe("one");
    expect(listed.map((one) => one.sessionId).sort()).toEqual(["one", "three", "two"]);
    expect(Object.keys(listed[0]!).sort()).toEqual(["sessionId", "updatedAt"]);
    expect(await store.listSessionsByUser(tenant, "nobody")).toEqual([]);
  });

  test("pages_and_limits_give_the_same_sessions", async () => {
    const tenant = fresh("tenant");
    const ids = Array.from({ length: 12 }, (_, index) => `s${index}`);
    await Promise.all(ids.map((id) => store.getOrCreate(tenant, "ada", "helper", id)));
    const listed = (await store.listSessionsByUser(tenant, "ada")).map((one) => one.sessionId);
    const paged = await all(store.sessions(tenant, "ada", { pageSize: 5 }));
    expect(paged.map((one) => one.sessionId)).toEqual(listed);
    expect(await store.listSessionIdsByUser(tenant, "ada")).toEqual(listed.slice(0, 10));
    expect(await store.listSessionIdsByUser(tenant, "ada", 3)).toEqual(listed.slice(0, 3));
    expect(await store.listSessionIdsByUser(tenant, "ada", 0)).toEqual([]);
  });
});

describe("a session", () => {
  test("info_of_an_unknown_session_is_null", async () => {
    expect(await store.readSessionInfo(fresh("tenant"), "unknown")).toBeNull();
  });

  test("info_has_the_fields_of_the_contract", async () => {
    const { tenantId, userId, sessionId } = await session();
    const info = await store.readSessionInfo(tenantId, sessionId);
    expect(info).toEqual({
      sessionId,
      tenantId,
      userId,
      agentId: "helper",
      title: null,
      createdAt: expect.any(Number),
      updatedAt: expect.any(Number),
    });
    await store.setTitle(tenantId, sessionId, "Tea");
    await store.setTitle(tenantId, sessionId, null);
    expect((await store.readSessionInfo(tenantId, sessionId))?.title).toBeNull();
  });

  test("deleted_session_is_gone_with_everything_and_can_be_deleted_again", async () => {
    const { tenantId, userId, sessionId, sessionRef } = await session();
    await store.appendMessages(tenantId, sessionId, [user("a")]);
    await store.writeMemoryDocument(tenantId, sessionId, "session", "NOTES.md", "n");
    await store.writeToolResultArtifact(sessionRef, "c1", "r");
    await store.deleteSession(tenantId, sessionId);
    await store.deleteSession(tenantId, sessionId);
    expect(await store.readSessionInfo(tenantId, sessionId)).toBeNull();
    expect(await store.listSessionsByUser(tenantId, userId)).toEqual([]);
    await store.getOrCreate(tenantId, userId, "helper", sessionId);
    expect(await store.loadAllMessages(tenantId, sessionId)).toEqual([]);
    expect(await store.readMemoryDocument(tenantId, sessionId, "session", "NOTES.md")).toBeNull();
    expect(await store.readToolResultArtifact(sessionRef, "c1")).toBeNull();
  });

  test("export_has_the_files_of_a_host", async () => {
    const { tenantId, sessionId } = await session();
    await store.appendMessages(tenantId, sessionId, [user("a")]);
    await store.writeMemoryDocument(tenantId, sessionId, "session", "NOTES.md", "n");
    const files = await store.exportSession(tenantId, sessionId);
    const byName = Object.fromEntries(Object.entries(files).map(([path, text]) => [path.split("/").at(-1), text]));
    expect(JSON.parse(byName["messages.jsonl"]!)).toEqual(user("a"));
    expect(byName["NOTES.md"]).toBe("n");
    expect(byName["session.jsonl"]).toContain('"init"');
  });

  test("skill_log_is_stored_under_a_safe_name", async () => {
    const { tenantId, sessionId, sessionRef } = await session();
    await store.persistSkillSubAgentLog(sessionRef, {
      skillName: "../find me",
      task: "t",
      input: "i",
      systemPrompt: "p",
      messages: [user("a")],
      resultText: "r",
      startedAt: 100,
      finishedAt: 350,
    });
    const files = await store.exportSession(tenantId, sessionId);
    const log = Object.entries(files).find(([path]) => path.endsWith("skill-.._find_me-100.jsonl"));
    const [meta, message] = log![1]
      .trimEnd()
      .split("\n")
      .map((line) => JSON.parse(line));
    expect(meta).toMatchObject({ type: "meta", durationMs: 250 });
    expect(message).toEqual(user("a"));
  });

  test("ping_succeeds", async () => {
    expect(await store.ping()).toBeUndefined();
  });
});
