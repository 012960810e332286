"""The process: forks, signals, the end of the interpreter, and the command line."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import treehold


def is_blocked(process: int) -> bool:
    """Returns whether a process waits, as far as this system tells."""
    status = Path(f"/proc/{process}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "S"


def run(code: str, *, stop_after: str | None = None) -> tuple[int, str]:
    """Runs a program. If it prints `stop_after`, sends it SIGINT."""
    # Python warns of forks beside threads, and a child of ours opens its own.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said = ""
    assert process.stdout is not None
    if stop_after is not None:
        for line in process.stdout:
            said += line
            if stop_after in line:
                while not is_blocked(process.pid):
                    pass
                process.send_signal(signal.SIGINT)
                break
    try:
        rest, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, said + rest


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_child_of_a_fork_opens_its_own_and_leaves_its_parents_alone(tmp_path: Path) -> None:
    code = f"""
import asyncio, os, treehold
store = treehold.Store.open("sqlite:{tmp_path / 'a.db'}")
tree = treehold.StoreBackend(store, "f")
tree.write("/a", "parent")
session = treehold.Workspace.of({{}}, store=store).session(thread="t")
child = os.fork()
if child == 0:
    for use in (lambda: store.get("f", "k"), lambda: tree.read("/a"), lambda: session.call("ls"), lambda: session.read("/x")):
        try:
            use()
        except treehold.Unsupported as error:
            assert "forked" in error.message
        else:
            os._exit(9)
    del tree, session, store, use
    own = treehold.StoreBackend(treehold.Store.open("sqlite:{tmp_path / 'a.db'}"), "f")
    own.write("/b", own.read_text("/a") + " and child")
    assert asyncio.run(own.aread_text("/b")) == "parent and child"
    os._exit(0)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
assert tree.read_text("/b") == "parent and child"
tree.write("/c", "parent goes on")
print("done")
"""
    assert run(code) == (0, "done\n")


def test_interrupt_ends_a_blocked_call() -> None:
    code = """
import treehold
store = treehold.Store.open("memory:")
watch = store.watch("n")
try:
    print("waiting", flush=True)
    watch.changed()
except KeyboardInterrupt:
    print("interrupted")
assert not watch.changed(0)
"""
    assert run(code, stop_after="waiting") == (0, "waiting\ninterrupted\n")


def test_interrupt_ends_an_event_loop_that_waits() -> None:
    code = """
import asyncio, treehold
async def main():
    watch = await (await treehold.Store.aopen("memory:")).awatch("n")
    print("waiting", flush=True)
    await watch.achanged()
try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted")
"""
    assert run(code, stop_after="waiting") == (0, "waiting\ninterrupted\n")


def test_interpreter_ends_while_calls_run(tmp_path: Path) -> None:
    code = f"""
import asyncio, threading, treehold
store = treehold.Store.open("sqlite:{tmp_path / 'a.db'}")
tree = treehold.StoreBackend(store, "f")
watch = store.watch("f")
threading.Thread(target=watch.changed, daemon=True).start()
async def main():
    asyncio.ensure_future(watch.achanged())
    for number in range(100):
        asyncio.ensure_future(tree.awrite(f"/{{number}}", "x"))
    await asyncio.sleep(0)
asyncio.run(main())
print("done")
"""
    assert run(code) == (0, "done\n")


def test_module_runs_the_command_line() -> None:
    said = subprocess.run([sys.executable, "-m", "treehold", "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert treehold.__version__ in said.stdout
    wrong = subprocess.run([sys.executable, "-m", "treehold", "nonsense"], capture_output=True, text=True, timeout=60)
    assert wrong.returncode == 2 and "nonsense" in wrong.stderr


def test_command_line_and_package_share_a_store(tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path / "data")}
    command = [sys.executable, "-m", "treehold", "--json"]
    write = [*command, "write", "/memories/AGENTS.md", "The colour is red."]
    subprocess.run(write, check=True, env=environment, cwd=tmp_path, timeout=60, capture_output=True)
    read = subprocess.run([*command[:3], "cat", "/memories/AGENTS.md"], env=environment, cwd=tmp_path, timeout=60, capture_output=True, text=True)
    assert "The colour is red." in read.stdout


def test_main_returns_the_exit_code() -> None:
    assert treehold.main(["treehold", "--no-such-option"]) == 2


def test_interpreter_ends_while_a_thread_of_ours_runs_python_code() -> None:
    """Otherwise Python unwinds the thread once it asks for the interpreter's lock, and the process aborts."""
    code = """
import asyncio, threading, treehold

started = threading.Event()

class Busy(treehold.Backend):
    def stat(self, path):
        return treehold.Entry(path, size_bytes=1)

    def read(self, path):
        started.set()
        for _ in range(3_000_000):
            pass
        return b"x"

async def main():
    tree = treehold.read_only(Busy())
    reading = asyncio.ensure_future(tree.aread("/a"))
    await asyncio.to_thread(started.wait)
    return reading

asyncio.run(main())
print("done")
"""
    assert run(code) == (0, "done\n")


def test_call_that_has_to_wait_is_refused_once_the_interpreter_ends() -> None:
    # A function that was registered before the first import of treehold runs after what treehold does at the end.
    code = """
import asyncio, atexit

def at_exit():
    async def wait():
        watch = await store.awatch("n")
        await watch.achanged()

    try:
        asyncio.run(wait())
    except RuntimeError as error:
        print(error)

atexit.register(at_exit)
import treehold
store = treehold.Store.open("memory:")
"""
    assert run(code) == (0, "the interpreter is shutting down\n")
