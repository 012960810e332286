"""The stub says what the module has, and every method has its asynchronous twin."""

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

import treehold

STUB = Path(treehold.__file__).parent / "_native.pyi"

SAMPLE = """
import asyncio
import treehold

tree: treehold.Backend = treehold.CompositeBackend(treehold.StateBackend(), {"/m": treehold.StateBackend()})
text: str = tree.read("/a").text()
for entry in tree.ls("/"):
    size: int = entry.size_bytes

async def main() -> None:
    async with asyncio.timeout(1):
        task: asyncio.Task[treehold.FileRead] = asyncio.create_task(tree.aread("/a"))
        read, changed = await asyncio.gather(task, tree.awrite("/b", b"x", if_version=3))
        version: int | None = changed.version
        row = await (await treehold.Store.aopen("memory:")).aget(("a", "b"), "k")
        body: bytes | None = None if row is None else row.body
        print(read.text(), version, body)
"""


def members(node: ast.ClassDef | ast.Module) -> dict[str, ast.FunctionDef]:
    return {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}


def test_every_method_that_reaches_a_store_has_a_twin_with_the_same_arguments() -> None:
    module = ast.parse(STUB.read_text())
    twins = 0
    for node in module.body:
        if not isinstance(node, ast.ClassDef):
            continue
        found = members(node)
        for name, function in found.items():
            twin = found.get(f"a{name}")
            if twin is not None and not name.startswith("_"):
                assert ast.dump(twin.args) == ast.dump(function.args), f"{node.name}.{name}"
                assert ast.unparse(twin.returns or ast.Constant(None)) == f"_Async[{ast.unparse(function.returns or ast.Constant(None))}]"
                twins += 1
    assert twins >= 60


def test_everything_public_is_documented() -> None:
    module = ast.parse(STUB.read_text())
    for node in module.body:
        if isinstance(node, ast.ClassDef):
            assert ast.get_docstring(node), node.name
            for name, function in members(node).items():
                assert name.startswith("_") or ast.get_docstring(function), f"{node.name}.{name}"
        elif isinstance(node, ast.FunctionDef):
            assert ast.get_docstring(node), node.name


def installed(checker: str) -> bool:
    """Whether a checker can be run; a directory of that name beside the tests is none."""
    found = importlib.util.find_spec(checker)
    return found is not None and found.loader is not None and found.origin is not None


@pytest.mark.skipif(not installed("mypy"), reason="mypy")
def test_stub_agrees_with_the_module() -> None:
    options = ["--ignore-disjoint-bases"] if "--ignore-disjoint-bases" in _help() else []
    checked = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "treehold._native", "--concise", *options], capture_output=True, text=True, timeout=300
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def _help() -> str:
    return subprocess.run([sys.executable, "-m", "mypy.stubtest", "--help"], capture_output=True, text=True, timeout=60).stdout


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_code_that_uses_the_package_passes_strict_checks(checker: str, tmp_path: Path) -> None:
    if not installed(checker):
        pytest.skip(checker)
    sample = tmp_path / "sample.py"
    sample.write_text(SAMPLE)
    if checker == "mypy":
        command = [sys.executable, "-m", "mypy", "--strict", "--python-version", "3.11", str(sample)]
    else:
        (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict", "pythonVersion": "3.11"}')
        command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, str(sample)]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_named_values_are_those_of_the_module(tmp_path: Path) -> None:
    """Regression: the stub named an index that does not exist."""
    tree = treehold.StateBackend()
    store = treehold.Store.open("memory:")
    uses: dict[str, Callable[[str], object]] = {
        "case": lambda value: tree.grep("a", case=cast("Any", value)),
        "encoding": lambda value: tree.grep("a", encoding=cast("Any", value)),
        "index": lambda value: treehold.StoreBackend(store, ("a",), index=cast("Any", value)),
        "output": lambda value: tree.grep("a", output=cast("Any", value)),
        "sync": lambda value: treehold.FilesystemBackend(str(tmp_path), sync=cast("Any", value)),
    }
    found: dict[str, set[str]] = {name: set() for name in uses}
    for node in ast.walk(ast.parse(STUB.read_text())):
        if isinstance(node, ast.arg) and node.arg in uses and node.annotation is not None:
            named = [each.value for each in ast.walk(node.annotation) if isinstance(each, ast.Constant)]
            found[node.arg].update(value for value in named if isinstance(value, str))
    for name, use in uses.items():
        assert len(found[name]) >= 2, name
        for value in found[name]:
            use(value)
        with pytest.raises((treehold.InvalidArgument, ValueError)):
            use("no such value")
