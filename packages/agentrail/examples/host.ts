// An agent host on a treehold server: `node host.js BASE SESSION [TURNS]`.
//
// A scripted model talks for 30 turns. Some turns call a tool with a long result, some send work to two sub-agents. All six contracts are
// in use. The host may be killed at any time: started again, it continues where the store says that it stopped. Nothing else is kept.
//
// Before each request the host prints a line, so that a test can kill it there.

import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import {
  type AssistantMessage,
  type MailboxEvent,
  MemoMirror,
  type Message,
  type OrchestrationCommit,
  type OrchestrationEvent,
  type SessionRef,
  type ToolCallBlock,
  type ToolResultMessage,
  type TraceEnvelope,
  TreeholdClient,
  TreeholdError,
  TreeholdInspector,
  TreeholdOrchestration,
  TreeholdSessionStore,
  TreeholdTraceStore,
  type Usage,
  type WriteOptions,
} from "../src/index.js";

const TENANT = "acme";
const USER = "ada";
const AGENTS = ["scout", "cook"];
const RUN = "run";

/** The window is compacted at this estimate, so that a short conversation is compacted several times. */
const TRIGGER_TOKENS = 600;

/** The model: what it says depends only on the number of the turn and on whether its tools have answered. */
function model(turn: number, isAnswered: boolean): AssistantMessage {
  const call = (name: string, input: Record<string, unknown>): ToolCallBlock => ({
    type: "toolCall",
    id: `call-${turn}-${name}`,
    name,
    arguments: input,
  });
  const calls = isAnswered
    ? []
    : [...(turn % 3 === 1 ? [call("look", { turn })] : []), ...(turn % 4 === 2 ? [call("delegate", { turn })] : [])];
  const isLast = calls.length === 0;
  return {
    role: "assistant",
    content: isLast ? [{ type: "text", text: `answer ${turn}` }] : calls,
    provider: "scripted",
    modelId: "scripted-1",
    usage: usageOf(turn),
    stopReason: isLast ? "stop" : "toolUse",
    timestamp: turn,
  };
}

function usageOf(turn: number): Usage {
  const cost = { input: 0, output: 0, cacheRead: 0, cacheWrite: 0, total: 0 };
  return {
    inputTokens: 100 + turn,
    outputTokens: 10,
    cacheReadTokens: 0,
    cacheWriteTokens: 0,
    totalTokens: 110 + turn,
    cost,
  };
}

class Host {
  readonly #store: TreeholdSessionStore;
  readonly #trace: TreeholdTraceStore;
  readonly #orchestration: TreeholdOrchestration;
  readonly #sessionId: string;
  readonly #sessionRef: SessionRef;

  constructor(store: TreeholdSessionStore, sessionId: string, sessionRef: SessionRef) {
    this.#store = store;
    this.#trace = new TreeholdTraceStore(store.client, sessionRef);
    this.#orchestration = new TreeholdOrchestration(store.client, sessionRef);
    this.#sessionId = sessionId;
    this.#sessionRef = sessionRef;
  }

  /** Talks until the conversation has so many turns, from wherever it stopped. */
  async talk(turns: number): Promise<void> {
    await this.#startRun();
    // Inputs that a killed host had not finished.
    await this.#work();
    let newest = await this.#newest();
    // What follows an answer may be missing. Doing it again changes nothing.
    if (newest !== undefined && isAnswer(newest)) {
      await this.#afterTurn(turnOf(newest));
    }
    while (newest === undefined || !isAnswer(newest) || turnOf(newest) + 1 < turns) {
      newest =
        newest === undefined || isAnswer(newest) ? await this.#ask(turnOf(newest) + 1) : await this.#step(newest);
    }
    await this.#closeRun();
  }

  /** The user's message begins a turn. */
  async #ask(turn: number): Promise<Message> {
    await this.#envelope(`turn-${turn}-start`, { type: "turn_start", turn });
    const message: Message = { role: "user", content: `question ${turn}`, timestamp: turn };
    await this.#append(turn, "question", [message]);
    return message;
  }

  /** One step of a turn: the tools that the model called, or the model. Returns the newest message. */
  async #step(newest: Message): Promise<Message> {
    const turn = turnOf(newest);
    if (newest.role === "assistant") {
      const results: ToolResultMessage[] = [];
      for (const block of newest.content) {
        if (block.type === "toolCall") {
          results.push(await this.#tool(turn, block));
        }
      }
      await this.#append(turn, "results", results);
      return results[results.length - 1]!;
    }
    const history = await this.#store.loadMessagesWithBudget(TENANT, this.#sessionId, 2_000);
    if (history[0]?.role === "toolResult") {
      throw new Error("the window begins with a tool result that lacks its call");
    }
    const answer = model(turn, newest.role === "toolResult");
    const isLast = answer.stopReason === "stop";
    // The answer and its turn are one commit.
    await this.#append(turn, isLast ? "answer" : "calls", [answer], isLast ? answer.usage : undefined);
    if (isLast) {
      await this.#afterTurn(turn);
    }
    return answer;
  }

  async #afterTurn(turn: number): Promise<void> {
    await this.#envelope(`turn-${turn}-end`, { type: "turn_end", turn });
    if (turn % 10 === 9) {
      const line = `turn ${turn} is done\n`;
      const notes = [TENANT, this.#sessionId, "session", "NOTES.md"] as const;
      await this.#once(
        `notes-${turn}`,
        (key) => this.#store.appendMemoryDocument(...notes, line, key),
        async () => (await this.#store.readMemoryDocument(...notes))?.includes(line) ?? false,
      );
      await this.#store.writeMemoryDocument(TENANT, USER, "user", "USER.md", `asked ${turn + 1} questions\n`);
    }
    await this.#store.createTodoStorage(this.#sessionRef).write(`- answer question ${turn + 1}\n`);
    const summarize = async (messages: Message[]) => `they exchanged ${messages.length} messages`;
    await this.#store.compactIfNeeded(TENANT, this.#sessionId, summarize, { triggerTokens: TRIGGER_TOKENS });
  }

  async #tool(turn: number, call: ToolCallBlock): Promise<ToolResultMessage> {
    await this.#envelope(`${call.id}-start`, { type: "tool_execution_start", toolCallId: call.id });
    let text: string;
    if (call.name === "delegate") {
      text = await this.#delegate(turn);
    } else {
      const full = `result ${turn} `.repeat(200);
      await this.#store.writeToolResultArtifact(this.#sessionRef, call.id, full);
      text = full.slice(0, 200);
    }
    await this.#envelope(`${call.id}-end`, { type: "tool_execution_end", toolCallId: call.id });
    return {
      role: "toolResult",
      toolCallId: call.id,
      toolName: call.name,
      content: [{ type: "text", text }],
      isError: false,
      timestamp: turn,
    };
  }

  /** Puts an input into the mailbox of each agent, waits for their work, and returns what they said. */
  async #delegate(turn: number): Promise<string> {
    const { snapshot } = await this.#orchestration.recoverState();
    for (const agent of AGENTS) {
      if (!(agent in snapshot.agents)) {
        await this.#event({
          ...this.#base(`spawn-${agent}`),
          type: "agent_spawned",
          agent: { id: agent, runId: RUN, role: agent },
        });
      }
      const id = `input-${turn}-${agent}`;
      const known = await this.#orchestration.loadMailboxEvents(agent);
      if (!known.some((event) => event.type === "input_enqueued" && event.inputId === id)) {
        const payload = { turn };
        const { eventId, occurredAt } = this.#base(`queue-${id}`);
        const event: MailboxEvent = {
          eventId,
          occurredAt,
          type: "input_enqueued",
          agentId: agent,
          inputId: id,
          payload,
        };
        const queued: OrchestrationEvent = {
          eventId,
          occurredAt,
          runId: RUN,
          type: "agent_input_queued",
          input: { id, agentId: agent, payload },
        };
        const commit = { events: [queued], mailboxEvents: [{ agent, event }] };
        await this.#orchestration.commit(commit, { idempotencyKey: eventId });
      }
    }
    await this.#work();
    const said = await Promise.all(AGENTS.map((agent) => this.#orchestration.loadAgentHistory(agent)));
    return said.map((history) => textOf(history[history.length - 1]!)).join(", ");
  }

  /** Lets each agent work on the inputs of its mailbox that are not counted yet, in order. */
  async #work(): Promise<void> {
    for (const agent of AGENTS) {
      const events = await this.#orchestration.loadMailboxEvents(agent);
      const state = await this.#orchestration.loadMailboxState(agent);
      for (let count = state.processedEventCount; count < events.length; count += 1) {
        const event = events[count]!;
        if (event.type === "input_enqueued") {
          await this.#deliver(agent, event, count + 1);
        }
      }
    }
  }

  /** One job of an agent. A host that is killed before the commit delivers the input again; after it, never. */
  async #deliver(
    agent: string,
    input: Extract<MailboxEvent, { type: "input_enqueued" }>,
    processedEventCount: number,
  ): Promise<void> {
    const { inputId } = input;
    const history = await this.#orchestration.loadAgentHistory(agent);
    const answer: Message = {
      ...model(Number(input.payload["turn"]), true),
      content: [{ type: "text", text: `${agent} did ${inputId}` }],
    };
    const messages: Message[] = [...history, { role: "user", content: inputId, timestamp: 1 }, answer];
    const job = {
      jobId: `job-${inputId}`,
      inputIds: [inputId],
      outcome: "completed" as const,
      outputText: textOf(answer),
    };
    const delivery: OrchestrationCommit = {
      events: [
        {
          ...this.#base(`removed-${inputId}`),
          type: "agent_input_removed",
          inputId,
          agentId: agent,
          reason: "delivered",
        },
        { ...this.#base(`job-${inputId}`), type: "agent_job_completed", agentId: agent, job },
      ],
      mailboxStates: [{ agent, state: { processedEventCount, closeRequested: null } }],
      histories: [{ agent, messages }],
    };
    await this.#orchestration.commit(delivery, { idempotencyKey: `deliver-${inputId}` });
  }

  async #startRun(): Promise<void> {
    const { snapshot } = await this.#orchestration.recoverState();
    if (!(RUN in snapshot.runs)) {
      const initialTask = { id: "task", kind: "chat", input: { session: this.#sessionId } };
      await this.#event({ ...this.#base("start"), type: "run_started", initialTask });
    }
  }

  async #closeRun(): Promise<void> {
    const { snapshot } = await this.#orchestration.recoverState();
    if (snapshot.runs[RUN]?.status === "running") {
      await this.#event({ ...this.#base("end"), type: "run_completed", status: "completed" });
    }
    await this.#orchestration.writeCheckpoint((await this.#orchestration.recoverState()).snapshot);
  }

  /** The newest message of the conversation, from the store. */
  async #newest(): Promise<Message | undefined> {
    return (await this.#store.loadMessages(TENANT, this.#sessionId, 1))[0];
  }

  /**
   * Makes a change of a document once. Its key says what it is, so a host that is started again cannot make it twice. Only the keys of
   * documents lie apart from them: if the server cannot say whether the request of a killed host was carried out, the document can.
   */
  async #once(
    what: string,
    change: (key: WriteOptions) => Promise<void>,
    isDone: () => Promise<boolean>,
  ): Promise<void> {
    const idempotencyKey = `${this.#sessionId} ${what}`;
    try {
      await change({ idempotencyKey });
    } catch (error) {
      if (!TreeholdError.is(error, "outcome_unknown")) {
        throw error;
      }
      if (!(await isDone())) {
        await change({ idempotencyKey: `${idempotencyKey} again` });
      }
    }
  }

  /** Appends messages. Their keys lie with the session, as those of traces and orchestrations, so the outcome is always known. */
  async #append(turn: number, step: string, messages: Message[], usage?: Usage): Promise<void> {
    await this.#store.appendMessages(TENANT, this.#sessionId, messages, { usage, idempotencyKey: `${turn}-${step}` });
  }

  async #envelope(id: string, event: Record<string, unknown>): Promise<void> {
    const envelope: TraceEnvelope = { id, timestamp: new Date(0).toISOString(), sequence: 0, source: "host", event };
    await this.#trace.appendEnvelope(envelope, { idempotencyKey: id });
  }

  async #event(event: OrchestrationEvent): Promise<void> {
    await this.#orchestration.appendEvent(event, { idempotencyKey: event.eventId });
  }

  #base(eventId: string) {
    return { eventId, occurredAt: new Date(0).toISOString(), runId: RUN };
  }
}

/** Returns whether a message ends a turn. */
function isAnswer(message: Message): boolean {
  return message.role === "assistant" && message.stopReason === "stop";
}

/** Returns the turn of a message, from 0; -1 before the first one. Every message of this host has it as its time. */
function turnOf(message: Message | undefined): number {
  return message?.timestamp ?? -1;
}

function textOf({ content }: Message): string {
  return typeof content === "string"
    ? content
    : content.map((block) => (block.type === "text" ? block.text : "")).join("");
}

const [baseUrl, sessionId, turns = "30"] = process.argv.slice(2);
if (baseUrl === undefined || sessionId === undefined) {
  throw new Error("usage: node host.js BASE SESSION [TURNS]");
}
const client = new TreeholdClient({
  baseUrl,
  token: process.env["TREEHOLD_TOKEN"],
  fetch: (input, init) => {
    process.stdout.write(`${init?.method} ${input}\n`);
    return fetch(input, init);
  },
});
const mirror = new MemoMirror(new TreeholdSessionStore(client));
const store = new TreeholdSessionStore(client, { mirror });
// The sessions of the user say whether this one goes on or begins.
const known = await store.listSessionsByUser(TENANT, USER);
const isNew = !known.some((session) => session.sessionId === sessionId);
const { sessionRef } = await store.getOrCreate(TENANT, USER, "helper", sessionId);
const directory = process.env["HOST_MIRROR"] ?? mkdtempSync(join(tmpdir(), "treehold-host-"));
await mirror.open({ tenantId: TENANT, userId: USER, sessionId, directory });
try {
  await new Host(store, sessionId, sessionRef).talk(Number(turns));
  const inspected = (await new TreeholdInspector(client).listSessions()).find((item) => item.sessionId === sessionId);
  process.stdout.write(`${isNew ? "done" : "resumed and done"}: ${JSON.stringify(inspected)}\n`);
} finally {
  await mirror.close(sessionId);
}
