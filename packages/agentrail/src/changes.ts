import type { TreeholdClient } from "./client.js";
import { TreeholdError } from "./errors.js";
import { pause } from "./pause.js";
import { route, type Wire } from "./routes.js";

/** Something that changed in a session. Later servers may have more kinds. */
export type SessionChange =
  | { kind: "messages"; from: number; end: number }
  | { kind: "turns"; from: number; end: number }
  | { kind: "compaction"; archive_id: string }
  | { kind: "description" }
  | { kind: "trace"; after: Wire["Version"] }
  | { kind: "orchestration"; after: Wire["Version"] }
  | { kind: "memo"; name: string }
  | { kind: "tool_results" }
  | { kind: "deleted" }
  /** The stream begins or was opened again; what changes from now on follows. */
  | { kind: "open" }
  /** The position that the stream should continue from is not known any more: read everything again. */
  | { kind: "reset" };

/** A change with the position to continue from after it. */
export interface SessionChangeEvent {
  readonly change: SessionChange;
  /** The position after this change; absent while more changes of the same position follow. */
  readonly position?: string | undefined;
}

/** Options of following a session. */
export interface FollowOptions {
  /** Ends the iteration; it then rejects with the signal's reason. */
  readonly signal?: AbortSignal | undefined;
  /** A position of an earlier iteration: what changed since comes first. */
  readonly after?: string | undefined;
  /** The wait before connecting again, in milliseconds; it doubles up to 5,000 while the server does not answer. Default 200. */
  readonly waitMs?: number | undefined;
}

/** Follows a session until it is deleted, and connects again when the connection ends. */
export async function* follow(
  client: TreeholdClient,
  tenantId: string,
  sessionId: string,
  options: FollowOptions,
): AsyncGenerator<SessionChangeEvent, void, undefined> {
  const { signal, waitMs = 200 } = options;
  let { after } = options;
  let failures = 0;
  for (;;) {
    try {
      const path = route("/v1/sessions/{session}/events", { session: sessionId });
      const headers = { accept: "text/event-stream", ...(after === undefined ? {} : { "last-event-id": after }) };
      const response = await client.open({ method: "GET", path, tenantId, headers, options: { signal } });
      for await (const event of serverSentEvents(response)) {
        failures = 0;
        after = event.id ?? after;
        if (event.type === "open" || event.type === "reset") {
          yield { change: { kind: event.type }, position: event.id };
        } else if (event.type === "change") {
          const change = JSON.parse(event.data) as SessionChange;
          yield { change, position: event.id };
          if (change.kind === "deleted") {
            return;
          }
        }
      }
    } catch (error) {
      signal?.throwIfAborted();
      // The connection ended within an event, or could not be opened.
      const isOver = TreeholdError.is(error) && !["unavailable", "deadline", "internal"].includes(error.code);
      if (isOver) {
        throw error;
      }
    }
    failures += 1;
    await pause(Math.min(5_000, waitMs * 2 ** (failures - 1)) * (0.5 + Math.random() / 2), signal);
  }
}

interface ServerSentEvent {
  type: string;
  data: string;
  id: string | undefined;
}

/** A line break; a carriage return at the end of what arrived so far may be half of one. */
const LINE_END = /\r\n|\n|\r(?!$)/;

/** Reads server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html) until the stream ends. */
async function* serverSentEvents(response: Response): AsyncGenerator<ServerSentEvent, void, undefined> {
  const decoder = new TextDecoderStream("utf-8");
  const lines = (response.body as ReadableStream<Uint8Array<ArrayBuffer>>).pipeThrough(decoder);
  let text = "";
  let event: ServerSentEvent = { type: "message", data: "", id: undefined };
  for await (const part of lines as unknown as AsyncIterable<string>) {
    text += part;
    for (let end = text.search(LINE_END); end >= 0; end = text.search(LINE_END)) {
      const line = text.slice(0, end);
      text = text.slice(end + (text.startsWith("\r\n", end) ? 2 : 1));
      if (line === "") {
        yield event;
        event = { type: "message", data: "", id: undefined };
        continue;
      }
      const [, name, value] = /^([^:]*)(?:: ?(.*))?$/s.exec(line) ?? [];
      if (name === "event") {
        event.type = value ?? "";
      } else if (name === "data") {
        event.data += event.data === "" ? (value ?? "") : `\n${value ?? ""}`;
      } else if (name === "id") {
        event.id = value;
      }
    }
  }
}
