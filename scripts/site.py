#!/usr/bin/env python3
"""Prepares the pages of the documentation for mdBook, and checks the site that it makes.

    site.py stage DIRECTORY     writes DIRECTORY/book.toml and DIRECTORY/src
    site.py check DIRECTORY     checks DIRECTORY/html

The chapters are those of docs/SUMMARY.md, which must name every page of docs/. A chapter may lie outside docs/, such as CONTRIBUTING.md.
A link to any other file of the repository leads to a copy of that file in the site, one to a directory to its README or a list of its files.

The check follows every link and fragment within the site, finds each chapter in the search index, and refuses whatever a browser would
load from elsewhere.
"""
import html
import json
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

TOP = Path(__file__).resolve().parent.parent
DOCS = TOP / "docs"
LINK = re.compile(r"(\]\()([^)\s]+)(\))|^(\[[^\]]+\]: )(\S+)()$", re.M)
PICTURES = {".svg", ".png"}
SOURCE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{name}</title>
<style>body {{ font: 14px/1.45 monospace; margin: 1rem }} pre {{ white-space: pre-wrap; tab-size: 4 }}</style></head>
<body><h1>{name}</h1><pre>{text}</pre></body></html>
"""


def fail(message):
    sys.exit(f"site: {message}")


def outside_fences(text):
    """Yields the parts of a page with whether each is prose."""
    prose, lines = True, []
    for line in text.splitlines(keepends=True):
        if line.lstrip().startswith("```"):
            if prose:
                yield "".join(lines), True
                lines = [line]
            else:
                yield "".join([*lines, line]), False
                lines = []
            prose = not prose
        else:
            lines.append(line)
    yield "".join(lines), prose


def chapters():
    """Returns where each chapter goes in the site, by its file."""
    summary = (DOCS / "SUMMARY.md").read_text()
    found = {}
    for target in re.findall(r"\]\(([^)]+)\)", summary):
        file = (DOCS / target).resolve()
        if not file.is_file():
            fail(f"docs/SUMMARY.md names {target}, which does not exist")
        if file in found:
            fail(f"docs/SUMMARY.md names {target} twice")
        place = file.relative_to(DOCS) if file.is_relative_to(DOCS) else file.relative_to(TOP)
        # A README is named after its directory: mdBook would make it the index of the directory.
        found[file] = Path(f"{place.parent}.md") if place.name == "README.md" and place.parent != Path() else place
    missing = [file.relative_to(TOP) for file in sorted(DOCS.rglob("*.md")) if file not in found and file.name != "SUMMARY.md"]
    if missing:
        fail(f"docs/SUMMARY.md lacks {', '.join(map(str, missing))}")
    return found


def relative(target, start):
    """Returns the path from a page to another file, both relative to the root of the site."""
    up = len(start.parent.parts)
    return "../" * up + target.as_posix()


class Stage:
    def __init__(self, out):
        self.out, self.src = out, out / "src"
        self.chapters = chapters()
        self.sources = {}

    def place(self, file):
        """Returns where a file of the repository is in the site."""
        if file in self.chapters:
            return self.chapters[file]
        if file != TOP and (file / "README.md").is_file():
            return self.place(file / "README.md")
        if file in (DOCS / "SUMMARY.md", TOP / "README.md"):
            return Path("index.md")
        if file.suffix in PICTURES:
            return file.relative_to(DOCS) if file.is_relative_to(DOCS) else Path("source") / file.relative_to(TOP)
        self.sources[file] = Path("source") / f"{file.relative_to(TOP)}.html"
        return self.sources[file]

    def rewritten(self, text, file, place):
        def link(match):
            before, target, after = [group for group in match.groups() if group is not None]
            path, hash_, fragment = target.partition("#")
            if not path or urlsplit(target).scheme:
                return match[0]
            named = (file.parent / unquote(path)).resolve()
            if not named.exists():
                fail(f"{file.relative_to(TOP)} links to {target}, which does not exist")
            there = self.place(named)
            if there.suffix in PICTURES:
                shutil.copyfile(named, self.made(there))
            return f"{before}{relative(there, place)}{hash_}{fragment}{after}"

        return "".join(LINK.sub(link, part) if is_prose else part for part, is_prose in outside_fences(text))

    def made(self, place):
        path = self.src / place
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def run(self):
        for old in (self.src, self.out / "html"):
            shutil.rmtree(old, ignore_errors=True)
        self.out.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(DOCS / "book.toml", self.out / "book.toml")
        for file, place in self.chapters.items():
            self.made(place).write_text(self.rewritten(file.read_text(), file, place))
        summary = (DOCS / "SUMMARY.md").read_text()
        self.made(Path("SUMMARY.md")).write_text(self.rewritten(summary, DOCS / "SUMMARY.md", Path("SUMMARY.md")))
        for file, place in self.sources.items():
            text = "\n".join(sorted(inside.name for inside in file.iterdir())) if file.is_dir() else file.read_text()
            self.made(place).write_text(SOURCE.format(name=html.escape(str(file.relative_to(TOP))), text=html.escape(text)))
        print(f"site: {len(self.chapters)} chapters, {len(self.sources)} sources")


class Page(HTMLParser):
    """The ids, links and loaded files of a page."""

    def __init__(self, file):
        super().__init__()
        self.ids, self.links, self.loads = set(), [], []
        self.feed(file.read_text())

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.ids.update(value for name, value in attrs.items() if name in ("id", "name") and value)
        if tag == "a" and attrs.get("href"):
            self.links.append(attrs["href"])
        if tag == "link" and attrs.get("href"):
            self.loads.append(attrs["href"])
        if tag in ("script", "img", "iframe", "source", "audio", "video", "embed") and attrs.get("src"):
            self.loads.append(attrs["src"])


def check(out):
    root = out / "html"
    pages = {file: Page(file) for file in sorted(root.rglob("*.html"))}
    faults, links = [], 0
    for file, page in pages.items():
        # The page for missing files is served at any depth, so its links begin at the root of a server.
        if file == root / "404.html":
            continue
        name = file.relative_to(root)
        faults += [f"{name} loads {target} from elsewhere" for target in page.loads if urlsplit(target).netloc]
        for target in page.links + [target for target in page.loads if not urlsplit(target).netloc]:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            links += 1
            there = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            if not there.is_file() or not there.is_relative_to(root):
                faults.append(f"{name} links to {target}, which is not in the site")
            elif parts.fragment and there.suffix == ".html" and unquote(parts.fragment) not in pages[there].ids:
                faults.append(f"{name} links to {target}, and nothing there has that id")
    for style in root.rglob("*.css"):
        faults += [f"{style.name} loads {url}" for url in re.findall(r"(?:@import|url\()\s*[\"']?(https?:[^\"')]+)", style.read_text())]
    indexes = list(root.glob("searchindex*.js"))
    if len(indexes) != 1:
        fail(f"{len(indexes)} search indexes")
    quoted = re.search(r"JSON\.parse\('(.*)'\)", indexes[0].read_text(), re.S)
    index = json.loads(re.sub(r"\\(['\\])", r"\1", quoted[1]))
    searched = {url.partition("#")[0] for url in index["doc_urls"]}
    for place in chapters().values():
        if place.with_suffix(".html").as_posix() not in searched:
            faults.append(f"the search does not find {place}")
    if faults:
        fail("\n".join(["faults:", *faults]))
    print(f"site: {len(pages)} pages, {links} links, {len(index['doc_urls'])} sections to search")


def main():
    command, out = sys.argv[1], Path(sys.argv[2]).resolve()
    Stage(out).run() if command == "stage" else check(out)


main()
