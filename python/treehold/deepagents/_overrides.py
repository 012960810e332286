"""Asynchronous methods that respect a synchronous method of a subclass.

deepagents' asynchronous methods run the synchronous ones in a thread. An application that overrides only `grep`, in a
subclass or on one object, expects `agrep` to call it. Our asynchronous methods are native, so they look for it first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

Method = TypeVar("Method", bound=Callable[..., Any])

NATIVE: Final = "_treehold_native"
"""The attribute of methods that do not run the synchronous method."""


def native(method: Method) -> Method:
    """Marks an asynchronous method that does the same as the synchronous one of its class, without a thread."""
    name = method.__name__

    @functools.wraps(method)
    async def call(self: object, *args: Any, **kwargs: Any) -> Any:
        if is_overridden(self, name[1:], name):
            return await in_thread(cast("Any", type(self)), name)(self, *args, **kwargs)
        return await method(self, *args, **kwargs)

    setattr(call, NATIVE, True)
    return cast("Method", call)


@functools.lru_cache(maxsize=1024)
def in_thread(cls: type[Any], name: str) -> Callable[..., Any]:
    """Returns deepagents' method of a class, which runs the synchronous one."""
    methods = (vars(each)[name] for each in cls.__mro__ if name in vars(each))
    found: Callable[..., Any] = next(method for method in methods if not hasattr(method, NATIVE))
    return found


def is_overridden(backend: object, sync: str, asynchronous: str) -> bool:
    """Tells whether the synchronous method is of the object itself, or of a class further down than the asynchronous one."""
    return sync in vars(backend) or _is_overridden_by_class(cast("Any", type(backend)), sync, asynchronous)


@functools.lru_cache(maxsize=1024)
def _is_overridden_by_class(cls: type[Any], sync: str, asynchronous: str) -> bool:
    for each in cls.__mro__:
        if asynchronous in vars(each):
            return False
        if sync in vars(each):
            return True
    return False
