import { invalidArgument } from "./errors.js";

/** A session of a tenant as one text. Hosts pass it around and do not look into it. */
export type SessionRef = string;

/** What a {@link SessionRef} names. */
export interface SessionName {
  readonly tenantId: string;
  readonly sessionId: string;
}

const LONE_SURROGATE = /\p{Surrogate}/u;

/** Returns whether UTF-8 can express a text: it does not contain half of a surrogate pair. */
export function isWellFormed(text: string): boolean {
  return !LONE_SURROGATE.test(text);
}

/**
 * Checks the ids that a URL or header cannot carry to the server, which checks all others: `fetch` removes the segments `.` and `..`
 * from URLs even if they are escaped.
 */
export function checkId(what: string, id: unknown): string {
  if (typeof id !== "string") {
    throw invalidArgument(`the ${what} id is not a text`);
  }
  if (id === "" || id === "." || id === "..") {
    throw invalidArgument(`the ${what} id \`${id}\` cannot name anything; choose another one`);
  }
  if (!isWellFormed(id)) {
    throw invalidArgument(`the ${what} id contains half of a surrogate pair; UTF-8 cannot express it`);
  }
  return id;
}

/** Checks an id and escapes it as one segment of a URL's path, or as the value of a header. */
export function segment(what: string, id: string): string {
  return encodeURIComponent(checkId(what, id));
}

/**
 * Makes the reference of a session. The parts are escaped, so no two sessions share a reference: neither tenant `a:b` with session `c`
 * nor tenant `a` with session `b:c`.
 */
export function createSessionRef(tenantId: string, sessionId: string): SessionRef {
  return `${escapePart(checkId("tenant", tenantId))}:${escapePart(checkId("session", sessionId))}`;
}

/**
 * Reads a reference.
 *
 * @throws {TreeholdError} `invalid_argument` for a text that is not a reference.
 */
export function resolveSessionRef(sessionRef: string): SessionName {
  const parts = typeof sessionRef === "string" ? sessionRef.split(":").map(unescapePart) : [];
  const [tenantId, sessionId] = parts;
  if (parts.length !== 2 || !tenantId || !sessionId) {
    throw invalidArgument(`\`${String(sessionRef)}\` is not a reference to a session`);
  }
  return { tenantId: checkId("tenant", tenantId), sessionId: checkId("session", sessionId) };
}

function escapePart(part: string): string {
  return part.replace(/[%:]/g, (character) => (character === "%" ? "%25" : "%3A"));
}

function unescapePart(part: string): string | undefined {
  try {
    return decodeURIComponent(part);
  } catch {
    return undefined;
  }
}
