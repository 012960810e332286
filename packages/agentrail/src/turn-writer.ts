import { newKey } from "./client.js";
import { TreeholdError } from "./errors.js";
import type { TreeholdSessionStore } from "./session-store.js";
import type { CallOptions } from "./transport.js";
import type { Message, Usage } from "./types.js";

/** A turn that is not stored yet. */
interface Batch<M, U> {
  readonly messages: M[];
  readonly usage: U | undefined;
  readonly key: string;
  /** Whether the call that wrote it still waits for its outcome. */
  isAwaited: boolean;
  outcome?: "stored" | { readonly refused: unknown };
}

/**
 * Stores the turns of a streaming session as they complete. If a turn cannot be stored, it is kept and stored before the next one, with
 * the same idempotency key: no turn is lost, stored twice or out of order.
 *
 * ```ts
 * const writer = new TurnWriter(store, tenantId, sessionId);
 * await writer.write(messages, usage); // false: not stored yet
 * await writer.flush();                // throws if something is still not stored
 * ```
 */
export class TurnWriter<M = Message, U = Usage> {
  readonly #store: Pick<TreeholdSessionStore<M, U>, "append">;
  readonly #tenantId: string;
  readonly #sessionId: string;
  readonly #waiting: Batch<M, U>[] = [];
  /** The errors of turns that were kept and then refused. */
  readonly #refused: unknown[] = [];
  #last: Promise<unknown> = Promise.resolve();

  constructor(store: Pick<TreeholdSessionStore<M, U>, "append">, tenantId: string, sessionId: string) {
    this.#store = store;
    this.#tenantId = tenantId;
    this.#sessionId = sessionId;
  }

  /** How many turns are not stored yet. */
  get waiting(): number {
    return this.#waiting.length;
  }

  /**
   * Stores a turn: its messages and, if given, its usage in one commit. Returns whether it is stored; if the server could not be reached,
   * it is kept for the next call.
   *
   * @throws {TreeholdError} what the server refuses for good, such as a message that is not valid. Such a turn is not kept. If it is an
   * earlier turn that was kept until now, this turn is stored all the same.
   */
  async write(messages: M[], usage?: U, options?: CallOptions): Promise<boolean> {
    const batch: Batch<M, U> = { messages: [...messages], usage, key: newKey(), isAwaited: true };
    this.#waiting.push(batch);
    await this.#run(options);
    batch.isAwaited = false;
    if (typeof batch.outcome === "object") {
      throw batch.outcome.refused;
    }
    this.#throwRefused();
    return batch.outcome === "stored";
  }

  /** Stores what is not stored yet, in order. */
  async flush(options?: CallOptions): Promise<void> {
    const stopped = await this.#run(options);
    this.#throwRefused();
    if (stopped !== undefined) {
      throw stopped.error;
    }
  }

  #throwRefused(): void {
    if (this.#refused.length > 0) {
      throw this.#refused.shift();
    }
  }

  /** Stores the waiting turns after those of earlier calls. Returns the error after which none could be stored for now. */
  #run(options?: CallOptions): Promise<{ error: unknown } | undefined> {
    const run = this.#last.then(() => this.#storeWaiting(options));
    this.#last = run;
    return run;
  }

  async #storeWaiting(options?: CallOptions): Promise<{ error: unknown } | undefined> {
    for (let batch = this.#waiting[0]; batch !== undefined; batch = this.#waiting[0]) {
      const { messages, usage, key } = batch;
      try {
        if (messages.length > 0 || usage !== undefined) {
          await this.#store.append(this.#tenantId, this.#sessionId, messages, {
            ...options,
            usage,
            idempotencyKey: key,
          });
        }
        batch.outcome = "stored";
      } catch (error) {
        if (isTransient(error)) {
          return { error };
        }
        batch.outcome = { refused: error };
        if (!batch.isAwaited) {
          this.#refused.push(error);
        }
      }
      this.#waiting.shift();
    }
    return undefined;
  }
}

/** Returns whether a later attempt may succeed. A call that was aborted is one of them. */
function isTransient(error: unknown): boolean {
  return (
    !(error instanceof TreeholdError) || ["unavailable", "deadline", "internal", "request_running"].includes(error.code)
  );
}
