#!/usr/bin/env node
"use strict";
// Runs the program of the package for this platform, which npm installs beside this one.
const { spawn } = require("node:child_process");

const name = `@treehold/cli-${process.platform}-${process.arch}`;

function fail(message) {
  console.error(`treehold: ${message}`);
  process.exit(6);
}

function program() {
  try {
    return require.resolve(`${name}/treehold`);
  } catch {
    return fail(`the package ${name} is not installed; reinstall treehold with optional dependencies, or build it with cargo`);
  }
}

const child = spawn(program(), process.argv.slice(2), { stdio: "inherit" });
child.on("error", (error) => fail(error.message));
// A terminal sends Ctrl-C to both processes; whoever ends this one alone means the program.
process.on("SIGINT", () => process.stdin.isTTY || child.kill("SIGINT"));
for (const signal of ["SIGTERM", "SIGHUP"]) process.on(signal, () => child.kill(signal));
child.on("exit", (code, signal) => {
  if (signal) {
    process.removeAllListeners(signal);
    process.kill(process.pid, signal);
  } else {
    process.exit(code);
  }
});
