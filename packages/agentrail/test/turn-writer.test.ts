import { afterEach, beforeEach, expect, test } from "vitest";
import { freshStore, type Server, type Store, serve } from "../scripts/server.mjs";
import { TreeholdClient, TreeholdSessionStore, TurnWriter } from "../src/index.js";
import { all, assistant, BadNetwork, baseUrl, failure, session, texts, toolResult, usage, user } from "./world.js";

let network: BadNetwork;
beforeEach(async () => {
  network = await BadNetwork.before(baseUrl);
});
afterEach(() => network.close());

function badStore(): TreeholdSessionStore {
  const retry = { attemptsMax: 1 };
  return new TreeholdSessionStore(new TreeholdClient({ baseUrl: network.baseUrl, retry }));
}

test("turns_that_could_not_be_stored_are_stored_first_and_once", async () => {
  const { store, tenantId, sessionId } = await session();
  const writer = new TurnWriter(badStore(), tenantId, sessionId);
  expect(await writer.write([user("a")], usage(1, 1))).toBe(true);
  // The answer to the second is lost, and the third is not even received.
  network.loseAnswers = 1;
  expect(await writer.write([user("b")], usage(2, 1))).toBe(false);
  network.loseAnswers = 1;
  expect(await writer.write([user("c")], usage(3, 1))).toBe(false);
  expect(writer.waiting).toBe(2);
  expect(await writer.write([user("d")], usage(4, 1))).toBe(true);
  expect(writer.waiting).toBe(0);
  expect(texts(await store.loadAllMessages(tenantId, sessionId))).toEqual(["a", "b", "c", "d"]);
  const turns = await all(store.turns(tenantId, sessionId));
  expect(turns.map((turn) => turn.inputTokens)).toEqual([1, 2, 3, 4]);
});

test("flush_fails_as_long_as_something_is_not_stored", async () => {
  const { store, tenantId, sessionId } = await session();
  const writer = new TurnWriter(badStore(), tenantId, sessionId);
  network.loseAnswers = 2;
  expect(await writer.write([user("a")])).toBe(false);
  await failure(writer.flush(), "unavailable");
  await writer.flush();
  await writer.flush();
  expect(texts(await store.loadAllMessages(tenantId, sessionId))).toEqual(["a"]);
});

test("refused_turn_is_an_error_and_does_not_block_the_next", async () => {
  const { store, tenantId, sessionId } = await session();
  const writer = new TurnWriter(store, tenantId, sessionId);
  await failure(writer.write([toolResult("never called", "a")]), "invalid_argument");
  expect([writer.waiting, await writer.write([user("b")])]).toEqual([0, true]);
  expect(texts(await store.loadAllMessages(tenantId, sessionId))).toEqual(["b"]);
});

test("kept_turn_that_is_refused_later_is_an_error_of_the_next_call", async () => {
  const { store, tenantId, sessionId } = await session();
  const writer = new TurnWriter(badStore(), tenantId, sessionId);
  network.cutConnections = 1;
  expect(await writer.write([toolResult("never called", "a")])).toBe(false);
  await failure(writer.write([user("b")]), "invalid_argument");
  expect([writer.waiting, await writer.write([user("c")])]).toEqual([0, true]);
  expect(texts(await store.loadAllMessages(tenantId, sessionId))).toEqual(["b", "c"]);
});

test("concurrent_writes_keep_their_order", async () => {
  const { store, tenantId, sessionId } = await session();
  const writer = new TurnWriter(badStore(), tenantId, sessionId);
  network.loseAnswers = 2;
  const letters = [..."abcdefgh"];
  await Promise.all(letters.map((letter) => writer.write([user(letter)])));
  await writer.flush();
  expect(texts(await store.loadAllMessages(tenantId, sessionId))).toEqual(letters);
});

test("later_changes_of_the_list_do_not_change_a_waiting_turn", async () => {
  const { store, tenantId, sessionId } = await session();
  const writer = new TurnWriter(badStore(), tenantId, sessionId);
  const messages = [user("a")];
  network.loseAnswers = 1;
  await writer.write(messages);
  messages.push(user("not in this turn"));
  await writer.flush();
  expect(texts(await store.loadAllMessages(tenantId, sessionId))).toEqual(["a"]);
});

test("turns_survive_a_server_that_is_killed_and_started_again", async () => {
  const data: Store = freshStore();
  let server: Server = await serve(data);
  try {
    const { baseUrl } = server;
    const store = new TreeholdSessionStore(
      new TreeholdClient({ baseUrl, retry: { attemptsMax: 100, waitMs: 10, waitMsMax: 50 } }),
    );
    await store.getOrCreate("acme", "ada", "helper", "one");
    const writer = new TurnWriter(store, "acme", "one");
    const writes: Promise<boolean>[] = [];
    for (let turn = 0; turn < 30; turn += 1) {
      writes.push(writer.write([user(`question ${turn}`), assistant(`answer ${turn}`)], usage(turn, 1)));
    }
    await writes[5];
    await server.kill();
    server = await serve(data, ["--listen", new URL(baseUrl).host]);
    expect(await Promise.all(writes)).toEqual(writes.map(() => true));
    const expected = writes.flatMap((_, turn) => [`question ${turn}`, `answer ${turn}`]);
    expect(texts(await store.loadAllMessages("acme", "one"))).toEqual(expected);
    expect(await all(store.turns("acme", "one"))).toHaveLength(30);
  } finally {
    await server.kill();
    data.remove();
  }
});
