"""Runs the attacks of scripts/attacks.sh on one program, each beside steady reads of another tenant."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

PROGRAM = os.path.abspath(sys.argv[1])
SECONDS = float(os.environ.get("TREEHOLD_ATTACK_SECONDS", "15"))
ATTACKERS = 3


class Server:
    def __init__(self, *arguments):
        self.directory = tempfile.TemporaryDirectory()
        self.work = os.path.join(self.directory.name, "work")
        os.mkdir(self.work)
        home = self.directory.name
        self.environment = {"PATH": os.environ["PATH"], "HOME": home, "TREEHOLD_DATA": os.path.join(home, "data")}
        self.attacker = self.token("mallory")
        self.other = self.token("bob")
        command = [PROGRAM, "serve", "--listen", "127.0.0.1:0", "--tokens", *arguments]
        self.process = subprocess.Popen(
            command, cwd=self.work, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        line = self.process.stdout.readline()
        self.address = line.strip().removeprefix("http://").removesuffix("/mcp")
        self.put(self.other, "/v1/fs/memories/small", b"x")

    def token(self, user):
        command = [PROGRAM, "--tenant", user, "--user", user, "token", "create", "--access", "write"]
        done = subprocess.run(command, cwd=self.work, env=self.environment, capture_output=True, text=True, check=True)
        return max(re.findall(r"[\w.-]{20,}", done.stdout), key=len)

    def ask(self, token, method, path, body=b"", timeout=120.0, headers=None):
        connection = http.client.HTTPConnection(self.address, timeout=timeout)
        # Each attacker has its own thread, since changes of one thread wait for each other.
        own = {"Treehold-Thread": f"t{threading.get_ident()}"} if token == self.attacker and path != "/v1/memory" else {}
        all_headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", **own, **(headers or {})}
        try:
            connection.request(method, path, body, all_headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def put(self, token, path, content):
        status, body = self.ask(token, "PUT", path, content)
        assert status in (200, 201), (status, body)

    def tool(self, name, arguments, path="/mcp"):
        meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments, "_meta": meta}}
        headers = {
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": "2026-07-28",
            "Mcp-Method": "tools/call",
            "Mcp-Name": name,
        }
        return self.ask(self.attacker, "POST", path, json.dumps(message), headers=headers)

    def close(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.directory.cleanup()


def edits(server):
    server.put(server.attacker, "/v1/fs/memories/large", b"x" * (1 << 20) + b"<one>")
    pairs = [{"old": "<one>", "new": "<two>"}, {"old": "<two>", "new": "<one>"}]
    body = json.dumps({"edits": pairs * 100_000})
    return lambda: server.ask(server.attacker, "PATCH", "/v1/fs/memories/large", body)[0]


def dry_run(server):
    text = ["".join(f"{name} {number}\n" for number in range(60_000)) for name in ("old", "new")]
    server.put(server.attacker, "/v1/fs/memories/lines", text[0].encode())
    arguments = {"path": "/memories/lines", "edits": [{"oldText": text[0], "newText": text[1]}], "dryRun": True}
    return lambda: server.tool("edit_file", arguments)[0]


def marks(server):
    content = "".join(f"</memory{'_file' * count}>\n" for count in range(640))
    server.put(server.attacker, "/v1/fs/memories/AGENTS.md", content.encode())
    return lambda: server.ask(server.attacker, "GET", "/v1/memory")[0]


def patch(server):
    files = "".join(f"*** Add File: d/{number}\n+x\n" for number in range(100_000))
    body = json.dumps({"patch": f"*** Begin Patch\n{files}*** End Patch"})
    return lambda: server.ask(server.attacker, "POST", "/v1/tools/apply_patch", body)[0]


def directories(server):
    changes = [{"operation": "create_dir", "path": f"/{number}{'/d' * 1_900}"} for number in range(1_000)]
    body = json.dumps({"changes": changes})
    return lambda: server.ask(server.attacker, "POST", "/v1/apply", body)[0]


def expressions(server):
    for number in range(200):
        with open(os.path.join(server.work, f"{number}.txt"), "w") as file:
            file.write("some line of text that says nothing\n" * 100_000)
    body = json.dumps({"pattern": "nothing\\n.*\\n.*x", "regex": True, "multiline": True, "path": "/workspace"})
    def attack():
        def ask():
            try:
                server.ask(server.attacker, "POST", "/v1/grep", body)
            except (OSError, http.client.HTTPException):
                pass

        threads = [threading.Thread(target=ask, daemon=True) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return 0
    return attack


def slow_bodies(server):
    host, port = server.address.split(":")
    head = f"PUT /v1/fs/memories/slow HTTP/1.1\r\nHost: {server.address}\r\nAuthorization: Bearer {server.attacker}\r\nContent-Length: 99999\r\n\r\n"
    held = []
    def attack():
        while len(held) < 1_100:
            # Connections are limited for each address, so the attacker has another one than the other tenant.
            held.append(socket.create_connection((host, int(port)), timeout=10, source_address=("127.0.0.2", 0)))
            try:
                held[-1].sendall(head.encode())
            except OSError:
                pass
        for stream in held:
            try:
                stream.sendall(b"x")
            except OSError:
                pass
        time.sleep(0.2)
        return 0
    return attack


def turns(server):
    def attack():
        body = os.urandom(64 << 10)
        return server.ask(server.attacker, "PUT", f"/v1/fs/memories/{threading.get_ident()}", body)[0]
    return attack


def large_reads(server):
    server.put(server.attacker, "/v1/fs/memories/big", b"x" * (60 << 20))
    return lambda: server.ask(server.attacker, "GET", "/v1/fs/memories/big")[0]


def nothing(_):
    return lambda: time.sleep(0.1) or 0


def peaks(server):
    try:
        with open(f"/proc/{server.process.pid}/status") as status:
            found = dict(re.findall(r"(VmHWM|Threads):\s+(\d+)", status.read()))
        return int(found["VmHWM"]) >> 10, int(found["Threads"])
    except (OSError, KeyError):
        return 0, 0


def run(attack):
    server = Server("--tools", "reference") if attack is dry_run else Server()
    stop = threading.Event()
    ended = []
    try:
        act = attack(server)

        def attacking():
            while not stop.is_set():
                begun = time.monotonic()
                try:
                    status = act()
                except (OSError, http.client.HTTPException) as error:
                    status = type(error).__name__
                ended.append((status, time.monotonic() - begun))
                if isinstance(status, int) and status >= 400:
                    time.sleep(0.05)

        attackers = [threading.Thread(target=attacking, daemon=True) for _ in range(ATTACKERS)]
        for thread in attackers:
            thread.start()
        taken, failed, threads_max = [], 0, 0
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            begun = time.monotonic()
            try:
                status, _ = server.ask(server.other, "GET", "/v1/fs/memories/small", timeout=SECONDS)
                failed += status != 200
            except (OSError, http.client.HTTPException):
                failed += 1
            taken.append(time.monotonic() - begun)
            threads_max = max(threads_max, peaks(server)[1])
            time.sleep(0.01)
        stop.set()
        taken.sort()
        at = lambda part: taken[min(len(taken) - 1, int(len(taken) * part))] * 1_000
        how = sorted({str(status) for status, _ in ended}) or ["none ended"]
        longest = max((seconds for _, seconds in ended), default=SECONDS)
        print(
            f"  {attack.__name__:12} reads {len(taken):5}  failed {failed:4}  p50 {at(0.5):8.1f} ms  p99 {at(0.99):8.1f} ms  "
            f"peak {peaks(server)[0]:5} MiB  threads {threads_max:3}  attack {','.join(how)} in {longest:.1f} s",
            flush=True,
        )
    finally:
        server.close()


def main():
    known = [nothing, edits, dry_run, marks, patch, directories, expressions, slow_bodies, turns, large_reads]
    wanted = os.environ.get("TREEHOLD_ATTACKS", "").split()
    for attack in known:
        if not wanted or attack.__name__ in wanted:
            run(attack)


main()
