#!/usr/bin/env python3
"""Writes the reference pages that follow from the sources, or with --check fails if one is out of date.

docs/configuration.md lists every key that the types of src/config/ read, with their documentation. docs/errors.md lists every error kind
with its HTTP status and its exit code.
"""
import itertools
import re
import sys
import textwrap
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
COMMAND = "scripts/reference.py"
# The types that read themselves: what one writes for them.
WRITTEN = {"String": "text", "PathBuf": "path", "bool": "`true` or `false`", "LayerSettings": "any keys", "RouteIndex": "`\"none\"`, `\"trigram\"`, `\"words\"`, or a list"}
# A type that is read by hand: a value, or a table of another type.
TABLE_OR = {"HistoryConfig": ("`false`", "HistoryLimits")}
NUMBERS = {"usize", "u64", "u32", "u16", "f32", "f64"}
# What stands for the key of a map in a heading.
MAP_KEYS = {"stores": "NAME", "peers": "NAME", "routes": '"PATH"', "dial": "NAME"}


class Type:
    def __init__(self, kind, name, doc, attributes, body):
        self.kind, self.name, self.doc, self.attributes, self.body = kind, name, doc, attributes, body


def documented(text):
    """Yields `(documentation, attributes, rest of the line)` of each item of a body."""
    doc, attributes = [], []
    for line in text.splitlines():
        line = line.strip()
        if line.startswith("///"):
            doc.append(line[3:].strip())
        elif line.startswith("#["):
            attributes.append(line)
        elif line and not line.startswith("//"):
            yield " ".join(doc), " ".join(attributes), line
            doc, attributes = [], []


def types():
    """Returns the structs and enums of the workspace that are read from text, by name; those of src/config/ win."""
    found = {}
    for file in [*sorted((TOP / "crates").rglob("src/**/*.rs")), *sorted((TOP / "src/config").glob("*.rs"))]:
        head, lines = [], iter(file.read_text().splitlines())
        for line in lines:
            line = line.strip()
            item = re.fullmatch(r"pub (struct|enum) (\w+) \{", line)
            if item and any("Deserialize" in attribute for attribute in head):
                doc = " ".join(line[3:].strip() for line in head if line.startswith("///"))
                body = "\n".join(itertools.takewhile(lambda line: line.strip() != "}", lines))
                found[item[2]] = Type(item[1], item[2], doc, "\n".join(head), body)
            head = [*head, line] if line.startswith(("///", "#[")) else []
    return found


def plain(doc):
    """Removes the links of rustdoc."""
    doc = re.sub(r"\[(`[^`]+`)\](?:\([^)]*\))?", r"\1", doc)
    return re.sub(r"\[([^\]]+)\]\((?!http)[^)]*\)", r"\1", doc)


def renamed(name, attributes):
    case = re.search(r'rename_all = "(\w+)"', attributes)
    if case and case[1] == "lowercase":
        return name.lower()
    if case and case[1] == "snake_case":
        return re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()
    raise SystemExit(f"{COMMAND}: the variant {name} is read by the rule {case and case[1]}, which is not known here")


def variants(enum):
    return [(renamed(line.split(",")[0].split("(")[0].strip(), enum.attributes), doc) for doc, _, line in documented(enum.body)]


class Configuration:
    """The tables of the configuration, found from its root type."""

    def __init__(self):
        self.types, self.sections, self.beneath = types(), [], []
        self.table("Config", "")

    def written(self, type_, key, path, doc):
        """Returns what one writes for a type, and notes the tables beneath it."""
        outer = re.fullmatch(r"(Option|Vec|BTreeMap)<(?:String, )?(\w+)>", type_)
        if outer and outer[1] == "Option":
            return self.written(outer[2], key, path, doc)
        name = outer[2] if outer else type_
        if name in TABLE_OR:
            value, table = TABLE_OR[name]
            return f"{value} or a {self.written(table, key, path, doc)}"
        known = self.types.get(name)
        if outer and name == "String":
            return {"Vec": "list of texts", "BTreeMap": "table of texts"}[outer[1]]
        if known and known.kind == "struct" and name not in WRITTEN:
            inner = f"{path}.{key}" if path else key
            if outer and outer[1] == "BTreeMap":
                inner += f".{MAP_KEYS[key]}"
            self.beneath.append((name, f"[{inner}]" if outer and outer[1] == "Vec" else inner))
            return "table" if not outer else {"Vec": "list of tables", "BTreeMap": "tables by name"}[outer[1]]
        if known and known.kind == "enum" and not outer:
            return ", ".join(f'`"{value}"`' for value, _ in variants(known))
        if type_ in NUMBERS:
            return "number"
        if type_ == "String" and re.search(r"`\d+[smhd]`", doc):
            # An age is one of several ways to name a moment; the others are texts.
            return "text" if "checkpoint" in doc else "duration"
        if type_ in WRITTEN:
            return WRITTEN[type_]
        raise SystemExit(f"{COMMAND}: no rule for the type {type_} of `{key}`")

    def table(self, name, path):
        type_, rows, notes = self.types[name], [], []
        clean = path.strip("[]")
        is_optional = "default" in type_.attributes.partition("serde(")[2]
        for doc, attributes, line in documented(type_.body):
            field = re.fullmatch(r"(?:pub )?(\w+): (.+),", line)
            if "serde(skip)" in attributes or not field:
                continue
            rename = re.search(r'rename = "(\w+)"', attributes)
            key, doc = rename[1] if rename else field[1], plain(doc)
            value = self.written(field[2], key, clean, doc)
            if "serde(flatten)" in attributes:
                key = "…"
            required = not (is_optional or "default" in attributes or "flatten" in attributes or field[2].startswith("Option<"))
            rows.append((key, value, doc + (" Required." if required else "")))
            enum = self.types.get(re.sub(r"Option<(\w+)>", r"\1", field[2]))
            if enum and enum.kind == "enum":
                notes += [f'- `{key} = "{value}"`: {plain(doc)}' for value, doc in variants(enum)]
        self.sections.append((path, plain(type_.doc), rows, notes))
        beneath, self.beneath = self.beneath, []
        for table in beneath:
            self.table(*table)

    def page(self):
        lines = [INTRODUCTION]
        for path, doc, rows, notes in self.sections:
            if path:
                heading = f"[{path}]"
                lines += [f"## `{heading}`", "", *wrapped(doc), ""]
            else:
                lines += ["## Top level", ""]
            lines += ["| key | value | meaning |", "| --- | --- | --- |"]
            lines += [f"| `{key}` | {value} | {doc.replace('|', chr(92) + '|')} |" for key, value, doc in rows] + [""]
            if notes:
                lines += [line for note in notes for line in wrapped(note, "  ")] + [""]
        lines += ["## Environment", "", *wrapped(ENVIRONMENT), "", "| variable | option | meaning |", "| --- | --- | --- |"]
        args = (TOP / "src/cli/args.rs").read_text()
        for doc, attributes, line in documented(args):
            if variable := re.search(r'env = "(\w+)"', attributes):
                name = re.search(r"pub(?:\(\w+\))? (\w+):", line)[1].replace("_", "-")
                lines.append(f"| `{variable[1]}` | `--{name}` | {doc} |")
        return "\n".join(lines) + "\n"


INTRODUCTION = """# Configuration

<!-- Made by scripts/reference.py from the types of src/config/. -->

`treehold config init` writes a commented `treehold.toml` with every key and its default. `treehold
config check` checks a file, and `treehold config show` prints the settings in effect, each with its
origin.

- A file is used if `--config` or `TREEHOLD_CONFIG` names it, or if it is `treehold.toml` in the
  current directory and [was trusted](cli.md#the-cage).
- Relative paths begin at the directory of the file; `~/` is the home directory.
- An unknown key is an error with the line and, where one is close, the name that was meant.
- A duration is a number with a unit, at most `1000000d`: `30s`, `10m`, `24h`, `7d`.
- A template such as `{tenant}/{user}/memories` may contain `{tenant}`, `{user}`, `{agent}` and
  `{thread}`. See [who shares what](sharing.md).
- A secret is never in the file: `env:VARIABLE` and `file:PATH` say where it is.
"""

ENVIRONMENT = "An option wins over its variable, and both win over the file."


def wrapped(text, indent=""):
    return textwrap.wrap(text, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def arms(body):
    """Returns the numbers of the arms of a `match`, by variant; `_` is the rest."""
    found = {}
    for variants_, number in re.findall(r"([^,{]+)=> (\d+)", body):
        found.update(dict.fromkeys(re.findall(r"::(\w+)", variants_) or ["_"], number))
    return found


def errors():
    core = (TOP / "crates/core/src/error/mod.rs").read_text()
    wire = (TOP / "crates/core/src/wire/problem.rs").read_text()
    exits = (TOP / "src/cli/exit.rs").read_text()

    def codes(text):
        return dict(re.findall(r'Self::(\w+) => "(\w+)"', text))

    def body(text, name):
        return re.search(rf"pub enum {name} \{{\n(.*?)^\}}", text, re.M | re.S)[1]

    def part(text, start):
        """Returns the item that starts with a line, to the brace that closes it."""
        indent = re.search(rf"^( *){re.escape(start)}", text, re.M)[1]
        return text[text.index(start) :].partition(f"\n{indent}}}")[0]

    kinds = codes(part(core, "pub const fn code(self)"))
    status, exit_ = arms(part(wire, "fn status(kind: ErrorKind)")), arms(part(exits, "pub(crate) fn code(kind: ErrorKind)"))
    lines = [ERRORS_INTRODUCTION, "| code | meaning | what to do | HTTP | exit |", "| --- | --- | --- | --- | --- |"]
    for doc, _, line in documented(body(core, "ErrorKind")):
        kind = line.rstrip(",")
        meaning, action = split(doc, kind)
        lines.append(f"| `{kinds[kind]}` | {meaning} | {action} | {status[kind]} | {exit_.get(kind, exit_['_'])} |")
    of_request = part(wire, "impl RequestFault {")
    faults, numbers = codes(of_request), arms(part(of_request, "pub const fn status(self)"))
    lines += ["", "## Faults of an HTTP request", "", *wrapped(FAULTS), "", "| code | meaning | what to do | HTTP |", "| --- | --- | --- | --- |"]
    for doc, _, line in documented(body(wire, "RequestFault")):
        fault = line.rstrip(",")
        meaning, action = split(doc, fault)
        lines.append(f"| `{faults[fault]}` | {meaning} | {action} | {numbers[fault]} |")
    return "\n".join([*lines, "", ERRORS_END])


def split(doc, name):
    meaning, _, action = plain(doc).partition(". ")
    if not action:
        raise SystemExit(f"{COMMAND}: the documentation of {name} does not say what to do")
    return meaning.rstrip(".") + ".", action


ERRORS_INTRODUCTION = """# Errors

<!-- Made by scripts/reference.py from the types. -->

Every error has a stable code, the same on every road. Programs match on the code; the message is
for the reader and says what to do next.

| where | how an error arrives |
| --- | --- |
| the command line | a line on standard error, with `--json` an object with `code`, and the exit code |
| HTTP | a problem (RFC 9457) with `code`, `detail` and `may_have_effect`, and the status |
| MCP | a tool result with `isError` that starts with `error [code]:`, the record under `treehold/error` |
| Rust | `Error::kind`, an `ErrorKind` |
| Python | a class for each code, such as `treehold.NotFound`, with `code` and `path` |

`may_have_effect` says that a change may have been made although the call failed. Read before you
repeat such a change.
"""

FAULTS = "These concern the request, not the tree. Such a request had no effect itself."

ERRORS_END = """## Other exit codes

The command exits with 0 when it is done, 1 when nothing was found or compared files differ, 2 for
a usage error, and 129, 130 or 143 when SIGHUP, SIGINT or SIGTERM stopped it.
"""


def main():
    pages = {TOP / "docs/configuration.md": Configuration().page(), TOP / "docs/errors.md": errors()}
    stale = [page for page, text in pages.items() if not page.exists() or page.read_text() != text]
    if "--check" in sys.argv:
        for page in stale:
            print(f"{page.relative_to(TOP)} is out of date; run {COMMAND}")
        sys.exit(1 if stale else 0)
    for page in stale:
        page.write_text(pages[page])
        print(f"wrote {page.relative_to(TOP)}")


main()
