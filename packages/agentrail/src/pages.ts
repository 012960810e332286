import type { CallOptions } from "./transport.js";

/** Options of methods that read page by page. */
export interface PageOptions extends CallOptions {
  /** How many entries a page has. The server bounds it. */
  readonly pageSize?: number | undefined;
}

/** A page with the cursor of the next one; without a cursor it is the last page. */
export interface Page<T, C> {
  readonly entries: readonly T[];
  readonly cursor: C | null | undefined;
}

/** Reads page after page as they are consumed. */
export async function* pages<T, C extends string | number>(
  options: PageOptions,
  read: (query: { limit: number | undefined; cursor: C | undefined }) => Promise<Page<T, C>>,
): AsyncGenerator<T, void, undefined> {
  let cursor: C | null | undefined;
  do {
    const page: Page<T, C> = await read({ limit: options.pageSize, cursor: cursor ?? undefined });
    yield* page.entries;
    cursor = page.cursor;
  } while (cursor !== undefined && cursor !== null);
}

/** Reads an iterator to its end. */
export async function collect<T>(values: AsyncIterable<T>): Promise<T[]> {
  const all: T[] = [];
  for await (const value of values) {
    all.push(value);
  }
  return all;
}
