/**
 * The stable codes of errors. The server's codes are those of its HTTP API. Two of them also come from the client: `unavailable` when
 * no answer arrived, and `deadline` when the time of a call ended.
 */
export type TreeholdErrorCode =
  | "already_exists"
  | "ambiguous"
  | "conflict"
  | "corrupt"
  | "deadline"
  | "internal"
  | "invalid_argument"
  | "invalid_path"
  | "is_directory"
  | "key_reused"
  | "no_match"
  | "no_such_route"
  | "not_a_directory"
  | "not_found"
  | "outcome_unknown"
  | "permission_denied"
  | "quota_exceeded"
  | "read_only"
  | "request_running"
  | "too_large"
  | "unavailable"
  | "unsupported"
  // Servers of a later version may have more codes.
  | (string & {});

/** What is known about a failed call. */
export interface TreeholdErrorFacts {
  /** The stable code. */
  readonly code: TreeholdErrorCode;
  /** The HTTP status; absent when no answer arrived or no request was sent. */
  readonly status?: number | undefined;
  /** Whether the change may have taken effect despite the error. */
  readonly mayHaveEffect?: boolean | undefined;
  /** The id by which the server's log has more about the call. */
  readonly traceId?: string | undefined;
  /** The method and path of the request. */
  readonly request?: string | undefined;
  /** The error beneath. */
  readonly cause?: unknown;
}

/**
 * An error of every method of this package. `code` is for programs; `message` says what to do.
 *
 * A call that ends by an `AbortSignal` of the caller rejects with the signal's reason instead, as `fetch` does.
 */
export class TreeholdError extends Error {
  override readonly name = "TreeholdError";
  readonly code: TreeholdErrorCode;
  readonly status: number | undefined;
  readonly mayHaveEffect: boolean;
  readonly traceId: string | undefined;
  readonly request: string | undefined;

  constructor(message: string, facts: TreeholdErrorFacts) {
    super(message, facts.cause === undefined ? undefined : { cause: facts.cause });
    this.code = facts.code;
    this.status = facts.status;
    this.mayHaveEffect = facts.mayHaveEffect ?? false;
    this.traceId = facts.traceId;
    this.request = facts.request;
  }

  /** Returns the same error with `mayHaveEffect`. */
  withEffect(): TreeholdError {
    return this.mayHaveEffect
      ? this
      : new TreeholdError(this.message, { ...this, mayHaveEffect: true, cause: this.cause });
  }

  /** Returns whether a value is an error of this package, with one of the codes if some are given. */
  static is(value: unknown, ...codes: TreeholdErrorCode[]): value is TreeholdError {
    return value instanceof TreeholdError && (codes.length === 0 || codes.includes(value.code));
  }
}

/** Makes the error for an argument that is refused before a request is sent. */
export function invalidArgument(message: string): TreeholdError {
  return new TreeholdError(message, { code: "invalid_argument" });
}
