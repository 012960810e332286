import { invalidArgument, TreeholdError } from "./errors.js";
import { segment } from "./ids.js";
import { pause } from "./pause.js";

/** Options of a single call. Every method takes them as its last argument. */
export interface CallOptions {
  /** Ends the call when it is aborted. A change that was already sent may still take effect. */
  readonly signal?: AbortSignal | undefined;
  /** The time for the call with all its attempts, in milliseconds. Default: that of the client. */
  readonly timeoutMs?: number | undefined;
}

/** Options of a call that changes something once. */
export interface WriteOptions extends CallOptions {
  /**
   * The key under which the change takes effect once, within 24 hours. Default: a new one, so only the attempts of this call count as one.
   * A host that resumes after a crash passes a key that it makes of what it stores, such as the number of the turn.
   */
  readonly idempotencyKey?: string | undefined;
}

/** When and how often a call is repeated. */
export interface RetryOptions {
  /** How often a request is sent at most. Default 6; 1 repeats nothing. */
  readonly attemptsMax?: number | undefined;
  /** The longest wait before the second attempt, in milliseconds; it doubles with each further one. Default 100. */
  readonly waitMs?: number | undefined;
  /** The longest wait between two attempts, in milliseconds. Default 2,000. */
  readonly waitMsMax?: number | undefined;
}

/** How to reach a server. */
export interface ClientOptions {
  /** The address of the server, such as `http://127.0.0.1:8080`. */
  readonly baseUrl: string;
  /** The token, or a function that returns the current one. A server on loopback may need none. */
  readonly token?: string | (() => string | Promise<string>) | undefined;
  /** The time for a call with all its attempts, in milliseconds. Default 60,000. */
  readonly timeoutMs?: number | undefined;
  /** The time for one attempt, in milliseconds. Default 30,000. */
  readonly attemptTimeoutMs?: number | undefined;
  /** When and how often a call is repeated. */
  readonly retry?: RetryOptions | undefined;
  /** The function that sends requests. Default: the global `fetch`. */
  readonly fetch?: typeof globalThis.fetch | undefined;
}

/** A request. */
export interface Call {
  readonly method: "GET" | "PUT" | "POST" | "PATCH" | "DELETE";
  /** The path beneath the address of the server; ids in it are escaped. */
  readonly path: string;
  readonly query?: Readonly<Record<string, string | number | boolean | null | undefined>> | undefined;
  /** The tenant and user that the call is for. */
  readonly tenantId?: string | undefined;
  readonly userId?: string | undefined;
  readonly body?: { readonly type: string; readonly text: string } | undefined;
  /** The key under which the change is made once, however often it is sent. */
  readonly idempotencyKey?: string | undefined;
  /**
   * Whether the request is sent once without its key if the user has no room for further keys. Keys that the server keeps with the session
   * have no such bound; there `quota_exceeded` is about the store, and the key stays.
   */
  readonly isKeyOptional?: boolean | undefined;
  /** Whether repeating it is safe without a key, although it is a `POST`. */
  readonly isIdempotent?: boolean | undefined;
  readonly headers?: Readonly<Record<string, string>> | undefined;
  readonly options?: CallOptions | undefined;
}

/** An answer with a status from 200 to 299. */
export interface Answer {
  readonly status: number;
  readonly headers: Headers;
  /** The body. A byte order mark at its beginning is kept. */
  readonly text: string;
}

const NOT_ANSWERED = "the server did not answer";

/** Sends requests, and repeats those that are safe to repeat. */
export class Transport {
  readonly #base: string;
  readonly #options: ClientOptions;
  readonly #fetch: typeof globalThis.fetch;

  constructor(options: ClientOptions) {
    this.#base = baseOf(options.baseUrl);
    this.#options = options;
    this.#fetch = options.fetch ?? globalThis.fetch;
  }

  /** Sends a request until it is answered, and reads the answer. */
  async send(call: Call): Promise<Answer> {
    const { signal, timeoutMs = this.#options.timeoutMs ?? 60_000 } = call.options ?? {};
    const { attemptsMax = 6, waitMs = 100, waitMsMax = 2_000 } = this.#options.retry ?? {};
    const end = Date.now() + timeoutMs;
    let mayHaveEffect = false;
    let current = call;
    for (let attempt = 1; ; attempt += 1) {
      signal?.throwIfAborted();
      const failed = await this.#attempt(current, signal, end);
      if (!(failed instanceof Failed)) {
        return failed;
      }
      if (failed.error.code === "quota_exceeded" && current.isKeyOptional && !mayHaveEffect) {
        // The user has no room for further keys. Without a key the request is sent once.
        current = { ...current, idempotencyKey: undefined, isKeyOptional: false };
        continue;
      }
      const wait = failed.retryAfterMs ?? Math.random() * Math.min(waitMsMax, waitMs * 2 ** (attempt - 1));
      // A server that could not accept a request says that it had no effect, so even a request without a key can be repeated.
      const isSafe = isRepeatable(current) || !failed.error.mayHaveEffect;
      if (!failed.isTransient || !isSafe || attempt >= attemptsMax || Date.now() + wait >= end) {
        // With a key the server's own answer counts for all attempts.
        const isAnswered = current.idempotencyKey !== undefined && !failed.isTransient;
        throw mayHaveEffect && !isAnswered ? failed.error.withEffect() : failed.error;
      }
      mayHaveEffect ||= failed.error.mayHaveEffect;
      await pause(wait, signal);
    }
  }

  /** Opens a response whose body is a stream. It is not repeated, and ends with the signal only. */
  async open(call: Call): Promise<Response> {
    const signal = call.options?.signal;
    const request = await this.#prepare(call);
    const response = await this.#fetch(request.url, { ...request.init, signal: signal ?? null }).catch(
      (cause: unknown) => {
        signal?.throwIfAborted();
        throw unanswered(call, cause);
      },
    );
    if (!response.ok) {
      throw problem(call, response, await text(response)).error;
    }
    return response;
  }

  async #attempt(call: Call, signal: AbortSignal | undefined, end: number): Promise<Answer | Failed> {
    const { url, init } = await this.#prepare(call);
    const left = Math.max(1, Math.min(this.#options.attemptTimeoutMs ?? 30_000, end - Date.now()));
    const timeout = AbortSignal.timeout(left);
    try {
      const response = await this.#fetch(url, {
        ...init,
        signal: signal ? AbortSignal.any([signal, timeout]) : timeout,
      });
      const body = await text(response);
      return response.ok
        ? { status: response.status, headers: response.headers, text: body }
        : problem(call, response, body);
    } catch (cause) {
      signal?.throwIfAborted();
      if (TreeholdError.is(cause)) {
        throw cause;
      }
      const error = timeout.aborted
        ? new TreeholdError(`${NOT_ANSWERED} within ${Math.round(left)} ms; raise the timeout or try again`, {
            code: "deadline",
            mayHaveEffect: call.method !== "GET",
            request: describe(call),
            cause,
          })
        : unanswered(call, cause);
      return new Failed(error, true);
    }
  }

  /** Makes the request. It is made again for each attempt, since the token may change. */
  async #prepare(call: Call): Promise<{ url: string; init: RequestInit }> {
    const { token } = this.#options;
    const headers = new Headers({ accept: "application/json, text/plain;q=0.9, */*;q=0.1", ...call.headers });
    const bearer = typeof token === "function" ? await token() : token;
    if (bearer !== undefined) {
      if (!/^[!-~]+$/.test(bearer)) {
        throw invalidArgument("the token is empty or has characters that a header cannot hold");
      }
      headers.set("authorization", `Bearer ${bearer}`);
    }
    if (call.tenantId !== undefined) {
      headers.set("treehold-tenant", segment("tenant", call.tenantId));
    }
    if (call.userId !== undefined) {
      headers.set("treehold-user", segment("user", call.userId));
    }
    if (call.idempotencyKey !== undefined) {
      if (!/^[ -~]{1,255}$/.test(call.idempotencyKey)) {
        throw invalidArgument("an idempotency key has 1 to 255 printable ASCII characters");
      }
      headers.set("idempotency-key", call.idempotencyKey);
    }
    if (call.body !== undefined) {
      headers.set("content-type", call.body.type);
    }
    // A redirect would carry the token to another place.
    const init: RequestInit = { method: call.method, headers, body: call.body?.text ?? null, redirect: "error" };
    return { url: this.#url(call), init };
  }

  #url(call: Call): string {
    const query = new URLSearchParams();
    for (const [name, value] of Object.entries(call.query ?? {})) {
      if (value !== undefined && value !== null) {
        query.set(name, String(value));
      }
    }
    return `${this.#base}${call.path}${query.size > 0 ? `?${query}` : ""}`;
  }
}

function baseOf(baseUrl: string): string {
  const url = URL.canParse(baseUrl) ? new URL(baseUrl) : undefined;
  const isHttp = url?.protocol === "http:" || url?.protocol === "https:";
  if (
    url === undefined ||
    !isHttp ||
    url.username !== "" ||
    url.password !== "" ||
    url.search !== "" ||
    url.hash !== ""
  ) {
    throw invalidArgument(
      "`baseUrl` is not an address such as `https://files.example`, without a user, a query or a fragment",
    );
  }
  return url.href.replace(/\/+$/, "");
}

/** An attempt that failed. */
class Failed {
  constructor(
    readonly error: TreeholdError,
    readonly isTransient: boolean,
    readonly retryAfterMs: number | undefined = undefined,
  ) {}
}

/** Returns whether sending a request twice has the effect of sending it once. */
function isRepeatable(call: Call): boolean {
  return call.method !== "POST" || call.isIdempotent === true || call.idempotencyKey !== undefined;
}

function describe(call: Call): string {
  return `${call.method} ${call.path}`;
}

function unanswered(call: Call, cause: unknown): TreeholdError {
  const reason = cause instanceof Error ? `: ${messageOf(cause)}` : "";
  return new TreeholdError(`${NOT_ANSWERED}${reason}; check that it runs and try again`, {
    code: "unavailable",
    mayHaveEffect: call.method !== "GET",
    request: describe(call),
    cause,
  });
}

/** Returns the message that says most: `fetch` puts the reason into the cause. */
function messageOf(error: Error): string {
  return error.cause instanceof Error && error.cause.message !== "" ? error.cause.message : error.message;
}

/** Reads a problem (RFC 9457). Something between the client and the server may answer otherwise. */
function problem(call: Call, response: Response, body: string): Failed {
  const fields = fieldsOf(body);
  const { status } = response;
  const isServerFault = status >= 500;
  const code = typeof fields["code"] === "string" ? fields["code"] : codeOf(status);
  const message = [fields["detail"], fields["title"]].find((field) => typeof field === "string") as string | undefined;
  const known = typeof fields["may_have_effect"] === "boolean" ? fields["may_have_effect"] : undefined;
  const isProblem = typeof fields["code"] === "string";
  const error = new TreeholdError(message ?? `the server answered with status ${status}`, {
    code,
    status,
    mayHaveEffect: known ?? (call.method !== "GET" && isServerFault && !isProblem),
    traceId: typeof fields["trace_id"] === "string" ? fields["trace_id"] : undefined,
    request: describe(call),
  });
  const isTransient = status === 429 || (status >= 502 && status <= 504) || code === "request_running";
  return new Failed(error, isTransient, retryAfterMs(response));
}

function fieldsOf(body: string): Record<string, unknown> {
  try {
    const fields: unknown = JSON.parse(body);
    return typeof fields === "object" && fields !== null ? (fields as Record<string, unknown>) : {};
  } catch {
    return {};
  }
}

function codeOf(status: number): string {
  if (status === 401 || status === 403) {
    return "permission_denied";
  }
  // `not_found` is about a session or document, and only the server itself says so.
  if (status === 404) {
    return "no_such_route";
  }
  if (status === 413) {
    return "too_large";
  }
  if (status === 429 || status >= 502) {
    return "unavailable";
  }
  return status >= 500 ? "internal" : "invalid_argument";
}

function retryAfterMs(response: Response): number | undefined {
  const seconds = Number(response.headers.get("retry-after") ?? Number.NaN);
  return Number.isFinite(seconds) && seconds >= 0 ? seconds * 1_000 : undefined;
}

/** Reads a body as it was sent; `Response.text` would drop a byte order mark. */
async function text(response: Response): Promise<string> {
  const bytes = await response.arrayBuffer();
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch (cause) {
    throw new TreeholdError("the server's answer is not UTF-8", { code: "corrupt", status: response.status, cause });
  }
}
