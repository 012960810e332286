"""deepagents' own backends behind a wall.

Each class here is a subclass of the class it stands for, but does its work in an object that a test cannot reach: one
made from a second copy of the module, and for host files in another process. A test that passes with these classes
depends on what a backend does, and not on how deepagents does it. Those are the tests that another implementation has to
pass.
"""

from __future__ import annotations

import importlib.util
import inspect
import multiprocessing
import os
import sys
import threading
from typing import Any

from deepagents.backends import CompositeBackend, FilesystemBackend, LocalShellBackend, StateBackend, StoreBackend

METHODS = ("ls", "read", "grep", "glob", "write", "edit", "delete", "upload_files", "download_files", "execute", "_real_path")
"""What a backend does for its callers. The middleware asks for `_real_path` too, if the installed version has it."""

ATTRIBUTES = ("default", "routes", "sorted_routes", "artifacts_root", "cwd", "virtual_mode", "max_file_size_bytes", "id")
"""What the middleware and applications read from a backend."""


def copy_of(cls: type[Any]) -> type[Any]:
    """Loads the module of `cls` a second time and returns the class of the same name."""
    name = f"opaque_{cls.__name__.lower()}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, inspect.getfile(cls))
        if spec is None or spec.loader is None:
            raise ImportError(f"the module of {cls.__name__} has no file")
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    found: type[Any] = getattr(sys.modules[name], cls.__name__)
    return found


class Worker:
    """A process that holds backends and runs their methods, one after the other."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._lock = threading.Lock()
        process = context.Process(target=serve, args=(theirs,), daemon=True)
        process.start()
        theirs.close()

    def ask(self, *request: Any) -> Any:
        with self._lock:
            self._pipe.send(request)
            failed, answer = self._pipe.recv()
        if failed:
            raise answer
        return answer


def serve(pipe: Any) -> None:
    """Answers the requests of a worker until its pipe closes."""
    import deepagents.backends

    backends: list[Any] = []
    while True:
        try:
            what, *rest = pipe.recv()
        except EOFError:
            return
        try:
            if what == "make":
                name, cwd, args, kwargs = rest
                os.chdir(cwd)
                backends.append(getattr(deepagents.backends, name)(*args, **kwargs))
                answer: Any = len(backends) - 1
            elif what == "get":
                answer = getattr(backends[rest[0]], rest[1])
            else:
                answer = getattr(backends[rest[0]], rest[1])(*rest[2], **rest[3])
            pipe.send((False, answer))
        except Exception as error:
            pipe.send((True, error))


class Remote:
    """A backend in the worker process."""

    _worker: Worker | None = None

    def __init__(self, name: str, *args: Any, **kwargs: Any) -> None:
        if Remote._worker is None:
            Remote._worker = Worker()
        self._ask = Remote._worker.ask
        self._key: int = self._ask("make", name, os.getcwd(), args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("a") and name[1:] in METHODS or name == "aexecute":
            raise AttributeError(name)
        if name in ATTRIBUTES:
            return self._ask("get", self._key, name)
        return lambda *args, **kwargs: self._ask("call", self._key, name, args, kwargs)


reached: set[str] = set()
"""The methods that the running test called."""


def opaque(cls: type[Any], *, remote: bool) -> type[Any]:
    """Returns a subclass of `cls` whose instances delegate everything."""

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        self.__dict__["_wall"] = Remote(cls.__name__, *args, **kwargs) if remote else copy_of(cls)(*args, **kwargs)

    members: dict[str, Any] = {"__init__": init, "__module__": __name__, "__doc__": cls.__doc__}
    for name in METHODS:
        if callable(getattr(cls, name, None)):
            members[name] = _sync(cls, name)
        if inspect.iscoroutinefunction(getattr(cls, "a" + name, None)) and not remote:
            members["a" + name] = _async(cls, "a" + name)
    for name in ATTRIBUTES:
        if not remote or name not in ("default", "routes", "sorted_routes", "artifacts_root"):
            members[name] = property(_getter(name), _setter(name))
    return type(cls.__name__, (cls,), members)


def _sync(cls: type[Any], name: str) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        reached.add(name)
        return getattr(self.__dict__["_wall"], name)(*args, **kwargs)

    return _signed(call, cls, name)


def _async(cls: type[Any], name: str) -> Any:
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        reached.add(name)
        return await getattr(self.__dict__["_wall"], name)(*args, **kwargs)

    return _signed(call, cls, name)


def _signed(call: Any, cls: type[Any], name: str) -> Any:
    """Gives a method the signature of the original, which deepagents inspects."""
    original = getattr(cls, name)
    call.__name__, call.__doc__, call.__signature__ = name, original.__doc__, inspect.signature(original)
    return call


def _getter(name: str) -> Any:
    return lambda self: getattr(self.__dict__["_wall"], name)


def _setter(name: str) -> Any:
    return lambda self, value: setattr(self.__dict__["_wall"], name, value)


CLASSES = {
    cls.__name__: opaque(cls, remote=cls in (FilesystemBackend, LocalShellBackend))
    for cls in (StateBackend, StoreBackend, FilesystemBackend, CompositeBackend, LocalShellBackend)
}
