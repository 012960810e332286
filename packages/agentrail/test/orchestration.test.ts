import { execFile } from "node:child_process";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { describe, expect, test } from "vitest";
import {
  type MailboxEvent,
  type OrchestrationClaim,
  type OrchestrationEvent,
  type OrchestrationSnapshot,
  orchestrationFactory,
  SideWrites,
  type TreeholdError,
  TreeholdOrchestration,
} from "../src/index.js";
import { all, assistant, baseUrl, client, failure, fresh, session, texts, user } from "./world.js";

const open = orchestrationFactory(client());

async function orchestration(): Promise<TreeholdOrchestration> {
  return open((await session()).sessionRef);
}

/** An event of each kind: a run with one agent, from its start to its end. */
function everyKind(): OrchestrationEvent[] {
  let number = 0;
  const base = () => {
    number += 1;
    return { eventId: `e${number}`, occurredAt: `2026-01-01T00:00:0${number % 10}.000Z`, runId: "run" };
  };
  const job = {
    jobId: "job",
    inputIds: ["in"],
    outcome: "completed" as const,
    outputText: "done",
    toolCalls: [{ toolCallId: "c" }],
  };
  return [
    { ...base(), type: "run_started", initialTask: { id: "task", kind: "chat", input: { question: "?" } } },
    {
      ...base(),
      type: "agent_spawned",
      agent: { id: "scout", runId: "run", role: "scout", displayName: "Scout", depth: 1 },
    },
    { ...base(), type: "agent_input_queued", input: { id: "in", agentId: "scout", payload: { text: "go" } } },
    { ...base(), type: "agent_job_started", agentId: "scout", jobId: "job", inputIds: ["in"] },
    { ...base(), type: "agent_status_changed", agentId: "scout", status: "running" },
    {
      ...base(),
      type: "wait_registered",
      wait: { id: "w", agentId: "scout", kind: "agent-idle", description: "idle", match: "any" },
    },
    { ...base(), type: "agent_input_removed", inputId: "in", agentId: "scout", reason: "delivered" },
    { ...base(), type: "agent_job_completed", agentId: "scout", job },
    { ...base(), type: "wait_resolved", waitId: "w", resolution: { status: "resolved" } },
    { ...base(), type: "agent_job_failed", agentId: "scout", job: { ...job, outcome: "timed_out", error: "late" } },
    { ...base(), type: "agent_closed", close: { id: "close", agentId: "scout", reason: "done" } },
    { ...base(), type: "run_completed", status: "completed" },
  ];
}

const empty: OrchestrationSnapshot = { runs: {}, tasks: {}, agents: {}, waits: {}, queuedInputs: [] };
const input = (number: number, agentId = "scout"): MailboxEvent => ({
  eventId: `m${number}`,
  type: "input_enqueued",
  agentId,
  occurredAt: "t",
  inputId: `in${number}`,
  payload: { number },
});

describe("events", () => {
  test("events_of_every_kind_come_back_in_order", async () => {
    const log = await orchestration();
    for (const event of everyKind()) {
      await log.appendEvent(event);
    }
    expect(await log.loadEvents()).toEqual(everyKind());
    const paged = await all(log.eventEntries({ pageSize: 5 }));
    expect(paged.map((entry) => entry.value)).toEqual(everyKind());
    const rest = await all(log.eventEntries({ after: paged[8]!.position }));
    expect(rest).toEqual(paged.slice(9));
  });

  test("unknown_kinds_and_fields_of_events_survive", async () => {
    const log = await orchestration();
    const event = { eventId: "e", occurredAt: "t", runId: "run", type: "moon_landed", crew: { size: 3 } };
    await log.appendEvent(event as never);
    expect(await log.loadEvents()).toEqual([event]);
  });

  test("event_without_its_fields_is_refused", async () => {
    const log = await orchestration();
    for (const bad of [
      {},
      { eventId: "e" },
      null,
      [],
      "text",
      { eventId: 1, occurredAt: "t", runId: "r", type: "run_started" },
    ]) {
      await failure(log.appendEvent(bad as never), "invalid_argument");
    }
    expect(await log.loadEvents()).toEqual([]);
  });

  test("repeated_key_appends_once", async () => {
    const log = await orchestration();
    const [event] = everyKind();
    await log.appendEvent(event!, { idempotencyKey: "k" });
    await log.appendEvent(event!, { idempotencyKey: "k" });
    expect(await log.loadEvents()).toHaveLength(1);
  });
});

describe("checkpoints and recovery", () => {
  test("without_a_checkpoint_the_snapshot_is_null_and_the_state_empty", async () => {
    const log = await orchestration();
    expect(await log.loadSnapshot()).toBeNull();
    expect(await log.recoverState()).toEqual({ snapshot: empty, pendingWaits: [], activeAgents: [] });
  });

  test("newest_checkpoint_comes_back", async () => {
    const log = await orchestration();
    await log.writeCheckpoint({ ...empty, lastEventId: "e1" });
    const newest = { ...empty, lastEventId: "e2", extra: { kept: true } };
    await log.writeCheckpoint(newest);
    expect(await log.loadSnapshot()).toEqual(newest);
  });

  test("recovery_from_a_checkpoint_after_any_event_gives_the_same_state", async () => {
    const events = everyKind().slice(0, 8);
    const whole = await orchestration();
    for (const event of events) {
      await whole.appendEvent(event);
    }
    const expected = await whole.recoverState();
    expect(expected.activeAgents).toMatchObject([
      { id: "scout", status: "running", lastJob: { outcome: "completed" } },
    ]);
    expect(expected.pendingWaits).toMatchObject([{ id: "w", status: "pending" }]);
    expect(expected.snapshot.queuedInputs).toEqual([]);
    const log = await orchestration();
    for (const event of events) {
      await log.appendEvent(event);
      await log.writeCheckpoint((await log.recoverState()).snapshot);
    }
    expect(await log.recoverState()).toEqual(expected);
  });

  test("checkpoint_of_another_log_is_dropped_and_one_without_a_log_is_trusted", async () => {
    const log = await orchestration();
    const foreign = { ...empty, lastEventId: "elsewhere", tasks: {} };
    await log.writeCheckpoint(foreign);
    expect((await log.recoverState()).snapshot.lastEventId).toBe("elsewhere");
    await log.appendEvent(everyKind()[0]!);
    const { snapshot } = await log.recoverState();
    expect([snapshot.lastEventId, Object.keys(snapshot.runs)]).toEqual(["e1", ["run"]]);
  });

  test("nothing_is_pending_once_the_run_is_over", async () => {
    const log = await orchestration();
    for (const event of [...everyKind().slice(0, 6), everyKind()[11]!]) {
      await log.appendEvent(event);
    }
    const state = await log.recoverState();
    expect([state.pendingWaits, state.activeAgents]).toEqual([[], []]);
    expect(Object.keys(state.snapshot.agents)).toEqual(["scout"]);
  });
});

describe("mailboxes and histories", () => {
  test("mailbox_is_a_log_with_a_state_of_its_own_for_each_agent", async () => {
    const log = await orchestration();
    expect(await log.loadMailboxEvents("scout")).toEqual([]);
    expect(await log.loadMailboxState("scout")).toEqual({ processedEventCount: 0, closeRequested: null });
    const close: MailboxEvent = {
      eventId: "m9",
      type: "agent_close_requested",
      agentId: "scout",
      occurredAt: "t",
      reason: "done",
    };
    for (const event of [input(1), input(2), close]) {
      await log.appendMailboxEvent("scout", event);
    }
    await log.appendMailboxEvent("cook", input(3, "cook"));
    expect(await log.loadMailboxEvents("scout")).toEqual([input(1), input(2), close]);
    expect(await all(log.mailboxEntries("scout", { pageSize: 2 }))).toHaveLength(3);
    const state = { processedEventCount: 2, closeRequested: { reason: "done", occurredAt: "t" } };
    await log.writeMailboxState("scout", state);
    expect(await log.loadMailboxState("scout")).toEqual(state);
    expect(await log.loadMailboxState("cook")).toEqual({ processedEventCount: 0, closeRequested: null });
  });

  test("history_is_replaced_as_a_whole", async () => {
    const log = await orchestration();
    expect(await log.loadAgentHistory("scout")).toEqual([]);
    await log.writeAgentHistory("scout", [user("a"), assistant("b")]);
    await log.writeAgentHistory("scout", [user("c")]);
    expect(await log.loadAgentHistory("scout")).toEqual([user("c")]);
    await log.writeAgentHistory("scout", []);
    expect(await log.loadAgentHistory("scout")).toEqual([]);
  });

  test("commit_writes_all_or_nothing", async () => {
    const log = await orchestration();
    await log.commit({
      events: everyKind().slice(0, 3),
      checkpoint: { ...empty, lastEventId: "e3" },
      mailboxEvents: [{ agent: "scout", event: input(1) }],
      mailboxStates: [{ agent: "scout", state: { processedEventCount: 1, closeRequested: null } }],
      histories: [
        { agent: "scout", messages: [user("a"), assistant("b")] },
        { agent: "cook", messages: [user("c")] },
      ],
    });
    expect(await log.loadEvents()).toEqual(everyKind().slice(0, 3));
    expect(await log.loadAgentHistory("scout")).toEqual([user("a"), assistant("b")]);
    expect(await log.loadAgentHistory("cook")).toEqual([user("c")]);
    expect((await log.loadSnapshot())?.lastEventId).toBe("e3");
    expect(await log.loadMailboxEvents("scout")).toEqual([input(1)]);
    expect((await log.loadMailboxState("scout")).processedEventCount).toBe(1);
    const bad = { events: [everyKind()[3]!], mailboxEvents: [{ agent: "a\u0001b", event: input(2) }] };
    await failure(log.commit(bad), "invalid_argument");
    await failure(log.commit({ ...bad, mailboxEvents: [{ agent: "", event: input(2) }] }), "invalid_argument");
    const histories = [{ agent: "scout", messages: [user("lost")] }];
    await failure(log.commit({ ...bad, histories }), "invalid_argument");
    expect(await log.loadAgentHistory("scout")).toEqual([user("a"), assistant("b")]);
    expect(await log.loadEvents()).toHaveLength(3);
    await log.commit({});
  });
});

describe("a claim", () => {
  /** Waits until a claim knows that it was replaced, and returns why. */
  async function replaced(claim: OrchestrationClaim): Promise<TreeholdError> {
    if (!claim.signal.aborted) {
      await new Promise((done) => claim.signal.addEventListener("abort", done, { once: true }));
    }
    return claim.signal.reason;
  }

  /** A client that counts its renewals. The first `failing` of them do not reach the server. */
  function renewing(failing: number) {
    const renewals = { made: 0 };
    const counting: typeof fetch = async (input, init) => {
      const isRenewal = init?.method === "PUT" && String(input).endsWith("/claim");
      if (isRenewal && failing > 0) {
        failing -= 1;
        throw new TypeError("the connection was reset");
      }
      const answer = await fetch(input, init);
      renewals.made += isRenewal ? 1 : 0;
      return answer;
    };
    return { renewals, client: client({ fetch: counting, retry: { attemptsMax: 1 } }) };
  }

  test("claimed_orchestration_is_refused_to_others_until_its_release", async () => {
    const log = await orchestration();
    const first = await log.claim("first");
    const error = await failure(log.claim("second", { timeoutMs: 1_000 }), "unavailable");
    expect([error.status, error.mayHaveEffect]).toEqual([503, false]);
    await first.orchestration.appendEvent(everyKind()[0]!);
    await Promise.all([first.release(), first.release()]);
    await first.release();
    expect(first.signal.aborted).toBe(false);
    const second = await log.claim("second");
    await second.orchestration.appendEvent(everyKind()[1]!);
    expect(await log.loadEvents()).toEqual(everyKind().slice(0, 2));
    await second[Symbol.asyncDispose]();
    await (await log.claim("first")).release();
  });

  test("manager_that_was_replaced_changes_nothing_and_reads_on", async () => {
    const log = await orchestration();
    const earlier = await log.claim("host");
    await earlier.orchestration.appendEvent(everyKind()[0]!);
    // A host that restarts under its name.
    const later = await log.claim("host");
    const old = earlier.orchestration;
    const writes = [
      () => old.appendEvent(everyKind()[1]!),
      () => old.writeCheckpoint(empty),
      () => old.appendMailboxEvent("scout", input(1)),
      () => old.writeMailboxState("scout", { processedEventCount: 1, closeRequested: null }),
      () => old.writeAgentHistory("scout", [user("a")]),
      () => old.commit({ events: everyKind() }),
      () => old.commit({ events: everyKind() }, { idempotencyKey: "k" }),
    ];
    for (const write of writes) {
      const error = await failure(write(), "conflict");
      expect([error.status, error.mayHaveEffect]).toEqual([409, false]);
    }
    expect((await replaced(earlier)).code).toBe("conflict");
    await later.orchestration.appendEvent(everyKind()[2]!);
    const expected = [everyKind()[0], everyKind()[2]];
    expect([await old.loadEvents(), await old.loadSnapshot()]).toEqual([expected, null]);
    expect([await old.loadMailboxEvents("scout"), await old.loadAgentHistory("scout")]).toEqual([[], []]);
    expect((await old.loadMailboxState("scout")).processedEventCount).toBe(0);
    await earlier.release();
    await failure(log.claim("other", { timeoutMs: 1_000 }), "unavailable");
    expect(later.signal.aborted).toBe(false);
    await later.release();
  });

  test("replaced_manager_that_writes_nothing_is_told_by_its_renewal", async () => {
    const log = await orchestration();
    const earlier = await log.claim("host", { leaseMs: 1_000 });
    const later = await log.claim("host");
    expect((await replaced(earlier)).code).toBe("conflict");
    await later.release();
  });

  test("renewals_keep_a_claim_beyond_its_lease_even_if_some_fail", async () => {
    const { sessionRef } = await session();
    const { renewals, client: counting } = renewing(1);
    const claim = await new TreeholdOrchestration(counting, sessionRef).claim("first", { leaseMs: 2_000 });
    // Three of them come two thirds of the lease after its end.
    await expect.poll(() => renewals.made, { timeout: 30_000 }).toBe(4);
    await failure(open(sessionRef).claim("second", { timeoutMs: 500 }), "unavailable");
    expect(claim.signal.aborted).toBe(false);
    await claim.release();
    const { made } = renewals;
    await (await open(sessionRef).claim("second")).release();
    expect(renewals.made).toBe(made);
  });

  test("claim_of_a_deleted_session_ends", async () => {
    const { store, tenantId, sessionId, sessionRef } = await session();
    const claim = await open(sessionRef).claim("host", { leaseMs: 1_000 });
    await store.deleteSession(tenantId, sessionId);
    expect((await replaced(claim)).code).toBe("not_found");
    await claim.release();
  });

  test("release_that_fails_can_be_repeated", async () => {
    const { sessionRef } = await session();
    let failing = 1;
    const losing: typeof fetch = async (input, init) => {
      if (init?.method === "DELETE" && failing > 0) {
        failing -= 1;
        throw new TypeError("the connection was reset");
      }
      return fetch(input, init);
    };
    const lossy = client({ fetch: losing, retry: { attemptsMax: 1 } });
    const claim = await new TreeholdOrchestration(lossy, sessionRef).claim("first");
    await failure(claim.release(), "unavailable");
    await claim.release();
    await (await open(sessionRef).claim("second")).release();
  });

  test("claim_that_cannot_be_made_is_refused", async () => {
    const log = await orchestration();
    for (const leaseMs of [0, 999, 3_600_001, Number.NaN, -1]) {
      await failure(log.claim("host", { leaseMs }), "invalid_argument");
    }
    await failure(log.claim(""), "invalid_argument");
    await failure(log.claim("a\nb"), "invalid_argument");
    await failure(open(`${fresh("tenant")}:unknown`).claim("host"), "not_found");
  });

  test("example_manager_delivers_every_input_once", async () => {
    const { sessionRef, tenantId, sessionId } = await session();
    const log = open(sessionRef);
    const inputs = [input(1), input(2), input(3)];
    await log.commit({ mailboxEvents: inputs.map((event) => ({ agent: "scout", event })) });
    const example = fileURLToPath(new URL("../build/examples/claim.js", import.meta.url));
    const run = promisify(execFile);
    const { stdout } = await run(process.execPath, [example, baseUrl, tenantId, sessionId, "host-1"]);
    expect(stdout).toBe("host-1 delivered 3 inputs\n");
    expect((await log.loadMailboxState("scout")).processedEventCount).toBe(3);
    expect(texts(await log.loadAgentHistory("scout"))).toEqual(["in1 is done", "in2 is done", "in3 is done"]);
    const again = await run(process.execPath, [example, baseUrl, tenantId, sessionId, "host-2"]);
    expect(again.stdout).toBe("host-2 delivered 0 inputs\n");
  });
});

describe("an unknown session", () => {
  test("reads_find_nothing_and_writes_are_not_found", async () => {
    const log = open(`${fresh("tenant")}:unknown`);
    expect(await log.loadEvents()).toEqual([]);
    expect(await log.loadSnapshot()).toBeNull();
    expect((await log.recoverState()).snapshot).toEqual(empty);
    expect(await log.loadMailboxEvents("scout")).toEqual([]);
    expect(await log.loadMailboxState("scout")).toEqual({ processedEventCount: 0, closeRequested: null });
    expect(await log.loadAgentHistory("scout")).toEqual([]);
    const writes = [
      () => log.appendEvent(everyKind()[0]!),
      () => log.writeCheckpoint(empty),
      () => log.appendMailboxEvent("scout", input(1)),
      () => log.writeMailboxState("scout", { processedEventCount: 1, closeRequested: null }),
      () => log.writeAgentHistory("scout", []),
      () => log.commit({ events: everyKind() }),
    ];
    for (const write of writes) {
      await failure(write(), "not_found");
    }
  });
});

describe("side writes", () => {
  test("failed_writes_are_counted_and_do_not_fail_the_agent", async () => {
    const seen: string[] = [];
    const side = new SideWrites({ onError: (_, what) => seen.push(what) });
    const log = side.orchestration(open(`${fresh("tenant")}:unknown`));
    await log.appendEvent(everyKind()[0]!);
    await log.writeCheckpoint(empty);
    await log.appendMailboxEvent("scout", input(1));
    await log.writeMailboxState("scout", { processedEventCount: 1, closeRequested: null });
    await log.writeAgentHistory("scout", []);
    expect([side.failed, seen.length]).toEqual([5, 5]);
    expect(await log.loadEvents()).toEqual([]);
  });

  test("strict_side_writes_fail_for_orchestrations_only", async () => {
    const side = new SideWrites({ strict: true, onError: () => undefined });
    await failure(side.orchestration(open(`${fresh("tenant")}:unknown`)).appendEvent(everyKind()[0]!), "not_found");
    const broken = { appendEnvelope: () => Promise.reject(new Error("no")), loadEnvelopes: async () => [] };
    await side.trace<object>(broken).appendEnvelope({});
    expect(side.failed).toBe(2);
  });

  test("wrapped_stores_pass_on_what_works", async () => {
    const side = new SideWrites();
    const log = side.orchestration(await orchestration());
    await log.appendEvent(everyKind()[0]!);
    await log.appendMailboxEvent("scout", input(1));
    expect([await log.loadEvents(), await log.loadMailboxEvents("scout")]).toEqual([[everyKind()[0]], [input(1)]]);
    expect((await log.recoverState()).snapshot.lastEventId).toBe("e1");
    expect([await log.loadSnapshot(), (await log.loadMailboxState("scout")).processedEventCount]).toEqual([null, 0]);
    expect([await log.loadAgentHistory("scout"), side.failed]).toEqual([[], 0]);
  });
});
