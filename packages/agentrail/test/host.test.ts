// Kills the scripted host at random points and starts it again, until it is done. Everything it should have stored is stored once.
// HOST_KILLS is the number of points (5), and HOST_SEED makes the same points again.

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { freshStore, type Server, type Store, serve } from "../scripts/server.mjs";
import {
  type Message,
  TreeholdClient,
  TreeholdInspector,
  TreeholdOrchestration,
  TreeholdSessionStore,
  TreeholdTraceStore,
} from "../src/index.js";
import { all, texts } from "./world.js";

const HOST = fileURLToPath(new URL("../build/examples/host.js", import.meta.url));
const KILLS = Number(process.env["HOST_KILLS"] ?? 5);
const SEED = Number(process.env["HOST_SEED"] ?? Math.floor(Math.random() * 2 ** 32));
const TURNS = 30;

/** Each kill has a server of its own, since a user's keys of a day are bounded. */
let data: Store;
let server: Server;
let client: TreeholdClient;
let store: TreeholdSessionStore;

beforeEach(async () => {
  data = freshStore();
  server = await serve(data);
  client = new TreeholdClient({ baseUrl: server.baseUrl });
  store = new TreeholdSessionStore(client);
});

afterEach(async () => {
  await server.stop();
  data.remove();
});

/** Runs the host until it ends, or kills it when it has printed so many lines. Returns the lines. */
async function run(
  sessionId: string,
  killAt = Number.POSITIVE_INFINITY,
): Promise<{ lines: string[]; isDone: boolean }> {
  const mirror = mkdtempSync(join(tmpdir(), "treehold-host-"));
  const env = { ...process.env, HOST_MIRROR: mirror };
  const host = spawn(process.execPath, [HOST, server.baseUrl, sessionId, String(TURNS)], {
    env,
    stdio: ["ignore", "pipe", "pipe"],
  });
  const lines: string[] = [];
  const errors: string[] = [];
  host.stderr.on("data", (text) => errors.push(String(text)));
  createInterface({ input: host.stdout }).on("line", (line) => {
    lines.push(line);
    if (lines.length === killAt) {
      host.kill("SIGKILL");
    }
  });
  const [code, signal] = await new Promise<[number | null, string | null]>((done) => {
    host.once("close", (code, signal) => done([code, signal]));
  });
  rmSync(mirror, { recursive: true, force: true });
  expect(errors.join("")).toBe("");
  expect(signal ?? code).toBe(signal === null ? 0 : "SIGKILL");
  return { lines, isDone: signal === null };
}

/** The mulberry32 generator. */
function random(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** The conversation of a host that was not killed. */
let expected: Message[];
let requests: number;

async function check(sessionId: string): Promise<void> {
  const messages = await store.loadFullSessionMessages("acme", sessionId);
  expect(texts(messages)).toEqual(texts(expected));
  expect(messages).toEqual(expected);
  expect((await all(store.turns("acme", sessionId))).map((turn) => turn.inputTokens)).toEqual(
    Array.from({ length: TURNS }, (_, turn) => 100 + turn),
  );
  const window = await store.loadAllMessages("acme", sessionId);
  expect(window.length).toBeLessThan(messages.length);
  expect(texts(window)[0]).toContain("[Conversation compacted at");

  const sessionRef = `acme:${sessionId}`;
  const notes = (await store.readMemoryDocument("acme", sessionId, "session", "NOTES.md")) ?? "";
  for (const turn of [9, 19, 29]) {
    expect(notes.split(`turn ${turn} is done\n`)).toHaveLength(2);
  }
  expect(await store.createTodoStorage(sessionRef).read()).toBe(`- answer question ${TURNS}\n`);
  const looks = Array.from({ length: TURNS }, (_, turn) => turn).filter((turn) => turn % 3 === 1);
  expect((await store.listToolResultArtifactIds(sessionRef)).sort()).toEqual(
    looks.map((turn) => `call-${turn}-look`).sort(),
  );

  const envelopes = await new TreeholdTraceStore(client, sessionRef).loadEnvelopes();
  expect(new Set(envelopes.map((envelope) => envelope.id)).size).toBe(envelopes.length);
  const ends = envelopes.filter((envelope) => envelope.event["type"] === "turn_end");
  expect(ends.map((envelope) => envelope.event["turn"])).toEqual(Array.from({ length: TURNS }, (_, turn) => turn));

  const orchestration = new TreeholdOrchestration(client, sessionRef);
  const inputs = Array.from({ length: TURNS }, (_, turn) => turn).filter((turn) => turn % 4 === 2);
  for (const agent of ["scout", "cook"]) {
    const sent = inputs.map((turn) => `input-${turn}-${agent}`);
    const mailbox = await orchestration.loadMailboxEvents(agent);
    expect(mailbox.map((event) => (event.type === "input_enqueued" ? event.inputId : event.type))).toEqual(sent);
    expect((await orchestration.loadMailboxState(agent)).processedEventCount).toBe(sent.length);
    const delivered = (await orchestration.loadAgentHistory(agent)).filter((message) => message.role === "user");
    // In order and once: the history is part of the commit that counts the input.
    expect(texts(delivered)).toEqual(sent);
  }
  const { snapshot, activeAgents } = await orchestration.recoverState();
  expect([snapshot.runs["run"]?.status, snapshot.queuedInputs, activeAgents]).toEqual(["completed", [], []]);
  const events = await orchestration.loadEvents();
  expect(new Set(events.map((event) => event.eventId)).size).toBe(events.length);
  const item = (await new TreeholdInspector(client).listSessions()).find((item) => item.sessionId === sessionId);
  expect(item).toMatchObject({ tenantId: "acme", userId: "ada", turns: TURNS, status: "idle" });
}

test("host_that_is_not_killed_answers_every_question_once", async () => {
  const { lines } = await run("calm");
  requests = lines.length - 1;
  expect(lines.at(-1)).toMatch(/^done: /);
  expected = await store.loadFullSessionMessages("acme", "calm");
  const answers = texts(expected.filter((message) => message.role === "assistant" && message.stopReason === "stop"));
  expect(answers).toEqual(Array.from({ length: TURNS }, (_, turn) => `answer ${turn}`));
  await check("calm");
  // A host that is started when nothing is left to do changes nothing.
  const again = await run("calm");
  expect(again.lines.at(-1)).toMatch(/^resumed and done: /);
  await check("calm");
});

describe(`seed ${SEED}`, () => {
  const next = random(SEED);
  for (const point of Array.from({ length: KILLS }, next)) {
    test(`host_killed_at_${point.toFixed(6)}_of_its_requests_goes_on_where_it_stopped`, async () => {
      const sessionId = "killed";
      const first = await run(sessionId, 1 + Math.floor(point * requests));
      expect(first.isDone).toBe(false);
      // The second one is killed as well, soon after it went on.
      await run(sessionId, 10 + Math.floor(next() * 40));
      expect((await run(sessionId)).isDone).toBe(true);
      await check(sessionId);
    });
  }
});
