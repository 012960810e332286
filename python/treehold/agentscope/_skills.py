"""Skills on their way into a tree: directories of this machine and archives."""

from __future__ import annotations

import os
import posixpath
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from typing import IO, Literal

from treehold.errors import InvalidArgument, TooLarge

MARKDOWN = "SKILL.md"
"""The file that makes a directory a skill."""

FILES_MAX = 10_000
"""The most files of a skill."""

Files = dict[str, bytes]
"""The files of a skill by their paths within it."""


class Budget:
    """What the files of a skill may take."""

    def __init__(self, bytes_max: int) -> None:
        self._left = self._bytes_max = bytes_max
        self._files = 0

    def read(self, file: IO[bytes]) -> bytes:
        """Reads a file, or refuses it."""
        content = file.read(self._left + 1)
        self._left -= len(content)
        self._files += 1
        if self._left < 0:
            raise TooLarge(f"the skill has over {self._bytes_max} bytes; leave files out, or raise `skill_bytes_max`")
        if self._files > FILES_MAX:
            raise TooLarge(f"the skill has over {FILES_MAX} files; leave some out")
        return content


def of_directory(directory: str, budget: Budget) -> Files:
    """Reads a directory of this machine. Links are refused, because a tree has none."""
    if not os.path.isfile(os.path.join(directory, MARKDOWN)):
        raise InvalidArgument(f"`{directory}` is no skill: it has no {MARKDOWN}")
    files: Files = {}
    for at, directories, names in os.walk(directory):
        for name in (*directories, *names):
            path = os.path.join(at, name)
            relative = os.path.relpath(path, directory)
            kind = os.lstat(path).st_mode
            if stat.S_ISDIR(kind):
                continue
            if not stat.S_ISREG(kind):
                raise InvalidArgument(f"`{relative}` in the skill is no regular file; leave it out")
            with open(path, "rb") as file:
                files[relative.replace(os.sep, "/")] = budget.read(file)
    return files


def of_archive(archive: IO[bytes], format: Literal["zip", "tar", "tar.gz"], budget: Budget) -> Files:
    """Reads an archive, whose skill is at its top or in a directory there. Nothing is written to this machine."""
    try:
        files = dict(_zipped(archive, budget) if format == "zip" else _tarred(archive, format, budget))
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, NotImplementedError, RuntimeError) as error:
        raise InvalidArgument(f"the archive of the skill cannot be read: {error}") from error
    root = _root_of(files)
    return {path[len(root) :]: content for path, content in files.items() if path.startswith(root)}


def _zipped(archive: IO[bytes], budget: Budget) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(archive) as opened:
        for member in opened.infolist():
            kind = member.external_attr >> 16
            if stat.S_ISLNK(kind):
                raise InvalidArgument(f"`{member.filename}` in the archive is a link; leave it out")
            if not member.is_dir():
                with opened.open(member) as file:
                    yield _inside(member.filename), budget.read(file)


def _tarred(archive: IO[bytes], format: str, budget: Budget) -> Iterator[tuple[str, bytes]]:
    # A stream, so that an archive is read once and no further than the budget.
    with tarfile.open(fileobj=archive, mode="r|gz" if format == "tar.gz" else "r|") as opened:
        for member in opened:
            if member.isdir():
                continue
            file = opened.extractfile(member) if member.isreg() else None
            if file is None:
                raise InvalidArgument(f"`{member.name}` in the archive is no regular file; leave it out")
            yield _inside(member.name), budget.read(file)


def _inside(name: str) -> str:
    path = posixpath.normpath(name.replace("\\", "/"))
    if path.startswith("/") or path == ".." or path.startswith("../"):
        raise InvalidArgument(f"`{name}` in the archive leads out of the skill")
    return path


def _root_of(files: Files) -> str:
    """Returns the directory that holds the skill, with its slash."""
    if MARKDOWN in files:
        return ""
    roots = sorted(path[: -len(MARKDOWN)] for path in files if path.count("/") == 1 and path.endswith(f"/{MARKDOWN}"))
    if not roots:
        raise InvalidArgument(f"the archive holds no skill: {MARKDOWN} is neither at its top nor in a directory there")
    return roots[0]
