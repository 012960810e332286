import { collect } from "./pages.js";
import type { Wire } from "./routes.js";
import type { CallOptions } from "./transport.js";

/** A place in a log. Positions rise and are never used twice; a program stores them and passes them back. */
export type Position = Wire["Version"];

/** An entry of a log. */
export interface Entry<T> {
  readonly position: Position;
  readonly value: T;
}

/** Where to start reading a log. */
export interface LogOptions extends CallOptions {
  /** Only entries after this position. */
  readonly after?: Position | undefined;
  /** How many entries a page has. The server bounds it. */
  readonly pageSize?: number | undefined;
}

/** Reads a log page after page as it is consumed. */
export async function* entries<T>(
  options: LogOptions,
  read: (query: {
    after: Position | undefined;
    limit: number | undefined;
  }) => Promise<{ entries: Entry<T>[]; more: boolean }>,
): AsyncGenerator<Entry<T>, void, undefined> {
  let { after } = options;
  for (;;) {
    const page = await read({ after, limit: options.pageSize });
    yield* page.entries;
    after = page.entries.at(-1)?.position;
    if (!page.more || after === undefined) {
      return;
    }
  }
}

/** Reads the rest of a log. */
export async function loadLog<T>(log: AsyncIterable<Entry<T>>): Promise<T[]> {
  return (await collect(log)).map(({ value }) => value);
}
