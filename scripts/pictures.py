#!/usr/bin/env python3
"""Draws the pictures of the documentation into docs/pictures/, or with --check fails if one is out of date."""
import sys
from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "docs/pictures"
INK, FAINT = "#1f2933", "#5f6b7a"
BLUE, GREEN, SAND, ROSE = "#dbe9f8", "#dcf1e1", "#f7ecd3", "#f6dfe3"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"


class Picture:
    def __init__(self, width, height, title):
        self.size, self.title, self.parts = (width, height), title, []

    def box(self, x, y, width, height, fill, *lines, mono=False):
        """Draws a box with centered lines; the first one is strong."""
        self.parts.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{fill}" stroke="{INK}"/>')
        top = y + height / 2 - 9 * (len(lines) - 1) + 5
        for number, line in enumerate(lines):
            self.text(x + width / 2, top + 18 * number, line, strong=number == 0, mono=mono and number == 0)

    def text(self, x, y, text, strong=False, mono=False, anchor="middle", fill=None):
        weight = ' font-weight="600"' if strong else ""
        family = f' font-family="{MONO}"' if mono else ""
        self.parts.append(f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{fill or (INK if strong else FAINT)}"{weight}{family}>{escape(text)}</text>')

    def arrow(self, x1, y1, x2, y2, dashed=False):
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(f'<path d="M{x1} {y1} L{x2} {y2}" fill="none" stroke="{INK}" stroke-width="1.4" marker-end="url(#head)"{dash}/>')

    def dot(self, x, y, fill):
        self.parts.append(f'<circle cx="{x}" cy="{y}" r="9" fill="{fill}" stroke="{INK}"/>')

    def svg(self):
        width, height = self.size
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
            f'font-family="{FONT}" font-size="13"><title>{escape(self.title)}</title>'
        )
        marker = (
            f'<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto-start-reverse">'
            f'<path d="M0 0 L10 5 L0 10 z" fill="{INK}"/></marker></defs>'
        )
        paper = f'<rect width="{width}" height="{height}" rx="10" fill="#ffffff"/>'
        return "\n".join([head, marker, paper, *self.parts, "</svg>"]) + "\n"


def tree():
    picture = Picture(760, 300, "An agent calls file tools on one tree; each path leads to its tier")
    picture.box(300, 20, 160, 44, BLUE, "agent", "ten file tools")
    picture.arrow(380, 64, 380, 96)
    picture.box(180, 98, 400, 44, "#ffffff", "one tree", "the longest matching path decides")
    columns = [
        ("/", BLUE, "state", "files of one conversation", "checkpoints, forks"),
        ("/memories", GREEN, "store", "rows of a database", "shared by all threads"),
        ("/workspace", SAND, "filesystem", "a directory of the host", "nothing outside it"),
        ("/peers/…", ROSE, "remote", "another server's tree", "over HTTP"),
    ]
    for number, (path, fill, *lines) in enumerate(columns):
        x = 15 + 185 * number
        picture.arrow(240 + 90 * number, 142, x + 87, 196)
        picture.text(x + 87, 190 - 12 * (number in (1, 2)), path, strong=True, mono=True, anchor="end" if number < 2 else "start")
        picture.box(x, 200, 175, 76, fill, *lines)
    return picture


def threads():
    picture = Picture(760, 220, "Checkpoints of two threads, a fork and a merge")
    picture.text(20, 55, "monday", strong=True, mono=True, anchor="start")
    picture.text(20, 165, "experiment", strong=True, mono=True, anchor="start")
    for start, end in ((150, 241), (250, 391), (400, 591)):
        picture.arrow(start + 9, 50, end, 50)
    for x, label in ((150, "write"), (250, "label: agreed"), (400, "edit"), (600, "merged")):
        picture.dot(x, 50, BLUE)
        picture.text(x, 28, label)
    picture.arrow(256, 57, 332, 152, dashed=True)
    picture.text(272, 115, "fork", anchor="end")
    picture.arrow(349, 160, 461, 160)
    for x, label in ((340, "same content"), (470, "sand and oil")):
        picture.dot(x, 160, GREEN)
        picture.text(x, 190, label)
    picture.arrow(478, 154, 593, 58, dashed=True)
    picture.text(566, 115, "merge by lines", anchor="start")
    picture.text(20, 212, "Each circle is a checkpoint. Threads share unchanged content.", anchor="start")
    return picture


def overlay():
    picture = Picture(760, 240, "An overlay keeps an agent's changes apart from the directory")
    picture.box(20, 95, 150, 50, BLUE, "agent", "reads and writes")
    picture.arrow(170, 120, 238, 120)
    picture.box(240, 85, 160, 70, "#ffffff", "/workspace", "what the agent sees", mono=True)
    picture.arrow(400, 105, 478, 62)
    picture.arrow(400, 135, 478, 178)
    picture.box(480, 30, 250, 60, GREEN, "changes", "in the store, one set per thread")
    picture.box(480, 150, 250, 60, SAND, "directory", "unchanged until you apply")
    picture.arrow(600, 90, 600, 148)
    picture.text(610, 124, "overlay apply", strong=True, mono=True, anchor="start")
    return picture


def server():
    picture = Picture(760, 270, "Clients of a team server, its stores, and a machine that dials in")
    for number, (name, how) in enumerate((("Claude Code", "MCP"), ("a program", "HTTP"), ("another treehold", "a remote route"))):
        y = 20 + 70 * number
        picture.box(20, y, 170, 50, BLUE, name, how)
        picture.arrow(190, y + 25, 298, 95 + 10 * (number - 1))
    picture.text(300, 50, "each client sends a token", anchor="start")
    picture.box(300, 60, 170, 70, "#ffffff", "treehold serve", "tenant and user", "come from the token", mono=True)
    picture.arrow(470, 95, 558, 62)
    picture.arrow(470, 105, 558, 138)
    picture.box(560, 35, 180, 55, GREEN, "store", "SQLite, PostgreSQL, …")
    picture.box(560, 115, 180, 55, SAND, "directories", "of the server's host")
    picture.box(300, 200, 170, 50, ROSE, "a laptop", "cannot be called")
    picture.arrow(385, 200, 385, 132)
    picture.text(395, 170, "serve --dial", mono=True, anchor="start", strong=True)
    return picture


def main():
    pictures = {"tree": tree, "threads": threads, "overlay": overlay, "server": server}
    drawn = {FOLDER / f"{name}.svg": draw().svg() for name, draw in pictures.items()}
    stale = [file for file, text in drawn.items() if not file.exists() or file.read_text() != text]
    if "--check" in sys.argv:
        for file in stale:
            print(f"docs/pictures/{file.name} is out of date; run scripts/pictures.py")
        sys.exit(1 if stale else 0)
    FOLDER.mkdir(exist_ok=True)
    for file in stale:
        file.write_text(drawn[file])


main()
