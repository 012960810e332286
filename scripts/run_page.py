#!/usr/bin/env python3
"""Runs the commands of a page of the documentation, in order, in the current directory.

    run_page.py PAGE

- A block `sh` is run by one shell for the whole page, which stops at the first command that fails.
- A block `text` directly after it is what the commands print to standard output. Ids of checkpoints are shown as `ID`.
- A block `toml FILE` is saved as that file.

Whatever the commands leave running is ended.
"""
import difflib
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$\n?", re.M | re.S)
ID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
SECONDS_MAX = 300


def steps(page):
    """Returns `(language, content, output)` of each block that is run or saved; output is None where the page shows none."""
    found, last_end = [], None
    for match in BLOCK.finditer(page):
        language, content = match[1], match[2]
        if language == "sh" or re.fullmatch(r"toml \S+", language):
            found.append([language, content, None])
        elif language == "text" and last_end is not None and not page[last_end : match.start()].strip():
            found[-1][2] = content
        last_end = match.end() if language == "sh" else None
    return found


def main():
    page = Path(sys.argv[1])
    found = steps(page.read_text())
    with tempfile.TemporaryDirectory() as outputs:
        script = []
        for number, (language, content, _) in enumerate(found):
            if language == "sh":
                script.append(f"exec > {shlex.quote(f'{outputs}/{number}')}\n{content}")
            else:
                script.append(f"cat > {shlex.quote(language.split()[1])} <<'END OF FILE'\n{content}END OF FILE\n")
        Path(outputs, "script").write_text("\n".join(script))
        # A process group of its own, so that everything it started can be ended.
        shell = subprocess.Popen(["bash", "-euo", "pipefail", f"{outputs}/script"], stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            code = shell.wait(SECONDS_MAX)
        except subprocess.TimeoutExpired:
            code = f"still running after {SECONDS_MAX} s"
        finally:
            try:
                os.killpg(shell.pid, signal.SIGTERM)
            except ProcessLookupError:
                pass
        for number, (_, content, output) in enumerate(found):
            printed = Path(outputs, str(number))
            text = ID.sub("ID", printed.read_text()) if printed.exists() else ""
            if output is not None and printed.exists() and text != output:
                print(f"{page}: these commands print something else:\n{content}")
                sys.exit("\n".join(difflib.unified_diff(output.splitlines(), text.splitlines(), "the page", "printed", lineterm="")))
        if code != 0:
            ran = [content for number, (_, content, _) in enumerate(found) if Path(outputs, str(number)).exists()]
            sys.exit(f"{page}: exit {code} in\n{ran[-1] if ran else ''}")


main()
