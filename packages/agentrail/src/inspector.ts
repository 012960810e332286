import type { TreeholdClient } from "./client.js";
import type { InspectorDataSource } from "./contracts.js";
import { createSessionRef } from "./ids.js";
import { TreeholdOrchestration } from "./orchestration.js";
import { collect, type PageOptions, pages } from "./pages.js";
import { route, type Wire, type With } from "./routes.js";
import { TreeholdSessionStore } from "./session-store.js";
import { TreeholdTraceStore } from "./trace-store.js";
import type { CallOptions } from "./transport.js";
import type {
  InspectorSessionItem,
  Message,
  OrchestrationEvent,
  RecoveredOrchestrationState,
  TraceEnvelope,
} from "./types.js";

/** How many sessions the server returns as a page. */
const PAGE_MAX = 1_000;

type SessionsPage = With<Wire["InspectedSessions"], { sessions: InspectorSessionItem[] }>;

/**
 * The data of an inspector. No method changes anything.
 *
 * @typeParam M - the host's type of messages
 * @typeParam E - the host's type of envelopes
 */
export class TreeholdInspector<M = Message, E extends object = TraceEnvelope> implements InspectorDataSource<M, E> {
  readonly client: TreeholdClient;

  constructor(client: TreeholdClient) {
    this.client = client;
  }

  /** Lists the sessions of all tenants that the client may act for, newest first. {@link sessions} reads them by pages. */
  async listSessions(options?: CallOptions): Promise<InspectorSessionItem[]> {
    const found = await collect(this.sessions({ ...options, pageSize: PAGE_MAX }));
    const time = (session: InspectorSessionItem) => session.lastActive ?? "";
    return found.sort((one, other) => (time(one) === time(other) ? 0 : time(one) < time(other) ? 1 : -1));
  }

  /** Reads the sessions page by page: those of one user newest first, those of several users by tenant and id. */
  sessions(options: PageOptions = {}): AsyncGenerator<InspectorSessionItem, void, undefined> {
    const call = { method: "GET", path: route("/v1/inspector/sessions", {}), options } as const;
    return pages(options, async (query) => {
      const page = await this.client.json<SessionsPage>({ ...call, query });
      return { entries: page.sessions, cursor: page.cursor };
    });
  }

  /** Returns the window of a session; empty for an unknown one. */
  loadMessages(tenantId: string, sessionId: string, options?: CallOptions): Promise<M[]> {
    return new TreeholdSessionStore<M>(this.client).loadAllMessages(tenantId, sessionId, options);
  }

  /** Returns the trace of a session; empty for an unknown one. */
  async loadTraceEnvelopes(tenantId: string, sessionId: string, options?: CallOptions): Promise<E[]> {
    return new TreeholdTraceStore<E>(this.client, createSessionRef(tenantId, sessionId)).loadEnvelopes(options);
  }

  /** Returns the state of a session's orchestration; `null` if it has none. */
  async loadOrchestrationState(
    tenantId: string,
    sessionId: string,
    options?: CallOptions,
  ): Promise<RecoveredOrchestrationState | null> {
    const state = await this.#orchestration(tenantId, sessionId).recoverState(options);
    const { runs, agents, lastEventId } = state.snapshot;
    const isEmpty = lastEventId === undefined && Object.keys(runs).length === 0 && Object.keys(agents).length === 0;
    return isEmpty ? null : state;
  }

  /** Returns the events of a session's orchestration; empty for an unknown one. */
  async loadOrchestrationEvents(
    tenantId: string,
    sessionId: string,
    options?: CallOptions,
  ): Promise<OrchestrationEvent[]> {
    return this.#orchestration(tenantId, sessionId).loadEvents(options);
  }

  #orchestration(tenantId: string, sessionId: string): TreeholdOrchestration {
    return new TreeholdOrchestration(this.client, createSessionRef(tenantId, sessionId));
  }
}
