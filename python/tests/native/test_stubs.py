"""The stub says what the module has, and every method has its asynchronous twin."""

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

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
