import { describe, expect, test } from "vitest";
import { COMPACTIONS_MAX, type Message, TreeholdSessionStore } from "../src/index.js";
import { all, assistant, client, failure, fresh, long, session, texts, toolResult, user } from "./world.js";

const store = new TreeholdSessionStore(client());
const summarize = async () => "they talked";

describe("whether to compact", () => {
  test("window_below_the_trigger_is_not_compacted", async () => {
    const { tenantId, sessionId } = await session();
    await store.appendMessages(tenantId, sessionId, long(10, 100));
    const never = () => expect.fail("nothing is to be summarised");
    expect(await store.compactIfNeeded(tenantId, sessionId, never, { triggerTokens: 1_001 })).toBe(false);
    expect(await store.compactIfNeeded(tenantId, sessionId, never)).toBe(false);
    expect(await store.compactIfNeeded(tenantId, sessionId, never, {})).toBe(false);
  });

  test("window_at_the_trigger_is_compacted", async () => {
    const { tenantId, sessionId } = await session();
    await store.appendMessages(tenantId, sessionId, long(10, 100));
    expect(await store.compactIfNeeded(tenantId, sessionId, summarize, { triggerTokens: 1_000 })).toBe(true);
    expect(await store.loadAllMessages(tenantId, sessionId)).toHaveLength(6);
  });

  test("default_trigger_is_80_000_tokens_and_default_fraction_a_half", async () => {
    const { tenantId, sessionId } = await session();
    await store.appendMessages(tenantId, sessionId, long(8, 10_000));
    const options = { triggerTokens: undefined, compactFraction: undefined, workspaceSnapshot: undefined };
    expect(await store.compactIfNeeded(tenantId, sessionId, summarize, options)).toBe(true);
    expect(await store.loadAllMessages(tenantId, sessionId)).toHaveLength(5);
  });

  test("five_messages_are_too_few", async () => {
    const { tenantId, sessionId } = await session();
    await store.appendMessages(tenantId, sessionId, long(5, 100));
    expect(await store.compactIfNeeded(tenantId, sessionId, summarize, { triggerTokens: 1 })).toBe(false);
    expect(await store.compactSession(tenantId, sessionId, summarize)).toBeNull();
  });

  test("unknown_session_is_not_compacted", async () => {
    expect(await store.compactIfNeeded(fresh("tenant"), "unknown", summarize, { triggerTokens: 1 })).toBe(false);
  });

  test.each([-0.5, 1.5, Number.NaN])("fraction_%s_is_refused", async (compactFraction) => {
    const { tenantId, sessionId } = await session();
    const compact = store.compactIfNeeded(tenantId, sessionId, summarize, { compactFraction });
    await failure(compact, "invalid_argument");
  });
});

describe("what is compacted", () => {
  test("summary_replaces_the_oldest_messages_and_names_the_archive", async () => {
    const { tenantId, sessionId } = await session();
    await store.appendMessages(tenantId, sessionId, long(8, 100));
    let seen: Message[] = [];
    const options = { triggerTokens: 1, compactFraction: 0.5, workspaceSnapshot: "a.txt\nb.txt" };
    const summary = async (messages: Message[]) => {
      seen = messages;
      return "they talked";
    };
    await store.compactIfNeeded(tenantId, sessionId, summary, options);
    expect(seen).toEqual(long(8, 100).slice(0, 4));
    const [first, ...rest] = await store.loadAllMessages(tenantId, sessionId);
    expect(first?.role).toBe("user");
    const lines = texts([first!])[0]!.split("\n");
    expect(lines[0]).toMatch(/^\[Conversation compacted at \d{4}-\d\d-\d\dT[\d:]{8}\.\d{3}Z\. /);
    expect(lines[0]).toContain("Full history preserved in messages.compactions/0001.jsonl.");
    expect(lines.slice(1, 3)).toEqual(["Archive ID: 0001", "4 messages (400 tokens estimated) were compressed."]);
    expect(lines).toContain("they talked");
    expect(lines.slice(-4)).toEqual(["Sandbox workspace at time of compaction:", "a.txt", "b.txt", "]"]);
    expect(rest).toEqual(long(8, 100).slice(4));
    expect(await store.readMemoryDocument(tenantId, sessionId, "session", "NOTES.md")).toContain("they talked");
  });

  test("full_history_survives_repeated_compactions", async () => {
    const { tenantId, sessionId } = await session();
    const everything: Message[] = [];
    for (let round = 0; round < 4; round += 1) {
      const more = long(8, 50).map((message) => user(`${round} ${texts([message])}`));
      everything.push(...more);
      await store.appendMessages(tenantId, sessionId, more);
      const done = await store.compactSession(tenantId, sessionId, async () => `summary ${round}`);
      expect(done?.archiveId).toBe(`000${round + 1}`);
      expect(done!.tokensAfter).toBeLessThan(done!.tokensBefore);
    }
    expect(await store.loadFullSessionMessages(tenantId, sessionId)).toEqual(everything);
    expect(await all(store.messages(tenantId, sessionId, { pageSize: 7 }))).toEqual(everything);
    const archived = await store.loadCompactedMessages(tenantId, sessionId, null, "0001");
    expect(archived).toEqual(everything.slice(0, archived.length));
    expect(await store.loadCompactedMessages(tenantId, sessionId, 2, "0001")).toEqual(everything.slice(0, 2));
    const newest = await store.loadCompactedMessages(tenantId, sessionId);
    expect(newest.length).toBeGreaterThan(archived.length);
    expect(await store.loadCompactedMessages(tenantId, sessionId, null, "9999")).toEqual([]);
  });

  test("kept_tool_result_keeps_its_call", async () => {
    for (const compactFraction of [0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9, 1]) {
      const { tenantId, sessionId } = await session();
      const calls = ["c1", "c2", "c3"];
      const messages = [
        user("a"),
        user("b"),
        assistant("calls", calls),
        ...calls.map((id) => toolResult(id, id)),
        user("c"),
        user("d"),
      ];
      await store.appendMessages(tenantId, sessionId, messages);
      await store.compactIfNeeded(tenantId, sessionId, summarize, { triggerTokens: 1, compactFraction });
      const kept = await store.loadAllMessages(tenantId, sessionId);
      const made = kept.flatMap((message) => (message.role === "assistant" ? message.content : []));
      for (const message of kept) {
        if (message.role === "toolResult") {
          expect(made, `fraction ${compactFraction}`).toContainEqual(
            expect.objectContaining({ id: message.toolCallId }),
          );
        }
      }
      expect(await store.loadFullSessionMessages(tenantId, sessionId)).toEqual(messages);
    }
  });
});

describe("while the summary is made", () => {
  test("messages_appended_meanwhile_stay_in_the_window", async () => {
    const { tenantId, sessionId } = await session();
    await store.appendMessages(tenantId, sessionId, long(8, 100));
    const slow = async () => {
      await store.appendMessages(tenantId, sessionId, [user("late")]);
      return "they talked";
    };
    expect(await store.compactIfNeeded(tenantId, sessionId, slow, { triggerTokens: 800 })).toBe(true);
    expect(texts(await store.loadAllMessages(tenantId, sessionId)).at(-1)).toBe("late");
    expect(await store.loadFullSessionMessages(tenantId, sessionId)).toHaveLength(9);
  });

  test("failed_summary_changes_nothing", async () => {
    const { tenantId, sessionId } = await session();
    await store.appendMessages(tenantId, sessionId, long(8, 100));
    const reason = new Error("the model is away");
    await expect(
      store.compactIfNeeded(tenantId, sessionId, () => Promise.reject(reason), { triggerTokens: 1 }),
    ).rejects.toBe(reason);
    for (const bad of [undefined, null, 7, ["text"]]) {
      const compact = store.compactIfNeeded(tenantId, sessionId, async () => bad as never, { triggerTokens: 1 });
      await failure(compact, "invalid_argument");
    }
    await failure(
      store.compactIfNeeded(tenantId, sessionId, async () => "x".repeat(300 << 10), { triggerTokens: 1 }),
      "too_large",
    );
    expect(await store.loadAllMessages(tenantId, sessionId)).toEqual(long(8, 100));
    expect(await store.readMemoryDocument(tenantId, sessionId, "session", "NOTES.md")).toBeNull();
  });

  test("compaction_that_another_one_overtook_checks_the_new_window", async () => {
    const { tenantId, sessionId } = await session();
    await store.appendMessages(tenantId, sessionId, long(8, 100));
    let asked = 0;
    const overtaken = async () => {
      asked += 1;
      await store.compactSession(tenantId, sessionId, summarize);
      return "too late";
    };
    expect(await store.compactIfNeeded(tenantId, sessionId, overtaken, { triggerTokens: 800 })).toBe(false);
    expect(asked).toBe(1);
    expect((await store.loadFullSessionMessages(tenantId, sessionId)).length).toBe(8);
    expect(await store.readMemoryDocument(tenantId, sessionId, "session", "NOTES.md")).not.toContain("too late");
  });

  test("compaction_that_is_always_overtaken_ends_with_a_conflict", async () => {
    const { tenantId, sessionId } = await session();
    let asked = 0;
    await store.appendMessages(tenantId, sessionId, long(8, 10));
    const overtaken = async () => {
      asked += 1;
      await store.appendMessages(tenantId, sessionId, long(8, 10));
      await store.compactSession(tenantId, sessionId, summarize);
      return "too late";
    };
    await failure(store.compactIfNeeded(tenantId, sessionId, overtaken, { triggerTokens: 1 }), "conflict");
    expect(asked).toBe(COMPACTIONS_MAX);
  });

  test("forced_compaction_that_was_overtaken_is_satisfied", async () => {
    const { tenantId, sessionId } = await session();
    await store.appendMessages(tenantId, sessionId, long(8, 10));
    const overtaken = async () => {
      await store.compactSession(tenantId, sessionId, summarize);
      return "too late";
    };
    expect(await store.compactSession(tenantId, sessionId, overtaken)).toBeNull();
  });
});
