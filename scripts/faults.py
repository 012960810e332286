"""Kills the embedded stores and fails them at their system calls, cuts their power, and fills their disk; see faults.sh.

A point is one system call of one kind, such as the N-th `pwrite64` of a thread. `strace` counts the calls of each thread
separately, and the first thread that reaches the number gets the fault. So the writer is tested in three phases with separate
counters: creating a store, opening one that a kill left behind, and writing to an open one.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request

import power

WRITES = ["openat", "write", "pwrite64", "writev", "pwritev", "ftruncate", "fallocate", "fsync", "fdatasync", "sync_file_range",
          "rename", "renameat", "renameat2", "mkdir", "mkdirat", "link", "linkat"]
READS = ["read", "pread64", "fstat", "newfstatat", "statx", "lseek", "getdents64", "unlink", "unlinkat", "flock"]
OTHERS = ["close", "fcntl", "mmap", "munmap", "msync", "fchmod", "access", "faccessat", "faccessat2", "readlink"]
# Acknowledgements go through `write`, so in an open store that call is killed but not failed.
FAULTS = [
    ("kill", WRITES + READS + OTHERS, "signal=SIGKILL:when={n}"),
    ("ENOSPC once", WRITES, "error=ENOSPC:when={n}"),
    ("ENOSPC from then on", WRITES, "error=ENOSPC:when={n}+"),
    ("EIO once", WRITES + READS, "error=EIO:when={n}"),
    ("EIO from then on", WRITES, "error=EIO:when={n}+"),
    # By then, who waits for the call does so.
    ("EIO once, late", ["sync_file_range"], "error=EIO:delay_enter=700000:when={n}"),
]
PHASES = {"create": 4, "open": 4, "write": 24}
PATIENCE = 180


def point_calls(engine, phase, fault, calls):
    """Returns the calls to test. Leaves out what docs/durability.md excludes: a failing read of sled's own while it opens, right after
    the same bytes were read successfully; the engine overwrites what it cannot read."""
    is_answer = phase == "write" and fault != "kill"
    is_recovery = engine.startswith("sled") and phase != "write" and fault.startswith("EIO")
    return [call for call in calls if not (is_answer and call == "write") and not (is_recovery and call == "pread64")]


class Writer:
    """One run of the writer under strace, with the lines that it printed."""

    def __init__(self, options, engine, phase, directory, seed, trace):
        self.lines, self.hung, self.traced = [], False, True
        command = [options.writer, "endure", engine, directory, str(seed), str(PHASES[phase])]
        if phase != "write":
            # Not with `--seccomp-bpf`, which drops injected signals.
            command = ["strace", "-f", *trace, *command]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        timer = threading.Timer(PATIENCE, self.give_up)
        timer.start()
        tracer = None
        try:
            for line in self.process.stdout:
                self.lines.append(line.strip())
                if line.strip() == "opened":
                    if phase == "write":
                        tracer = attach(self.process.pid, trace)
                        self.traced = tracer is not None
                    with contextlib.suppress(BrokenPipeError):
                        self.process.stdin.write("\n")
                        self.process.stdin.flush()
            self.process.wait()
        finally:
            timer.cancel()
            if tracer:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    tracer.wait(PATIENCE)
                tracer.kill()
                tracer.wait()

    def give_up(self):
        self.hung = True
        kill_children(self.process)
        self.process.kill()


def kill_children(process):
    for child in children(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def children(pid):
    with contextlib.suppress(FileNotFoundError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                yield from map(int, file.read().split())


def attach(pid, trace):
    tracer = subprocess.Popen(["strace", "-f", "-p", str(pid), *trace], stderr=subprocess.PIPE, text=True)
    for line in tracer.stderr:
        if "attached" in line:
            threading.Thread(target=tracer.stderr.read, daemon=True).start()
            return tracer
    return None


def enumerate_calls(options, engine, phase, template, work):
    """Returns how often each system call is made by the thread that uses it most, and the first call that concerns the store."""
    state, trace = os.path.join(work, "state"), os.path.join(work, "trace")
    copy(template, state)
    calls = ",".join(WRITES + READS + OTHERS)
    writer = Writer(options, engine, phase, state, 1, ["-o", trace, "-e", f"trace={calls}"])
    if "ended" not in writer.lines:
        sys.exit(f"{engine}, {phase}: the writer does not work under strace: {writer.lines}")
    counts, first, begun = collections.Counter(), {}, phase == "write"
    with open(trace, errors="replace") as file:
        for line in file:
            match = re.match(r"(\d+) +(\w+)\(", line)
            if not match:
                continue
            thread, call = match.groups()
            counts[thread, call] += 1
            begun = begun or state in line
            if begun:
                first.setdefault((thread, call), counts[thread, call])
    points = {}
    for (thread, call), start in first.items():
        low, high = points.get(call, (start, 0))
        points[call] = (min(low, start), max(high, counts[thread, call]))
    return points


def copy(template, state):
    shutil.rmtree(state, ignore_errors=True)
    if template:
        shutil.copytree(template, state)
    else:
        os.mkdir(state)


def try_point(options, engine, phase, fault, call, number, how, template, seed):
    """Returns the problem found at one point, and how often a line was acknowledged or failed."""
    with tempfile.TemporaryDirectory() as work:
        state = os.path.join(work, "state")
        copy(template, state)
        trace = ["-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:{how.format(n=number)}"]
        writer = Writer(options, engine, phase, state, seed, trace)
        lines = os.path.join(work, "lines")
        with open(lines, "w") as file:
            file.write("\n".join(writer.lines) + "\n")
        met = "ended" not in writer.lines or any(line.startswith("failed") for line in writer.lines)
        found = "met" if met else "passed"
        if not writer.traced:
            return "not traced", found, writer.lines
        if writer.hung:
            return "hung", found, writer.lines
        try:
            account = subprocess.run([options.writer, "account", engine, state, lines], capture_output=True, text=True, timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            return "hung at the next opening", found, writer.lines
        said = account.stdout.strip()
        if said == "OK lost=0 torn=0":
            return None, found, writer.lines
        if said.startswith("OK"):
            return f"lost or torn: {said}", found, writer.lines
        return f"not opened: {said or account.stderr.strip()[:300]}", found, writer.lines


# Power loss after a kill: it removes what the killed writer had not synced and the next process shows.

SYNCS = ["fsync", "fdatasync"]


def ended_calls(trace):
    """Yields the calls of a trace in the order in which they ended, and then those that did not."""
    begun = {}
    with open(trace, errors="replace") as file:
        for line in file:
            thread, _, call = line.strip().partition(" ")
            call = call.lstrip()
            if call.endswith("<unfinished ...>"):
                begun[thread] = call.removesuffix("<unfinished ...>").rstrip()
            elif match := re.match(r"<\.\.\. \w+ resumed>(.*)", call):
                yield begun.pop(thread, "") + match[1]
            else:
                yield call
    yield from begun.values()


def unsynced_writes(trace):
    """Returns, by file, the ranges that were written and not synced afterwards."""
    writes = collections.defaultdict(list)
    for call in ended_calls(trace):
        if match := re.match(r'pwrite64\(\d+<([^>]*)>, ""\.\.\., (\d+), (\d+)', call):
            writes[match[1]].append((int(match[3]), int(match[2])))
        elif match := re.match(r"(?:fsync|fdatasync)\(\d+<([^>]*)>\) += 0", call):
            writes.pop(match[1], None)
    return writes


def synced_before_an_answer(trace):
    """Returns the files that were synced before the first line of standard output."""
    synced = set()
    for call in ended_calls(trace):
        if call.startswith("write(1<"):
            break
        if match := re.match(r"(?:fsync|fdatasync)\(\d+<([^>]*)>", call):
            synced.add(match[1])
    return synced


def show(options, engine, state, trace):
    """Returns the lines that the next process shows, and the problem if it does not come that far. Kills that process."""
    command = ["strace", "-f", *trace, options.writer, "show", engine, state]
    shower = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    shown, problem, hung = [], None, threading.Event()

    def give_up():
        hung.set()
        kill_children(shower)
        shower.kill()

    timer = threading.Timer(PATIENCE, give_up)
    timer.start()
    try:
        for line in shower.stdout:
            if line == "ended\n":
                break
            shown.append(line)
        else:
            problem = "hung at the next opening" if hung.is_set() else "nothing is shown"
    finally:
        timer.cancel()
    # Kill it, since closing the store would sync everything.
    kill_children(shower)
    shower.wait(PATIENCE)
    return shown, problem


def problem_with(options, *arguments):
    """Returns what the writer finds to be wrong with what is left, if anything is."""
    try:
        found = subprocess.run([options.writer, *arguments], capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return "hung"
    said = found.stdout.strip()
    return None if said == "OK lost=0 torn=0" else said or found.stderr.strip()[:300]


def try_recovery(options, engine, call, number, template, seed):
    """Kills the writer before one of its syncs, opens the store, and then discards what nobody had synced when it was shown. Returns
    the problem, if any, and how many writes were not synced at the kill."""
    with tempfile.TemporaryDirectory() as work:
        state, trace, lines = (os.path.join(work, name) for name in ("state", "trace", "lines"))
        copy(template, state)
        calls = f"trace=pwrite64,{','.join(SYNCS)}"
        writer = Writer(options, engine, "write", state, seed,
                        ["-o", trace, "-y", "-s", "0", "-e", calls, "-e", f"inject={call}:signal=SIGKILL:when={number}"])
        if not writer.traced or writer.hung:
            return "hung" if writer.hung else "not traced", 0
        left = unsynced_writes(trace)
        shown, problem = show(options, engine, state, ["-o", trace, "-y", "-s", "0", "-e", f"trace=write,{','.join(SYNCS)}"])
        if problem or not shown:
            return problem or "nothing is shown", 0
        synced = synced_before_an_answer(trace)
        for file, ranges in left.items():
            if file not in synced and os.path.exists(file):
                with open(file, "r+b") as damaged:
                    for start, length in ranges:
                        damaged.seek(start)
                        damaged.write(bytes(length))
        with open(lines, "w") as file:
            file.writelines(shown)
        return problem_with(options, "account", engine, state, lines), sum(map(len, left.values()))


def all_recoveries(options, engine):
    """Tests every sync of an engine while it writes. Returns the number of failures."""
    bad, open_writes, tried = 0, 0, 0
    with tempfile.TemporaryDirectory() as work:
        template = os.path.join(work, "template")
        Writer(options, engine, "write", template, 0, ["-o", "/dev/null", "-e", "trace=none"])
        points = enumerate_calls(options, engine, "write", template, work)
        taken = [(call, number) for call in SYNCS if call in points for number in range(points[call][0], points[call][1] + 1)]
        for index, (call, number) in enumerate(spread(taken, options.points, options.seed)):
            problem, count = try_recovery(options, engine, call, number, template, index)
            tried, open_writes = tried + 1, open_writes + count
            if problem:
                bad += 1
                print(f"BAD {engine}, power lost after a kill before {call} {number}: {problem}", flush=True)
    print(f"{engine:16} {'write':7} {'kill, then power':20} {tried:5} points of {len(taken):5}, {open_writes:5} writes open", flush=True)
    if not open_writes:
        bad += 1
        print(f"BAD {engine}: no write was open at a kill, so nothing was tried", flush=True)
    return bad


# Power loss while a store is made: it also removes files and directories whose names were not synced.


def try_loss(options, engine, left, acknowledged):
    """Returns the problem with what is left after a number of batches were acknowledged."""
    try:
        return problem_with(options, "check", engine, left, str(acknowledged))
    finally:
        shutil.rmtree(left)


def all_losses(options, engine):
    """Cuts the power of a writer that makes a store: at each acknowledgement, when nothing is left but what was synced, and before each
    sync, when some of the rest is. Returns the number of failures."""
    bad, acknowledged, tried = 0, 0, []
    with tempfile.TemporaryDirectory() as work, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        work = os.path.realpath(work)
        state, trace = os.path.join(work, "state"), os.path.join(work, "trace")
        os.mkdir(state)
        command = [options.writer, "writer", engine, state, str(options.seed), str(PHASES["write"])]
        subprocess.run(["strace", "-f", *power.record(trace), *command], stdout=subprocess.DEVNULL, check=True, timeout=PATIENCE)
        disk, lottery = power.Disk(state), random.Random(options.seed)

        def cut(what, luck):
            left = os.path.join(work, f"left{len(tried)}")
            disk.rebuild(left, luck)
            tried.append((f"{what}, after batch {acknowledged}", pool.submit(try_loss, options, engine, left, acknowledged)))
            # Few copies exist at the same time.
            tried[-2 * options.jobs:][0][1].result()

        with open(trace) as file:
            lines = list(file)
        syncs = [at for at, line in enumerate(lines) if re.match(r"\d+ +(fsync|fdatasync)\(", line)]
        taken = set(spread(syncs, options.points, options.seed))
        for at, line in enumerate(lines):
            if at in taken:
                cut(f"names and sizes are left at line {at}", lambda kind: kind != "data")
                cut(f"some is left at line {at}", lambda _: lottery.random() < 0.5)
            if answer := disk.feed(line):
                acknowledged = int(answer)
                cut("what was synced is left", lambda _: False)
        for what, future in tried:
            if problem := future.result():
                bad += 1
                print(f"BAD {engine}, power lost while {what}: {problem}", flush=True)
        if unseen := disk.unseen():
            bad += 1
            print(f"BAD {engine}: the trace does not explain {os.path.relpath(unseen, state)}", flush=True)
    print(f"{engine:16} {'create':7} {'power':20} {len(taken):5} points of {len(syncs):5}, "
          f"{acknowledged:6} batches acknowledged", flush=True)
    return bad


def try_unfinished(options, engine, call, number):
    """Kills a writer that makes a store before one of its syncs, and cuts the power when the next process shows what it reads. Returns the
    problem with what was synced by then, if any, and whether the kill was met or passed."""
    with tempfile.TemporaryDirectory() as work:
        work = os.path.realpath(work)
        state, left, trace, lines = (os.path.join(work, name) for name in ("state", "left", "trace", "lines"))
        os.mkdir(state)
        writer = Writer(options, engine, "create", state, 0, [*power.record(trace), "-e", f"inject={call}:signal=SIGKILL:when={number}"])
        found = "passed" if "ended" in writer.lines else "met"
        if writer.hung:
            return "hung", found
        # The next process changes the files.
        disk, unseen = power.after_kill(trace, state)
        if unseen:
            return f"the trace does not explain {os.path.relpath(unseen, state)}", found
        shown, problem = show(options, engine, state, power.record(trace))
        if problem:
            return problem, found
        disk.restart()
        with open(trace) as file:
            # The first answer ends it.
            any(map(disk.feed, file))
        disk.rebuild(left, lambda _: False)
        with open(lines, "w") as file:
            file.writelines([*(f"{line}\n" for line in writer.lines), *shown])
        return problem_with(options, "account", engine, left, lines), found


def all_unfinished(options, engine):
    """Tests every sync of a writer that makes a store. Returns the number of failures."""
    bad, results = 0, collections.Counter()
    with tempfile.TemporaryDirectory() as work:
        points = enumerate_calls(options, engine, "create", None, work)
    syncs = [(call, number) for call in SYNCS if call in points for number in range(points[call][0], points[call][1] + 1)]
    taken = spread(syncs, options.points, options.seed)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for (call, number), (problem, found) in zip(taken, pool.map(lambda point: try_unfinished(options, engine, *point), taken)):
            results[found] += 1
            if problem:
                bad += 1
                print(f"BAD {engine}, power lost after a kill before {call} {number} of a new store: {problem}", flush=True)
    print(f"{engine:16} {'create':7} {'kill, then power':20} {len(taken):5} points of {len(syncs):5}, {results['met']:5} felt", flush=True)
    if not results["met"]:
        bad += 1
        print(f"BAD {engine}: no kill was felt while a store was made, so nothing was tried", flush=True)
    return bad


def spread(items, count, seed):
    if not count or count >= len(items):
        return items
    return [items[(index * len(items) + seed) // count % len(items)] for index in range(count)]


def all_points(options, engine):
    """Tests every point of an engine. Returns the number of failures."""
    bad = 0
    with tempfile.TemporaryDirectory() as work:
        template = os.path.join(work, "template")
        made = Writer(options, engine, "write", template, 0, ["-o", "/dev/null", "-e", "trace=none"])
        if "ended" not in made.lines:
            sys.exit(f"{engine}: no store can be made: {made.lines}")
        for phase in PHASES:
            source = None if phase == "create" else template
            points = enumerate_calls(options, engine, phase, source, work)
            for fault, calls, how in FAULTS:
                of_fault = [(call, number) for call in point_calls(engine, phase, fault, calls) if call in points
                            for number in range(points[call][0], points[call][1] + 1)]
                if not of_fault:
                    continue
                taken = spread(of_fault, options.points, options.seed)
                results = collections.Counter()
                with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
                    tried = {pool.submit(try_point, options, engine, phase, fault, call, number, how, source, index): (call, number)
                             for index, (call, number) in enumerate(taken)}
                    for future in concurrent.futures.as_completed(tried):
                        problem, found, lines = future.result()
                        results[found] += 1
                        results["acknowledged"] += sum(line.startswith("acknowledged") for line in lines)
                        if problem:
                            bad += 1
                            call, number = tried[future]
                            print(f"BAD {engine}, {phase}, {fault} at {call} {number}: {problem}", flush=True)
                            for line in lines[-6:]:
                                print(f"      {line[:400]}", flush=True)
                print(f"{engine:16} {phase:7} {fault:20} {len(taken):5} points of {len(of_fault):5}, {results['met']:5} felt, "
                      f"{results['acknowledged']:6} batches acknowledged", flush=True)
                if not results["met"]:
                    bad += 1
                    print(f"BAD {engine}, {phase}, {fault}: not one was felt, so nothing was tried", flush=True)
    return bad


# A full disk under the program.

CONFIG = """[stores.default]
url = "{url}"
[routes."/memories"]
type = "store"
store = "default"
namespace = "{{tenant}}/{{user}}/memories"
"""


def environment(home):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TREEHOLD_")}
    return {**kept, "TREEHOLD_DATA": home, "HOME": home}


def content(number):
    return f"{number} " * (40 + number * 37 % 900)


def place(number):
    return f"/memories/f{number}" if number % 3 == 0 else f"/f{number}"


class Serve:
    """Writes over HTTP."""

    def __init__(self, options, home):
        command = [options.program, "--config", "treehold.toml", "serve", "--listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(command, cwd=home, env=environment(home), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                        text=True)
        self.base = self.process.stdout.readline().strip().removesuffix("/mcp")
        self.is_up = bool(self.base)

    def ask(self, method, path, body=None):
        request = urllib.request.Request(f"{self.base}/v1/fs{path}", data=body, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()
        except OSError:
            return 0, b""

    def write(self, number):
        return self.ask("PUT", place(number), content(number).encode())[0] in (200, 201)

    def shows(self, number):
        status, body = self.ask("GET", place(number))
        return status == 200 and body == content(number).encode()


class Lines:
    """Writes through a program with one message per line."""

    def __init__(self, options, home, args):
        self.process = subprocess.Popen([options.program, "--config", "treehold.toml", *args], cwd=home, env=environment(home),
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.is_up = True

    def send(self, message):
        try:
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
            return json.loads(line) if line else None
        except (BrokenPipeError, ValueError):
            return None


class Run(Lines):
    def __init__(self, options, home):
        super().__init__(options, home, ["--jsonl", "run", "-"])

    def call(self, tool, arguments):
        answer = self.send({"tool": tool, "args": arguments})
        # A call whose thread could not be saved reports it.
        failed = answer is None or answer.get("is_error") is not False
        return None if failed else json.dumps(answer)

    def write(self, number):
        return self.call("write_file", {"path": place(number), "content": content(number)}) is not None

    def shows(self, number):
        shown = self.call("read_file", {"path": place(number)})
        return shown is not None and content(number).strip() in shown


class Mcp(Lines):
    def __init__(self, options, home):
        super().__init__(options, home, ["--thread", "default", "mcp"])
        client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "faults", "version": "1"}}
        self.is_up = self.send({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": client}) is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}) + "\n")
        self.calls = 0

    def call(self, tool, arguments):
        self.calls += 1
        answer = self.send({"jsonrpc": "2.0", "id": self.calls, "method": "tools/call", "params": {"name": tool, "arguments": arguments}})
        while answer is not None and answer.get("id") != self.calls:
            line = self.process.stdout.readline()
            answer = json.loads(line) if line else None
        if answer is None or "result" not in answer or answer["result"].get("isError"):
            return None
        return json.dumps(answer)

    write, shows = Run.write, Run.shows


# The store of a program by the engine.
URLS = {"sqlite": "sqlite:store.db", "sqlite-directory": "sqlite:store/", "sled": "sled:store.sled"}

DOORS = {"serve": Serve, "run": Run, "mcp": Mcp}


def remains(options, home, promised):
    """Returns what is wrong with the data written through an entry point, once there is space again."""
    for number in promised:
        found = subprocess.run([options.program, "--config", "treehold.toml", "--thread", "default", "cat", place(number)], cwd=home,
                               env=environment(home), capture_output=True, text=True, timeout=PATIENCE)
        if found.returncode != 0 or found.stdout != content(number):
            return f"{place(number)} was acknowledged or shown and is not there: {found.stderr.strip()[:300]}"
    return None


def level(options, engine, door, size_kib, index):
    """Fills a disk of a given size through an entry point, ends the program, frees space, and checks what was acknowledged."""
    with tempfile.TemporaryDirectory() as mount:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_kib}k", "tmpfs", mount], check=True)
        try:
            url = URLS[engine]
            with open(os.path.join(mount, "treehold.toml"), "w") as file:
                file.write(CONFIG.format(url=url))
            way = DOORS[door](options, mount)
            promised, failures, number = [], [], 0
            while way.is_up and len(failures) < 8 and number < 400:
                number += 1
                if way.write(number):
                    promised.append(number)
                else:
                    failures.append(number)
            # A thread that could not be saved keeps its changes in memory for the next save, and its own session shows them.
            rows = [number for number in failures if place(number).startswith("/memories/")]
            shown = [number for number in rows if way.is_up and way.shows(number)]
            died = way.process.poll()
            way.process.send_signal(signal.SIGKILL if index % 2 else signal.SIGTERM)
            if way.process.stdin:
                with contextlib.suppress(BrokenPipeError):
                    way.process.stdin.close()
            try:
                way.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                way.process.kill()
                way.process.wait()
                return "does not end", promised, failures
            way.process.stdout.close()
            if died is not None and died < 0:
                return f"died of signal {signal.Signals(-died).name}", promised, failures
            subprocess.run(["mount", "-o", "remount,size=1g", mount], check=True)
            return remains(options, mount, promised + shown), promised, failures
        finally:
            subprocess.run(["umount", "--lazy", mount], check=True)


def all_levels(options, engine):
    """Tests full disks of several sizes under every entry point. Returns the number of failures."""
    bad = 0
    low, high = (64, 6400) if engine == "sled" else (64, 2600)
    sizes = [low + (high - low) * index // max(1, options.levels - 1) // 4 * 4 for index in range(options.levels)]
    for door in DOORS:
        acknowledged = 0
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            tried = [(size, pool.submit(level, options, engine, door, size, index)) for index, size in enumerate(sizes)]
            for size, future in tried:
                problem, promised, _ = future.result()
                acknowledged += len(promised)
                if problem:
                    bad += 1
                    print(f"BAD {engine}, {door} on a disk of {size} KiB: {problem}", flush=True)
        print(f"{engine:16} {door:7} {'full disk':20} {len(sizes):5} sizes, {acknowledged:6} changes acknowledged", flush=True)
    return bad


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--writer", required=True)
    parser.add_argument("--program", required=True)
    for name in ("points", "levels", "jobs", "seed"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("engines", nargs="+", choices=[*URLS, *(f"{engine}-past" for engine in URLS)])
    options = parser.parse_args()
    options.writer, options.program = os.path.abspath(options.writer), os.path.abspath(options.program)
    bad = 0
    for engine in options.engines:
        if options.points >= 0:
            bad += all_points(options, engine)
            bad += all_recoveries(options, engine)
            if engine.startswith("sqlite"):
                # The others do not promise to survive it.
                bad += all_losses(options, engine)
                bad += all_unfinished(options, engine)
        if engine.endswith("-past"):
            # The disks are filled by programs, whatever the writer does.
            continue
        if options.levels and os.geteuid() == 0:
            bad += all_levels(options, engine)
        elif options.levels:
            print("only root may mount disks; their levels are left out", flush=True)
    print(f"{bad} bad" if bad else "nothing lost, torn or unopenable")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
