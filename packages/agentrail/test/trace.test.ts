import { describe, expect, test } from "vitest";
import {
  type TraceEnvelope,
  TreeholdInspector,
  TreeholdOrchestration,
  TreeholdSessionStore,
  TreeholdTraceStore,
  traceStoreFactory,
} from "../src/index.js";
import { all, client, failure, fresh, session, usage, user } from "./world.js";

const open = traceStoreFactory(client());

function envelope(number: number, type = "turn_start", sequence = number): TraceEnvelope {
  const timestamp = new Date(number * 1_000).toISOString();
  return { id: `host-${number}-0`, timestamp, sequence, source: "host", event: { type, number } };
}

describe("a trace", () => {
  test("envelopes_come_back_in_the_order_of_the_log_though_sequences_restart", async () => {
    const trace = open((await session()).sessionRef);
    const envelopes = [0, 1, 2, 3].map((number) => envelope(number, "turn_start", number % 2));
    for (const one of envelopes) {
      await trace.appendEnvelope(one);
    }
    expect(await trace.loadEnvelopes()).toEqual(envelopes);
  });

  test("pages_continue_after_a_position", async () => {
    const trace = open((await session()).sessionRef);
    for (let number = 0; number < 7; number += 1) {
      await trace.appendEnvelope(envelope(number));
    }
    const read = await all(trace.entries({ pageSize: 3 }));
    expect(read.map((entry) => entry.value)).toEqual(await trace.loadEnvelopes());
    expect(await all(trace.entries({ after: read[4]!.position }))).toEqual(read.slice(5));
    expect(await all(trace.entries({ after: read[6]!.position }))).toEqual([]);
  });

  test("unknown_fields_survive", async () => {
    const { sessionRef } = await session();
    const trace = new TreeholdTraceStore<object>(client(), sessionRef);
    const strange = { ...envelope(1), extra: [1, { deep: null }], event: { type: "error", message: "é\u2028" } };
    await trace.appendEnvelope(strange);
    expect(await trace.loadEnvelopes()).toEqual([strange]);
  });

  test("streamed_kinds_are_not_stored", async () => {
    const trace = open((await session()).sessionRef);
    for (const type of ["message_delta", "message.update", "text_delta"]) {
      await trace.appendEnvelope(envelope(1, type));
    }
    await trace.appendEnvelope(envelope(2, "turn_end"));
    expect(await trace.loadEnvelopes()).toEqual([envelope(2, "turn_end")]);
  });

  test("envelope_without_its_fields_is_refused", async () => {
    const trace = new TreeholdTraceStore<object>(client(), (await session()).sessionRef);
    for (const bad of [{}, { ...envelope(1), event: {} }, { ...envelope(1), id: 7 }, []]) {
      await failure(trace.appendEnvelope(bad), "invalid_argument");
    }
  });

  test("unknown_session_has_no_trace_and_takes_none", async () => {
    const trace = open(`${fresh("tenant")}:unknown`);
    expect(await trace.loadEnvelopes()).toEqual([]);
    await failure(trace.appendEnvelope(envelope(1)), "not_found");
  });
});

describe("an inspector", () => {
  const inspector = new TreeholdInspector(client());
  const store = new TreeholdSessionStore(client());

  test("every_session_is_on_one_page", async () => {
    const { store, tenantId, userId, sessionId } = await session();
    const ids = [sessionId];
    for (const user of [userId, "bob", "eve"]) {
      ids.push((await store.getOrCreate(tenantId, user, "helper")).sessionId);
    }
    const own = (sessions: { tenantId: string; sessionId: string }[]) =>
      sessions.filter((one) => one.tenantId === tenantId).map((one) => one.sessionId);
    expect(own(await all(inspector.sessions({ pageSize: 3 }))).sort()).toEqual([...ids].sort());
    expect(own(await inspector.listSessions()).sort()).toEqual([...ids].sort());
  });

  test("sessions_of_all_tenants_are_listed_newest_first", async () => {
    const [one, two] = [await session(), await session()];
    await store.append(one.tenantId, one.sessionId, [user("a")], { usage: usage(30, 12) });
    await open(two.sessionRef).appendEnvelope(envelope(1, "error"));
    const listed = await inspector.listSessions();
    const find = (id: string) => listed.find((item) => item.sessionId === id);
    expect(find(one.sessionId)).toEqual({
      tenantId: one.tenantId,
      sessionId: one.sessionId,
      userId: one.userId,
      lastActive: expect.stringMatching(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/),
      turns: 1,
      tokens: 42,
      status: "idle",
    });
    expect(find(two.sessionId)?.status).toBe("error");
    const times = listed.map((item) => item.lastActive!);
    expect(times).toEqual([...times].sort().reverse());
  });

  test("messages_trace_and_orchestration_are_those_of_the_stores", async () => {
    const { tenantId, sessionId, sessionRef } = await session();
    await store.appendMessages(tenantId, sessionId, [user("a")]);
    await open(sessionRef).appendEnvelope(envelope(1));
    expect(await inspector.loadMessages(tenantId, sessionId)).toEqual([user("a")]);
    expect(await inspector.loadTraceEnvelopes(tenantId, sessionId)).toEqual([envelope(1)]);
    expect(await inspector.loadOrchestrationState(tenantId, sessionId)).toBeNull();
    expect(await inspector.loadOrchestrationEvents(tenantId, sessionId)).toEqual([]);
  });

  test("state_of_an_orchestration_is_the_recovered_one", async () => {
    const { tenantId, sessionId, sessionRef } = await session();
    const event = {
      eventId: "e1",
      occurredAt: "t",
      runId: "run",
      type: "run_started" as const,
      initialTask: { id: "task", kind: "chat", input: {} },
    };
    await new TreeholdOrchestration(client(), sessionRef).appendEvent(event);
    expect((await inspector.loadOrchestrationState(tenantId, sessionId))?.snapshot.runs).toHaveProperty("run");
    expect(await inspector.loadOrchestrationEvents(tenantId, sessionId)).toEqual([event]);
  });

  test("unknown_session_is_empty", async () => {
    const tenant = fresh("tenant");
    expect(await inspector.loadMessages(tenant, "unknown")).toEqual([]);
    expect(await inspector.loadTraceEnvelopes(tenant, "unknown")).toEqual([]);
    expect(await inspector.loadOrchestrationState(tenant, "unknown")).toBeNull();
    expect(await inspector.loadOrchestrationEvents(tenant, "unknown")).toEqual([]);
  });
});
