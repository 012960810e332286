import { mkdir, mkdtemp, readdir, readFile, rm, rmdir, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { MemoMirror, type SandboxMemoProvider, TreeholdSessionStore, toolResultPath } from "../src/index.js";
import { client, failure, fresh, long, session } from "./world.js";

const store = new TreeholdSessionStore(client());

describe("documents", () => {
  test.each([
    ["session", "NOTES.md"],
    ["session", "TODO.md"],
    ["user", "USER.md"],
  ] as const)("document_%s_%s_is_read_written_and_appended", async (scope, name) => {
    const { tenantId, userId, sessionId } = await session();
    const owner = scope === "user" ? userId : sessionId;
    expect(await store.readMemoryDocument(tenantId, owner, scope, name)).toBeNull();
    await store.appendMemoryDocument(tenantId, owner, scope, name, "first\n");
    await store.appendMemoryDocument(tenantId, owner, scope, name, "second\n");
    expect(await store.readMemoryDocument(tenantId, owner, scope, name)).toBe("first\nsecond\n");
    await store.writeMemoryDocument(tenantId, owner, scope, name, "new");
    expect(await store.readMemoryDocument(tenantId, owner, scope, name)).toBe("new");
    await store.writeMemoryDocument(tenantId, owner, scope, name, "");
    expect(await store.readMemoryDocument(tenantId, owner, scope, name)).toBe("");
  });

  test("concurrent_appends_are_all_kept", async () => {
    const { tenantId, sessionId } = await session();
    const lines = Array.from({ length: 12 }, (_, index) => `line ${index}\n`);
    await Promise.all(
      lines.map((line) => store.appendMemoryDocument(tenantId, sessionId, "session", "NOTES.md", line)),
    );
    const kept = (await store.readMemoryDocument(tenantId, sessionId, "session", "NOTES.md"))!.split(/(?<=\n)/);
    expect(kept.sort()).toEqual(lines.sort());
  });

  test("text_comes_back_exactly", async () => {
    const { tenantId, sessionId, sessionRef } = await session();
    for (const text of [
      "\ufeffwith a byte order mark",
      "\r\n\r",
      "\u0000\u0001",
      "日本 \u{1f375}\u2028",
      "x".repeat(3 << 20),
    ]) {
      await store.writeMemoryDocument(tenantId, sessionId, "session", "NOTES.md", text);
      expect((await store.readMemoryDocument(tenantId, sessionId, "session", "NOTES.md")) === text).toBe(true);
      await store.writeToolResultArtifact(sessionRef, "c1", text);
      expect((await store.readToolResultArtifact(sessionRef, "c1")) === text).toBe(true);
    }
  });

  test("half_of_a_surrogate_pair_is_refused_and_not_replaced", async () => {
    const { tenantId, sessionId, sessionRef } = await session();
    const half = "\u{1f375}".slice(0, 1);
    await failure(store.writeMemoryDocument(tenantId, sessionId, "session", "NOTES.md", half), "invalid_argument");
    await failure(store.appendMemoryDocument(tenantId, sessionId, "session", "NOTES.md", half), "invalid_argument");
    await failure(store.writeToolResultArtifact(sessionRef, "c1", half), "invalid_argument");
    expect(await store.readMemoryDocument(tenantId, sessionId, "session", "NOTES.md")).toBeNull();
  });

  test("content_that_is_no_text_is_refused", async () => {
    const { tenantId, sessionId } = await session();
    for (const bad of [undefined, null, 7, {}]) {
      const write = store.writeMemoryDocument(tenantId, sessionId, "session", "NOTES.md", bad as never);
      await failure(write, "invalid_argument");
    }
  });

  test("unknown_scopes_and_names_are_errors", async () => {
    const { tenantId, userId, sessionId } = await session();
    for (const name of ["OTHER.md", "USER.md", "notes.md", "../NOTES.md", "a/b", "tool-results", "", ".", ".."]) {
      await failure(store.readMemoryDocument(tenantId, sessionId, "session", name), "invalid_argument");
      await failure(store.writeMemoryDocument(tenantId, sessionId, "session", name, "x"), "invalid_argument");
    }
    await failure(store.readMemoryDocument(tenantId, userId, "user", "NOTES.md"), "invalid_argument");
    await failure(store.readMemoryDocument(tenantId, userId, "global" as never, "NOTES.md"), "invalid_argument");
  });

  test("documents_of_an_unknown_session_are_absent_and_cannot_be_written", async () => {
    const tenant = fresh("tenant");
    expect(await store.readMemoryDocument(tenant, "unknown", "session", "NOTES.md")).toBeNull();
    await failure(store.writeMemoryDocument(tenant, "unknown", "session", "NOTES.md", "x"), "not_found");
    await failure(store.appendMemoryDocument(tenant, "unknown", "session", "NOTES.md", "x"), "not_found");
  });

  test("documents_of_two_tenants_users_and_sessions_are_apart", async () => {
    const [one, two] = [await session(), await session()];
    await store.getOrCreate(one.tenantId, one.userId, "helper", "same");
    await store.getOrCreate(two.tenantId, two.userId, "helper", "same");
    await store.writeMemoryDocument(one.tenantId, "same", "session", "NOTES.md", "one");
    await store.writeMemoryDocument(one.tenantId, one.userId, "user", "USER.md", "one");
    expect(await store.readMemoryDocument(two.tenantId, "same", "session", "NOTES.md")).toBeNull();
    expect(await store.readMemoryDocument(two.tenantId, one.userId, "user", "USER.md")).toBeNull();
    expect(await store.readMemoryDocument(one.tenantId, one.sessionId, "session", "NOTES.md")).toBeNull();
  });

  test("index_describes_every_document", async () => {
    const { tenantId, userId, sessionId } = await session();
    await store.writeMemoryDocument(tenantId, userId, "user", "USER.md", "<!-- summary: likes tea -->\n");
    const index = await store.buildMemoryIndex(tenantId, sessionId);
    expect(index.map((entry) => entry.name).sort()).toEqual(["NOTES.md", "TODO.md", "USER.md"]);
    expect(index.find((entry) => entry.name === "USER.md")).toEqual({
      name: "USER.md",
      path: "/workspace/memo/user/USER.md",
      exists: true,
      sizeTokensApprox: 10,
      updatedAt: expect.any(Number),
      summary: "likes tea",
    });
    expect(index.find((entry) => entry.name === "TODO.md")).toMatchObject({
      exists: false,
      updatedAt: null,
      summary: null,
    });
    await failure(store.buildMemoryIndex(tenantId, "unknown"), "not_found");
  });

  test("todo_storage_is_the_document_todo", async () => {
    const { tenantId, sessionId, sessionRef } = await session();
    const todo = store.createTodoStorage(sessionRef);
    expect(await todo.read()).toBeNull();
    await todo.write("- tea");
    expect(await todo.read()).toBe("- tea");
    expect(await store.readMemoryDocument(tenantId, sessionId, "session", "TODO.md")).toBe("- tea");
  });
});

describe("tool results", () => {
  test("results_are_written_replaced_read_and_listed", async () => {
    const { sessionRef } = await session();
    expect(await store.listToolResultArtifactIds(sessionRef)).toEqual([]);
    expect(await store.readToolResultArtifact(sessionRef, "c1")).toBeNull();
    await store.writeToolResultArtifact(sessionRef, "c1", "old");
    await store.writeToolResultArtifact(sessionRef, "c1", "new");
    await store.writeToolResultArtifact(sessionRef, "c2", "");
    expect(await store.readToolResultArtifact(sessionRef, "c1")).toBe("new");
    expect(await store.readToolResultArtifact(sessionRef, "c2")).toBe("");
    expect(await store.listToolResultArtifactIds(sessionRef)).toEqual(["c1", "c2"]);
  });

  test("results_of_an_unknown_session_are_absent", async () => {
    const { tenantId } = await session();
    const reference = `${tenantId}:unknown`;
    expect(await store.readToolResultArtifact(reference, "c1")).toBeNull();
    expect(await store.listToolResultArtifactIds(reference)).toEqual([]);
    await failure(store.writeToolResultArtifact(reference, "c1", "x"), "not_found");
  });
});

describe("a mirror", () => {
  let root: string;
  beforeEach(async () => {
    root = await mkdtemp(join(tmpdir(), "treehold-mirror-"));
  });
  afterEach(() => rm(root, { recursive: true, force: true }));

  async function mirrored() {
    const mirror = new MemoMirror(store);
    const world = await session(new TreeholdSessionStore(client(), { mirror }));
    return {
      mirror,
      directory: join(root, "mirror"),
      read: (path: string) => readFile(join(root, "mirror", path), "utf8"),
      ...world,
    };
  }

  test("opened_mirror_has_documents_and_results_that_are_not_empty", async () => {
    const { mirror, directory, read, tenantId, userId, sessionId, sessionRef } = await mirrored();
    await store.writeMemoryDocument(tenantId, sessionId, "session", "NOTES.md", "notes");
    await store.writeMemoryDocument(tenantId, sessionId, "session", "TODO.md", "");
    await store.writeMemoryDocument(tenantId, userId, "user", "USER.md", "user");
    await store.writeToolResultArtifact(sessionRef, "c1", "result");
    const report = await mirror.open({ tenantId, userId, sessionId, directory });
    expect(report).toEqual({ files: 3, failures: [] });
    expect([await read("session/NOTES.md"), await read("user/USER.md")]).toEqual(["notes", "user"]);
    expect(await read("session/tool-results/c1.txt")).toBe("result");
    expect((await readdir(join(directory, "session"))).sort()).toEqual(["NOTES.md", "tool-results"]);
  });

  test("every_write_of_the_host_reaches_the_mirror", async () => {
    const { mirror, directory, read, store, tenantId, userId, sessionId, sessionRef } = await mirrored();
    await mirror.open({ tenantId, userId, sessionId, directory });
    await store.writeMemoryDocument(tenantId, sessionId, "session", "NOTES.md", "a\n");
    await store.appendMemoryDocument(tenantId, sessionId, "session", "NOTES.md", "b\n");
    expect(await read("session/NOTES.md")).toBe("a\nb\n");
    await store.createTodoStorage(sessionRef).write("todo");
    expect(await read("session/TODO.md")).toBe("todo");
    await store.writeMemoryDocument(tenantId, userId, "user", "USER.md", "user");
    expect(await read("user/USER.md")).toBe("user");
    await store.writeToolResultArtifact(sessionRef, "a/b", "result");
    expect(await read("session/tool-results/a%2Fb.txt")).toBe("result");
    await store.appendMessages(tenantId, sessionId, long(8, 10));
    await store.compactIfNeeded(tenantId, sessionId, async () => "they talked", { triggerTokens: 1 });
    expect(await read("session/NOTES.md")).toContain("they talked");
  });

  test("concurrent_appends_end_with_the_newest_content_in_the_mirror", async () => {
    const { mirror, directory, read, store, tenantId, userId, sessionId } = await mirrored();
    await mirror.open({ tenantId, userId, sessionId, directory });
    const lines = Array.from({ length: 8 }, (_, index) => `${index}\n`);
    await Promise.all(
      lines.map((line) => store.appendMemoryDocument(tenantId, sessionId, "session", "NOTES.md", line)),
    );
    expect(await read("session/NOTES.md")).toBe(
      await store.readMemoryDocument(tenantId, sessionId, "session", "NOTES.md"),
    );
  });

  test("users_document_reaches_all_open_sessions_of_the_user_and_no_others", async () => {
    const { mirror, store, tenantId, userId, sessionId } = await mirrored();
    const second = await store.getOrCreate(tenantId, userId, "helper");
    const others = await store.getOrCreate(tenantId, "eve", "helper");
    const open = (session: string, user: string) =>
      mirror.open({ tenantId, userId: user, sessionId: session, directory: join(root, session) });
    await Promise.all([open(sessionId, userId), open(second.sessionId, userId), open(others.sessionId, "eve")]);
    await store.writeMemoryDocument(tenantId, userId, "user", "USER.md", "tea");
    for (const session of [sessionId, second.sessionId]) {
      expect(await readFile(join(root, session, "user/USER.md"), "utf8")).toBe("tea");
    }
    await expect(stat(join(root, others.sessionId, "user/USER.md"))).rejects.toThrow("ENOENT");
  });

  test("content_refreshed_during_the_snapshot_is_not_replaced_by_older_content", async () => {
    const { tenantId, userId, sessionId } = await session();
    let mirror: MemoMirror;
    const provider: SandboxMemoProvider = Object.assign(Object.create(store), {
      readMemoryDocument: async (_tenant: string, _owner: string, _scope: string, name: string) => {
        await mirror.refreshMemoMirror(sessionId, `/workspace/memo/session/${name}`, "newer");
        return "older";
      },
    });
    mirror = new MemoMirror(provider);
    await mirror.open({ tenantId, userId, sessionId, directory: root });
    expect(await readFile(join(root, "session/NOTES.md"), "utf8")).toBe("newer");
  });

  test("item_that_cannot_be_read_is_reported_and_the_rest_is_written", async () => {
    const { tenantId, userId, sessionId, sessionRef } = await session();
    await store.writeToolResultArtifact(sessionRef, "good", "result");
    await store.writeToolResultArtifact(sessionRef, "bad", "result");
    const provider: SandboxMemoProvider = Object.assign(Object.create(store), {
      readToolResultArtifact: (reference: string, id: string) =>
        id === "bad" ? Promise.reject(new Error("no")) : store.readToolResultArtifact(reference, id),
    });
    const report = await new MemoMirror(provider).open({ tenantId, userId, sessionId, directory: root });
    expect(report.failures.map((failure) => failure.path)).toEqual(["/workspace/memo/session/tool-results/bad.txt"]);
    expect(await readdir(join(root, "session/tool-results"))).toEqual(["good.txt"]);
  });

  test("closed_mirror_is_removed_and_refreshes_do_nothing", async () => {
    const { mirror, directory, store, tenantId, userId, sessionId } = await mirrored();
    await mirror.open({ tenantId, userId, sessionId, directory });
    await mirror.close(sessionId);
    await store.writeMemoryDocument(tenantId, sessionId, "session", "NOTES.md", "late");
    await expect(stat(directory)).rejects.toThrow("ENOENT");
    await mirror.close(sessionId);
  });

  test("second_open_of_a_session_id_is_refused", async () => {
    const { mirror, directory, tenantId, userId, sessionId } = await mirrored();
    await mirror.open({ tenantId, userId, sessionId, directory });
    await failure(
      mirror.open({ tenantId: "other", userId, sessionId, directory: join(root, "2") }),
      "invalid_argument",
    );
  });

  test("followed_mirror_has_what_other_hosts_write", async () => {
    const { mirror, directory, read, tenantId, userId, sessionId, sessionRef } = await mirrored();
    await mirror.open({ tenantId, userId, sessionId, directory });
    // Written after the snapshot and before the stream.
    await store.writeMemoryDocument(tenantId, sessionId, "session", "TODO.md", "early");
    const controller = new AbortController();
    const followed = mirror.follow(store, sessionId, { signal: controller.signal });
    await expect.poll(() => read("session/TODO.md").catch(() => null)).toBe("early");
    await store.writeMemoryDocument(tenantId, sessionId, "session", "NOTES.md", "a");
    await expect.poll(() => read("session/NOTES.md").catch(() => null), { timeout: 20_000 }).toBe("a");
    await store.writeMemoryDocument(tenantId, userId, "user", "USER.md", "u");
    await expect.poll(() => read("user/USER.md").catch(() => null), { timeout: 20_000 }).toBe("u");
    await store.writeToolResultArtifact(sessionRef, "c1", "result");
    await expect.poll(() => read("session/tool-results/c1.txt").catch(() => null), { timeout: 20_000 }).toBe("result");
    await store.writeMemoryDocument(tenantId, sessionId, "session", "NOTES.md", "");
    await expect.poll(() => read("session/NOTES.md").catch(() => null), { timeout: 20_000 }).toBe("");
    controller.abort();
    await followed;
    await failure(mirror.follow(store, "not open", { signal: controller.signal }), "invalid_argument");
  });

  test("result_that_another_host_replaces_reaches_a_followed_mirror", async () => {
    const { mirror, directory, read, tenantId, userId, sessionId, sessionRef } = await mirrored();
    await store.writeToolResultArtifact(sessionRef, "c1", "first");
    await store.writeToolResultArtifact(sessionRef, "a/b", "same");
    await mirror.open({ tenantId, userId, sessionId, directory });
    const controller = new AbortController();
    const followed = mirror.follow(store, sessionId, { signal: controller.signal });
    const same = join(directory, "session/tool-results/a%2Fb.txt");
    const { ino } = await stat(same);
    await store.writeToolResultArtifact(sessionRef, "c1", "second");
    await expect.poll(() => read("session/tool-results/c1.txt"), { timeout: 20_000 }).toBe("second");
    expect((await stat(same)).ino).toBe(ino);
    // What a late refresh brings is older than what another host wrote.
    await mirror.refreshMemoMirror(sessionId, toolResultPath("c1"), "first");
    await mirror.refreshMemoMirror(sessionId, toolResultPath("a/b"), "older");
    expect([await read("session/tool-results/c1.txt"), await readFile(same, "utf8")]).toEqual(["second", "same"]);
    controller.abort();
    await followed;
  });

  test("open_that_fails_leaves_nothing_and_can_be_repeated", async () => {
    const { mirror, directory, tenantId, userId, sessionId } = await mirrored();
    await mkdir(directory);
    await writeFile(join(directory, "user"), "a file");
    await expect(mirror.open({ tenantId, userId, sessionId, directory })).rejects.toThrow("EEXIST");
    expect(await readdir(directory)).toEqual(["user"]);
    await rm(join(directory, "user"));
    await mirror.open({ tenantId, userId, sessionId, directory });
    await mirror.close(sessionId);
  });

  test("close_removes_what_was_placed_and_nothing_else", async () => {
    const { mirror, directory, store, tenantId, userId, sessionId, sessionRef } = await mirrored();
    await mkdir(join(directory, "session/mine"), { recursive: true });
    await writeFile(join(directory, "README.md"), "mine");
    await store.writeToolResultArtifact(sessionRef, "c1", "result");
    await mirror.open({ tenantId, userId, sessionId, directory });
    await store.writeMemoryDocument(tenantId, userId, "user", "USER.md", "user");
    await store.writeMemoryDocument(tenantId, sessionId, "session", "NOTES.md", "notes");
    await mirror.close(sessionId);
    expect((await readdir(directory, { recursive: true })).sort()).toEqual(["README.md", "session", "session/mine"]);
  });

  test("close_that_fails_leaves_the_mirror_open", async () => {
    const { mirror, directory, read, store, tenantId, userId, sessionId } = await mirrored();
    await mirror.open({ tenantId, userId, sessionId, directory });
    await store.writeMemoryDocument(tenantId, sessionId, "session", "NOTES.md", "notes");
    await store.writeMemoryDocument(tenantId, sessionId, "session", "TODO.md", "todo");
    await rm(join(directory, "session/TODO.md"));
    await mkdir(join(directory, "session/TODO.md"));
    await expect(mirror.close(sessionId)).rejects.toThrow();
    await store.writeMemoryDocument(tenantId, sessionId, "session", "NOTES.md", "later");
    expect(await read("session/NOTES.md")).toBe("later");
    await rmdir(join(directory, "session/TODO.md"));
    await mirror.close(sessionId);
    await expect(stat(directory)).rejects.toThrow("ENOENT");
  });

  test("directory_of_another_session_is_refused", async () => {
    const { mirror, directory, store, tenantId, userId, sessionId } = await mirrored();
    const second = await store.getOrCreate(tenantId, userId, "helper");
    await mirror.open({ tenantId, userId, sessionId, directory });
    const other = { tenantId, userId, sessionId: second.sessionId, directory: join(directory, "../mirror") };
    await failure(mirror.open(other), "invalid_argument");
    await mirror.close(sessionId);
    await mirror.open(other);
  });

  test("paths_outside_the_mount_are_refused", async () => {
    const { mirror, directory, tenantId, userId, sessionId } = await mirrored();
    await mirror.open({ tenantId, userId, sessionId, directory });
    for (const path of [
      "/etc/passwd",
      "/workspace/memo/session/../../../x",
      "/workspace/memo/../x",
      "/workspace/memo/other/x",
      "/workspace/memo/session",
      "/workspace/memo/session/",
      "/workspace/memo/session/a\u0000b",
      "/workspace/memo/session/..\\x",
      "NOTES.md",
      "",
    ]) {
      await failure(mirror.refreshMemoMirror(sessionId, path, "x"), "invalid_argument");
    }
    const user = mirror.refreshUserMemoMirrorForAllSessions(tenantId, userId, "../../x", "x");
    await failure(user, "invalid_argument");
    expect(await readdir(root)).toEqual(["mirror"]);
  });

  test("failing_mirror_does_not_fail_the_write", async () => {
    const { tenantId, sessionId } = await session();
    const errors: unknown[] = [];
    const reason = new Error("no sandbox");
    const mirror = {
      refreshMemoMirror: () => Promise.reject(reason),
      refreshUserMemoMirrorForAllSessions: () => Promise.reject(reason),
    };
    const mirrored = new TreeholdSessionStore(client(), { mirror, onMirrorError: (error) => errors.push(error) });
    await mirrored.writeMemoryDocument(tenantId, sessionId, "session", "NOTES.md", "written");
    expect(await store.readMemoryDocument(tenantId, sessionId, "session", "NOTES.md")).toBe("written");
    expect(errors).toEqual([reason]);
  });

  test("ids_of_tool_calls_become_one_file_name_each", () => {
    const ids = ["c1", "a/b", "a%2Fb", "a\nb", "../x", "é"];
    const paths = ids.map(toolResultPath);
    expect(new Set(paths).size).toBe(ids.length);
    for (const path of paths) {
      expect(path.split("/")).toHaveLength(6);
    }
  });
});
