// Starts a treehold server for the tests and scripts of this package. TREEHOLD names the binary.

import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";

/** Returns the path of the binary. */
export function binary() {
  return resolve(process.env.TREEHOLD ?? "../../target/debug/treehold");
}

/** Makes a directory with an empty store, and the environment that leads the binary to it. */
export function freshStore() {
  const directory = mkdtempSync(join(tmpdir(), "treehold-agentrail-"));
  mkdirSync(join(directory, "tree"));
  const env = { ...process.env, TREEHOLD_DATA: join(directory, "data"), HOME: directory };
  return { directory, env, remove: () => rmSync(directory, { recursive: true, force: true }) };
}

/** Serves a store and waits for the address. `kill` ends the process without warning, `stop` as an operator would. */
export async function serve(store, options = []) {
  const child = spawn(
    binary(),
    ["serve", ...(options.includes("--listen") ? [] : ["--listen", "127.0.0.1:0"]), ...options],
    {
      cwd: join(store.directory, "tree"),
      env: store.env,
      stdio: ["ignore", "pipe", "pipe"],
    },
  );
  const said = [];
  child.stderr.on("data", (text) => said.push(text));
  const ended = new Promise((done) => child.once("close", done));
  const first = new Promise((done, failed) => {
    createInterface({ input: child.stdout }).once("line", done);
    child.once("error", failed);
    ended.then((code) => failed(new Error(`treehold serve ended with ${code}: ${said.join("")}`)));
  });
  const baseUrl = (await first).replace(/\/mcp$/, "");
  const end = async (signal) => {
    child.kill(signal);
    await ended;
  };
  return { baseUrl, kill: () => end("SIGKILL"), stop: () => end("SIGTERM") };
}
