import { createHash, randomUUID } from "node:crypto";
import { mkdir, rename, rm, rmdir, writeFile } from "node:fs/promises";
import { dirname, join, resolve, sep } from "node:path";
import type { MemoMirrorRefresher, SandboxMemoProvider } from "./contracts.js";
import { invalidArgument } from "./errors.js";
import { createSessionRef } from "./ids.js";
import { Queues } from "./queues.js";
import { type TreeholdSessionStore, toolCallOf, toolResultPath } from "./session-store.js";

/** The path of memory documents in a sandbox. */
const MOUNT = "/workspace/memo/";

/** How many items are read from the provider at once. */
const READS_AT_ONCE = 8;

/** A directory of the host that is mounted into a sandbox. */
export interface MirrorOptions {
  readonly tenantId: string;
  readonly userId: string;
  readonly sessionId: string;
  /**
   * The directory on the host; it is created if missing. The sandbox mounts it read-only at `/workspace/memo`. Files in it that have the
   * path of a document or result are replaced; all others stay as they are.
   */
  readonly directory: string;
}

/** What a snapshot found. */
export interface MirrorReport {
  /** How many files were written. */
  readonly files: number;
  /** What could not be read or written, by its path in the sandbox. */
  readonly failures: readonly { readonly path: string; readonly error: unknown }[];
}

/**
 * Keeps directories of the host in step with memory documents and tool results, for hosts whose sandbox manager does not. A sandbox sees
 * each file as a whole: files are replaced by renaming.
 *
 * ```ts
 * const mirror = new MemoMirror(new TreeholdSessionStore(client));
 * const store = new TreeholdSessionStore(client, { mirror });
 * await mirror.open({ tenantId, userId, sessionId, directory });
 * ```
 */
export class MemoMirror implements MemoMirrorRefresher {
  readonly #provider: SandboxMemoProvider;
  readonly #open = new Map<string, Open>();

  constructor(provider: SandboxMemoProvider) {
    this.#provider = provider;
  }

  /**
   * Fills the directory of a session and keeps it in step until {@link close}. Documents that are missing or empty are left out. What
   * cannot be read is reported, and the rest is written.
   *
   * @throws {TreeholdError} `invalid_argument` if a session with this id, of whatever tenant, is open: the contract of mirrors names
   * sessions by their id alone. The same for a directory of another session. If the directory cannot be created, the error says why, and
   * nothing is open.
   */
  async open(options: MirrorOptions): Promise<MirrorReport> {
    const { sessionId } = options;
    const directory = resolve(options.directory);
    if (this.#open.has(sessionId)) {
      throw invalidArgument(`a mirror of the session \`${sessionId}\` is open; close it first`);
    }
    const other = [...this.#open.values()].find((one) => one.directory === directory);
    if (other !== undefined) {
      throw invalidArgument(`\`${directory}\` is the mirror of the session \`${other.sessionId}\`; use another one`);
    }
    const open: Open = {
      ...options,
      directory,
      refreshed: new Set(),
      placed: new Map(),
      made: new Set(),
      queues: new Queues(),
      isFollowed: false,
    };
    this.#open.set(sessionId, open);
    try {
      await open.queues.run(directory, async () => {
        await makeDirectory(open, join(directory, "session"));
        await makeDirectory(open, join(directory, "user"));
      });
    } catch (error) {
      this.#open.delete(sessionId);
      await open.queues.idle();
      await removePlaced(open).catch(() => undefined);
      throw error;
    }
    const before = async (path: string, read: () => Promise<string | null>) => {
      const content = await read();
      return open.queues.run(path, async () => {
        // What was refreshed meanwhile is newer.
        const isNewest = this.#open.get(sessionId) === open && !open.refreshed.has(path);
        return isNewest && this.#place(open, path, content);
      });
    };
    return this.#copyAll(open, before);
  }

  /**
   * Keeps the directory of an open session in step with what other hosts write, until the signal is aborted, the mirror is closed or the
   * session is deleted. It then resolves.
   *
   * Cost: a read of a document for each of its changes, and of all tool results whenever one of them may have changed.
   */
  async follow(
    store: Pick<TreeholdSessionStore, "follow">,
    sessionId: string,
    options: { readonly signal: AbortSignal; readonly onError?: ((error: unknown) => void) | undefined },
  ): Promise<void> {
    const open = this.#open.get(sessionId);
    if (open === undefined) {
      throw invalidArgument(`no mirror of the session \`${sessionId}\` is open; open it first`);
    }
    const { signal, onError = warn } = options;
    // From now on a refresh reads what it places, so the content of another host is never replaced by older content.
    open.isFollowed = true;
    const now = (path: string, read: () => Promise<string | null>) =>
      open.queues.run(path, async () => {
        const content = this.#open.get(sessionId) === open ? await read() : null;
        // Files that did not change stay as they are for programs that have them open.
        return content !== null && open.placed.get(path) !== digest(content) && this.#place(open, path, content);
      });
    try {
      for await (const { change } of store.follow(open.tenantId, sessionId, { signal })) {
        if (this.#open.get(sessionId) !== open) {
          return;
        }
        const isAll = change.kind === "open" || change.kind === "reset";
        if (isAll || change.kind === "memo" || change.kind === "tool_results") {
          const { failures } = await this.#copyAll(open, now, isAll ? undefined : change);
          failures.forEach(({ error }) => {
            onError(error);
          });
        }
      }
    } catch (error) {
      if (!signal.aborted) {
        throw error;
      }
    } finally {
      open.isFollowed = false;
    }
  }

  /**
   * Stops refreshing the directory of a session, and removes the files that were placed in it and the directories that were made for them.
   * If that fails, the session stays open and can be closed again.
   */
  async close(sessionId: string): Promise<void> {
    const open = this.#open.get(sessionId);
    if (open === undefined) {
      return;
    }
    this.#open.delete(sessionId);
    await open.queues.idle();
    try {
      await removePlaced(open);
    } catch (error) {
      if (!this.#open.has(sessionId)) {
        this.#open.set(sessionId, open);
      }
      throw error;
    }
  }

  /** Replaces one file in the directory of a session. Does nothing if the session is not open. */
  async refreshMemoMirror(sessionId: string, containerPath: string, content: string): Promise<void> {
    const open = this.#open.get(sessionId);
    if (open !== undefined) {
      await this.#refresh(open, containerPath, content);
    }
  }

  /** Replaces a user's document in the directories of all open sessions of the user. */
  async refreshUserMemoMirrorForAllSessions(
    tenantId: string,
    userId: string,
    name: string,
    content: string,
  ): Promise<void> {
    const all = [...this.#open.values()].filter((one) => one.tenantId === tenantId && one.userId === userId);
    await Promise.all(all.map((one) => this.#refresh(one, `${MOUNT}user/${name}`, content)));
  }

  async #refresh(open: Open, path: string, content: string): Promise<void> {
    open.refreshed.add(path);
    await open.queues.run(path, async () => {
      const read = open.isFollowed ? this.#reader(open, path) : undefined;
      await this.#place(open, path, read === undefined ? content : await read());
    });
  }

  /** Copies documents and results, or those of one change, several at once. */
  async #copyAll(
    open: Open,
    copy: (path: string, read: () => Promise<string | null>) => Promise<boolean>,
    change?: { kind: "memo"; name: string } | { kind: "tool_results" },
  ): Promise<MirrorReport> {
    const failures: { path: string; error: unknown }[] = [];
    let files = 0;
    const items = this.#documents(open).filter(
      ({ path }) => change === undefined || (change.kind === "memo" && path.endsWith(`/${change.name}`)),
    );
    if (change?.kind !== "memo") {
      const sessionRef = createSessionRef(open.tenantId, open.sessionId);
      const ids = await this.#provider.listToolResultArtifactIds(sessionRef).catch((error: unknown) => {
        failures.push({ path: `${MOUNT}session/tool-results`, error });
        return [];
      });
      items.push(
        ...ids.map((id) => ({
          path: toolResultPath(id),
          read: () => this.#provider.readToolResultArtifact(sessionRef, id),
        })),
      );
    }
    await allOf(
      items.map(({ path, read }) => async () => {
        try {
          const isPlaced = await copy(path, read);
          files += isPlaced ? 1 : 0;
        } catch (error) {
          failures.push({ path, error });
        }
      }),
    );
    return { files, failures };
  }

  /** Returns how to read what belongs at a path; nothing for the path of neither a document nor a result. */
  #reader(open: Open, path: string): (() => Promise<string | null>) | undefined {
    const id = toolCallOf(path);
    if (id === undefined) {
      return this.#documents(open).find((one) => one.path === path)?.read;
    }
    const sessionRef = createSessionRef(open.tenantId, open.sessionId);
    return () => this.#provider.readToolResultArtifact(sessionRef, id);
  }

  #documents({ tenantId, userId, sessionId }: MirrorOptions): { path: string; read: () => Promise<string | null> }[] {
    const provider = this.#provider;
    return [
      ...["NOTES.md", "TODO.md"].map((name) => ({
        path: `${MOUNT}session/${name}`,
        read: () => provider.readMemoryDocument(tenantId, sessionId, "session", name),
      })),
      {
        path: `${MOUNT}user/USER.md`,
        read: () => provider.readMemoryDocument(tenantId, userId, "user", "USER.md"),
      },
    ];
  }

  /** Replaces a file. Content that is missing, or empty before there is a file, is left out. */
  async #place(open: Open, path: string, content: string | null): Promise<boolean> {
    if (content === null || (content === "" && !open.placed.has(path))) {
      return false;
    }
    await place(open, path, content);
    open.placed.set(path, digest(content));
    return true;
  }
}

/** A directory that is kept in step. */
interface Open extends MirrorOptions {
  /** The paths that were refreshed since it was opened. */
  readonly refreshed: Set<string>;
  /** The paths in the sandbox that have a file, each with the digest of its content. */
  readonly placed: Map<string, string>;
  /** The directories that were made for it, as paths on the host. */
  readonly made: Set<string>;
  readonly queues: Queues;
  isFollowed: boolean;
}

function digest(content: string): string {
  return createHash("sha256").update(content).digest("base64");
}

/** Returns the path on the host of a path in the sandbox. */
function hostPath(directory: string, containerPath: string): string {
  const parts = containerPath.startsWith(MOUNT) ? containerPath.slice(MOUNT.length).split("/") : [];
  const isSafe = (part: string) => part !== "" && part !== "." && part !== ".." && !/[\\\p{Cc}]/u.test(part);
  if (parts.length < 2 || !parts.every(isSafe) || (parts[0] !== "session" && parts[0] !== "user")) {
    throw invalidArgument(`\`${containerPath}\` is not the path of a memory document or tool result`);
  }
  return join(directory, ...parts);
}

/** Replaces a file whose path in the sandbox is given. */
async function place(open: Open, containerPath: string, content: string): Promise<void> {
  const path = hostPath(open.directory, containerPath);
  await makeDirectory(open, dirname(path));
  const written = join(open.directory, `.${randomUUID()}`);
  try {
    await writeFile(written, content, { flag: "wx" });
    await rename(written, path);
  } catch (error) {
    await rm(written, { force: true });
    throw error;
  }
}

/** Creates a directory of a mirror with those above it, and remembers which of them were missing. */
async function makeDirectory(open: Open, path: string): Promise<void> {
  const first = await mkdir(path, { recursive: true });
  const isWithin = (made: string) => made === open.directory || made.startsWith(open.directory + sep);
  for (let made = path; first !== undefined && isWithin(made); made = dirname(made)) {
    open.made.add(made);
    if (made === first) {
      break;
    }
  }
}

/** Removes the files of a mirror, and the directories that were made for them unless they hold something else. */
async function removePlaced(open: Open): Promise<void> {
  for (const path of open.placed.keys()) {
    await rm(hostPath(open.directory, path), { force: true });
    open.placed.delete(path);
  }
  // Those within others come first.
  for (const directory of [...open.made].sort((one, other) => other.length - one.length)) {
    await rmdir(directory).catch((error: NodeJS.ErrnoException) => {
      if (!["ENOTEMPTY", "EEXIST", "ENOENT", "ENOTDIR", "EBUSY"].includes(error.code ?? "")) {
        throw error;
      }
    });
    open.made.delete(directory);
  }
}

/** Runs tasks, some of them at once. */
async function allOf(tasks: (() => Promise<void>)[]): Promise<void> {
  const left = tasks.values();
  const worker = async () => {
    for (const task of left) {
      await task();
    }
  };
  await Promise.all(Array.from({ length: READS_AT_ONCE }, worker));
}

function warn(error: unknown): void {
  console.warn("treehold: a memory document could not be mirrored", error);
}
