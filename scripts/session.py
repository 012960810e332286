#!/usr/bin/env python3
"""Records a terminal session as docs/pictures/session.svg, or with --check fails if the picture is out of date.

The commands below run in an empty directory with the program that the environment variable TREEHOLD names (target/debug/treehold).
"""
import os
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
PICTURE = TOP / "docs/pictures/session.svg"
COMMANDS = """
# What one conversation notes, another finds.
echo "The theme colour is #FD5108." | treehold --thread monday write /memories/AGENTS.md
treehold --thread friday grep colour /memories

# A plan belongs to its conversation. Every change is a checkpoint.
printf '1. measure\\n2. cut\\n3. sand\\n' | treehold --thread monday write /plan.md
treehold --thread monday thread fork tuesday --quiet > fork
treehold --thread monday edit /plan.md '1. measure' '1. measure twice'
treehold --thread tuesday edit /plan.md '3. sand' '3. sand and oil'

# Bring the fork back: different lines merge by themselves.
treehold --thread monday thread merge tuesday --quiet
treehold --thread monday cat /plan.md
treehold --thread monday cat /plan.md --at ~2
"""
BACKGROUND, INK, PROMPT, COMMENT = "#16202b", "#e6edf3", "#7ee0a3", "#8b9bab"
SIZE, LINE, MARGIN, BAR = 13, 19, 18, 30


def recorded(treehold):
    """Returns `(text, color, is_command)` of each line that a terminal would show."""
    lines = []
    with tempfile.TemporaryDirectory() as work:
        environment = {
            "PATH": f"{treehold.parent}:{os.environ['PATH']}",
            "HOME": work,
            "TREEHOLD_DATA": f"{work}/data",
        }
        for command in COMMANDS.strip().splitlines():
            if not command or command.startswith("#"):
                lines.append((command, COMMENT, False))
                continue
            done = subprocess.run(["bash", "-euo", "pipefail", "-c", command], cwd=work, env=environment, capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"session: `{command}` exits with {done.returncode}: {done.stderr}")
            # A fork prints the id of its checkpoint, which differs each time.
            lines.append((command.removesuffix(" > fork").replace(" --quiet", ""), INK, True))
            lines += [(line, INK, False) for line in done.stdout.splitlines()]
    return lines


def drawn(lines):
    columns = max(len(text) + 2 * is_command for text, _, is_command in lines)
    width, height = 2 * MARGIN + round(columns * SIZE * 0.602), BAR + LINE * len(lines) + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, \'DejaVu Sans Mono\', monospace" font-size="{SIZE}">',
        "<title>A terminal session: two conversations share a memory, and one is forked and merged</title>",
        f'<rect width="{width}" height="{height}" rx="9" fill="{BACKGROUND}"/>',
        *[f'<circle cx="{20 + 18 * number}" cy="16" r="5.5" fill="{color}"/>' for number, color in enumerate(("#e5695e", "#e5b94e", "#5fb85f"))],
    ]
    for number, (text, color, is_command) in enumerate(lines):
        y = BAR + LINE * number + 16
        prompt = f'<tspan fill="{PROMPT}">$ </tspan>' if is_command else ""
        if text:
            parts.append(f'<text x="{MARGIN}" y="{y}" fill="{color}" xml:space="preserve">{prompt}{escape(text)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main():
    treehold = Path(os.environ.get("TREEHOLD") or TOP / "target/debug/treehold").resolve()
    picture = drawn(recorded(treehold))
    if "--check" in sys.argv:
        if not PICTURE.exists() or PICTURE.read_text() != picture:
            sys.exit("docs/pictures/session.svg is out of date; run scripts/session.py")
        return
    PICTURE.write_text(picture)


main()
