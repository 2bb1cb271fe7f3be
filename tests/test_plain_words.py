"""Documents, messages, comments and names use plain words: each private word has a replacement."""

import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
# A word or phrase -> what to write instead. Each is matched as whole words, whatever the case.
PHRASES = {
    r"dials?": "option",
    r"crews?": "worker pool",
    r"shel(f|ves)": "shard cache",
    r"boards?": "training status",
    r"lays?|laid": "build, schedule, write",
    r"told|tells?": "report, reported, show",
    r"receipts?": "part metadata",
    r"arms?": "selection rule",
    r"cells?": "run (of a table: allow it below)",
    r"sites?": "seed's training",
    r"walks?|walked": "training loop",
    r"mend(s|ed|ing)?": "fix, fixed",
    r"exams?": "evaluation, test set",
    r"twins?": "variant",
    r"beside": "next to, in addition to, with",
    r"begun": "started",
    r"beg[ai]ns? (on|again|anew)": "start on, restart",
    r"go on|goes on|went on|gone on|going on": "resume, continue",
    r"whoever|nobody|anybody": "name the subject",
    r"befell|befalls?": "happened to",
    r"brittle": "brittleness",
    r"blind(?! baselines?| people| to)": "text-only baseline, shuffled-image baseline",
    r"without looking": "text-only",
    r"wins?|won": "is scored higher",
    r"came (to|of)|comes to": "results",
    r"(say|says|said) of": "report, reported",
    r"job files?": "config file",
    r"funnel (does not )?closes?": "the counts add up",
    r"rooms|(a|the|this|each|every) room": "layer, package",
    r"floors|(a|the|this|each|every|ground) floor": "layer, package, lowest value",
    r"(the|this|our) house|house rules?": "layer, package, project rule",
    r"is no(?! longer| more)(?<!there is no)": "is not a",
}
# Words that names of functions, classes, variables, arguments and files do not use either.
NAME_PARTS = set(
    "arm begun beside board crew dial exam floor laid lay mend mended nobody receipt room shelf site tell "
    "told twin walk whoever".split()
)
# Names that libraries define.
LIBRARIES = {"TCPSite", "floor", "site", "site_dir", "tell", "walk"}
# Names in folders of runs that older versions wrote: files, columns and keys keep them.
ON_DISK = {*"arm begun beside brittle cell cells crew dials dials.json exam exams told".split()}
# Strings of these files are English words to process, not prose: only comments and docstrings are checked.
ENGLISH = (
    "bench/llm_tokens.py",
    "lab/makers/build_nonce_pool.py",
    "lab/makers/caption_grammar.py",
    "raycomp/language/",
    "lab/worlds/crowds.py",
    "lab/worlds/faults.py",
)
# Common senses of a word, by file or folder: cells of a table, folders in ON_DISK, titles.
ALLOWED = {
    "docs/negatives_examples.md": ("standing beside", "cell phones"),
    "docs/commands/demo.md": ("exam/",),
    "docs/commands/studies.md": ("cells/",),
    "docs/continual.md": ("cells/",),
    "raycomp/continual/tables.py": ("table cell",),
    "raycomp/continual/loop.py": ("cells/",),
    "raycomp/evaluation/results.py": ("empty cell",),
    "raycomp/models/parser.py": ("cells of a table",),
    "raycomp/report/parts.html.jinja": ("cell",),
    "raycomp/run/executor.py": ("``crew``",),
    "lab/screen/": ("cells/NAME.json",),
    "raycomp/table.py": ("cells", "cell"),
}
CODE = ("raycomp", "lab", "jobs", "bench")
_WHOLE = r"(?<![\w.-])(?:{})(?![\w-])"
_PHRASES = [(re.compile(_WHOLE.format(phrase), re.I), plain) for phrase, plain in PHRASES.items()]
_ANY_PHRASE = re.compile(_WHOLE.format("|".join(PHRASES)), re.I)
_ANY_PART = re.compile("|".join(NAME_PARTS), re.I)
_EXPRESSION = re.compile(r"\{[^{}]*\}")
_PART = re.compile(r"[a-z]+|[A-Z][a-z]*")


@cache
def list_files(*endings: str) -> list[str]:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in done.stdout.splitlines() if name.endswith(endings) and (ROOT / name).exists()]


def list_prose(name: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of every line of a page, and of comments, docstrings and strings of code."""
    if not name.endswith(".py"):
        yield from enumerate(text.splitlines(), 1)
        return
    previous = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_doc = previous in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
        is_prose = is_doc or not name.startswith(ENGLISH)
        if is_prose and "STRING" in tokenize.tok_name[token.type] and token.string[1:-1] not in ON_DISK:
            lines = enumerate(token.string.splitlines(), token.start[0])
            yield from ((number, _EXPRESSION.sub("", line)) for number, line in lines)
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            previous = token.type


def find_phrases(name: str, text: str) -> Iterator[str]:
    if not _ANY_PHRASE.search(text):
        return
    allowed = [phrase for path, phrases in ALLOWED.items() if name.startswith(path) for phrase in phrases]
    for number, line in list_prose(name, text):
        for phrase in allowed:
            line = line.replace(phrase, "")
        for pattern, plain in _PHRASES if _ANY_PHRASE.search(line) else ():
            yield from (f"{name}:{number}: {found[0]} -> {plain}" for found in pattern.finditer(line))


def find_parts(name: str, text: str) -> Iterator[str]:
    """Yield the private words in the name of a file of code and in the names that it uses."""
    names = [(1, Path(name).stem)]
    if any(_get_part(one) for one in set(re.findall(r"[A-Za-z_]\w*", text))):
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        names += [(token.start[0], token.string) for token in tokens if token.type == tokenize.NAME]
    for number, one in names:
        if part := _get_part(one):
            yield f"{name}:{number}: {one} has {part}"


@cache
def _get_part(name: str) -> str | None:
    if name in LIBRARIES or not _ANY_PART.search(name):
        return None
    return next((part.lower() for part in _PART.findall(name) if part.lower() in NAME_PARTS), None)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_documents_messages_comments_and_names_use_plain_words():
    code = [name for name in list_files(".py") if name.startswith(CODE)]
    pages = list_files(".md", ".jinja")
    found = [line for name in [*pages, *code] for line in find_phrases(name, read(name))]
    found += [line for name in code for line in find_parts(name, read(name))]
    assert not found, "\n" + "\n".join(found)


def test_private_words_are_found():
    for name, text, words in [
        ("a.md", "The dial is told of.", ["dial", "told"]),
        ("a.md", "It goes on; this is no run.", ["goes on", "is no"]),
        ("a.md", "A keyboard, a harm, a tell-tale; there is no run.", []),
        ("raycomp/a.py", 'x = 1  # begun\n"""Laid out."""\n', ["begun", "Laid"]),
        ("raycomp/a.py", 'def f() -> str:\n    """Tell."""\n    return "crew"\n', ["Tell"]),
        ("raycomp/a.py", 'y = f"{x} is no number"\n', ["is no"]),
    ]:
        found = [line.partition(" -> ")[0].partition(": ")[2] for line in find_phrases(name, text)]
        assert found == words, text
    found = list(find_parts("raycomp/shelf.py", "class ArmCell:\n    harm = alarm(file.tell())\n"))
    assert found == ["raycomp/shelf.py:1: shelf has shelf", "raycomp/shelf.py:1: ArmCell has arm"]
