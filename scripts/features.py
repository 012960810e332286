#!/usr/bin/env python3
"""Checks that the library compiles with parts of its features.

    scripts/features.py            none, and few sets that tell every two features apart
    scripts/features.py --each     none, and each feature alone

Code of one feature that needs another one by mistake compiles only where both are on. So for every two features, of which the first does
not enable the second, one of the sets has the first and lacks the second. Each set costs a check of nearly all dependencies, since their
own features differ. `cli`, which is for the binary, is checked with it. A warning is a failure.
"""

import itertools
import subprocess
import sys
import tomllib


def enabled(features: dict[str, list[str]], chosen: frozenset[str]) -> frozenset[str]:
    """Returns the features of this crate that some features enable, themselves included."""
    found, left = set(), list(chosen)
    while left:
        name = left.pop()
        if name in features and name not in found:
            found.add(name)
            left += features[name]
    return frozenset(found)


def telling_apart(features: dict[str, list[str]]) -> list[frozenset[str]]:
    """Returns sets of features such that for every two features, one set has the first and lacks the second.

    Each next set is grown by the feature that separates the most pairs which are left, as long as one does.
    """
    alone = {name: enabled(features, frozenset([name])) for name in sorted(features)}
    left = {(first, second) for first, second in itertools.permutations(alone, 2) if second not in alone[first]}
    sets = []
    while left:
        grown: frozenset[str] = frozenset()
        separated: set[tuple[str, str]] = set()
        while True:
            sizes = []
            for name in alone:
                wider = grown | alone[name]
                pairs = {(first, second) for first, second in left if first in wider and second not in wider}
                sizes.append((len(pairs), name, wider, pairs))
            best = max(sizes, key=lambda one: (one[0], one[1]))
            if best[0] <= len(separated):
                break
            _, _, grown, separated = best
        sets.append(grown)
        left -= separated
    return sets


def checked(*arguments: str) -> None:
    """Runs `cargo check`, and exits with its output if there is any."""
    # Compiler flags such as `-D warnings` would check every dependency again.
    command = ["cargo", "check", "--quiet", "--package", "treehold", "--no-default-features", *arguments]
    ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if ran.returncode or ran.stdout:
        sys.exit(f"{ran.stdout}\nerrors or warnings of: {' '.join(command)}")


def main() -> None:
    with open("Cargo.toml", "rb") as manifest:
        features = tomllib.load(manifest)["features"]
    library = {name: parts for name, parts in features.items() if name not in ("cli", "default")}
    sets = [frozenset([name]) for name in sorted(library)] if sys.argv[1:] == ["--each"] else telling_apart(library)
    checked("--lib")
    for chosen in sets:
        print("features:", *sorted(chosen))
        checked("--lib", "--features", ",".join(sorted(chosen)))
    checked("--bin", "treehold", "--features", "cli")


if __name__ == "__main__":
    main()
