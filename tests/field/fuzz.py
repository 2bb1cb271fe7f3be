"""Small corpora in every layout that is read: each layout must give what one table of truth says.

``python -m tests.field.fuzz --draws 300 --csv bench/results/layouts.csv`` writes a line for each draw. What a
layout cannot express is said by LAYOUTS and LACKS, and nowhere else.
"""

import argparse
import csv
import io
import json
import random
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from raycomp.config.options import ColumnsConfig
from raycomp.data.inputs import expand_input
from raycomp.data.reader import check_tables, count_samples, extract, read_shard
from raycomp.data.samples import decode_text, write_tar

MARKS = ["", MARK := "\ufeff"]
PLAIN = ["a brown dog", "two cats", "\u732b", "caf\u00e9 & bar \U0001f43b", "2019", "null", "nan", "..."]
ODD = [
    *('"the best" dog', 'a 12" pizza', '"', '""', "a, b; c", "a\tb", "two\nlines", "two\r\nlines", "a\rb"),
    *("@x", "'", "a\\nb", "{}", "[1]", " blanks ", MARK + "mark", "a\u2028b", "a\x85b", "a\0b", "x" * 3000),
    *("&amp;", "\U0001f415", "\u200bx", "\u05db\u05dc\u05d1", "e\u0301", "<b>", "\\", "$x %s", "\u202eevil"),
    *("=1+1", "#", "-", "0.5"),
]
EMPTY = ["", " ", "\n", "\t", "\x07", "\u200b", "\u3164", "\u2800", "\u200d\ufe0f", MARK, "&nbsp;"]
STEMS = [
    *("a", "a b", " a", "a ", "caf\u00e9", "100%", "a%20b", "a+b", "a#1", "a?b", "a[1]", "{a,b}", "a,b"),
    *('a"b', "'a'", "-a", "_a", "__a__", "\u732b" * 60, "y" * 200),
    *("*", "a&b", "a=b", "~", "a::b", "A", "a;b"),
]
FOLDERS = ["", "", "", "b", "b c/d", "v1.5", "\u00fc", "B", "c%2Fd"]
ROOTS = ["in", "a b", "x[1]", "{a,b}", "50%", "%41", "caf\u00e9", "a#b", "what?", "v1.5", "a=b"]
BROKEN_JSON = [b"{", b"[1]", b"", b"\xff\xfe{\0}\0", b'{"url": "\xe9"}']
UNREADABLE = [b"", b"<!DOCTYPE html>", b"version https://git-lfs.github.com/spec/v1\n", b"\xff\xd8\xff cut"]
FAULTS = ["", "", "", "", "absent", "gone", "silent", "latin", "unreadable", "mark", "broken", "twice"]


@dataclass(frozen=True)
class Row:
    """A row of the truth. Of FAULTS latin is text that is not UTF-8; mark and broken are of the own json."""

    name: str
    kind: str
    image: bytes | None
    captions: tuple[str, ...]
    url: str | None
    fault: str = ""

    @property
    def path(self) -> str:
        return f"{self.name}.{self.kind}"

    def encode(self) -> list[bytes]:
        if self.fault == "latin":
            return [text.encode("latin-1", "ignore") + b"\xe9" for text in self.captions]
        return [text.encode() for text in self.captions]

    def say(self) -> list[str]:
        """Return the captions for a json, where a half of a surrogate pair is not UTF-8."""
        return [text + "\ud800" * (self.fault == "latin") for text in self.captions]


class Corpus(NamedTuple):
    rows: list[Row]
    rng: random.Random
    how: str
    """columns.captions."""

    def dump(self, value: Any) -> str:
        """Return json, with letters as they are where UTF-8 can hold them."""
        text = json.dumps(value, ensure_ascii=False)
        return json.dumps(value) if "\ud800" in text or self.rng.random() < 0.5 else text

    def put_images(self, folder: Path) -> None:
        """Write the images, some of them as links."""
        for number, row in enumerate(self.rows):
            if row.image is not None and row.fault != "gone" and not (folder / row.path).exists():
                is_link = self.rng.random() < 0.2
                put(folder / (f".blobs/{number}" if is_link else row.path), row.image)
                if is_link:
                    (folder / row.path).parent.mkdir(parents=True, exist_ok=True)
                    (folder / row.path).symlink_to(folder / f".blobs/{number}")


def put(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def draw(number: int) -> Corpus:
    """Return the corpus of a draw; its first row is whole."""
    rng = random.Random(number)
    rows = [Row("first", "jpg", b"\xff\xd8\xff", ("a dog",), None)]
    for i in range(1, rng.randint(1, 9)):
        stem = unicodedata.normalize(rng.choice(["NFC", "NFD"]), rng.choice(STEMS)) + str(i)
        stem = rng.choice([f".{stem}", f"{stem}.5", f"{stem}.jpg"]) if rng.random() < 0.1 else stem
        folder = "" if stem.startswith(".") else rng.choice(FOLDERS)
        texts = rng.choice([PLAIN, PLAIN, ODD, ODD, EMPTY])
        captions = rng.choice(texts), *(rng.choice(PLAIN + ODD) for _ in range(rng.choice([0, 0, 0, 1, 2])))
        kind = rng.choice(["jpg", "jpg", "JPG", "png", "JPEG", "webp"])
        url = rng.choice([None, f"https://a.org/{i}?b=c,d"])
        fault, image = rng.choice(FAULTS), b"\xff\xd8\xff" + b"%d" % i
        image = None if fault == "absent" else rng.choice(UNREADABLE) if fault == "unreadable" else image
        row = Row(str(Path(folder, stem)), kind, image, captions if fault != "silent" else (), url, fault)
        rows.append(replace(rows[-1], captions=captions) if fault == "twice" else row)
    return Corpus(rows, rng, rng.choice(["first", "first", "longest", "all"]))


LACKS = {
    "gone": "no name is left of an image that is not there",
    "absent": "a row without an image is not written",
    "loose": "of a row without an image nothing is read but its captions",
    "twice": "names of files or of a json object: each is there once",
    "hidden": "names that start with a dot are no samples",
    "dots": "the key ends at the first dot: a longer name is ambiguous",
    "about": "no image has a json of its own",
    "null": "no caption is an empty one",
    "lines": "a caption without quotes has neither a tab nor an end of line",
    "url": "nothing is said of an image",
    "names": "img2dataset numbers its images, and each has one text in UTF-8",
}


class Layout(NamedTuple):
    """How a corpus is written, the columns.captions that it honours (each: all are rows), what it lacks."""

    write: Callable[[Corpus, Path], Path]
    hows: str
    lacks: str
    quotes: bool | None = None


def fit(rows: list[Row], lacks: str) -> list[Row]:
    """Return the rows as a layout can hold them."""
    found: dict[Any, Row] = {}
    for number, row in enumerate(rows):
        if "gone" in lacks and row.fault == "gone":
            row = replace(row, image=None, fault="")
        is_loose = "loose" in lacks and row.image is None
        if row.fault in ("mark", "broken") and (is_loose or "about" in lacks):
            row = replace(row, fault="")
        row = replace(row, url=None) if is_loose or "url" in lacks else row
        row = replace(row, captions=row.captions or ("",)) if "null" in lacks else row
        if "names" in lacks:
            row = replace(row, name=f"{number:09d}", kind="jpg", captions=row.captions[:1], fault="")
        is_line = not any(set("\t\r\n") & set(text) for text in row.captions)
        is_held = row.image is not None or not ("absent" in lacks or (is_loose and not row.captions))
        if is_held and (is_line or "lines" not in lacks):
            found.setdefault(row.path if "twice" in lacks else number, row)
    return list(found.values())


def expect(rows: list[Row], how: str, layout: Layout) -> list[tuple]:
    """Return (status, caption, image, url) of every row, as the truth says."""
    found: list[tuple] = []
    for row in rows:
        image = None if row.fault == "gone" else row.image
        if "hidden" in layout.lacks and row.name.startswith("."):
            continue
        if "dots" in layout.lacks and "." in row.name.rpartition("/")[2]:
            found.append(("no_image" if image is None else "ambiguous_key", None, None, None))
            continue
        texts: list[Any] = [*row.captions]
        if how == "longest":
            texts.sort(key=lambda text: len(text.lstrip(MARK)), reverse=True)
        texts = texts if how == "all" or "each" in layout.hows else texts[:1]
        for text in texts or [None]:
            is_bad = row.fault == "latin" and text is not None
            faults = {
                "image_file_missing": row.fault == "gone", "no_image": image is None,
                "no_caption": text is None, "bad_encoding": is_bad, "empty_caption": text in EMPTY,
                "bad_json": row.fault == "broken",
            }  # fmt: skip
            caption = None if text is None or is_bad else text.lstrip(MARK)
            status = next((name for name, is_so in faults.items() if is_so), "ok")
            found.append((status, caption, image, None if row.fault == "broken" else row.url))
    return found


def describe(row: Row, corpus: Corpus, **more: Any) -> bytes:
    """Return an image's own json."""
    if row.fault == "broken":
        return corpus.rng.choice(BROKEN_JSON)
    fields = {corpus.rng.choice(["url", "URL"]): row.url, **more}
    return (MARK * (row.fault == "mark") + corpus.dump(fields)).encode()


def write_folder(corpus: Corpus, folder: Path, has_json: bool) -> Path:
    """Images with texts, and what an archive of macOS leaves there."""
    corpus.put_images(folder)
    for row in corpus.rows:
        stem, kind = corpus.rng.choice([row.name, row.name, row.path]), corpus.rng.choice(["txt", "TXT"])
        for text in row.encode()[:1]:
            put(folder / f"{stem}.{kind}", corpus.rng.choice(MARKS).encode() + text)
        if has_json:
            put(folder / f"{row.name}.json", describe(row, corpus))
    for junk in ("._first.jpg", "__MACOSX/._first.txt", ".DS_Store", "Thumbs.db"):
        put(folder / junk, b"\0\5\x16\7")
    return folder


def write_tars(corpus: Corpus, folder: Path, in_json: bool = False) -> Path:
    """Captions in members of their own, or in the json."""
    samples = []
    for row in corpus.rows:
        members = {} if row.image is None else {row.kind: row.image}
        texts, said = [] if in_json else row.encode(), row.say()
        more = {"caption": said[0] if len(said) == 1 else said} if in_json else {}
        members |= {"txt": corpus.rng.choice(MARKS).encode() + texts[0]} if texts else {}
        samples.append((row.name, {**members, "json": describe(row, corpus, **more)}))
    write_tar(str(put(folder / "00000.tar", b"")), samples)
    return folder / "00000.tar"


def write_parquet(corpus: Corpus, folder: Path, how: str) -> Path:
    """Captions are a list, or a text where no image has more than one; bytes where one is not UTF-8."""
    texts: list[Any] = [row.encode() or None for row in corpus.rows]
    is_single = all(one is None or len(one) == 1 for one in texts)
    is_text = all(row.fault != "latin" for row in corpus.rows) and corpus.rng.random() < 0.7
    kind = pa.string() if is_text else pa.binary()
    captions = pa.array([one and one[0] for one in texts] if is_single else texts)
    images: list[Any] = [row.image for row in corpus.rows]
    if how == "path":
        corpus.put_images(folder)
        images = [None if row.image is None else row.path for row in corpus.rows]
    elif how == "image":  # Hugging Face's form
        images = [{"bytes": image, "path": None} for image in images]
    columns = {how: images, "text": captions.cast(kind if is_single else pa.list_(kind))}
    table = pa.table({**columns, "url": [row.url for row in corpus.rows]})
    pq.write_table(table, put(folder / "a.parquet", b""), row_group_size=3)
    return folder / "a.parquet"


def write_table(corpus: Corpus, folder: Path, name: str, delimiters: str = "\t", quote: Any = '"') -> Path:
    corpus.put_images(folder)
    is_all = any("\r" in text for row in corpus.rows for text in row.captions)  # which Python does not quote
    how: Any = csv.QUOTE_ALL if is_all or corpus.rng.random() < 0.5 else csv.QUOTE_MINIMAL
    quotes = {"quoting": how if quote else csv.QUOTE_NONE, "quotechar": quote}
    buffer, end = io.StringIO(), corpus.rng.choice(["\n", "\r\n"])
    writer = csv.writer(buffer, delimiter=corpus.rng.choice(delimiters), lineterminator=end, **quotes)
    index = [""] * (corpus.rng.random() < 0.3)  # as pandas writes one
    names = corpus.rng.choice([["image", "caption"], ["file_name", "text"], ["filepath", "title"]])
    writer.writerow([*index, *names, corpus.rng.choice(["url", "URL"])])
    for row in corpus.rows:
        for text in row.encode() or [b""]:
            image = "" if row.image is None else row.path
            writer.writerow([*index, image, text.decode("utf-8", "surrogateescape"), row.url or ""])
    return put(
        folder / name, (corpus.rng.choice(MARKS) + buffer.getvalue()).encode("utf-8", "surrogateescape")
    )


def write_json(corpus: Corpus, folder: Path, name: str, form: str) -> Path:
    corpus.put_images(folder)
    records = []
    for row in corpus.rows:
        said = row.say() if len(row.captions) > 1 else [*row.say(), None][0]
        image = None if row.image is None else row.path
        records.append({"file_name": image, "caption": said, "url": row.url})
    rows = list(enumerate(corpus.rows, 100))
    images = [{"id": i, "file_name": row.path, "url": row.url} for i, row in rows if row.image is not None]
    notes = [{"image_id": i, "caption": text} for i, row in rows for text in row.say()]
    whole = {
        "lines": corpus.rng.choice(["\n", "\r\n"]).join(map(corpus.dump, records)),
        "list": corpus.dump(records),
        "map": corpus.dump({one["file_name"]: one["caption"] for one in records}),
        "coco": corpus.dump({"images": images[::-1], "annotations": notes}),
    }
    return put(folder / name, f"{corpus.rng.choice(MARKS)}{whole[form]}\n".encode())


def write_img2dataset(corpus: Corpus, folder: Path, how: str) -> Path:
    """img2dataset's own tables lie beside its shards."""
    if how == "parquet":
        return write_parquet(corpus, folder, "jpg")
    put(folder / "00000_stats.json", b'{"count": 1}')
    pq.write_table(pa.table({"key": [row.name for row in corpus.rows]}), folder / "00000.parquet")
    return write_folder(corpus, folder / "00000", True) if how == "files" else write_tars(corpus, folder)


SOME, ALL, EACH = "first longest", "first longest all", "first longest all each"
FILES, LOADED = "gone loose twice hidden", "gone absent about null names"
LAYOUTS = {
    "folder": Layout(partial(write_folder, has_json=False), "first", f"{FILES} about url"),
    "folder with json": Layout(partial(write_folder, has_json=True), "first", FILES),
    "tar": Layout(write_tars, "first", "gone hidden dots"),
    "tar of json": Layout(partial(write_tars, in_json=True), "first", "gone hidden dots about"),
    "parquet": Layout(partial(write_parquet, how="jpg"), SOME, "gone about"),
    "parquet structs": Layout(partial(write_parquet, how="image"), SOME, "gone about"),
    "parquet paths": Layout(partial(write_parquet, how="path"), SOME, "about"),
    "csv": Layout(partial(write_table, name="captions.csv", delimiters=",,\t;"), EACH, "about null"),
    "tsv": Layout(partial(write_table, name="a.tsv", quote=None), EACH, "about null lines"),
    "tsv with quotes": Layout(partial(write_table, name="a.tsv"), EACH, "about null", quotes=True),
    "jsonl": Layout(partial(write_json, name="metadata.jsonl", form="lines"), ALL, "about"),
    "json list": Layout(partial(write_json, name="metadata.json", form="list"), ALL, "about"),
    "json map": Layout(partial(write_json, name="captions.json", form="map"), ALL, "about absent url twice"),
    "coco": Layout(partial(write_json, name="captions_val.json", form="coco"), ALL, "about loose"),
    "img2dataset": Layout(partial(write_img2dataset, how="webdataset"), "first", LOADED),
    "img2dataset files": Layout(partial(write_img2dataset, how="files"), "first", LOADED),
    "img2dataset parquet": Layout(partial(write_img2dataset, how="parquet"), SOME, LOADED),
}


def check(corpus: Corpus, layout: Layout, folder: Path) -> tuple[str | None, Counter[str]]:
    """Return what differs from the truth in a layout, None where nothing does, and the rows' statuses."""
    rows = fit(corpus.rows, layout.lacks)
    place = layout.write(corpus._replace(rows=rows), folder)
    place = folder if place.is_file() and corpus.rng.random() < 0.5 else place
    try:
        shards = expand_input(str(place), columns=ColumnsConfig(captions=corpus.how, quotes=layout.quotes))
        check_tables(shards)
    except ValueError as error:
        is_due = corpus.how not in layout.hows and str(error).startswith("columns.captions=")
        return (None, Counter(refused=1)) if is_due else (str(error), Counter())
    read = {one.ordinal: [row for table in read_shard(one, 3) for row in table.to_pylist()] for one in shards}
    seen = [row for one in read.values() for row in one]
    found = Counter((row["status"], row["caption"], row["image"], row["url"]) for row in seen)
    truth, said = Counter(expect(rows, corpus.how, layout)), None
    if corpus.how not in layout.hows:
        said = f"columns.captions={corpus.how} is not refused"
    elif found != truth:
        said = f"read {list((found - truth).items())} in place of {list((truth - found).items())}"
    elif count_samples(shards) != {ordinal: len(one) for ordinal, one in read.items()}:
        said = f"counts {count_samples(shards)} samples of {len(seen)}"
    for shard in shards:
        good = {row["position"]: row for row in read[shard.ordinal] if row["status"] == "ok"}
        for place, members in extract(shard, good.keys()):
            row = good.pop(place)
            text = decode_text(members.get("txt", row["caption"]))
            same = row["image"] in members.values() and text == row["caption"]
            said = said if same else "other bytes are extracted than were read"
        said = f"{len(good)} samples are not extracted" if good else said
    return said, Counter(row["status"] for row in seen)


def run(number: int) -> tuple[dict[str, str], Counter[str]]:
    """Return what differs by layout, and the statuses of all rows of a draw."""
    differs, statuses = {}, Counter[str]()
    with tempfile.TemporaryDirectory(prefix="raycomp-layouts-") as root:
        for i, (name, layout) in enumerate(LAYOUTS.items()):
            corpus = draw(number)
            said, seen = check(corpus, layout, Path(root) / str(i) / corpus.rng.choice(ROOTS))
            statuses += seen
            differs |= {} if said is None else {name: said}
    return differs, statuses


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=300)
    parser.add_argument("--csv", required=True)
    options = parser.parse_args()
    with open(options.csv, "w") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["draw", "layouts", "differ", "rows", "statuses"])
        for number in range(options.draws):
            differs, statuses = run(number)
            counts = " ".join(f"{name}:{count}" for name, count in sorted(statuses.items()))
            num_rows = statuses.total() - statuses["refused"]
            writer.writerow([number, len(LAYOUTS), len(differs), num_rows, counts])
            for name, said in differs.items():
                print(f"draw {number}: {name}: {said[:600]}", flush=True)


if __name__ == "__main__":
    main()
