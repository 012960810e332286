#!/usr/bin/env python3
"""Measures large files through `treehold serve`: the time of a download, of parts, and the peak memory of the server.

    cargo build --release --all-features --bin treehold
    scripts/large-files.py target/release/treehold [--mib 400] [--rounds 5] [--together 12] [--at memories|thread]

It starts the program on a fresh SQLite store in a temporary directory, and puts a file there by appending. It prints medians, and
the memory (VmHWM of Linux, set back before each) beyond what the server used before.
"""

import argparse
import concurrent.futures
import http.client
import os
import statistics
import subprocess
import tempfile
import time

MIB = 1 << 20

arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
arguments.add_argument("program")
arguments.add_argument("--mib", type=int, default=400)
arguments.add_argument("--rounds", type=int, default=5)
arguments.add_argument("--together", type=int, default=12, help="how many whole downloads at once; 0 for none")
arguments.add_argument("--at", choices=["memories", "thread"], default="memories")
arguments = arguments.parse_args()

directory = tempfile.TemporaryDirectory()
environment = {"PATH": os.environ["PATH"], "HOME": directory.name, "XDG_DATA_HOME": directory.name}


def serve():
    command = [os.path.abspath(arguments.program), "serve", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(command, cwd=directory.name, env=environment, stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().strip().split("/")[2]


def request(method, body=None, headers=None):
    path = "/v1/fs/memories/large" if arguments.at == "memories" else "/v1/threads/t/fs/large"
    connection = http.client.HTTPConnection(address, timeout=600)
    connection.request(method, path, body=body, headers=headers or {})
    answer = connection.getresponse()
    read = 0
    while part := answer.read(MIB):
        read += len(part)
    connection.close()
    assert answer.status < 300, (method, answer.status)
    return read


def memory(kind):
    with open(f"/proc/{server.pid}/status") as status:
        return int(next(line for line in status if line.startswith(kind)).split()[1]) // 1024


def measured(what, act, expected, rounds=arguments.rounds):
    times, peaks = [], []
    for _ in range(rounds):
        with open(f"/proc/{server.pid}/clear_refs", "w") as clear:
            clear.write("5")
        before, started = memory("VmRSS"), time.monotonic()
        assert act() == expected, what
        times.append(time.monotonic() - started)
        peaks.append(memory("VmHWM") - before)
    print(f"{what:38} {statistics.median(times):9.3f} s  {min(times):9.3f} to {max(times):.3f}  peak +{max(peaks)} MiB", flush=True)


def at_once(count, **options):
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return sum(pool.map(lambda _: request("GET", **options), range(count)))


server, address = serve()
size = arguments.mib * MIB
block = os.urandom(MIB)
piece = min(32, arguments.mib)
request("PUT", body=block * piece)
written = piece
while written < arguments.mib:
    more = min(32, arguments.mib - written)
    request("POST", body=block * more)
    written += more
# A new process: nothing of the file is in its memory.
server.terminate()
server.wait()
server, address = serve()
request("GET", headers={"Range": "bytes=0-0"})
try:
    last = {"Range": f"bytes={size - 10}-{size - 1}"}
    measured("ten bytes at the end", lambda: request("GET", headers=last), 10)
    measured("twelve times ten bytes at once", lambda: at_once(12, headers=last), 120)
    measured("4 MiB at the end", lambda: request("GET", headers={"Range": f"bytes={size - 4 * MIB}-{size - 1}"}), 4 * MIB)
    measured(f"{arguments.mib} MiB", lambda: request("GET"), size)
    if arguments.together:
        measured(f"{arguments.together} times {arguments.mib} MiB at once", lambda: at_once(arguments.together), arguments.together * size, 1)
finally:
    server.terminate()
    server.wait()
