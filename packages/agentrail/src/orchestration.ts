import { jsonBody, newKey, type TreeholdClient } from "./client.js";
import type { OrchestrationPersistence } from "./contracts.js";
import { invalidArgument, TreeholdError } from "./errors.js";
import { createSessionRef, resolveSessionRef, type SessionRef } from "./ids.js";
import { type Entry, entries, type LogOptions, loadLog, type Position } from "./log.js";
import { route, type Wire, type With } from "./routes.js";
import type { Call, CallOptions, WriteOptions } from "./transport.js";
import type {
  MailboxEvent,
  MailboxState,
  Message,
  OrchestrationEvent,
  OrchestrationSnapshot,
  RecoveredOrchestrationState,
} from "./types.js";

/**
 * Rows to write in one commit.
 *
 * @typeParam M - the host's type of messages in agents' histories
 */
export interface OrchestrationCommit<M = Message> {
  /** Events, in order. */
  readonly events?: readonly OrchestrationEvent[] | undefined;
  /** The state that includes them. */
  readonly checkpoint?: OrchestrationSnapshot | undefined;
  /** Events of mailboxes, in order. */
  readonly mailboxEvents?: readonly { readonly agent: string; readonly event: MailboxEvent }[] | undefined;
  /** The states of mailboxes. */
  readonly mailboxStates?: readonly { readonly agent: string; readonly state: MailboxState }[] | undefined;
  /** The histories of agents. */
  readonly histories?: readonly { readonly agent: string; readonly messages: readonly M[] }[] | undefined;
}

/** Options of a claim. */
export interface ClaimOptions extends CallOptions {
  /** How long nobody else can claim it after the last renewal, in milliseconds: 1,000 to 3,600,000. Default 30,000. */
  readonly leaseMs?: number | undefined;
}

/** The claim that writes of an orchestration depend on. */
export interface HeldClaim {
  /** What the server knows it by. */
  readonly version: Position;
  /** Called with the error of a write that was refused because another manager took over. */
  readonly onReplaced: (error: TreeholdError) => void;
}

/**
 * The orchestration of one session. Hosts make one for each session, see {@link orchestrationFactory}.
 *
 * Reads of an unknown session find nothing; writes are `not_found`. At most one manager runs an orchestration if each of them claims it
 * first, see {@link claim}; without a claim, writes of several managers mix.
 *
 * @typeParam M - the host's type of messages in agents' histories
 */
export class TreeholdOrchestration<M = Message> implements OrchestrationPersistence<M> {
  readonly client: TreeholdClient;
  readonly #tenantId: string;
  readonly #sessionId: string;
  readonly #claim: HeldClaim | undefined;

  constructor(client: TreeholdClient, sessionRef: SessionRef, claim?: HeldClaim) {
    const { tenantId, sessionId } = resolveSessionRef(sessionRef);
    this.client = client;
    this.#tenantId = tenantId;
    this.#sessionId = sessionId;
    this.#claim = claim;
  }

  /**
   * Claims the orchestration for a manager. Nobody else can claim it until the claim is released, or until its lease ends because this
   * process no longer renews it. The same holder can: a host that restarts under its old name continues at once, and what its earlier
   * process still writes is refused.
   *
   * ```ts
   * await using claim = await orchestration.claim("host-1");
   * await claim.orchestration.commit({ events });
   * ```
   *
   * @param holder - the name of the manager: 1 to 255 bytes without control characters
   * @throws {TreeholdError} `unavailable` with the status 503 during the lease of another holder, `not_found` for an unknown session.
   */
  async claim(holder: string, options: ClaimOptions = {}): Promise<OrchestrationClaim<M>> {
    const { leaseMs = 30_000 } = options;
    if (!(leaseMs >= 1_000 && leaseMs <= 3_600_000)) {
      throw invalidArgument(`a lease of ${leaseMs} ms is not between 1,000 and 3,600,000`);
    }
    const path = route("/v1/sessions/{session}/orchestration/claim", { session: this.#sessionId });
    const body = jsonBody<Wire["ClaimRequest"]>({ holder, lease_seconds: Math.ceil(leaseMs / 1_000) });
    const call = { path, tenantId: this.#tenantId };
    // Repeating it is safe, since the same holder can claim again.
    const made = this.client.json<Wire["ClaimReply"]>({ ...call, method: "POST", body, isIdempotent: true, options });
    const { claim: version } = await made;
    const headers = claimHeader(version);
    const sessionRef = createSessionRef(this.#tenantId, this.#sessionId);
    return new OrchestrationClaim<M>({
      open: (onReplaced) => new TreeholdOrchestration(this.client, sessionRef, { version, onReplaced }),
      renew: (options) => this.client.send({ ...call, method: "PUT", body, headers, options }),
      release: (options) => this.client.send({ ...call, method: "DELETE", headers, options }),
      leaseMs,
    });
  }

  /** Appends an event. */
  appendEvent(event: OrchestrationEvent, options?: WriteOptions): Promise<void> {
    return this.#post<With<Wire["AppendEvent"], { event: OrchestrationEvent }>>(
      this.#path("/events"),
      { event },
      options,
    );
  }

  /** Returns all events in order. */
  loadEvents(options?: CallOptions): Promise<OrchestrationEvent[]> {
    return loadLog(this.eventEntries(options));
  }

  /** Reads the events with their positions, page by page. */
  eventEntries(options: LogOptions = {}): AsyncGenerator<Entry<OrchestrationEvent>, void, undefined> {
    return this.#log(() => this.#path("/events"), options);
  }

  /** Returns the last checkpoint; `null` also for one that cannot be read. */
  async loadSnapshot(options?: CallOptions): Promise<OrchestrationSnapshot | null> {
    type Reply = With<Wire["CheckpointReply"], { snapshot: OrchestrationSnapshot | null }>;
    return (await this.#get<Reply>(this.#path("/checkpoint"), { snapshot: null }, options)).snapshot;
  }

  /** Replaces the checkpoint. */
  writeCheckpoint(snapshot: OrchestrationSnapshot, options?: CallOptions): Promise<void> {
    return this.#put<With<Wire["WriteCheckpoint"], { snapshot: OrchestrationSnapshot }>>(
      this.#path("/checkpoint"),
      { snapshot },
      options,
    );
  }

  /** Recovers the state from the checkpoint and the events after it. */
  recoverState(options?: CallOptions): Promise<RecoveredOrchestrationState> {
    const empty: OrchestrationSnapshot = { runs: {}, tasks: {}, agents: {}, waits: {}, queuedInputs: [] };
    const absent: With<Wire["RecoveredOrchestration"], RecoveredOrchestrationState> = {
      snapshot: empty,
      pendingWaits: [],
      activeAgents: [],
    };
    return this.#get(this.#path("/state"), absent, options);
  }

  /** Appends an event to the mailbox of an agent. */
  async appendMailboxEvent(agentId: string, event: MailboxEvent, options?: WriteOptions): Promise<void> {
    return this.#post<With<Wire["AppendMail"], { event: MailboxEvent }>>(
      this.#mailbox(agentId, "/events"),
      { event },
      options,
    );
  }

  /** Returns all events of a mailbox in order. */
  async loadMailboxEvents(agentId: string, options?: CallOptions): Promise<MailboxEvent[]> {
    return loadLog(this.mailboxEntries(agentId, options));
  }

  /** Reads the events of a mailbox with their positions, page by page. */
  mailboxEntries(agentId: string, options: LogOptions = {}): AsyncGenerator<Entry<MailboxEvent>, void, undefined> {
    return this.#log(() => this.#mailbox(agentId, "/events"), options);
  }

  /** Returns how far a mailbox was processed: by default not at all. */
  async loadMailboxState(agentId: string, options?: CallOptions): Promise<MailboxState> {
    const absent: MailboxState = { processedEventCount: 0, closeRequested: null };
    type Reply = With<Wire["MailboxStateRecord"], { state: MailboxState }>;
    const { state } = await this.#get<Reply>(this.#mailbox(agentId, "/state"), { state: absent }, options);
    return { ...absent, ...state };
  }

  /** Replaces the state of a mailbox. */
  async writeMailboxState(agentId: string, state: MailboxState, options?: CallOptions): Promise<void> {
    return this.#put<With<Wire["MailboxStateRecord"], { state: MailboxState }>>(
      this.#mailbox(agentId, "/state"),
      { state },
      options,
    );
  }

  /** Returns the history of an agent: its messages, none by default. */
  async loadAgentHistory(agentId: string, options?: CallOptions): Promise<M[]> {
    return (
      await this.#get<With<Wire["HistoryRecord"], { messages: M[] }>>(this.#history(agentId), { messages: [] }, options)
    ).messages;
  }

  /** Replaces the history of an agent. */
  async writeAgentHistory(agentId: string, messages: M[], options?: CallOptions): Promise<void> {
    return this.#put<With<Wire["HistoryRecord"], { messages: M[] }>>(this.#history(agentId), { messages }, options);
  }

  /**
   * Writes events, checkpoint, mailboxes and histories in one commit: all or none. With it, the delivery of an input (the event
   * `agent_input_removed`), what the agent said to it, and the new count of its mailbox cannot come apart.
   */
  async commit(commit: OrchestrationCommit<M>, options?: WriteOptions): Promise<void> {
    const { events, checkpoint, mailboxEvents, mailboxStates, histories } = commit;
    return this.#post<Commit<M>>(
      this.#path("/commit"),
      { events, checkpoint, mailbox_events: mailboxEvents, mailbox_states: mailboxStates, histories },
      options,
    );
  }

  #path(rest: "/events" | "/checkpoint" | "/state" | "/commit"): string {
    return route(`/v1/sessions/{session}/orchestration${rest}`, { session: this.#sessionId });
  }

  #mailbox(agent: string, rest: "/events" | "/state"): string {
    const template = `/v1/sessions/{session}/orchestration/mailboxes/{agent}${rest}` as const;
    return route(template, { session: this.#sessionId, agent });
  }

  #history(agent: string): string {
    return route("/v1/sessions/{session}/orchestration/histories/{agent}", { session: this.#sessionId, agent });
  }

  #get<T>(path: string, absent: T, options?: CallOptions): Promise<T> {
    return this.client.orElse(absent, this.client.json<T>({ method: "GET", path, tenantId: this.#tenantId, options }));
  }

  #put<T extends object>(path: string, value: T, options?: CallOptions): Promise<void> {
    return this.#write({ method: "PUT", path, body: jsonBody(value), options });
  }

  async #post<T extends object>(path: string, value: T, options: WriteOptions = {}): Promise<void> {
    const { idempotencyKey = newKey() } = options;
    return this.#write({ method: "POST", path, body: jsonBody(value), idempotencyKey, options });
  }

  /** Writes under the claim, if there is one. */
  async #write(call: Call): Promise<void> {
    const headers = this.#claim === undefined ? undefined : claimHeader(this.#claim.version);
    try {
      await this.client.send({ ...call, tenantId: this.#tenantId, headers });
    } catch (error) {
      if (TreeholdError.is(error, "conflict")) {
        this.#claim?.onReplaced(error);
      }
      throw error;
    }
  }

  #log<T>(path: () => string, options: LogOptions): AsyncGenerator<Entry<T>, void, undefined> {
    type Page = With<
      Wire["OrchestrationEventPage"],
      { entries: With<Wire["OrchestrationEventEntry"], { event: T }>[] }
    >;
    return entries(options, async (query) => {
      const call = { method: "GET", path: path(), tenantId: this.#tenantId, query, options } as const;
      const page = await this.client.orElse({ entries: [], more: false }, this.client.json<Page>(call));
      return { more: page.more, entries: page.entries.map(({ position, event }) => ({ position, value: event })) };
    });
  }
}

/** What a claim does on the server. */
interface ClaimCalls<M> {
  readonly open: (onReplaced: HeldClaim["onReplaced"]) => TreeholdOrchestration<M>;
  readonly renew: (options: CallOptions) => Promise<unknown>;
  readonly release: (options: CallOptions | undefined) => Promise<unknown>;
  readonly leaseMs: number;
}

/**
 * The right to run an orchestration, see {@link TreeholdOrchestration.claim}. It is renewed every third of its lease until it is released
 * or replaced, and does not keep the process alive.
 *
 * A manager whose process sleeps or loses its connection for longer than the lease may be replaced without noticing. Nothing that it then
 * writes takes effect: its writes are `conflict`.
 *
 * @typeParam M - the host's type of messages in agents' histories
 */
export class OrchestrationClaim<M = Message> implements AsyncDisposable {
  /** The orchestration. Its writes are refused with `conflict` once another manager took over; reads go on. */
  readonly orchestration: TreeholdOrchestration<M>;
  readonly #calls: ClaimCalls<M>;
  readonly #replaced = new AbortController();
  #timer: NodeJS.Timeout | undefined;
  #renewal: Promise<void> = Promise.resolve();
  #release: Promise<void> | undefined;

  /** Made by {@link TreeholdOrchestration.claim}. */
  constructor(calls: ClaimCalls<M>) {
    this.#calls = calls;
    this.orchestration = calls.open((error) => this.#end(error));
    this.#renewLater();
  }

  /**
   * Aborted once it is known that another manager took over, or that the session is gone, with the error as its reason. A manager then
   * stops its agents. A release does not abort it.
   */
  get signal(): AbortSignal {
    return this.#replaced.signal;
  }

  /** Ends the lease, so that another manager can claim the orchestration at once. Finish all writes before. */
  release(options?: CallOptions): Promise<void> {
    this.#stop();
    this.#release ??= this.#releaseOnce(options).catch((error: unknown) => {
      // The lease ends by itself, or a further call ends it.
      this.#release = undefined;
      throw error;
    });
    return this.#release;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.release();
  }

  async #releaseOnce(options?: CallOptions): Promise<void> {
    // A renewal that arrived later would begin the lease anew.
    await this.#renewal;
    if (!this.signal.aborted) {
      await this.#calls.release(options);
    }
  }

  #renewLater(): void {
    this.#timer = setTimeout(() => {
      this.#renewal = this.#renew();
    }, this.#calls.leaseMs / 3).unref();
  }

  async #renew(): Promise<void> {
    try {
      await this.#calls.renew({ timeoutMs: Math.max(1_000, this.#calls.leaseMs / 3) });
    } catch (error) {
      if (TreeholdError.is(error, "conflict", "not_found")) {
        this.#end(error);
      }
      // Anything else may be over by the next renewal.
    }
    if (this.#timer !== undefined) {
      this.#renewLater();
    }
  }

  #end(error: TreeholdError): void {
    this.#stop();
    this.#replaced.abort(error);
  }

  #stop(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }
}

/** Makes the header under which a write depends on a claim. */
function claimHeader(version: Position): Record<string, string> {
  return { "treehold-claim": version };
}

type Commit<M> = With<
  Wire["CommitRequest"],
  {
    events: OrchestrationCommit["events"];
    checkpoint: OrchestrationCommit["checkpoint"];
    mailbox_events: OrchestrationCommit["mailboxEvents"];
    mailbox_states: OrchestrationCommit["mailboxStates"];
    histories: OrchestrationCommit<M>["histories"];
  }
>;

/** Makes the factory with which a host opens the orchestration of a session. */
export function orchestrationFactory<M = Message>(
  client: TreeholdClient,
): (sessionRef: SessionRef) => TreeholdOrchestration<M> {
  return (sessionRef) => new TreeholdOrchestration(client, sessionRef);
}
