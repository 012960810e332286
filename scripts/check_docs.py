#!/usr/bin/env python3
"""Checks the text of the documentation.

Links and the headings they name must exist, and so must the files, tests, types and methods that code spans name. Prose wraps, tables
and lists are well formed, and design pages stay short.
"""
import re
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
WIDTH_MAX = 100
DESIGN_LINES_MAX = 130
ROOT_PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md", "packages/agentrail/README.md", "packages/java/README.md"]
PAGES = [*(TOP / page for page in ROOT_PAGES), *sorted((TOP / "docs").rglob("*.md"))]
STANDARD = {"BTreeMap"}
SOURCES = [folder for folder in (TOP / "src", TOP / "crates") if folder.is_dir()]


def prose(text):
    """Yields the numbered lines outside fenced blocks."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line


def anchors(page):
    """Returns the anchors of a page's headings, as GitHub makes them."""
    found = {}
    for _, line in prose(page.read_text()):
        if line.startswith("#"):
            heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line.lstrip("#").strip()).lower()
            anchor = re.sub(r"[^\w\- ]", "", heading).replace(" ", "-")
            found[anchor] = found.get(anchor, 0) + 1
    return {f"{anchor}-{number}" if number else anchor for anchor, count in found.items() for number in range(count)}


def faults(page):
    text = page.read_text()
    for number, line in prose(text):
        # Tables, link definitions, and lines of one or two code spans or addresses cannot be wrapped.
        words = re.sub(r"`[^`]*`", "code", line).split()
        wrappable = not re.match(r"\s*\||\[[^\]]+\]: |#|!\[", line) and len(words) > 2
        if len(line) > WIDTH_MAX and wrappable:
            yield number, f"is {len(line)} columns wide; wrap it at {WIDTH_MAX}"
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", line)):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            if not file.exists():
                yield number, f"links to {target}, which does not exist"
            elif anchor and file.suffix == ".md" and anchor not in anchors(file):
                yield number, f"links to {target}, and no heading there has that anchor"
    if page.parent.name == "design" and len(text.splitlines()) > DESIGN_LINES_MAX:
        yield 1, f"has over {DESIGN_LINES_MAX} lines; split it by subject"


def malformed_blocks(page):
    """Yields tables without a separator under their header, and list items that were joined to the one before."""
    text = page.read_text()
    if not text.endswith("\n"):
        yield len(text.splitlines()), "does not end with a line break"
    last, before = 0, 0
    for number, line in prose(text):
        if line.startswith("|"):
            # The second row of a table is its separator; no other row is one.
            is_second = last == number - 1 and before != number - 2
            if is_second != bool(re.fullmatch(r"\|[\s:|-]+\|", line)):
                yield number, "needs a row of dashes under the header of its table" if is_second else "has a misplaced row of dashes"
            last, before = number, last
            if re.search(r"\| --- \|", line) and not is_second:
                yield number, "joins several rows of a table"
        elif re.search(r"[.:] - [`A-Z]", line):
            yield number, "joins two list items; start a new line"


def stale_names(page, words, types):
    """Yields the code names that a page mentions but the code does not define."""
    for number, line in prose(page.read_text()):
        defined = re.match(r"\[(\w+)\]: ", line)
        if defined and defined[1] not in types:
            yield number, f"links to the type {defined[1]}, which no source defines"
        for span in re.findall(r"`([^`]+)`", line):
            if re.fullmatch(r"(src|crates|tests|scripts|examples|benches|fuzz|docs)/[\w./-]*", span):
                # Paths in the example trees are not in this repository.
                if not (TOP / span).exists() and not (page.parent / span).exists() and not span.startswith("fuzz/artifacts"):
                    yield number, f"names the file {span}, which does not exist"
            elif method := re.fullmatch(r"(?:\w+::)*([A-Z]\w+)::(\w+)", span):
                if method[1] not in STANDARD and (method[1] not in types or method[2] not in words):
                    yield number, f"names {span}, which no source defines"
            # Tests generated per engine end with the engine's name, and Prometheus appends `_total` to counters.
            elif (test := span.rpartition("::")[2]).count("_") >= 4 and re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)+", test):
                if test not in words and re.sub(r"_(on_[a-z]+|total)$", "", test) not in words:
                    yield number, f"names {span}, which no source defines"


def main():
    sources = "\n".join(file.read_text() for folder in (*SOURCES, TOP / "tests", TOP / "benches") for file in folder.rglob("*.rs"))
    words = set(re.findall(r"\w+", sources))
    types = set(re.findall(r"\b(?:struct|enum|trait|type) (\w+)", sources))
    count = 0
    for page in PAGES:
        # The changelog also names removed code.
        found = [*faults(page), *malformed_blocks(page), *(stale_names(page, words, types) if page.name != "CHANGELOG.md" else [])]
        for number, fault in found:
            print(f"{page.relative_to(TOP)}:{number} {fault}")
        count += len(found)
    sys.exit(1 if count else 0)


main()
