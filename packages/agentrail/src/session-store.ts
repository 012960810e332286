import { type FollowOptions, follow, type SessionChangeEvent } from "./changes.js";
import { countedKey, jsonBody, newKey, type TreeholdClient } from "./client.js";
import type {
  AgentrailSessionStore,
  MemoMirrorRefresher,
  SandboxMemoProvider,
  SummarizeFn,
  UserSessionLister,
} from "./contracts.js";
import { invalidArgument, TreeholdError } from "./errors.js";
import { isWellFormed, resolveSessionRef, type SessionRef } from "./ids.js";
import { collect, type PageOptions, pages } from "./pages.js";
import { Queues } from "./queues.js";
import { type QueryOf, route, type Wire, type With } from "./routes.js";
import type { CallOptions, WriteOptions } from "./transport.js";
import type {
  CompactOptions,
  MemoryIndexEntry,
  MemoScope,
  Message,
  SessionContextUsage,
  SessionHandle,
  SessionInfo,
  SessionMeta,
  SessionTurn,
  SkillLog,
  TodoStorage,
  Usage,
} from "./types.js";

/** The default budget of {@link TreeholdSessionStore.loadMessagesWithBudget} in tokens. */
export const BUDGET_TOKENS = 100_000;

/** How often a compaction starts over because another one was faster. */
export const COMPACTIONS_MAX = 5;

/** Options of an append. */
export interface AppendOptions<U> extends WriteOptions {
  /** A turn to record in the same commit. */
  readonly usage?: U | undefined;
}

/** The result of an append. */
export interface Appended {
  /** The positions of the messages in the session: the first one, and the one after the last. */
  readonly positions: { readonly start: number; readonly end: number };
  /** The index of the turn that was recorded. */
  readonly turnIndex?: number | undefined;
}

/** The result of a compaction. */
export interface Compaction {
  readonly archiveId: string;
  /** How many messages the summary replaces. */
  readonly messages: number;
  readonly tokensBefore: number;
  readonly tokensAfter: number;
}

/** Options of a {@link TreeholdSessionStore}. */
export interface SessionStoreOptions {
  /** What to refresh after a memory document or tool result was written. */
  readonly mirror?: MemoMirrorRefresher | undefined;
  /** Called when a mirror could not be refreshed. Such errors do not fail the write. Default: a warning on the console. */
  readonly onMirrorError?: ((error: unknown) => void) | undefined;
}

/**
 * The conversations, memory documents and tool results of a host. It implements three contracts: `AgentrailSessionStore`,
 * `UserSessionLister` and `SandboxMemoProvider`.
 *
 * A session that does not exist has no messages, documents and results; changing it is `not_found`. Each method takes `CallOptions` as
 * an additional last argument.
 *
 * @typeParam M - the host's type of messages
 * @typeParam U - the host's type of usage
 * @typeParam R - the host's type of session references
 */
export class TreeholdSessionStore<M = Message, U = Usage, R extends string = SessionRef>
  implements AgentrailSessionStore<M, U, R>, UserSessionLister, SandboxMemoProvider<R>
{
  readonly client: TreeholdClient;
  readonly #options: SessionStoreOptions;
  readonly #refreshes = new Queues();

  constructor(client: TreeholdClient, options: SessionStoreOptions = {}) {
    this.client = client;
    this.#options = options;
  }

  /**
   * Returns a session, and creates it if it does not exist. Without an id, creates one with a new id. An existing session keeps its
   * agent, title, times and messages.
   *
   * @throws {TreeholdError} `permission_denied` for a session of another user, `invalid_argument` for an id that cannot be kept.
   */
  async getOrCreate(
    tenantId: string,
    userId: string,
    agentId: string,
    sessionId?: string | null,
    options?: CallOptions,
  ): Promise<SessionHandle<R>> {
    // The id is made here, so that a repeated request finds the session that the first one created.
    const id = sessionId ?? newKey();
    const made = await this.client.json<With<Wire["OpenedSession"], { sessionRef: R }>>({
      method: "POST",
      path: route("/v1/sessions", {}),
      tenantId,
      userId,
      body: jsonBody<Wire["OpenSession"]>({ agent_id: agentId, session_id: id }),
      isIdempotent: true,
      options,
    });
    return { sessionId: made.sessionId, sessionRef: made.sessionRef };
  }

  /** Returns the most recent messages of the window, oldest first: `limit` of them, or all. */
  async loadMessages(tenantId: string, sessionId: string, limit?: number | null, options?: CallOptions): Promise<M[]> {
    const newest = checkLimit(limit);
    if (newest === undefined) {
      return this.loadAllMessages(tenantId, sessionId, options);
    }
    const query: Query = { limit: isPage(newest) ? newest : "all" };
    return newest === 0 ? [] : (await this.#messages(tenantId, sessionId, query, options)).slice(-newest);
  }

  /**
   * Returns the longest tail of the window that is within a budget and separates no tool result from its call. If no such tail is
   * within the budget, returns the shortest one.
   */
  loadMessagesWithBudget(
    tenantId: string,
    sessionId: string,
    tokenBudget: number | null = BUDGET_TOKENS,
    options?: CallOptions,
  ): Promise<M[]> {
    return this.#messages(tenantId, sessionId, { budget_tokens: tokenBudget ?? BUDGET_TOKENS }, options);
  }

  /** Returns the window: the summary of the compacted messages, then every message since. */
  loadAllMessages(tenantId: string, sessionId: string, options?: CallOptions): Promise<M[]> {
    return this.#messages(tenantId, sessionId, { limit: "all" }, options);
  }

  /** Returns every message that was ever appended, in order. {@link messages} reads them by pages. */
  async loadFullSessionMessages(tenantId: string, sessionId: string, options?: CallOptions): Promise<M[]> {
    try {
      return await this.#messages(tenantId, sessionId, { full: true }, options);
    } catch (error) {
      if (!TreeholdError.is(error, "too_large")) {
        throw error;
      }
      // It is more than one answer may have.
      return collect(this.messages(tenantId, sessionId, { ...options, pageSize: 1_000 }));
    }
  }

  /** Returns the messages of an archive, oldest first: all, or the first `count`. Without an id it is the newest archive. */
  async loadCompactedMessages(
    tenantId: string,
    sessionId: string,
    count?: number | null,
    archiveId?: string | null,
    options?: CallOptions,
  ): Promise<M[]> {
    const limit = checkLimit(count);
    const query = { archive: archiveId ?? "latest", limit: isPage(limit) ? limit : undefined };
    return limit === 0 ? [] : (await this.#messages(tenantId, sessionId, query, options)).slice(0, limit);
  }

  /** Reads every message that was ever appended, page by page, in order. */
  async *messages(
    tenantId: string,
    sessionId: string,
    options: PageOptions & { readonly from?: number | undefined } = {},
  ): AsyncGenerator<M, void, undefined> {
    let from: number | null | undefined = options.from ?? 0;
    while (from !== undefined && from !== null) {
      const query: Query = { from, limit: options.pageSize ?? 200 };
      const page: MessagePage<M> = await this.#messagePage(tenantId, sessionId, query, options);
      yield* page.messages;
      from = page.next;
    }
  }

  /**
   * Appends messages in order: all or none. An empty list does nothing.
   *
   * @throws {TreeholdError} `not_found` for an unknown session, `invalid_argument` for a message that is not valid or a tool result
   * without its call, `too_large` for more than the server takes at once.
   */
  async appendMessages(tenantId: string, sessionId: string, messages: M[], options?: AppendOptions<U>): Promise<void> {
    if (messages.length > 0 || options?.usage !== undefined) {
      await this.append(tenantId, sessionId, messages, options);
    }
  }

  /** Appends messages, and records their turn in the same commit if the options have its usage. Returns their positions. */
  async append(tenantId: string, sessionId: string, messages: M[], options: AppendOptions<U> = {}): Promise<Appended> {
    checkMessages(messages);
    const { usage, idempotencyKey = newKey() } = options;
    const appended = await this.client.json<Wire["AppendReply"]>({
      method: "POST",
      path: route("/v1/sessions/{session}/messages", { session: sessionId }),
      tenantId,
      body: jsonBody<With<Wire["AppendMessages"], { messages: M[]; usage: U | undefined }>>({ messages, usage }),
      idempotencyKey,
      options,
    });
    return { positions: appended.positions, turnIndex: appended.turn_index ?? undefined };
  }

  /** Records a turn. The server assigns its index. */
  async recordTurn(tenantId: string, sessionId: string, usage: U, options: WriteOptions = {}): Promise<void> {
    await this.client.send({
      method: "POST",
      path: route("/v1/sessions/{session}/turns", { session: sessionId }),
      tenantId,
      body: jsonBody<With<Wire["RecordTurn"], { usage: U }>>({ usage }),
      idempotencyKey: options.idempotencyKey ?? newKey(),
      options,
    });
  }

  /**
   * Compacts the window if its estimate is at least `triggerTokens`: replaces its oldest messages by a summary. Returns whether it did.
   *
   * `summarizeFn` runs in this process, between reading the messages and replacing them. Messages that are appended meanwhile stay. If
   * another compaction is faster, the new window is checked again, up to {@link COMPACTIONS_MAX} times.
   *
   * @throws {TreeholdError} `conflict` if other compactions were always faster. An error of `summarizeFn` changes nothing.
   */
  async compactIfNeeded(
    tenantId: string,
    sessionId: string,
    summarizeFn: SummarizeFn<M>,
    options: CompactOptions<M> & CallOptions = {},
  ): Promise<boolean> {
    return (await this.#compact(tenantId, sessionId, summarizeFn, options, false)) !== null;
  }

  /** Compacts the window, however small its estimate. Returns `null` if it has fewer than six messages. */
  compactSession(
    tenantId: string,
    sessionId: string,
    summarizeFn: SummarizeFn<M>,
    options: CompactOptions<M> & CallOptions = {},
  ): Promise<Compaction | null> {
    return this.#compact(tenantId, sessionId, summarizeFn, options, true);
  }

  /** Lists all sessions of a user, newest first. {@link sessions} reads them by pages. */
  async listSessionsByUser(tenantId: string, userId: string, options?: CallOptions): Promise<SessionMeta[]> {
    return collect(this.sessions(tenantId, userId, { ...options, pageSize: PAGE_MAX }));
  }

  /** Lists the ids of a user's newest sessions. */
  async listSessionIdsByUser(tenantId: string, userId: string, limit = 10, options?: CallOptions): Promise<string[]> {
    const found: string[] = [];
    if (limit > 0) {
      for await (const session of this.sessions(tenantId, userId, {
        ...options,
        pageSize: Math.min(limit, PAGE_MAX),
      })) {
        found.push(session.sessionId);
        if (found.length >= limit) {
          break;
        }
      }
    }
    return found;
  }

  /** Reads a user's sessions page by page, newest first. */
  sessions(tenantId: string, userId: string, options: PageOptions = {}): AsyncGenerator<SessionMeta, void, undefined> {
    const call = { method: "GET", path: route("/v1/sessions", {}), tenantId, userId, options } as const;
    return pages(options, async (query) => {
      const page = await this.client.json<Wire["SessionsReply"]>({ ...call, query });
      return { entries: page.sessions, cursor: page.cursor };
    });
  }

  /** Reads a session's turns page by page, in order. */
  turns(tenantId: string, sessionId: string, options: PageOptions = {}): AsyncGenerator<SessionTurn, void, undefined> {
    return pages(options, async (query) => {
      const call = {
        method: "GET",
        path: route("/v1/sessions/{session}/turns", { session: sessionId }),
        tenantId,
        query,
        options,
      } as const;
      const read = this.client.json<With<Wire["TurnsReply"], { turns: SessionTurn[] }>>(call);
      const page = await this.client.orElse({ turns: [], cursor: undefined }, read);
      return { entries: page.turns, cursor: page.cursor };
    });
  }

  /** Describes a session; `null` if it does not exist. */
  async readSessionInfo(tenantId: string, sessionId: string, options?: CallOptions): Promise<SessionInfo | null> {
    const described = await this.#describe(tenantId, sessionId, options);
    if (described === null) {
      return null;
    }
    const { lastContextUsage: _, ...info } = described;
    return info;
  }

  /** Returns how full the model's context was at the last turn; `null` before the first turn. */
  async getLastContextUsage(
    tenantId: string,
    sessionId: string,
    options?: CallOptions,
  ): Promise<SessionContextUsage | null> {
    return (await this.#describe(tenantId, sessionId, options))?.lastContextUsage ?? null;
  }

  /** Sets or removes the title of a session. */
  async setTitle(tenantId: string, sessionId: string, title: string | null, options?: CallOptions): Promise<void> {
    await this.client.send({
      method: "PATCH",
      path: route("/v1/sessions/{session}", { session: sessionId }),
      tenantId,
      body: jsonBody<Wire["ChangeSession"]>({ title }),
      options,
    });
  }

  /** Deletes a session with everything in it. Deleting one that does not exist succeeds. */
  async deleteSession(tenantId: string, sessionId: string, options?: CallOptions): Promise<void> {
    await this.client.send({
      method: "DELETE",
      path: route("/v1/sessions/{session}", { session: sessionId }),
      tenantId,
      options,
    });
  }

  /** Returns a memory document; `null` if there is none. `ownerId` is a session or a user, by the scope. */
  async readMemoryDocument(
    tenantId: string,
    ownerId: string,
    scope: MemoScope,
    name: string,
    options?: CallOptions,
  ): Promise<string | null> {
    const read = this.client.send({ method: "GET", ...memoDocument(tenantId, ownerId, scope, name), options });
    return (await this.client.orElse(null, read))?.text ?? null;
  }

  /** Replaces or creates a memory document. */
  async writeMemoryDocument(
    tenantId: string,
    ownerId: string,
    scope: MemoScope,
    name: string,
    content: string,
    options?: CallOptions,
  ): Promise<void> {
    const body = textBody(name, content);
    await this.client.send({ method: "PUT", ...memoDocument(tenantId, ownerId, scope, name), body, options });
    await this.#refreshDocument(tenantId, ownerId, scope, name);
  }

  /** Appends to a memory document, creating it if missing. Concurrent appends are all kept. */
  async appendMemoryDocument(
    tenantId: string,
    ownerId: string,
    scope: MemoScope,
    name: string,
    content: string,
    options: WriteOptions = {},
  ): Promise<void> {
    const body = textBody(name, content);
    const document = memoDocument(tenantId, ownerId, scope, name);
    await this.client.send({ method: "POST", ...document, body, ...countedKey(options), options });
    await this.#refreshDocument(tenantId, ownerId, scope, name);
  }

  /** Describes the memory documents of a session and its user, for a prompt. */
  async buildMemoryIndex(tenantId: string, sessionId: string, options?: CallOptions): Promise<MemoryIndexEntry[]> {
    const path = route("/v1/sessions/{session}/memory-index", { session: sessionId });
    return (
      await this.client.json<With<Wire["MemoryIndex"], { documents: MemoryIndexEntry[] }>>({
        method: "GET",
        path,
        tenantId,
        options,
      })
    ).documents;
  }

  /** Returns the full text of a tool's result; `null` if it is not stored. */
  async readToolResultArtifact(sessionRef: R, toolCallId: string, options?: CallOptions): Promise<string | null> {
    const read = this.client.send({ method: "GET", ...toolResult(sessionRef, toolCallId), options });
    return (await this.client.orElse(null, read))?.text ?? null;
  }

  /** Stores the full text of a tool's result, replacing an earlier one. */
  async writeToolResultArtifact(
    sessionRef: R,
    toolCallId: string,
    content: string,
    options?: CallOptions,
  ): Promise<void> {
    const body = textBody(`tool-results/${toolCallId}`, content);
    await this.client.send({ method: "PUT", ...toolResult(sessionRef, toolCallId), body, options });
    const { sessionId } = resolveSessionRef(sessionRef);
    const path = toolResultPath(toolCallId);
    await this.#refresh(path, (mirror) => mirror.refreshMemoMirror(sessionId, path, content));
  }

  /** Lists the tool calls whose results are stored. */
  async listToolResultArtifactIds(sessionRef: R, options?: CallOptions): Promise<string[]> {
    const { tenantId, sessionId } = resolveSessionRef(sessionRef);
    const path = route("/v1/sessions/{session}/tool-results", { session: sessionId });
    const ids = pages({ ...options, pageSize: PAGE_MAX }, async (query) => {
      const read = this.client.json<Wire["ToolResultsReply"]>({
        method: "GET",
        path,
        tenantId,
        query,
        options,
      });
      const page = await this.client.orElse({ ids: [], cursor: undefined }, read);
      return { entries: page.ids, cursor: page.cursor };
    });
    return collect(ids);
  }

  /** Opens the tasks of a session: its document `TODO.md`. */
  createTodoStorage(sessionRef: R): TodoStorage {
    const { tenantId, sessionId } = resolveSessionRef(sessionRef);
    return {
      read: () => this.readMemoryDocument(tenantId, sessionId, "session", "TODO.md"),
      write: (content) => this.writeMemoryDocument(tenantId, sessionId, "session", "TODO.md", content),
    };
  }

  /** Stores the log of a skill that ran as a separate agent. */
  async persistSkillSubAgentLog(sessionRef: R, entry: SkillLog, options: WriteOptions = {}): Promise<void> {
    const { tenantId, sessionId } = resolveSessionRef(sessionRef);
    await this.client.send({
      method: "POST",
      path: route("/v1/sessions/{session}/skill-logs", { session: sessionId }),
      tenantId,
      body: jsonBody<Wire["SkillLog"]>(entry),
      ...countedKey(options),
      options,
    });
  }

  /** Returns a session as the files that hosts keep by default: a map from paths to contents. */
  async exportSession(tenantId: string, sessionId: string, options?: CallOptions): Promise<Record<string, string>> {
    const path = route("/v1/sessions/{session}/export", { session: sessionId });
    return (await this.client.json<Wire["SessionFilesRecord"]>({ method: "GET", path, tenantId, options })).files;
  }

  /**
   * Follows what changes in a session, by whichever host, until it is deleted. If the connection ends, it is opened again, and what
   * changed meanwhile follows.
   *
   * @throws {TreeholdError} `not_found` for an unknown session.
   */
  follow(
    tenantId: string,
    sessionId: string,
    options: FollowOptions = {},
  ): AsyncGenerator<SessionChangeEvent, void, undefined> {
    return follow(this.client, tenantId, sessionId, options);
  }

  /** Checks that the server answers and its store is ready. */
  ping(options?: CallOptions): Promise<void> {
    return this.client.ping(options);
  }

  async #messages(tenantId: string, sessionId: string, query: Query, options?: CallOptions): Promise<M[]> {
    return (await this.#messagePage(tenantId, sessionId, query, options)).messages;
  }

  async #messagePage(
    tenantId: string,
    sessionId: string,
    query: Query,
    options?: CallOptions,
  ): Promise<MessagePage<M>> {
    const path = route("/v1/sessions/{session}/messages", { session: sessionId });
    const read = this.client.json<MessagePage<M>>({ method: "GET", path, tenantId, query, options });
    return this.client.orElse({ messages: [] }, read);
  }

  async #describe(tenantId: string, sessionId: string, options?: CallOptions): Promise<Described | null> {
    return this.client.orElse(
      null,
      this.client.json<Described>({
        method: "GET",
        path: route("/v1/sessions/{session}", { session: sessionId }),
        tenantId,
        options,
      }),
    );
  }

  async #compact(
    tenantId: string,
    sessionId: string,
    summarizeFn: SummarizeFn<M>,
    options: CompactOptions<M> & CallOptions,
    isForced: boolean,
  ): Promise<Compaction | null> {
    const { triggerTokens, compactFraction, workspaceSnapshot } = options;
    const path = route("/v1/sessions/{session}/compaction", { session: sessionId });
    const query = {
      trigger_tokens: isForced ? undefined : (triggerTokens ?? 80_000),
      compact_fraction: compactFraction ?? 0.5,
      force: isForced || undefined,
    };
    for (let attempt = 1; ; attempt += 1) {
      const read = this.client.json<
        With<Wire["CompactionReply"], { plan: With<Wire["CompactionPlan"], { messages: M[] }> | null }>
      >({ method: "GET", path, tenantId, query, options });
      const { plan } = await this.client.orElse({ plan: null }, read);
      if (plan === null) {
        return null;
      }
      const summary: unknown = await summarizeFn(plan.messages);
      if (typeof summary !== "string") {
        throw invalidArgument("the summary is not a text; nothing was compacted");
      }
      const body = jsonBody<Wire["ApplyCompaction"]>({
        window: plan.window,
        count: plan.count,
        summary,
        workspace_snapshot: workspaceSnapshot ?? null,
      });
      try {
        const done = await this.client.json<Wire["CompactionDone"]>({
          method: "POST",
          path,
          tenantId,
          body,
          ...countedKey({}),
          options,
        });
        await this.#refreshDocument(tenantId, sessionId, "session", "NOTES.md");
        return {
          archiveId: done.archive_id,
          messages: done.messages,
          tokensBefore: done.tokens_before,
          tokensAfter: done.tokens_after,
        };
      } catch (error) {
        if (!TreeholdError.is(error, "conflict")) {
          throw error;
        }
        if (isForced) {
          // The other compaction did what was asked for.
          return null;
        }
        if (attempt >= COMPACTIONS_MAX) {
          throw error;
        }
      }
    }
  }

  async #refreshDocument(tenantId: string, ownerId: string, scope: MemoScope, name: string): Promise<void> {
    // Other writers may have changed it since. The document is read again, and by one refresh at a time, so the last one is newest.
    await this.#refresh(JSON.stringify([tenantId, scope, ownerId, name]), async (mirror) => {
      const content = await this.readMemoryDocument(tenantId, ownerId, scope, name);
      if (content === null) {
        return;
      }
      await (scope === "user"
        ? mirror.refreshUserMemoMirrorForAllSessions(tenantId, ownerId, name, content)
        : mirror.refreshMemoMirror(ownerId, `/workspace/memo/session/${name}`, content));
    });
  }

  async #refresh(key: string, refresh: (mirror: MemoMirrorRefresher) => Promise<void>): Promise<void> {
    const { mirror, onMirrorError = warn } = this.#options;
    if (mirror !== undefined) {
      await this.#refreshes.run(key, () => refresh(mirror)).catch(onMirrorError);
    }
  }
}

type MessagePage<M> = With<Omit<Wire["MessagesReply"], "window">, { messages: M[] }>;

type Described = With<Wire["SessionDescription"], SessionInfo & { lastContextUsage: SessionContextUsage | null }>;

type Query = With<QueryOf<"/v1/sessions/{session}/messages">, { limit?: number | "all" | undefined }>;

/** Returns the path of a tool's result in a sandbox. `/` and control characters of the id are escaped, so it is one file name. */
export function toolResultPath(toolCallId: string): string {
  const name = toolCallId.replace(/[%/\p{Cc}]/gu, (character) => encodeURIComponent(character));
  return `/workspace/memo/session/tool-results/${name}.txt`;
}

const TOOL_RESULT = /^\/workspace\/memo\/session\/tool-results\/([^/]+)\.txt$/;

/** Returns the tool call whose result has a path in a sandbox. */
export function toolCallOf(path: string): string | undefined {
  try {
    const id = TOOL_RESULT.exec(path)?.[1]?.replace(/(?:%[0-9A-F]{2})+/g, decodeURIComponent);
    return id !== undefined && toolResultPath(id) === path ? id : undefined;
  } catch {
    return undefined;
  }
}

/** How many messages the server returns as a page. */
const PAGE_MAX = 1_000;

function isPage(limit: number | undefined): boolean {
  return limit !== undefined && limit <= PAGE_MAX;
}

function checkLimit(limit: number | null | undefined): number | undefined {
  if (limit === undefined || limit === null) {
    return undefined;
  }
  if (!Number.isSafeInteger(limit) || limit < 0) {
    throw invalidArgument(`the limit ${limit} is not a number of messages`);
  }
  return limit;
}

function memoDocument(tenantId: string, ownerId: string, scope: MemoScope, name: string) {
  if (scope === "user") {
    return { path: route("/v1/user-memo/{name}", { name }), tenantId, userId: ownerId };
  }
  if (scope !== "session") {
    throw invalidArgument(`the scope \`${String(scope)}\` is unknown; use \`session\` or \`user\``);
  }
  return { path: route("/v1/sessions/{session}/memo/{name}", { session: ownerId, name }), tenantId };
}

function toolResult(sessionRef: string, toolCallId: string) {
  const { tenantId, sessionId } = resolveSessionRef(sessionRef);
  return {
    path: route("/v1/sessions/{session}/tool-results/{tool_call}", { session: sessionId, tool_call: toolCallId }),
    tenantId,
  };
}

function textBody(what: string, content: string) {
  if (typeof content !== "string") {
    throw invalidArgument(`the content of \`${what}\` is not a text`);
  }
  // `fetch` would replace it silently.
  if (!isWellFormed(content)) {
    throw invalidArgument(`\`${what}\` contains half of a surrogate pair; call toWellFormed() if that loses nothing`);
  }
  return { type: "text/plain; charset=utf-8", text: content };
}

function checkMessages(messages: unknown): void {
  if (!Array.isArray(messages)) {
    throw invalidArgument("the messages are not a list");
  }
  const bad = messages.findIndex((message) => typeof message !== "object" || message === null);
  if (bad >= 0) {
    throw invalidArgument(`message ${bad} of the list is not an object`);
  }
}

function warn(error: unknown): void {
  console.warn("treehold: a mirror of memory documents could not be refreshed", error);
}
