#!/usr/bin/env python3
"""Draws which crates and modules import which, from the code.

`imports.py` prints the picture. `imports.py --write` puts it into docs/architecture.md, and `--check` fails where the page differs, where
crates or modules import each other in a circle, or where a crate holds too much of the code. Tests are left out. A name that the root of a
crate exports counts as an import of the module that defines it.
"""
import re
import sys
import tomllib
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
PAGE = TOP / "docs" / "architecture.md"
BEGIN, END = "<!-- imports: written by scripts/imports.py -->", "<!-- imports: end -->"
SHARE_MAX = 0.30


def code(file):
    """Returns the code of a file without comments and tests."""
    text = re.sub(r"(?m)//.*$", "", file.read_text())
    return re.split(r"\n#\[cfg\(test\)\]\s*\n(?:pub(?:\([a-z]+\))? )?mod \w+ \{", text)[0]


def is_test(file):
    return file.stem in ("tests", "laws") or file.stem.endswith("_laws") or "tests" in file.parts[len(TOP.parts):-1]


def crates():
    """Returns each crate's name, its sources and the crates of this workspace that it depends on."""
    found = {}
    for manifest in [TOP / "Cargo.toml", *sorted((TOP / "crates").glob("*/Cargo.toml"))]:
        table = tomllib.loads(manifest.read_text())
        uses = {name.removeprefix("treehold-") for name in table["dependencies"] if name.startswith("treehold-")}
        name = table["package"]["name"].removeprefix("treehold-")
        found[name] = (manifest.parent / "src", uses)
    return found


def exports(source):
    """Returns the names that the root of a crate exports from its modules, each with its module."""
    root = source / "lib.rs"
    text = code(root) if root.exists() else ""
    found = {}
    for module, names in re.findall(r"(?s)\bpub(?:\([a-z]+\))? use (?:self::|crate::)?(\w+)::([^;]+);", text):
        found.update({name: module for name in re.findall(r"\b[A-Za-z]\w*", names)})
    return found


def modules(source):
    """Returns the lines of each module of a crate, and which modules it imports."""
    lines, uses = {}, {}
    exported = exports(source)
    for file in sorted(source.rglob("*.rs")):
        relative = file.relative_to(source)
        module = relative.parts[0].removesuffix(".rs")
        if module in ("lib", "main", "bin"):
            module = "bin" if module == "bin" else "lib"
        lines[module] = lines.get(module, 0) + len(file.read_text().splitlines())
        if not is_test(file):
            text = code(file)
            names = set(re.findall(r"\bcrate::(\w+)", text))
            for group in re.findall(r"\bcrate::\{([^;]*)\};", text):
                # Of a nested group, the first word of each entry.
                names |= set(re.findall(r"(?:^|,)\s*(\w+)", re.sub(r"::\{[^}]*\}", "", group)))
            # `super` as often as the module is deep leads to the root of the crate.
            depth = len(relative.parts) - (file.stem == "mod")
            names |= {name for ups, name in re.findall(r"\b((?:super::)+)(\w+)", text) if ups.count("super") == depth}
            for ups, group in re.findall(r"\b((?:super::)+)\{([^}]*)\}", text):
                names |= set(re.findall(r"\w+", group)) if ups.count("super") == depth else set()
            uses.setdefault(module, set()).update(exported.get(name, name) for name in names)
    return lines, {module: names & set(lines) - {module} for module, names in uses.items()}


def levels(uses):
    """Sorts groups into rows, what imports nothing first. A group is one name, or several that import each other in a circle."""
    reach = {}
    for name in uses:
        seen, ahead = set(), [name]
        while ahead:
            new = uses.get(ahead.pop(), set()) - seen
            seen |= new
            ahead += new
        reach[name] = seen
    group_of = {name: tuple(sorted({name} | {other for other in reach[name] if name in reach[other]})) for name in uses}
    left = {group: {group_of[other] for name in group for other in uses[name]} - {group} for group in set(group_of.values())}
    rows = []
    while left:
        row = sorted(group for group, needs in left.items() if not needs & set(left))
        rows.append(row)
        for group in row:
            del left[group]
    return rows


def picture():
    faults, text = [], []
    all_crates = crates()
    sizes = {name: sum(len(file.read_text().splitlines()) for file in source.rglob("*.rs")) for name, (source, _) in all_crates.items()}
    total = sum(sizes.values())
    rows = levels({name: uses for name, (_, uses) in all_crates.items()})[::-1]
    faults += [f"crates import each other: {', '.join(group)}" for row in rows for group in row if len(group) > 1]
    rows = [[name for group in row for name in group] for row in rows]
    text += ["A crate imports only from rows beneath its own. The figures are shares of the code's lines. In a", "crate, modules import from what stands before the arrow.", "", "```text"]
    for row in rows:
        text.append("   ".join(f"{name} {round(100 * sizes[name] / total)} %" for name in row))
    text += ["```", ""]
    for name, size in sizes.items():
        if size > SHARE_MAX * total:
            faults.append(f"the crate {name} holds {round(100 * size / total)} % of the code")
    for name in [name for row in rows for name in row]:
        source, _ = all_crates[name]
        _, uses = modules(source)
        uses = {module: names - {"lib"} for module, names in uses.items() if module not in ("lib", "bin")}
        if len(uses) < 2:
            continue
        rows = levels(uses)
        faults += [f"modules of {name} import each other: {', '.join(group)}" for row in rows for group in row if len(group) > 1]
        row_of = lambda row: ", ".join(" ↔ ".join(f"`{module}`" for module in group) for group in row)
        text.append(f"- `{name}`: " + " ← ".join(row_of(row) for row in rows))
    return "\n".join(wrapped(text)), faults


def wrapped(lines):
    """Wraps list entries at the width of the documentation."""
    for line in lines:
        if not line.lstrip().startswith("- "):
            yield line
            continue
        while len(line) > 100:
            at = line.rfind(" ", 0, 101)
            yield line[:at]
            line = "  " + line[at + 1:]
        yield line


def main():
    text, faults = picture()
    page = PAGE.read_text()
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    whole = f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"
    if "--write" in sys.argv:
        PAGE.write_text(whole)
    elif "--check" in sys.argv:
        if whole != page:
            faults.append("docs/architecture.md shows other imports: run scripts/imports.py --write")
    else:
        print(text)
    for fault in faults:
        print(fault, file=sys.stderr)
    sys.exit(1 if faults else 0)


main()
