import { TreeholdError } from "./errors.js";
import {
  type Answer,
  type Call,
  type CallOptions,
  type ClientOptions,
  Transport,
  type WriteOptions,
} from "./transport.js";

/**
 * A connection to a treehold server, shared by the stores of this package. It keeps no state about sessions.
 *
 * ```ts
 * const client = new TreeholdClient({ baseUrl: "http://127.0.0.1:8080", token: process.env.TREEHOLD_TOKEN });
 * const store = new TreeholdSessionStore(client);
 * ```
 *
 * Reads, replacements and changes with an idempotency key are repeated when the server does not answer or is overloaded, until the time
 * of the call ends. Appends get a key from the client.
 */
export class TreeholdClient {
  readonly #transport: Transport;

  constructor(options: ClientOptions) {
    this.#transport = new Transport(options);
  }

  /** Checks that the server answers and its store is ready. */
  async ping(options?: CallOptions): Promise<void> {
    await this.send({ method: "GET", path: "/readyz", options });
  }

  /** Sends a request and returns the answer. */
  send(call: Call): Promise<Answer> {
    return this.#transport.send(call);
  }

  /** Opens a response whose body is a stream. */
  open(call: Call): Promise<Response> {
    return this.#transport.open(call);
  }

  /** Sends a request and reads the answer as JSON. */
  async json<T>(call: Call): Promise<T> {
    const answer = await this.send(call);
    try {
      return JSON.parse(answer.text) as T;
    } catch (cause) {
      const message = `the answer to ${call.method} ${call.path} is not JSON; check the address of the server`;
      throw new TreeholdError(message, { code: "corrupt", status: answer.status, cause });
    }
  }

  /** Does what `read` does, and returns `absent` if the session or document does not exist. */
  async orElse<T, A>(absent: A, read: Promise<T>): Promise<T | A> {
    try {
      return await read;
    } catch (error) {
      if (TreeholdError.is(error, "not_found")) {
        return absent;
      }
      throw error;
    }
  }
}

/** Makes a JSON body. */
export function jsonBody<T extends object>(value: T): { type: string; text: string } {
  return { type: "application/json", text: JSON.stringify(value) };
}

/** Makes the key of a change that must happen once. */
export function newKey(): string {
  return globalThis.crypto.randomUUID();
}

/** Makes the key of a change whose keys count against the user's bound: that of the caller, or one that the change can do without. */
export function countedKey(options: WriteOptions): Pick<Call, "idempotencyKey" | "isKeyOptional"> {
  const { idempotencyKey = newKey() } = options;
  return { idempotencyKey, isKeyOptional: options.idempotencyKey === undefined };
}
