import { jsonBody, newKey, type TreeholdClient } from "./client.js";
import type { SessionTraceStore } from "./contracts.js";
import { resolveSessionRef, type SessionRef } from "./ids.js";
import { type Entry, entries, type LogOptions, loadLog } from "./log.js";
import { route, type Wire, type With } from "./routes.js";
import type { CallOptions, WriteOptions } from "./transport.js";
import type { TraceEnvelope } from "./types.js";

/**
 * The trace of one session. Hosts make one for each session, see {@link traceStoreFactory}.
 *
 * Envelopes are returned in the order of the log: their own `sequence` starts again with each request of the host. Kinds of events that
 * stream, such as the parts of an answer while a model writes it, are never stored.
 *
 * @typeParam E - the host's type of envelopes
 */
export class TreeholdTraceStore<E extends object = TraceEnvelope> implements SessionTraceStore<E> {
  readonly client: TreeholdClient;
  readonly #tenantId: string;
  readonly #path: string;

  constructor(client: TreeholdClient, sessionRef: SessionRef) {
    const { tenantId, sessionId } = resolveSessionRef(sessionRef);
    this.client = client;
    this.#tenantId = tenantId;
    this.#path = route("/v1/sessions/{session}/trace", { session: sessionId });
  }

  /**
   * Appends an envelope.
   *
   * @throws {TreeholdError} `not_found` for an unknown session, `invalid_argument` for an envelope without the fields of its type. A host
   * that must go on without its trace wraps the store in `SideWrites`.
   */
  async appendEnvelope(envelope: E, options: WriteOptions = {}): Promise<void> {
    await this.client.send({
      method: "POST",
      path: this.#path,
      tenantId: this.#tenantId,
      body: jsonBody<With<Wire["AppendEnvelope"], { envelope: E }>>({ envelope }),
      idempotencyKey: options.idempotencyKey ?? newKey(),
      options,
    });
  }

  /** Returns all envelopes in order; none for an unknown session. */
  loadEnvelopes(options?: CallOptions): Promise<E[]> {
    return loadLog(this.entries(options));
  }

  /** Reads the envelopes with their positions, page by page. To continue later, pass the last position as `after`. */
  entries(options: LogOptions = {}): AsyncGenerator<Entry<E>, void, undefined> {
    return entries(options, async (query) => {
      const call = { method: "GET", path: this.#path, tenantId: this.#tenantId, query, options } as const;
      const read =
        this.client.json<With<Wire["TracePage"], { entries: With<Wire["TraceEntry"], { envelope: E }>[] }>>(call);
      const page = await this.client.orElse({ entries: [], more: false }, read);
      return {
        more: page.more,
        entries: page.entries.map(({ position, envelope }) => ({ position, value: envelope })),
      };
    });
  }
}

/** Makes the factory with which a host opens the trace of a session. */
export function traceStoreFactory<E extends object = TraceEnvelope>(
  client: TreeholdClient,
): (sessionRef: SessionRef) => TreeholdTraceStore<E> {
  return (sessionRef) => new TreeholdTraceStore(client, sessionRef);
}
