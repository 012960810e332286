#!/usr/bin/env python3
"""Measures what a read costs over HTTP, with wrk: a file of a thread, and a file of a store, beside `/livez`.

    scripts/requests.py target/release/treehold                          # one program
    scripts/requests.py --rounds 5 BEFORE/treehold AFTER/treehold        # two versions of it, in turns
    scripts/requests.py --empty target/release/deps/serve-HASH PROGRAM   # and an empty axum handler, which the bench `serve` contains

Each program serves a fresh SQLite store with the built-in configuration. Prints medians of the rounds: the p50 of one connection and the
requests a second of many, with their ratios to `/livez` of the same program. Exits 1 if any answer was an error.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import urllib.request

PATHS = {"/livez": "/livez", "file of a thread": "/v1/threads/conversation/fs/notes.md", "file of a store": "/v1/fs/memories/notes.md"}
UNITS = {"us": 1.0, "ms": 1e3, "s": 1e6}


def measured(url: str, connections: int, seconds: int) -> tuple[float, float]:
    """Returns the median time of an answer in microseconds, and the requests a second."""
    command = ["wrk", f"-t{min(connections, 2)}", f"-c{connections}", f"-d{seconds}s", "--latency", url]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    if "Non-2xx" in told or "Socket errors" in told:
        sys.exit(f"answers of {url} failed:\n{told}")
    median = re.search(r"50%\s+([\d.]+)(us|ms|s)", told)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", told)
    assert median and rate, told
    return float(median[1]) * UNITS[median[2]], float(rate[1])


def served(program: str, arguments: argparse.Namespace, seen: dict[str, list[tuple[float, float]]]) -> None:
    """Measures one program once."""
    with tempfile.TemporaryDirectory() as home:
        environment = os.environ | {"HOME": home, "TREEHOLD_DATA": f"{home}/data"}
        command = [os.path.abspath(program), "serve", "--listen", "127.0.0.1:0"]
        if program == arguments.empty:
            command, environment["TREEHOLD_SERVE_EMPTY"] = command[:1], "1"
        with subprocess.Popen(command, cwd=home, env=environment, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout
                base = server.stdout.readline().strip().removesuffix("/mcp")
                base = base if base.startswith("http") else f"http://{base}"
                paths = {"empty handler": "/empty"} if program == arguments.empty else PATHS
                for name, path in paths.items():
                    if path.startswith("/v1/"):
                        request = urllib.request.Request(base + path, data=b"a note of some words\n" * 10, method="PUT")
                        urllib.request.urlopen(request).close()
                    one, _ = measured(base + path, 1, arguments.seconds)
                    _, many = measured(base + path, arguments.connections, arguments.seconds)
                    seen.setdefault(name, []).append((one, many))
            finally:
                server.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="+", metavar="PROGRAM")
    parser.add_argument("--empty", help="the bench `serve`, whose empty handler is measured too")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--connections", type=int, default=64)
    arguments = parser.parse_args()
    programs = arguments.programs + ([arguments.empty] if arguments.empty else [])
    seen: dict[str, dict[str, list[tuple[float, float]]]] = {program: {} for program in programs}
    for _ in range(arguments.rounds):
        for program in programs:
            served(program, arguments, seen[program])
    for program, by_name in seen.items():
        print(program)
        median = {name: [statistics.median(column) for column in zip(*times)] for name, times in by_name.items()}
        base = median.get("/livez")
        for name, (one, many) in median.items():
            ratios = f"  {one / base[0]:.1f} ×, 1 : {base[1] / many:.1f}" if base else ""
            print(f"  {name:<17} one connection {one:>5.0f} µs  {arguments.connections} connections {many:>7,.0f}/s{ratios}")


if __name__ == "__main__":
    main()
