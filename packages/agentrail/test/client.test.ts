import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { freshStore, serve } from "../scripts/server.mjs";
import {
  TreeholdClient,
  TreeholdError,
  TreeholdOrchestration,
  TreeholdSessionStore,
  TreeholdTraceStore,
} from "../src/index.js";
import { all, assistant, BadNetwork, baseUrl, client, failure, session, texts, usage, user } from "./world.js";

let network: BadNetwork;
beforeEach(async () => {
  network = await BadNetwork.before(baseUrl);
});
afterEach(() => network.close());

function badStore(options: Partial<ConstructorParameters<typeof TreeholdClient>[0]> = {}): TreeholdSessionStore {
  return new TreeholdSessionStore(new TreeholdClient({ baseUrl: network.baseUrl, retry: { waitMs: 1 }, ...options }));
}

describe("a lost answer", () => {
  test("append_with_lost_answers_takes_effect_once", async () => {
    const { store, tenantId, sessionId } = await session();
    network.loseAnswers = 3;
    await badStore().appendMessages(tenantId, sessionId, [user("a"), assistant("b")], { usage: usage(1, 2) });
    expect(network.loseAnswers).toBe(0);
    expect(texts(await store.loadAllMessages(tenantId, sessionId))).toEqual(["a", "b"]);
    const turns = await all(store.turns(tenantId, sessionId));
    expect(turns.map((turn) => turn.turnIndex)).toEqual([0]);
  });

  test("turn_and_document_append_with_lost_answers_take_effect_once", async () => {
    const { store, tenantId, sessionId } = await session();
    network.loseAnswers = 1;
    await badStore().recordTurn(tenantId, sessionId, usage(1, 2));
    network.loseAnswers = 1;
    await badStore().appendMemoryDocument(tenantId, sessionId, "session", "NOTES.md", "once\n");
    expect(await all(store.turns(tenantId, sessionId))).toHaveLength(1);
    expect(await store.readMemoryDocument(tenantId, sessionId, "session", "NOTES.md")).toBe("once\n");
  });

  test("envelope_with_lost_answers_is_stored_once", async () => {
    const { store, sessionRef } = await session();
    network.loseAnswers = 2;
    const envelope = {
      id: "host-1-0",
      timestamp: "t",
      sequence: 1,
      source: "host" as const,
      event: { type: "turn_start" },
    };
    await new TreeholdTraceStore(badStore().client, sessionRef).appendEnvelope(envelope);
    expect(await new TreeholdTraceStore(store.client, sessionRef).loadEnvelopes()).toEqual([envelope]);
  });

  test("creation_with_a_lost_answer_makes_one_session", async () => {
    const { store, tenantId, userId } = await session();
    network.loseAnswers = 1;
    const made = await badStore().getOrCreate(tenantId, userId, "helper");
    const ids = (await store.listSessionsByUser(tenantId, userId)).map((one) => one.sessionId);
    expect(ids).toHaveLength(2);
    expect(ids).toContain(made.sessionId);
  });

  test("compaction_with_a_lost_answer_reports_that_it_compacted", async () => {
    const { store, tenantId, sessionId } = await session();
    await store.appendMessages(
      tenantId,
      sessionId,
      [..."abcdef"].map((text) => user(text)),
    );
    const summarize = async () => {
      network.loseAnswers = 1;
      return "short";
    };
    expect(await badStore().compactIfNeeded(tenantId, sessionId, summarize, { triggerTokens: 1 })).toBe(true);
    expect(await store.loadAllMessages(tenantId, sessionId)).toHaveLength(4);
  });

  test("append_whose_answers_are_all_lost_may_have_effect", async () => {
    const { store, tenantId, sessionId } = await session();
    network.loseAnswers = 100;
    const append = badStore({ retry: { attemptsMax: 2, waitMs: 1 } }).appendMessages(tenantId, sessionId, [user("a")]);
    const error = await failure(append, "unavailable");
    expect([error.mayHaveEffect, error.status]).toEqual([true, undefined]);
    expect(network.loseAnswers).toBe(98);
    expect(texts(await store.loadAllMessages(tenantId, sessionId))).toEqual(["a"]);
  });

  test("read_whose_answers_are_all_lost_has_no_effect", async () => {
    const { tenantId, sessionId } = await session();
    network.loseAnswers = 100;
    const read = badStore({ retry: { attemptsMax: 3, waitMs: 1 } }).loadAllMessages(tenantId, sessionId);
    expect((await failure(read, "unavailable")).mayHaveEffect).toBe(false);
    expect(network.loseAnswers).toBe(97);
  });
});

describe("a server without room", () => {
  /** Refuses requests with a key, and sends the others on. */
  function crowded() {
    const keys: (string | null)[] = [];
    const refusing: typeof fetch = async (input, init) => {
      const key = new Headers(init?.headers).get("idempotency-key");
      if (init?.method !== "POST" || String(input).endsWith("/v1/sessions")) {
        return fetch(input, init);
      }
      keys.push(key);
      const problem = { code: "quota_exceeded", detail: "no room", may_have_effect: false };
      return key === null ? fetch(input, init) : Response.json(problem, { status: 507 });
    };
    return { keys, store: new TreeholdSessionStore(client({ fetch: refusing })) };
  }

  test("counted_key_that_the_package_made_is_dropped_once", async () => {
    const { keys, store } = crowded();
    const { tenantId, userId, sessionId, sessionRef } = await session(store);
    await store.appendMemoryDocument(tenantId, sessionId, "session", "NOTES.md", "a");
    await store.appendMemoryDocument(tenantId, userId, "user", "USER.md", "b");
    const log = { skillName: "s", task: "t", input: "i", systemPrompt: "p", messages: [], resultText: "r" };
    await store.persistSkillSubAgentLog(sessionRef, { ...log, startedAt: 1, finishedAt: 2 });
    expect(await store.readMemoryDocument(tenantId, sessionId, "session", "NOTES.md")).toBe("a");
    expect(keys.map((key) => key === null)).toEqual([false, true, false, true, false, true]);
  });

  test("key_of_the_caller_and_key_that_is_kept_with_the_session_are_never_dropped", async () => {
    const { keys, store } = crowded();
    const { tenantId, sessionId, sessionRef } = await session(store);
    const orchestration = new TreeholdOrchestration(store.client, sessionRef);
    const event = { eventId: "e", occurredAt: "t", runId: "r", type: "run_completed", status: "completed" } as const;
    const mail = { eventId: "m", occurredAt: "t", agentId: "scout", type: "agent_close_requested" } as const;
    const envelope = { id: "h-1-0", timestamp: "t", sequence: 1, source: "host", event: { type: "turn_end" } } as const;
    const notes = [tenantId, sessionId, "session", "NOTES.md", "a"] as const;
    const writes = [
      () => store.appendMessages(tenantId, sessionId, [user("a")]),
      () => store.recordTurn(tenantId, sessionId, usage(1, 1)),
      () => new TreeholdTraceStore(store.client, sessionRef).appendEnvelope(envelope),
      () => orchestration.appendEvent(event),
      () => orchestration.commit({ events: [event] }),
      () => orchestration.appendMailboxEvent("scout", mail),
      () => store.appendMemoryDocument(...notes, { idempotencyKey: "mine" }),
    ];
    for (const write of writes) {
      await failure(write(), "quota_exceeded");
    }
    expect([keys.length, keys.includes(null)]).toEqual([writes.length, false]);
  });
});

test.runIf(process.env["MANY_KEYS"])(
  "user_without_room_for_counted_keys_can_write_everything",
  async () => {
    const data = freshStore();
    const server = await serve(data);
    try {
      let unkeyed = 0;
      const counting: typeof fetch = (input, init) => {
        unkeyed += init?.method === "POST" && !new Headers(init.headers).has("idempotency-key") ? 1 : 0;
        return fetch(input, init);
      };
      const store = new TreeholdSessionStore(new TreeholdClient({ baseUrl: server.baseUrl, fetch: counting }));
      const { sessionRef } = await store.getOrCreate("acme", "ada", "helper");
      const trace = new TreeholdTraceStore(store.client, sessionRef);
      const envelope = {
        id: "host-1-0",
        timestamp: "t",
        sequence: 1,
        source: "host" as const,
        event: { type: "turn_start" },
      };
      const repeat = async (times: number, write: () => Promise<void>) => {
        const left = Array.from({ length: times }).values();
        const worker = async () => {
          for (const _ of left) {
            await write();
          }
        };
        await Promise.all(Array.from({ length: 64 }, worker));
      };
      await repeat(10_050, () => trace.appendEnvelope(envelope));
      expect(await trace.loadEnvelopes()).toHaveLength(10_050);
      const made = unkeyed;
      const log = { skillName: "s", task: "t", input: "i", systemPrompt: "p", messages: [], resultText: "r" };
      let startedAt = 0;
      await repeat(10_050, () => {
        startedAt += 1;
        return store.persistSkillSubAgentLog(sessionRef, { ...log, startedAt, finishedAt: startedAt });
      });
      // The creation of the session has no key. The server counts those of a moment together, so the bound is not exact.
      expect(made).toBe(1);
      expect(unkeyed).toBeGreaterThan(1);
    } finally {
      await server.kill();
      data.remove();
    }
  },
  600_000,
);

test("cut_connections_are_opened_again", async () => {
  const { tenantId, sessionId } = await session();
  network.cutConnections = 3;
  await badStore().appendMessages(tenantId, sessionId, [user("a")]);
  expect(network.cutConnections).toBe(0);
});

test("server_that_does_not_run_is_unavailable", async () => {
  const gone = network.baseUrl;
  await network.close();
  const store = new TreeholdSessionStore(new TreeholdClient({ baseUrl: gone, retry: { attemptsMax: 2, waitMs: 1 } }));
  const error = await failure(store.ping(), "unavailable");
  expect(error.message).toContain("ECONNREFUSED");
  network = await BadNetwork.before(baseUrl);
});

test("silent_server_ends_the_call_at_its_timeout", async () => {
  const { tenantId, sessionId } = await session();
  network.isSilent = true;
  const { client } = badStore();
  const store = new TreeholdSessionStore(client);
  const append = store.appendMessages(tenantId, sessionId, [user("a")], { timeoutMs: 200 });
  expect((await failure(append, "deadline")).mayHaveEffect).toBe(true);
  const read = store.loadAllMessages(tenantId, sessionId, { timeoutMs: 200 });
  expect((await failure(read, "deadline")).mayHaveEffect).toBe(false);
});

test("aborted_call_rejects_with_the_reason_of_its_signal", async () => {
  const { store, tenantId, sessionId } = await session();
  network.isSilent = true;
  const controller = new AbortController();
  const reason = new Error("the user left");
  const read = badStore().loadAllMessages(tenantId, sessionId, { signal: controller.signal });
  controller.abort(reason);
  await expect(read).rejects.toBe(reason);
  await expect(store.loadAllMessages(tenantId, sessionId, { signal: controller.signal })).rejects.toBe(reason);
});

test("call_that_is_aborted_in_its_only_attempt_rejects_with_the_reason", async () => {
  network.isSilent = true;
  const controller = new AbortController();
  const reason = new Error("the user left");
  const ping = badStore({ retry: { attemptsMax: 1 } }).ping({ signal: controller.signal });
  controller.abort(reason);
  await expect(ping).rejects.toBe(reason);
});

test("refusal_after_a_lost_answer_may_have_effect", async () => {
  const { store, tenantId, sessionId } = await session();
  let attempts = 0;
  const losesTheFirstAnswer: typeof fetch = async (input, init) => {
    attempts += 1;
    if (attempts === 1) {
      await fetch(input, init);
      throw new TypeError("the connection was reset");
    }
    await store.deleteSession(tenantId, sessionId);
    return fetch(input, init);
  };
  const losing = new TreeholdSessionStore(client({ fetch: losesTheFirstAnswer, retry: { waitMs: 1 } }));
  const write = losing.writeMemoryDocument(tenantId, sessionId, "session", "NOTES.md", "written");
  expect([(await failure(write, "not_found")).mayHaveEffect, attempts]).toEqual([true, 2]);
});

test("abort_ends_the_wait_between_attempts", async () => {
  network.cutConnections = 1_000;
  const controller = new AbortController();
  const ping = badStore({ retry: { waitMs: 1e9, waitMsMax: 1e9, attemptsMax: 2 }, timeoutMs: 2e9 }).ping({
    signal: controller.signal,
  });
  const reason = new Error("the user left");
  await expect.poll(() => network.cutConnections).toBeLessThan(1_000);
  controller.abort(reason);
  await expect(ping).rejects.toBe(reason);
});

test("wrong_address_is_an_error_and_not_an_empty_session", async () => {
  const store = new TreeholdSessionStore(new TreeholdClient({ baseUrl: `${baseUrl}/elsewhere` }));
  await failure(store.loadAllMessages("t", "s"), "no_such_route");
  await failure(store.readMemoryDocument("t", "s", "session", "NOTES.md"), "no_such_route");
});

test("address_with_a_slash_at_its_end_works", async () => {
  await new TreeholdClient({ baseUrl: `${baseUrl}/` }).ping();
});

test("error_has_code_status_request_and_trace_id", async () => {
  const { store, tenantId } = await session();
  const error = await failure(store.appendMessages(tenantId, "unknown", [user("a")]), "not_found");
  expect([error.status, error.mayHaveEffect, error.request]).toEqual([
    404,
    false,
    "POST /v1/sessions/unknown/messages",
  ]);
  expect(error.traceId).toMatch(/^[0-9a-f]{32}$/);
  expect(TreeholdError.is(error, "not_found", "conflict")).toBe(true);
  expect(TreeholdError.is(error, "conflict")).toBe(false);
  expect(TreeholdError.is(new Error("other"))).toBe(false);
});

test("token_may_be_a_function_and_is_asked_for_each_request", async () => {
  let asked = 0;
  const token = async () => {
    asked += 1;
    return "unused";
  };
  const asking = client({ token });
  await asking.ping();
  await asking.ping();
  expect(asked).toBe(2);
});

test.each([
  "",
  "elsewhere",
  "ftp://a",
  "http://ada:secret@a",
  "http://a?b=c",
  "http://a#b",
])("address_%j_is_refused", (baseUrl) => {
  expect(() => new TreeholdClient({ baseUrl })).toThrowError(expect.objectContaining({ code: "invalid_argument" }));
});

test.each(["", "a b", "a\nb", "é"])("token_%j_is_refused_and_not_shown", async (token) => {
  const error = await failure(client({ token }).ping(), "invalid_argument");
  expect(error.message).not.toContain("a b");
  expect(error.cause).toBeUndefined();
});

test("error_of_the_token_function_is_the_error_of_the_call", async () => {
  const reason = new Error("no token");
  await expect(client({ token: () => Promise.reject(reason) }).ping()).rejects.toBe(reason);
});

test.each(["", "a\nb", "é", "x".repeat(256)])("idempotency_key_%j_is_refused", async (idempotencyKey) => {
  const append = new TreeholdSessionStore(client()).appendMessages("t", "s", [user("a")], { idempotencyKey });
  await failure(append, "invalid_argument");
});
