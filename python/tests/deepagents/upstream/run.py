"""Runs deepagents' own tests twice, with its own backends behind a wall and with ours, and compares.

    python run.py CHECKOUT [-- arguments for pytest]

CHECKOUT is a checkout of github.com/langchain-ai/deepagents; its tests should be of the installed version of deepagents,
because both its texts and its tests change between versions. Every test that passes behind the wall (`opaque.py`) has to
pass with our classes, except the choices in `choices.toml`. The exit code is 1 if another test fails, or if a choice is
stale: its test passes, or is no longer there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CHOICES_MAX = 20
"""The most tests that a documented choice may fail."""

Outcomes = dict[str, dict[str, Any]]


def main(arguments: list[str]) -> int:
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    package = Path(arguments[0]) / "libs" / "deepagents"
    if not (package / "tests" / "unit_tests").is_dir():
        print(f"{package} has no tests/unit_tests; pass a checkout of github.com/langchain-ai/deepagents", file=sys.stderr)
        return 2
    more = arguments[2:] if arguments[1:2] == ["--"] else arguments[1:]
    installed, tested = version("deepagents"), version_of(package)
    note = "" if installed == tested else ", so tests of texts that changed between them fail behind the wall too"
    print(f"deepagents {installed}, tests of {tested}{note}")
    theirs = outcomes_of(package, "opaque", more)
    ours = outcomes_of(package, "treehold", more)
    choices: dict[str, str] = tomllib.loads((HERE / "choices.toml").read_text())["choices"]
    return report(theirs, ours, choices, partial=bool(more))


def version_of(package: Path) -> str:
    project: dict[str, Any] = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    return str(project["version"])


def outcomes_of(package: Path, backends: str, more: list[str]) -> Outcomes:
    """Runs the tests in a process of their own and returns what became of each."""
    with tempfile.TemporaryDirectory() as directory:
        written = Path(directory) / "outcomes.json"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "plugin", "-p", "no:cacheprovider", "-p", "no:syrupy"]
        command += ["--no-header", "--tb=short", "--continue-on-collection-errors", "--timeout=120"]
        command += ["-o", "asyncio_default_fixture_loop_scope=function", f"--backends={backends}", f"--outcomes={written}"]
        command += more or ["tests/unit_tests"]
        path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
        ended = subprocess.run(command, cwd=package, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
        if not written.exists():
            raise SystemExit(f"the tests with {backends} backends did not run:\n{ended.stdout[-4000:]}\n{ended.stderr[-4000:]}")
        found: Outcomes = json.loads(written.read_text())
        print(f"{backends}: {ended.stdout.strip().splitlines()[-1]}")
        return found


def report(theirs: Outcomes, ours: Outcomes, choices: dict[str, str], *, partial: bool) -> int:
    passing = [test for test, entry in theirs.items() if entry.get("outcome") == "passed"]
    reaching = [test for test in passing if theirs[test].get("reached")]
    failing = [test for test in passing if ours.get(test, {}).get("outcome") != "passed"]
    unexpected = [test for test in failing if test not in choices]
    stale = [test for test in choices if test not in failing and (test in passing or not partial)]
    print(f"{len(passing)} tests pass behind the wall, {len(reaching)} of them reach a backend")
    print(f"{len(passing) - len(failing)} of them pass with ours, {len(reaching) - len(set(failing) & set(reaching))} that reach a backend")
    print(f"{len(failing) - len(unexpected)} fail by choice (at most {CHOICES_MAX})")
    for test in unexpected:
        print(f"\nFAILED {test}\n{ours.get(test, {}).get('message', 'did not run')}")
    for test in stale:
        print(f"\nSTALE CHOICE {test}: it passes, fails behind the wall, or is gone; remove it from choices.toml")
    return 1 if unexpected or stale or len(choices) > CHOICES_MAX else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
