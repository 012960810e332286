"""A pytest plugin that runs deepagents' own tests with other backends in place of theirs.

`--backends=theirs` changes nothing, `opaque` hides what a test must not depend on, and `treehold` puts in ours. The names
are replaced wherever applications import them from. The middleware keeps its own names for its `isinstance` checks, as it
does in an application that imports our classes; only the backend that it makes by default is replaced.
`--outcomes=FILE` writes the outcome of every test, and which methods of a backend it called.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import pkgutil
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

NAMES = ("StateBackend", "StoreBackend", "FilesystemBackend", "CompositeBackend", "LocalShellBackend")

METHODS = ("ls", "read", "grep", "glob", "write", "edit", "delete", "upload_files", "download_files", "execute")

outcomes: dict[str, dict[str, Any]] = {}
reached: set[str] = set()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--backends", default="theirs", choices=("theirs", "opaque", "treehold"), help="whose backends to test")
    parser.addoption("--outcomes", default=None, help="the file to write outcomes to")


def pytest_configure(config: pytest.Config) -> None:
    which = config.getoption("--backends")
    if which == "theirs":
        return
    if which == "opaque":
        opaque = importlib.import_module("opaque")
        classes = opaque.CLASSES
        globals()["reached"] = opaque.reached
    else:
        ours = importlib.import_module("treehold.deepagents")
        classes = {name: counted(getattr(ours, name)) for name in NAMES}
    replace(classes)


def counted(cls: type[Any]) -> type[Any]:
    """Makes the methods of one of our classes note that a test called them."""
    for name in METHODS:
        for each in (name, "a" + name):
            method = getattr(cls, each, None)
            if method is not None:
                setattr(cls, each, noting(method, name))
    return cls


def noting(method: Any, name: str) -> Any:
    """Wraps a method. A coroutine function stays one, because tests replace it by a mock of its kind."""
    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def acall(*args: Any, **kwargs: Any) -> Any:
            reached.add(name)
            return await method(*args, **kwargs)

        return acall

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        reached.add(name)
        return method(*args, **kwargs)

    return call


def replace(classes: dict[str, type[Any]]) -> None:
    """Replaces the classes in every module of deepagents from which tests and applications import them."""
    import deepagents
    import deepagents.backends

    originals = {name: getattr(deepagents.backends, name) for name in NAMES}
    for info in pkgutil.walk_packages(deepagents.__path__, "deepagents."):
        try:
            importlib.import_module(info.name)
        except ImportError:
            continue
    for module_name, module in list(sys.modules.items()):
        if module_name != "deepagents" and not module_name.startswith("deepagents."):
            continue
        for name, original in originals.items():
            if getattr(module, name, None) is not original:
                continue
            if name == "StateBackend" or module_name == "deepagents" or module_name.startswith("deepagents.backends"):
                setattr(module, name, classes[name])


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, None, None]:
    reached.clear()
    yield
    outcomes.setdefault(item.nodeid, {})["reached"] = sorted(reached)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        entry = outcomes.setdefault(report.nodeid, {})
        entry["outcome"] = "xfailed" if hasattr(report, "wasxfail") else report.outcome
        if report.failed:
            entry["message"] = str(report.longrepr)[-2000:]


def pytest_sessionfinish(session: pytest.Session) -> None:
    path = session.config.getoption("--outcomes")
    if path:
        Path(path).write_text(json.dumps(outcomes, indent=1, sort_keys=True))
