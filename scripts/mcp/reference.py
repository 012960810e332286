"""Compares `treehold mcp --tools reference` with the npm reference filesystem server: each call on a fresh copy of one tree.

Usage: reference.py WORK_DIRECTORY TREEHOLD NPM_SERVER...
Both servers see the tree at the same path, one after the other, so that results can be compared byte for byte.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

FILES = {
    "plain.txt": b"one\ntwo\nthree\nfour\nfive\n",
    "no-end.txt": b"one\ntwo",
    "crlf.txt": b"one\r\ntwo\r\nthree\r\n",
    "empty.txt": b"",
    "bom.txt": b"\xef\xbb\xbfbom\n",
    "latin.txt": b"caf\xe9\n",
    "emoji \xf0\x9f\x8e\x89.txt".encode("latin-1").decode("utf-8"): "naïve 🎉\n".encode(),
    "fence.md": b"text\n```sh\nls\n```\nend\n",
    "indent.py": b"class A:\n    def f(self):\n        return 1\n\n    def g(self):\n        return 2\n",
    "twice.txt": b"same\nother\nsame\n",
    "big.txt": b"".join(b"line %d\n" % n for n in range(500)),
    "kb.bin": bytes(range(256)) * 6,
    "logo.png": b"\x89PNG\r\n\x1a\n\0\0",
    "tune.MP3": b"ID3\0",
    "Upper.txt": b"u",
    "_under.txt": b"_",
    ".hidden": b"h",
    "a1.txt": b"1",
    "A2.txt": b"22",
    "a10.txt": b"333",
    "sub/inner.txt": b"inner\n",
    "sub/deep/er/leaf.md": b"leaf\n",
    "sub/node_modules/pkg/index.js": b"x\n",
    "sub/.hid/config": b"c\n",
    "other/leaf.md": b"leaf\n",
}
DIRECTORIES = ["hollow", "sub/hollow"]


def calls(root):
    """The calls, as (tool, arguments)."""
    root = str(root)
    p = lambda name: f"{root}/{name}"
    for tool in ("read_file", "read_text_file"):
        for name in [*FILES, "none.txt", "sub", "none/none.txt", "plain.txt/beneath", "sub/../plain.txt", "./plain.txt", "sub/"]:
            yield tool, {"path": p(name)}
        for name in ("plain.txt", "no-end.txt", "crlf.txt", "empty.txt", "big.txt", "none.txt", "sub", "latin.txt"):
            for key in ("head", "tail"):
                for count in (0, 1, 2, 5, 6, 400, 1000, -1, 1.5):
                    yield tool, {"path": p(name), key: count}
        yield tool, {"path": p("plain.txt"), "head": 1, "tail": 1}
        yield tool, {"path": p("plain.txt"), "head": 0, "tail": 1}
        for path in ("/etc/passwd", "/", root + "-evil/x", f"{root}/../x", "C:\\x", "c:/x", "C:", "plain.txt", "sub/inner.txt", "../x", ""):
            yield tool, {"path": path}
        for wrong in ({}, {"path": 7}, {"path": None}, {"path": p("plain.txt"), "head": "1"}, {"path": [], "tail": True}):
            yield tool, wrong
        yield tool, {"path": p("plain.txt"), "unknown": 1}
    for name in ("logo.png", "tune.MP3", "kb.bin", "plain.txt", "empty.txt", "none.png", "sub"):
        yield "read_media_file", {"path": p(name)}
    yield "read_multiple_files", {"paths": [p("plain.txt"), p("none.txt"), p("sub"), "/etc/passwd", p("no-end.txt")]}
    yield "read_multiple_files", {"paths": [p("plain.txt")]}
    for wrong in ({"paths": []}, {}, {"paths": "x"}, {"paths": [1, p("plain.txt")]}):
        yield "read_multiple_files", wrong
    for name in ("plain.txt", "new.txt", "sub/new.txt", "none/new.txt", "none/none/new.txt", "sub", "plain.txt/x", "crlf.txt"):
        yield "write_file", {"path": p(name), "content": "written\r\nü"}
    yield "write_file", {"path": "relative.txt", "content": ""}
    yield "write_file", {"path": "/etc/none", "content": ""}
    yield "write_file", {"path": p("plain.txt")}
    edits = [
        ("plain.txt", [("two", "2")]),
        ("plain.txt", [("two\nthree", "2\n3\n4")]),
        ("plain.txt", [("one", "1"), ("five", "5")]),
        ("plain.txt", [("  two  ", "  2")]),
        ("plain.txt", [("missing", "x")]),
        ("plain.txt", [("two", "two")]),
        ("plain.txt", [("two\n", "")]),
        ("plain.txt", [("", "x")]),
        ("plain.txt", [("one\ntwo\nthree\nfour\nfive\n", "")]),
        ("plain.txt", [("five\n", "five")]),
        ("no-end.txt", [("two", "2")]),
        ("no-end.txt", [("two", "two\n")]),
        ("crlf.txt", [("two", "2")]),
        ("crlf.txt", [("one\r\ntwo", "1\r\n2")]),
        ("twice.txt", [("same", "other")]),
        ("fence.md", [("ls", "pwd")]),
        ("fence.md", [("text", "````")]),
        ("indent.py", [("def f(self):\n    return 1", "def f(self):\n    x = 1\n    return x")]),
        ("indent.py", [("def g(self):\n        return 2", "def h(self):\n            return 3\n\n        pass")]),
        ("big.txt", [("line 10\n", "LINE 10\n"), ("line 15\n", "LINE 15\n"), ("line 300\n", "")]),
        ("big.txt", [("line 7\nline 8\nline 9\n", "line 8\nline 7\nnew\nline 9\n")]),
        ("empty.txt", [("x", "y")]),
        ("none.txt", [("x", "y")]),
        ("sub", [("x", "y")]),
        ("plain.txt", []),
        ("plain.txt", [("two", "$& $1 \\n")]),
    ]
    for name, replacements in edits:
        for dry_run in (True, False):
            listed = [{"oldText": old, "newText": new} for old, new in replacements]
            yield "edit_file", {"path": p(name), "edits": listed, "dryRun": dry_run}
    for wrong in ({"path": p("plain.txt")}, {"path": p("plain.txt"), "edits": [{"oldText": "x"}]}, {"path": p("plain.txt"), "edits": "x"}):
        yield "edit_file", wrong
    yield "edit_file", {"path": p("plain.txt"), "edits": [], "dryRun": "yes"}
    for name in ("made", "made/deep/er", "sub", "plain.txt", "plain.txt/x"):
        yield "create_directory", {"path": p(name)}
    for tool in ("list_directory", "list_directory_with_sizes", "directory_tree"):
        for name in (".", "sub", "hollow", "none", "plain.txt", "sub/deep/"):
            yield tool, {"path": p(name)}
        yield tool, {"path": "/etc"}
    yield "list_directory_with_sizes", {"path": root, "sortBy": "size"}
    yield "list_directory_with_sizes", {"path": root, "sortBy": "time"}
    for patterns in (["node_modules"], ["*.txt"], ["**/*.md"], ["sub/deep"], ["{sub,other}"], ["hollow", ".hid"], ["*"], ["**"], ["s?b"]):
        yield "directory_tree", {"path": root, "excludePatterns": patterns}
    for pattern in (
        "*.txt", "**/*.txt", "**/*.md", "*", "**", "sub/*", "sub/**", "**/leaf.md", "s*b/**/*.md", "{sub,other}/*.md", "[a-c]*.txt", "[!a-z]*", "?1.txt",
        "**/hollow", "none", "", "a{1,10}.txt", "*.{png,MP3}", "**/.hid/**", ".*", "!*.txt", "#x", "sub", "sub/", "@(plain|empty).txt", "+(a1|x).txt", "a?(1)0.txt",
        "*(a)1.txt", "emoji*", "**/deep/**/*.md", "SUB/*", "plain.tx[t]", "a{1..3}.txt", "\\*.txt", "**/*", "*/", "**.md", "sub/***", "[[:upper:]]*",
    ):
        yield "search_files", {"path": root, "pattern": pattern}
    for exclude in (["sub"], ["**/node_modules/**"], ["*.txt"], ["**/*.txt", "other/**"], ["sub/**"]):
        yield "search_files", {"path": root, "pattern": "**/*", "excludePatterns": exclude}
    for path in (p("none"), p("plain.txt"), "/etc"):
        yield "search_files", {"path": path, "pattern": "*"}
    for name in ("plain.txt", "none.txt", "sub", "kb.bin"):
        yield "get_file_info", {"path": p(name)}
    for source, target in (
        ("plain.txt", "moved.txt"), ("plain.txt", "sub/moved.txt"), ("plain.txt", "crlf.txt"), ("plain.txt", "sub"), ("sub", "moved"), ("sub", "hollow"),
        ("none.txt", "moved.txt"), ("plain.txt", "none/moved.txt"), ("sub", "sub/inside"), ("plain.txt", "plain.txt"), ("plain.txt", "empty.txt/x"),
    ):
        yield "move_file", {"source": p(source), "destination": p(target)}
    yield "move_file", {"source": "/etc/passwd", "destination": p("x")}
    yield "move_file", {"source": p("plain.txt"), "destination": "/etc/x"}
    yield "list_allowed_directories", {}
    yield "no_such_tool", {}


def build(root):
    shutil.rmtree(root, ignore_errors=True)
    for name in DIRECTORIES:
        (root / name).mkdir(parents=True)
    for name, content in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    # Set the same time everywhere, so that results that show times can be compared.
    for path in sorted(root.rglob("*"), reverse=True):
        os.utime(path, (1_700_000_000, 1_700_000_000))


def look(root):
    """Returns the tree that a call leaves behind: paths and contents."""
    return {str(path.relative_to(root)): path.read_bytes() if path.is_file() else None for path in sorted(root.rglob("*"))}


def play(root, command):
    """Makes every call. Returns the list of tools, and each result with the tree after the call."""
    environment = {**os.environ, "TZ": "UTC"}
    build(root)
    log = open(root.parent / "errors.log", "ab")
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment)

    def request(number, method, params):
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        server.stdin.write(json.dumps(message).encode() + b"\n")
        server.stdin.flush()
        while True:
            line = server.stdout.readline()
            if not line:
                sys.exit(f"{command[0]} has ended; see {log.name}")
            answer = json.loads(line)
            if answer.get("id") == number:
                return answer.get("result", answer.get("error"))

    request(0, "initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "compare", "version": "1"}})
    server.stdin.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
    tools = request(1, "tools/list", {})["tools"]
    answers = []
    before = look(root)
    for number, (tool, arguments) in enumerate(calls(root), 2):
        answer = request(number, "tools/call", {"name": tool, "arguments": arguments})
        after = look(root)
        answers.append((answer, after))
        if after != before:
            build(root)
    server.stdin.close()
    server.wait()
    return tools, answers


def folded(tree):
    """Normalizes line endings: the reference server writes an edited file with `\\n` only, while treehold keeps its line endings."""
    return {name: content and content.replace(b"\r\n", b"\n") for name, content in tree.items()}


def comparable(answer, root):
    """Removes intended differences: random names, and times and sizes that only the host's file system knows."""
    answer = {key: value for key, value in answer.items() if key not in ("_meta", "code")}
    text = json.dumps(answer, ensure_ascii=False, sort_keys=True)
    text = re.sub(r"\.[0-9a-f]{32}\.tmp", ".RANDOM.tmp", text)
    text = re.sub(r"(created|accessed): [^\\]*", r"\1: TIME", text)
    return text


def shape(tool):
    """Returns the description of a tool without the prose."""

    def bare(value):
        if isinstance(value, dict):
            return {key: bare(inner) for key, inner in value.items() if key not in ("description", "$schema", "_meta", "execution", "additionalProperties")}
        return [bare(inner) for inner in value] if isinstance(value, list) else value

    return {"name": tool["name"], "title": tool["title"], "annotations": tool["annotations"], "input": bare(tool["inputSchema"]), "output": bare(tool.get("outputSchema"))}


def main():
    work, treehold, *npm = sys.argv[1:]
    work = pathlib.Path(work).resolve()
    work.mkdir(parents=True, exist_ok=True)
    root = work / "root"
    (work / "errors.log").write_bytes(b"")
    config = work / "treehold.toml"
    config.write_text(f'[routes."{root}"]\ntype = "filesystem"\nroot = "{root}"\n')
    theirs_tools, theirs = play(root, [*npm, str(root)])
    ours_tools, ours = play(root, [treehold, "--config", str(config), "--data", str(work / "data"), "mcp", "--tools", "reference", "--allow", str(root)])
    failures = 0
    for their_tool, our_tool in zip(theirs_tools, ours_tools):
        if shape(their_tool) != shape(our_tool):
            failures += 1
            print(f"--- the tool {their_tool['name']}\n  npm:  {json.dumps(shape(their_tool), sort_keys=True)}\n  ours: {json.dumps(shape(our_tool), sort_keys=True)}")
    if [tool["name"] for tool in theirs_tools] != [tool["name"] for tool in ours_tools]:
        failures += 1
        print("--- the tools differ")
    for (tool, arguments), (their_answer, their_tree), (our_answer, our_tree) in zip(calls(root), theirs, ours):
        their_text, our_text = comparable(their_answer, root), comparable(our_answer, root)
        if tool == "edit_file":
            their_tree, our_tree = folded(their_tree), folded(our_tree)
        if their_text != our_text or their_tree != our_tree:
            failures += 1
            print(f"--- {tool} {json.dumps(arguments, ensure_ascii=False)}\n  npm:  {their_text[:1500]}\n  ours: {our_text[:1500]}")
            if their_tree != our_tree:
                names = sorted(name for name in {*their_tree, *our_tree} if their_tree.get(name, 0) != our_tree.get(name, 0))
                print(f"  the trees differ at {names}")
    print(f"{len(theirs)} calls compared, {failures} differ")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
