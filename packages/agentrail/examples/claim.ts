// A manager of a session's sub-agents: `node claim.js BASE TENANT SESSION HOLDER`.
//
// Several hosts may run it for the same session at once, each under a name of its own: one works, and the others wait. When it is killed,
// another one takes over as soon as the lease ends, and goes on where the store says that the first one stopped.

import { setTimeout as sleep } from "node:timers/promises";
import {
  createSessionRef,
  type MailboxEvent,
  type Message,
  type OrchestrationClaim,
  orchestrationFactory,
  TreeholdClient,
  TreeholdError,
  type TreeholdOrchestration,
} from "../src/index.js";

/** How long a killed manager blocks the others. */
const LEASE_MS = 10_000;

const AGENT = "scout";

type Input = Extract<MailboxEvent, { type: "input_enqueued" }>;

/** Claims an orchestration, and waits for it while another manager has it. */
async function claimed(orchestration: TreeholdOrchestration, holder: string): Promise<OrchestrationClaim> {
  for (;;) {
    try {
      return await orchestration.claim(holder, { leaseMs: LEASE_MS });
    } catch (error) {
      if (!TreeholdError.is(error, "unavailable", "deadline")) {
        throw error;
      }
      await sleep(LEASE_MS / 4);
    }
  }
}

/** The agent. The signal tells it that its work is of no use any more. */
async function work(input: Input, signal: AbortSignal): Promise<Message> {
  signal.throwIfAborted();
  return { role: "user", content: `${input.inputId} is done`, timestamp: 1 };
}

/** Delivers the inputs of the mailbox that are not counted yet. Returns how many. */
async function deliver({ orchestration, signal }: OrchestrationClaim): Promise<number> {
  const events = await orchestration.loadMailboxEvents(AGENT);
  const { processedEventCount: start } = await orchestration.loadMailboxState(AGENT);
  const messages = await orchestration.loadAgentHistory(AGENT);
  for (let count = start; count < events.length; count += 1) {
    const event = events[count]!;
    if (event.type === "input_enqueued") {
      messages.push(await work(event, signal));
    }
    // What the agent said and the new count are one commit, which is refused if another manager took over meanwhile.
    await orchestration.commit({
      mailboxStates: [{ agent: AGENT, state: { processedEventCount: count + 1, closeRequested: null } }],
      histories: [{ agent: AGENT, messages }],
    });
  }
  return events.length - start;
}

const [baseUrl, tenantId, sessionId, holder] = process.argv.slice(2);
if (baseUrl === undefined || tenantId === undefined || sessionId === undefined || holder === undefined) {
  throw new Error("usage: node claim.js BASE TENANT SESSION HOLDER");
}
const open = orchestrationFactory(new TreeholdClient({ baseUrl, token: process.env["TREEHOLD_TOKEN"] }));
// The end of the block releases the claim.
await using claim = await claimed(open(createSessionRef(tenantId, sessionId)), holder);
try {
  process.stdout.write(`${holder} delivered ${await deliver(claim)} inputs\n`);
} catch (error) {
  if (!TreeholdError.is(error, "conflict")) {
    throw error;
  }
  process.stdout.write(`${holder} was replaced\n`);
}
