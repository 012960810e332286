import { afterEach, expect, test } from "vitest";
import { type SessionChange, TreeholdClient, TreeholdSessionStore, TreeholdTraceStore } from "../src/index.js";
import { BadNetwork, baseUrl, client, failure, fresh, long, session, usage, user } from "./world.js";

const store = new TreeholdSessionStore(client());
const controllers: AbortController[] = [];
afterEach(() => {
  for (const controller of controllers.splice(0)) {
    controller.abort();
  }
});

/** Follows a session in the background and collects what changes. */
function followed(
  tenantId: string,
  sessionId: string,
  options: { after?: string; through?: TreeholdSessionStore } = {},
) {
  const controller = new AbortController();
  controllers.push(controller);
  const changes: SessionChange[] = [];
  const positions: (string | undefined)[] = [];
  const { after, through = store } = options;
  const ended = (async () => {
    for await (const { change, position } of through.follow(tenantId, sessionId, {
      after,
      signal: controller.signal,
      waitMs: 1,
    })) {
      changes.push(change);
      positions.push(position);
    }
  })();
  ended.catch(() => undefined);
  const until = (kind: SessionChange["kind"]) =>
    expect.poll(() => changes.some((change) => change.kind === kind), { timeout: 20_000, message: kind }).toBe(true);
  return { changes, positions, ended, until, controller };
}

test("changes_of_every_kind_arrive_until_the_session_is_deleted", async () => {
  const { tenantId, sessionId, sessionRef } = await session();
  const { changes, ended, until } = followed(tenantId, sessionId);
  await until("open");
  await store.appendMessages(tenantId, sessionId, long(8, 10));
  await until("messages");
  await store.recordTurn(tenantId, sessionId, usage(1, 1));
  await until("turns");
  await store.setTitle(tenantId, sessionId, "Tea");
  await until("description");
  await store.compactSession(tenantId, sessionId, async () => "short");
  await until("compaction");
  await store.writeMemoryDocument(tenantId, sessionId, "session", "TODO.md", "t");
  await until("memo");
  await store.writeToolResultArtifact(sessionRef, "c1", "r");
  await until("tool_results");
  const envelope = {
    id: "host-1-0",
    timestamp: "t",
    sequence: 1,
    source: "host" as const,
    event: { type: "turn_start" },
  };
  await new TreeholdTraceStore(client(), sessionRef).appendEnvelope(envelope);
  await until("trace");
  await store.deleteSession(tenantId, sessionId);
  await ended;
  expect(changes.at(-1)).toEqual({ kind: "deleted" });
  expect(changes.find((change) => change.kind === "messages")).toEqual({ kind: "messages", from: 0, end: 8 });
});

test("position_continues_after_what_was_seen", async () => {
  const { tenantId, sessionId } = await session();
  const first = followed(tenantId, sessionId);
  await first.until("open");
  await store.appendMessages(tenantId, sessionId, [user("a")]);
  await first.until("messages");
  await expect.poll(() => first.positions.at(-1)).toBeDefined();
  first.controller.abort(new Error("enough"));
  await expect(first.ended).rejects.toThrow("enough");
  await store.appendMessages(tenantId, sessionId, [user("b"), user("c")]);
  const second = followed(tenantId, sessionId, { after: first.positions.at(-1)! });
  await second.until("messages");
  expect(second.changes.find((change) => change.kind === "messages")).toEqual({ kind: "messages", from: 1, end: 3 });
});

test("cut_stream_is_opened_again_and_misses_nothing", async () => {
  const network = await BadNetwork.before(baseUrl);
  try {
    const { tenantId, sessionId } = await session();
    const through = new TreeholdSessionStore(new TreeholdClient({ baseUrl: network.baseUrl }));
    const { changes, until } = followed(tenantId, sessionId, { through });
    await until("open");
    network.loseAnswers = 1;
    await store.appendMessages(tenantId, sessionId, [user("a")]);
    await until("messages");
    expect(network.loseAnswers).toBe(0);
    expect(changes.filter((change) => change.kind === "messages")).toEqual([{ kind: "messages", from: 0, end: 1 }]);
  } finally {
    await network.close();
  }
});

test("unknown_session_and_bad_position_are_errors", async () => {
  await failure(followed(fresh("tenant"), "unknown").ended, "not_found");
  const { tenantId, sessionId } = await session();
  await failure(followed(tenantId, sessionId, { after: "elsewhere" }).ended, "invalid_argument");
});
