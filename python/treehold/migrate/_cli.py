"""The command `python -m treehold.migrate`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from treehold import Conflict, Error, InvalidArgument, InvalidPath

from ._api import PAGE_RECORDS, copy_saver, copy_store, open_saver, open_store, verify_saver, verify_store
from ._engine import Progress, Report

EXIT_DIFFERENT = 1
EXIT_USAGE = 2
EXIT_CONFLICT = 3
EXIT_FAILED = 4
EXIT_INTERRUPTED = 130

_EPILOG = """\
examples:
  python -m treehold.migrate store in --langgraph memories.db --treehold sqlite:agent.db
  python -m treehold.migrate saver in --langgraph postgres://app@db/agents --treehold sqlite:agent.db --dry-run
  python -m treehold.migrate saver out --treehold sqlite:agent.db --langgraph checkpoints.db

exit codes:
  0  everything was moved and is the same on both sides
  1  something differs or cannot be moved; the report names it
  2  an argument is wrong
  3  the target holds other things already
  4  a database cannot be used
  130  the move was interrupted; go on with --resume

The source is only read. Passwords belong into the environment (PGPASSWORD), not into URLs.
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"error: {message}; see --help\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    options = _parser().parse_args(arguments)
    shown = _shown(options.progress)
    try:
        report = _run(options, shown)
    except KeyboardInterrupt:
        print("error: interrupted; go on with --resume", file=sys.stderr)
        return EXIT_INTERRUPTED
    except Error as error:
        if options.json:
            print(json.dumps({"error": {"code": error.code, "message": str(error)}}))
        print(f"error: {error}", file=sys.stderr)
        if isinstance(error, Conflict):
            return EXIT_CONFLICT
        return EXIT_USAGE if isinstance(error, (InvalidArgument, InvalidPath)) else EXIT_FAILED
    except ImportError as error:
        print(f"error: {error.name} is not installed; pip install 'treehold[langgraph]'", file=sys.stderr)
        return EXIT_FAILED
    print(json.dumps(report.as_dict(), ensure_ascii=False) if options.json else _text(report))
    return 0 if report.is_good else EXIT_DIFFERENT


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m treehold.migrate",
        description="Moves a LangGraph or deepagents store, or the checkpoints of a saver, into treehold and back.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kind", choices=("store", "saver"), help="what to move: items or checkpoints")
    parser.add_argument("action", choices=("in", "out", "verify"), help="into treehold, out of it, or compare both sides")
    parser.add_argument("--langgraph", required=True, metavar="PLACE", help="an SQLite file, or postgres://…")
    parser.add_argument("--treehold", required=True, metavar="URL", help="a store, such as sqlite:agent.db")
    parser.add_argument(
        "--namespace", metavar="A/B", help="where the rows lie in treehold; langgraph/store or langgraph/checkpoints"
    )
    parser.add_argument("--resume", action="store_true", help="go on with an interrupted move")
    parser.add_argument("--dry-run", action="store_true", help="read and check everything, and write nothing")
    parser.add_argument("--no-verify", dest="verify", action="store_false", help="do not compare both sides afterwards")
    parser.add_argument("--page", type=int, default=PAGE_RECORDS, metavar="N", help="items in one commit of a partition (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--progress", action="store_true", help="show the progress on standard error")
    return parser


def _run(options: argparse.Namespace, progress: Callable[[Progress], None] | None) -> Report:
    from treehold.langgraph import TreeholdSaver, TreeholdStore
    from treehold.langgraph._urls import store_url

    url = store_url(options.treehold)
    reads_ours = options.action == "out" or options.dry_run or options.action == "verify"
    path = url.removeprefix("sqlite:").partition("?")[0]
    if reads_ours and url.startswith("sqlite:") and options.action != "in" and not os.path.exists(path):
        raise InvalidArgument(f"`{options.treehold}` does not exist; name the store to move out of")
    flags = {"resume": options.resume, "dry_run": options.dry_run, "verify": options.verify}
    into_theirs = options.action == "out" and not options.dry_run
    if options.kind == "store":
        namespace = _namespace(options.namespace, ("langgraph", "store"))
        with (
            TreeholdStore.from_conn_string(url, namespace=namespace) as store,
            open_store(options.langgraph, writable=into_theirs) as theirs,
        ):
            if options.action == "verify":
                return verify_store(theirs, store, page=options.page, progress=progress)
            source, target = (theirs, store) if options.action == "in" else (store, theirs)
            return copy_store(source, target, page=options.page, progress=progress, **flags)
    namespace = _namespace(options.namespace, ("langgraph", "checkpoints"))
    with (
        TreeholdSaver.from_conn_string(url, namespace=namespace) as saver,
        open_saver(options.langgraph, writable=into_theirs) as checkpoints,
    ):
        if options.action == "verify":
            return verify_saver(checkpoints, saver, progress=progress)
        if options.action == "in":
            return copy_saver(checkpoints, saver, progress=progress, **flags)
        return copy_saver(saver, checkpoints, progress=progress, **flags)


def _namespace(given: str | None, default: tuple[str, ...]) -> tuple[str, ...]:
    return default if given is None else tuple(given.split("/"))


def _shown(is_shown: bool) -> Callable[[Progress], None] | None:
    if not is_shown:
        return None

    def show(progress: Progress) -> None:
        print(f"\r{progress.step}: {progress.records}", end="", file=sys.stderr, flush=True)

    return show


def _text(report: Report) -> str:
    verb = "would be written" if report.dry_run else "written"
    lines = [f"{report.source} -> {report.target}"]
    if report.read or report.verified is None:
        lines.append(
            f"{report.kind}: {report.read} read, {report.written} {verb}, {report.present} present, {report.expired} expired"
        )
    if report.parts:
        lines.append(", ".join(f"{name}: {count}" for name, count in report.parts.items()))
    if report.verified is not None:
        lines.append(f"verified: {report.verified}, different: {report.differences}")
    lines.extend(f"  {example.place}: {example.reason}" for example in report.examples)
    if report.differences > len(report.examples):
        lines.append(f"  and {report.differences - len(report.examples)} more")
    return "\n".join(lines)
