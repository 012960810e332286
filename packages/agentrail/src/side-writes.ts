import type { OrchestrationPersistence, SessionTraceStore } from "./contracts.js";

/** Options of {@link SideWrites}. */
export interface SideWritesOptions {
  /** Called for each write that failed. Default: a warning on the console. */
  readonly onError?: ((error: unknown, what: string) => void) | undefined;
  /** Whether a failed write of an orchestration is an error. Without it a crash may lose what was not written. */
  readonly strict?: boolean | undefined;
}

/**
 * Lets agents go on when traces and orchestrations cannot be written: failed writes are counted and reported, and do not fail the call.
 * Reads fail as before.
 */
export class SideWrites {
  #failed = 0;
  readonly #options: SideWritesOptions;

  constructor(options: SideWritesOptions = {}) {
    this.#options = options;
  }

  /** How many writes failed so far; for the readiness check of a host. */
  get failed(): number {
    return this.#failed;
  }

  /** Wraps the trace of a session. */
  trace<E>(trace: SessionTraceStore<E>): SessionTraceStore<E> {
    return {
      appendEnvelope: (envelope) => this.#write("a trace", trace.appendEnvelope(envelope), false),
      loadEnvelopes: () => trace.loadEnvelopes(),
    };
  }

  /** Wraps the orchestration of a session. */
  orchestration<M>(persistence: OrchestrationPersistence<M>): OrchestrationPersistence<M> {
    const write = (write: Promise<void>) => this.#write("an orchestration", write, this.#options.strict ?? false);
    return {
      appendEvent: (event) => write(persistence.appendEvent(event)),
      writeCheckpoint: (snapshot) => write(persistence.writeCheckpoint(snapshot)),
      appendMailboxEvent: (agentId, event) => write(persistence.appendMailboxEvent(agentId, event)),
      writeMailboxState: (agentId, state) => write(persistence.writeMailboxState(agentId, state)),
      writeAgentHistory: (agentId, messages) => write(persistence.writeAgentHistory(agentId, messages)),
      loadEvents: () => persistence.loadEvents(),
      loadSnapshot: () => persistence.loadSnapshot(),
      recoverState: () => persistence.recoverState(),
      loadMailboxEvents: (agentId) => persistence.loadMailboxEvents(agentId),
      loadMailboxState: (agentId) => persistence.loadMailboxState(agentId),
      loadAgentHistory: (agentId) => persistence.loadAgentHistory(agentId),
    };
  }

  async #write(what: string, write: Promise<void>, isStrict: boolean): Promise<void> {
    try {
      await write;
    } catch (error) {
      this.#failed += 1;
      const { onError = warn } = this.#options;
      onError(error, what);
      if (isStrict) {
        throw error;
      }
    }
  }
}

function warn(error: unknown, what: string): void {
  console.warn(`treehold: ${what} could not be written`, error);
}
