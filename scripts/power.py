"""Rebuilds what a disk may hold after a power loss, from the system calls of a process; see faults.py.

Content is stable after an `fsync` or `fdatasync` of its file, and a name after an `fsync` of its directory. Nothing else is. ext4 keeps
more: there, any sync also makes earlier names stable. Writes through memory maps are not seen.
"""

import itertools
import os
import re
import sys

CALLS = ["openat", "close", "lseek", "write", "pwrite64", "ftruncate", "fsync", "fdatasync",
         "mkdir", "mkdirat", "rename", "renameat", "renameat2", "unlink", "unlinkat", "rmdir"]
CHANGES = [call for call in CALLS if call not in ("close", "lseek", "fsync", "fdatasync")]

# The unit in which a disk writes.
SECTOR = 4096


def record(trace):
    """Returns the options of strace that record the calls in a file."""
    return ["-xx", "-s", "16000000", "-o", trace, "-e", f"trace={','.join(CALLS)}"]


def resize(content, size):
    del content[size:]
    content.extend(bytes(size - len(content)))


class File:
    def __init__(self, content=b""):
        self.stable = bytearray(content)
        # The changes since the last sync, as offset and data; without data, a new size. `synced` counts those before.
        self.changes, self.synced = [], 0

    def moment(self):
        return self.synced + len(self.changes)

    def sync(self, moment):
        """Makes the changes before a moment stable."""
        count = max(moment - self.synced, 0)
        self.stable, self.synced = self.left(lambda kind: True, count), self.synced + count
        del self.changes[:count]

    def left(self, luck, count=None):
        """Returns what is left, as in `Disk.rebuild`."""
        content = bytearray(self.stable)
        for offset, data in self.changes[:count]:
            size = offset if data is None else max(len(content), offset + len(data))
            if size != len(content) and luck("size"):
                resize(content, size)
            for start in range(0, len(data or b""), SECTOR):
                if luck("data"):
                    sector = data[start:start + SECTOR]
                    resize(content, max(len(content), offset + start + len(sector)))
                    content[offset + start:offset + start + len(sector)] = sector
        return content


class Directory:
    def __init__(self):
        self.entries, self.stable = {}, {}
        self.changes = self.synced = 0

    def put(self, name, node):
        self.entries[name] = node
        self.changes += 1

    def remove(self, name):
        self.changes += 1
        return self.entries.pop(name, None)

    def moment(self):
        return self.changes, dict(self.entries)

    def sync(self, moment):
        """Makes the names of a moment stable, unless those of a later one are."""
        changes, entries = moment
        if changes >= self.synced:
            self.synced, self.stable = changes, entries


class Disk:
    """The files beneath a directory, while the lines of a trace are fed."""

    def __init__(self, root):
        self.root, self.top = root, Directory()
        self.restart()

    def restart(self):
        """Forgets the process. The next line is that of another one."""
        # The file and the position of each descriptor, and the call of each thread with how it ends.
        self.descriptors, self.begun = {}, {}

    def feed(self, line):
        """Applies a line. Returns what it writes to standard output, if it does."""
        thread, _, rest = line.rstrip("\n").partition(" ")
        rest = rest.lstrip()
        # Where the process is killed within a call, the result is `?`, or -1 with an error that has no name.
        if resumed := re.match(r"<\.\.\. \w+ resumed>.*\) += (-?\d+)\b(?! \(errno)", rest):
            _, end = self.begun.pop(thread, (None, None))
            if end and int(resumed[1]) >= 0:
                end(int(resumed[1]))
            return None
        begun = re.match(r"(\w+)\((.*?)(?:\) += (?:\?|-1 \(errno \d+\)|(-?\d+)[^\"]*)|(?:, )?<unfinished \.\.\.>)$", rest)
        if not begun or begun[1] not in CALLS:
            return None
        strings = [bytes.fromhex(text.replace("\\x", "")) for text in re.findall(r'"((?:\\x[0-9a-f]{2})*)"', begun[2])]
        numbers = [int(number) for number in re.findall(r"(?:^|, )(\d+)(?=,|\s|$)", begun[2])]
        if begun[1] == "write" and numbers[0] == 1:
            return strings[0]
        end = self.begin(begun[1], begun[2], strings, numbers)
        if begun[3] is None:
            self.begun[thread] = begun[1], end
        elif int(begun[3]) >= 0:
            end(int(begun[3]))
        return None

    def unfinished(self):
        """Returns how each change ends that has begun and not ended."""
        return [end for call, end in self.begun.values() if call in CHANGES]

    def begin(self, call, arguments, strings, numbers):
        """Returns what a call does with its result when it ends."""
        places = [self.place(os.fsdecode(path)) for path in strings] if call not in ("write", "pwrite64") else []
        if call == "openat":
            return lambda result: self.open(places[0], arguments, result)
        if places and any(place is None for place in places):
            return lambda result: None
        if call.startswith("mkdir"):
            return lambda result: places[0][0].put(places[0][1], Directory())
        if call.startswith("rename"):
            return lambda result: places[1][0].put(places[1][1], places[0][0].remove(places[0][1]))
        if places:
            return lambda result: places[0][0].remove(places[0][1])
        if call == "close":
            # Another thread may get the number before this call ends.
            self.descriptors.pop(numbers[0], None)
        found = self.descriptors.get(numbers[0])
        if not found:
            return lambda result: None
        node = found[0]
        if call in ("fsync", "fdatasync"):
            moment = node.moment()
            return lambda result: node.sync(moment)
        if call == "ftruncate":
            return lambda result: node.changes.append((numbers[1], None))
        if call == "pwrite64":
            return lambda result: node.changes.append((numbers[2], strings[0][:result]))

        def move(result):
            if call == "write":
                node.changes.append((found[1], strings[0][:result]))
                result += found[1]
            found[1] = result

        return move

    def open(self, place, arguments, descriptor):
        self.descriptors.pop(descriptor, None)
        if place is None:
            return
        directory, name = place
        node = directory.entries.get(name) if name else directory
        if node is None and "O_CREAT" in arguments:
            node = File()
            directory.put(name, node)
        elif isinstance(node, File) and "O_TRUNC" in arguments:
            node.changes.append((0, None))
        if node is not None:
            self.descriptors[descriptor] = [node, 0]

    def place(self, path):
        """Returns the directory of a path and its name there, which is empty for the root; `None` for a path that is not beneath it."""
        if path == self.root:
            return self.top, ""
        if not path.startswith(self.root + "/"):
            return None
        *parents, name = path[len(self.root) + 1:].split("/")
        directory = self.top
        for parent in parents:
            directory = directory.entries.get(parent)
            if not isinstance(directory, Directory):
                return None
        return directory, name

    def rebuild(self, target, luck):
        """Makes a directory of what is left. `luck` decides whether a change that is not stable is there, by its kind: the `name` of a file,
        its `size`, or the `data` of a sector."""
        make(self.top, target, luck)

    def unseen(self):
        """Returns a file that the calls do not explain, if there is one. Those that are mapped are left out."""
        for directory, _, names in os.walk(self.root):
            for name in names:
                path = os.path.join(directory, name)
                place = self.place(path)
                node = place and place[0].entries.get(place[1])
                with open(path, "rb") as file:
                    if not path.endswith("-shm") and (not isinstance(node, File) or node.left(lambda kind: True) != file.read()):
                        return path
        return None


def after_kill(trace, root):
    """Returns the disk that a killed process left beneath a directory, and a file that the trace does not explain, if there is one. A change
    that had not ended may have had its effect or not: the files tell."""
    with open(trace) as file:
        lines = list(file)
    disk = replay(lines, root, [])
    numbers = range(len(disk.unfinished()))
    choices = itertools.chain.from_iterable(itertools.combinations(numbers, count + 1) for count in numbers)
    while (unseen := disk.unseen()) and (effective := next(choices, None)):
        disk = replay(lines, root, effective)
    return disk, unseen


def replay(lines, root, effective):
    """Returns the disk after the lines of a trace, and after some of the unfinished changes."""
    disk = Disk(root)
    for line in lines:
        disk.feed(line)
    unfinished = disk.unfinished()
    for number in effective:
        # No call transfers more.
        unfinished[number](sys.maxsize)
    return disk


def make(directory, target, luck):
    os.mkdir(target)
    for name in sorted(directory.stable.keys() | directory.entries.keys()):
        stable, now = directory.stable.get(name), directory.entries.get(name)
        node = now if stable is now or luck("name") else stable
        path = os.path.join(target, name)
        if isinstance(node, Directory):
            make(node, path, luck)
        elif node:
            with open(path, "wb") as file:
                file.write(node.left(luck))
