#!/usr/bin/env python3
"""Writes docs/python-reference.md: every public class and function of the Python package, from its stubs and sources.

    scripts/python_reference.py           writes the page
    scripts/python_reference.py --check   fails if the page differs from what would be written

Nothing is imported, so it needs neither the package nor what its integrations need.
"""
import argparse
import ast
import re
import sys
import textwrap
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
PACKAGES = TOP / "python"
PAGE = TOP / "docs" / "python-reference.md"
WIDTH = 100

MODULES = {
    "treehold": "Trees, stores, workspaces and sessions.",
    "treehold.errors": "The exceptions. `treehold` has all of them but those of traces, which `treehold.traces` has.",
    "treehold.traces": "[Traces](traces.md) of agents across devices.",
    "treehold.langgraph": "[LangGraph's](langgraph.md) store and checkpointer.",
    "treehold.deepagents": "The backends of deepagents: [coming from deepagents](coming-from-deepagents.md).",
    "treehold.langchain": "Middleware and a tool kit for LangChain.",
    "treehold.agentscope": "[agentscope's](agentscope-python.md) storage, workspace and files.",
    "treehold.openai_agents": "The tools of a session for the OpenAI Agents SDK.",
    "treehold.pydantic_ai": "The tools of a session for PydanticAI.",
    "treehold.anthropic": "Anthropic's memory tool on a tree.",
    "treehold.migrate": "[Moving in](python-migrate.md) and out.",
}

HEADER = """# Python reference

Every public class and function of the package `treehold`, with its signature. [Python](python.md)
is the guide. `scripts/python_reference.py` writes this page from the stubs.

A method that is marked *async* has a twin of the same name with an `a` in front, which takes the
same arguments and returns a coroutine. Classes whose constructor is not shown are returned by
methods.
"""


class Module:
    """A source of the package."""

    loaded = {}

    def __init__(self, name):
        base = PACKAGES / name.replace(".", "/")
        files = [base.with_suffix(".pyi"), base.with_suffix(".py"), base / "__init__.pyi", base / "__init__.py"]
        file = next((file for file in files if file.exists()), None)
        if file is None:
            raise LookupError(name)
        self.name = name
        self.is_package = file.stem == "__init__"
        self.tree = ast.parse(file.read_text(encoding="utf-8"))
        self.defined, self.imported, self.public = {}, {}, []
        self.scan(self.tree.body)

    @classmethod
    def of(cls, name):
        if name not in cls.loaded:
            cls.loaded[name] = cls(name)
        return cls.loaded[name]

    def scan(self, body):
        """Notes what statements define and import, also within `if TYPE_CHECKING`."""
        for node in body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                self.defined.setdefault(node.name, []).append(node)
            elif isinstance(node, ast.ImportFrom):
                source = self.source(node)
                self.imported.update({alias.asname or alias.name: (source, alias.name) for alias in node.names})
            elif isinstance(node, (ast.If, ast.Try)):
                self.scan(node.body)
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if isinstance(target, ast.Name):
                        self.defined.setdefault(target.id, []).append(node)
                        if target.id == "__all__":
                            self.public = ast.literal_eval(node.value)

    def source(self, node):
        if node.level == 0:
            return node.module
        parts = self.name.split(".")
        above = parts[: len(parts) - node.level + self.is_package]
        return ".".join([*above, *([node.module] if node.module else [])])

    def find(self, name):
        """Returns the module that defines a name, and its definitions; `None` for what is not of the package."""
        if name in self.imported and name not in self.defined:
            source, original = self.imported[name]
            if source.split(".")[0] != "treehold" or source == self.name:
                return None
            return Module.of(source).find(original)
        return (self, self.defined[name]) if name in self.defined else None

    def documented_aliases(self):
        """Yields type aliases with the text that follows them."""
        for node, after in zip(self.tree.body, self.tree.body[1:], strict=False):
            if isinstance(node, ast.AnnAssign) and isinstance(node.annotation, ast.Name) and node.annotation.id == "TypeAlias":
                yield node.target.id, ast.unparse(node.value), constant(after)


def constant(node):
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return node.value.value if is_text else None


def shown(text):
    """Drops the underscores of private names, and the quotes of forward references."""
    return re.sub(r"(?<![\w.])_(?=[A-Z])", "", re.sub(r"^'(.*)'$", r"\1", text))


def annotation(node):
    return shown(ast.unparse(node)) if node is not None else ""


def parameters(function, skip_first):
    """Returns the parameters of a function as they are written."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    written = []
    for index, (argument, default) in enumerate(zip(positional, defaults, strict=True)):
        if not (skip_first and index == 0):
            written.append(parameter(argument, default))
        if arguments.posonlyargs and index == len(arguments.posonlyargs) - 1:
            written.append("/")
    if arguments.vararg:
        written.append(f"*{parameter(arguments.vararg, None)}")
    elif arguments.kwonlyargs:
        written.append("*")
    written += [parameter(argument, default) for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    if arguments.kwarg:
        written.append(f"**{parameter(arguments.kwarg, None)}")
    return written


def parameter(argument, default):
    text = argument.arg
    if argument.annotation is not None:
        text += f": {annotation(argument.annotation)}"
    if default is not None:
        text += f" = {ast.unparse(default)}" if argument.annotation is not None else f"={ast.unparse(default)}"
    return text


def signature(name, written, returns):
    end = f") -> {returns}" if returns else ")"
    line = f"{name}({', '.join(written)}{end}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {each}," for each in written), end])


def decorators(function):
    return {ast.unparse(each).split("(")[0].split(".")[-1] for each in function.decorator_list}


def prose(text):
    """Wraps the text of a docstring. Doctests become blocks, and sections of arguments lists."""
    lines, blocks = textwrap.dedent(text).strip().splitlines(), []
    for line in lines:
        stripped = line.strip()
        kind = "code" if stripped.startswith((">>>", "...")) or (blocks and blocks[-1][0] == "code" and stripped) else "text"
        if not stripped:
            blocks.append(("gap", []))
        elif kind == "text" and (stripped.startswith("- ") or stripped in SECTIONS or in_section(blocks, line)):
            blocks.append(("item", [stripped]))
        elif blocks and blocks[-1][0] in {kind, "item"} and kind in {"text", "code"} and not (kind == "code" and blocks[-1][0] == "item"):
            blocks[-1][1].append(stripped)
        else:
            blocks.append((kind, [stripped]))
    return "\n".join(rendered(blocks)).strip()


SECTIONS = {"Args:", "Returns:", "Raises:", "Yields:"}


def in_section(blocks, line):
    """Whether a line begins an entry of a section, which is indented once."""
    texts = [block[1][0] for block in blocks if block[1]]
    begins = any(text in SECTIONS for text in texts)
    return begins and re.match(r"    \S", line) is not None


def rendered(blocks):
    is_section = False
    for kind, lines in blocks:
        if kind == "gap":
            yield ""
        elif kind == "code":
            yield "```python"
            yield from lines
            yield "```"
        else:
            text = " ".join(lines)
            if text in SECTIONS:
                is_section = True
                yield from ["", f"{'Arguments:' if text == 'Args:' else text}", ""]
                continue
            if kind == "item" and is_section:
                name, separator, rest = text.partition(": ")
                text = f"- `{name}`: {rest}" if separator and re.fullmatch(r"[\w*]+", name) else f"- {text}"
            yield wrapped(text)


def wrapped(text):
    indent = "  " if text.startswith("- ") else ""
    lines = textwrap.wrap(" ".join(text.split()), WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


def cell(text):
    return " ".join((text or "").split()).replace("|", "\\|")


PLAIN_BASES = {"Generic", "NamedTuple", "Protocol", "Sequence", "TypedDict"}
"""Bases that say nothing to a reader."""


class Class:
    """A public class, with what its private bases in the package add."""

    def __init__(self, module, node, public):
        self.node = node
        self.bases, self.attributes, self.properties, self.methods, self.constructors = [], [], [], {}, []
        self.has_fields = "dataclass" in decorators(node) or bool({"NamedTuple", "TypedDict"} & {ast.unparse(base) for base in node.bases})
        self.collect(module, node, public)

    def collect(self, module, node, public):
        for base in node.bases:
            name = ast.unparse(base).split("[")[0]
            found = module.find(name) if name.isidentifier() else None
            if found is not None and isinstance(found[1][0], ast.ClassDef) and found[1][0] not in public:
                self.collect(found[0], found[1][0], public)
            elif name not in PLAIN_BASES:
                package, original = module.imported.get(name, ("treehold", name))
                shown_base = f"`{original}`" if package.startswith("treehold") else f"`{original}` of {package.split('.')[0]}"
                if shown_base not in self.bases:
                    self.bases.append(shown_base)
        for statement, after in zip(node.body, [*node.body[1:], None], strict=True):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                self.attribute(statement, after)
            elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self.function(statement)

    def attribute(self, statement, after):
        name, kind = statement.target.id, annotation(statement.annotation)
        text = constant(after) if after is not None else None
        if not name.startswith("_") and (text is not None or self.has_fields):
            default = default_of(statement.value)
            self.attributes.append((name, re.sub(r"^ClassVar\[(.*)\]$", r"\1", kind), default, text))

    def function(self, function):
        name, marks = function.name, decorators(function)
        if name in {"__init__", "__new__"}:
            self.constructors.append(function)
        elif not name.startswith("_") and "setter" not in marks:
            if marks & {"property", "cached_property"}:
                self.properties.append((name, annotation(function.returns), "", ast.get_docstring(function)))
            elif "overload" in marks or name not in self.methods or "overload" not in decorators(self.methods[name][-1]):
                kept = [each for each in self.methods.get(name, []) if "overload" in decorators(each)] if "overload" in marks else []
                self.methods[name] = [*kept, function]

    def text(self):
        node = self.node
        yield f"### {node.name}"
        yield ""
        if self.bases:
            yield f"A subclass of {', '.join(self.bases)}."
            yield ""
        document = ast.get_docstring(node)
        if document:
            yield prose(document)
            yield ""
        if self.constructors:
            yield "```python"
            yield from (signature(node.name, parameters(each, True), "") for each in self.constructors)
            yield "```"
            yield ""
            for each in self.constructors:
                if ast.get_docstring(each):
                    yield prose(ast.get_docstring(each))
                    yield ""
        fields = [*self.attributes, *self.properties]
        if fields:
            has_defaults = any(default for _, _, default, _ in fields)
            yield "| attribute | type | default | |" if has_defaults else "| attribute | type | |"
            yield "| --- | --- | --- | --- |" if has_defaults else "| --- | --- | --- |"
            for name, kind, default, text in fields:
                value = f" {f'`{default}`' if default else ''} |" if has_defaults else ""
                kind = cell(kind)
                yield f"| `{name}` | `{kind}` |{value} {cell(text)} |".replace("`` |", " |")
            yield ""
        for name, functions in self.methods.items():
            if name.startswith("a") and name[1:] in self.methods:
                continue
            yield from method(name, functions, f"a{name}" in self.methods)


def default_of(value):
    if value is None:
        return ""
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "field":
        factory = next((each.value for each in value.keywords if each.arg == "default_factory"), None)
        made = shown(ast.unparse(factory)).partition("[")[0] if factory is not None else ""
        return {"": "", "list": "[]", "dict": "{}"}.get(made, f"{made}()")
    return ast.unparse(value)


def method(name, functions, has_twin, is_function=False):
    yield "```python"
    for function in functions:
        marks = decorators(function)
        prefix = "async " if isinstance(function, ast.AsyncFunctionDef) else ""
        if marks & {"staticmethod", "classmethod"}:
            prefix = f"{(marks & {'staticmethod', 'classmethod'}).pop()} {prefix}"
        yield signature(prefix + name, parameters(function, not is_function and "staticmethod" not in marks), annotation(function.returns))
    yield "```"
    yield ""
    document = next((ast.get_docstring(function) for function in functions if ast.get_docstring(function)), None)
    text = prose(document) if document else ""
    if has_twin:
        paragraphs = text.rpartition("\n\n")
        last = f"{paragraphs[2]} *async*: `a{name}`"
        is_plain = not paragraphs[2].startswith(("- ", "```"))
        text = f"{paragraphs[0]}{paragraphs[1]}{wrapped(last)}" if is_plain else f"{text}\n\n*async*: `a{name}`"
    if text:
        yield text
        yield ""


def section(name, introduction, anchors):
    module = Module.of(name)
    public = [each for each in module.public if not each.startswith("__")]
    classes, functions, aliases = [], [], []
    for each in public:
        found = module.find(each)
        if found is None or not found[1]:
            continue
        source, nodes = found
        if source.name == "treehold.errors" and name != "treehold.errors":
            continue
        if isinstance(nodes[0], ast.ClassDef):
            classes.append(Class(source, nodes[0], public_classes()))
        elif isinstance(nodes[0], (ast.FunctionDef, ast.AsyncFunctionDef)):
            functions.append((each, nodes))
        elif isinstance(nodes[0], ast.AnnAssign):
            aliases += [(alias, value, text) for alias, value, text in source.documented_aliases() if alias == each]
    yield f"## {name}"
    yield ""
    yield wrapped(introduction)
    yield ""
    links = ", ".join(f"[`{each.node.name}`](#{anchors.of(each.node.name)})" for each in classes if name != "treehold.errors")
    if links:
        yield wrapped(f"Classes: {links}.")
        yield ""
    if name == "treehold":
        aliases = [(shown(alias), value, text) for alias, value, text in Module.of("treehold._native").documented_aliases() if alias != "_Async"]
        yield "Names of types in the signatures of this section and of `treehold.traces`:"
        yield ""
    if aliases:
        yield "| name | type | |"
        yield "| --- | --- | --- |"
        for alias, value, text in aliases:
            yield f"| `{alias}` | `{cell(shown(value))}` | {cell(text)} |"
        yield ""
    if name == "treehold.errors":
        yield from errors(classes)
        return
    for each, nodes in functions:
        yield from method(each, nodes, has_twin=False, is_function=True)
    for each in classes:
        yield from each.text()


def errors(classes):
    base = next(each for each in classes if each.node.name == "Error")
    yield from base.text()
    yield "| class | `code` | also a | |"
    yield "| --- | --- | --- | --- |"
    codes = {}
    for each in classes:
        assigned = [node.value.value for node in each.node.body if isinstance(node, ast.Assign) and node.targets[0].id == "code"]
        codes[each.node.name] = assigned[0] if assigned else None
    for each in classes:
        if each is not base:
            parents = [name.strip("`") for name in each.bases]
            code = codes[each.node.name] or next((codes[parent] for parent in parents if codes.get(parent)), "")
            also = ", ".join(f"`{parent}`" for parent in parents if parent != "Error")
            yield f"| `{each.node.name}` | `{code}` | {also} | {cell(ast.get_docstring(each.node))} |"
    yield ""


class Anchors:
    """The anchors of headings, as GitHub makes them: a number tells those with one name apart."""

    def __init__(self):
        self.counts = {}

    def of(self, heading):
        anchor = re.sub(r"[^\w-]", "", heading.lower())
        count = self.counts.get(anchor, 0)
        self.counts[anchor] = count + 1
        return f"{anchor}-{count}" if count else anchor


def public_classes():
    """Returns what any module of the page shows."""
    found = (Module.of(module).find(name) for module in MODULES for name in Module.of(module).public)
    return {nodes[0] for source in found if source is not None for nodes in [source[1]]}


def written():
    anchors = Anchors()
    lines = [HEADER]
    lines.append("| module | |\n| --- | --- |")
    for name, introduction in MODULES.items():
        lines.append(f"| [`{name}`](#{name.replace('.', '')}) | {introduction} |")
    lines.append("")
    for name, introduction in MODULES.items():
        lines += section(name, introduction, anchors)
    text = "\n".join(lines)
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--check", action="store_true", help="fail if the page is not up to date")
    text = written()
    if arguments.parse_args().check:
        if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
            sys.exit(f"{PAGE.relative_to(TOP)} is not up to date; run scripts/python_reference.py")
    else:
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
