"""Small corpora in every layout that is read: each layout must give what one table of truth says.

``python -m tests.field.fuzz --draws 300 --csv bench/results/layouts.csv`` writes a line for each draw. What a
layout cannot express is said by LAYOUTS, and nowhere else.
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

from raycomp.config.shared import ColumnsConfig
from raycomp.data.inputs import ShardPath, expand_input
from raycomp.data.reader import check_tables, count_samples, extract, read_shard
from raycomp.data.samples import decode_text, write_tar

PLAIN = ["a brown dog", "two cats", "\u732b", "caf\u00e9 & bar \U0001f43b", "2019", "null", "nan", "..."]
ODD = [
    *('"the best" dog', 'a 12" pizza', '"', '""', "a, b; c", "a\tb", "two\nlines", "two\r\nlines", "a\rb"),
    *("@x", "'", "a\\nb", "{}", "[1]", " blanks ", "\ufeffmark", "a\u2028b", "a\x85b", "a\0b", "x" * 3000),
    *("&amp;", "\U0001f415", "\u200bx", "\u05db\u05dc\u05d1", "e\u0301", "<b>", "\\", "$x %s", "\u202eevil"),
    *("=1+1", "#", "-", "0.5"),
]
EMPTY = ["", " ", "\n", "\t", "\x07", "\u200b", "\u3164", "\u2800", "\u200d\ufe0f", "\ufeff", "&nbsp;"]
STEMS = [
    *("a", "a b", " a", "a ", "caf\u00e9", "100%", "a%20b", "a+b", "a#1", "a?b", "a[1]", "{a,b}", "a,b"),
    *(
        'a"b',
        "'a'",
        "-a",
        "_a",
        "__a__",
        "\u732b" * 60,
        "y" * 200,
        "*",
        "a&b",
        "a=b",
        "~",
        "a::b",
        "A",
        "a;b",
    ),
]
FOLDERS = ["", "", "", "b", "b c/d", "v1.5", "\u00fc", "B", "c%2Fd"]
ROOTS = ["in", "a b", "x[1]", "{a,b}", "50%", "%41", "caf\u00e9", "a#b", "what?", "v1.5", "a=b"]
BROKEN_JSON = [b"{", b"[1]", b"", b"\xff\xfe{\0}\0", b'{"url": "\xe9"}']
UNREADABLE = [b"", b"<!DOCTYPE html>", b"version https://git-lfs.github.com/spec/v1\n", b"\xff\xd8\xff cut"]
FAULTS = ["", "", "", "", "absent", "gone", "silent", "latin", "unreadable", "mark", "broken", "twice"]
STATUSES = [
    *("ok", "no_image", "image_file_missing", "no_caption", "empty_caption", "bad_encoding", "bad_json"),
    *("ambiguous_key", "refused"),
]
MARK = "\ufeff"


@dataclass(frozen=True)
class Row:
    """A row of the truth. ``fault``: of FAULTS; latin is text that is not UTF-8, gone an image that is named
    and not there, mark and broken are of the image's own json."""

    name: str
    kind: str
    image: bytes | None
    captions: tuple[str, ...]
    url: str | None
    fault: str = ""

    @property
    def path(self) -> str:
        return f"{self.name}.{self.kind}"

    def bytes(self, mark: str = "") -> list[bytes]:
        is_latin = self.fault == "latin"
        texts = [mark + text for text in self.captions]
        return [one.encode("latin-1", "ignore") + b"\xe9" if is_latin else one.encode() for one in texts]

    def texts(self) -> list[str]:
        """The captions in a json, where a half of a surrogate pair is not UTF-8."""
        return [text + "\ud800" * (self.fault == "latin") for text in self.captions]


@dataclass(frozen=True)
class Corpus:
    """Rows, and how they are written; ``how`` is columns.captions."""

    rows: list[Row]
    rng: random.Random
    how: str
    mark: str
    end: str
    has_links: bool

    def put_images(self, folder: Path) -> None:
        for number, row in enumerate(self.rows):
            if row.image is not None and row.fault != "gone":
                is_link = self.has_links and number % 2
                put(folder / (f".blobs/{number}" if is_link else row.path), row.image)
                if is_link:
                    (folder / row.path).parent.mkdir(parents=True, exist_ok=True)
                    (folder / row.path).unlink(missing_ok=True)
                    (folder / row.path).symlink_to(folder / f".blobs/{number}")

    def dump(self, value: Any) -> str:
        """Return json, with letters as they are where UTF-8 can hold them."""
        text = json.dumps(value, ensure_ascii=False)
        return json.dumps(value) if "\ud800" in text or self.rng.random() < 0.5 else text


def put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


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
    how = rng.choice(["first", "first", "longest", "all"])
    return Corpus(rows, rng, how, rng.choice(["", MARK]), rng.choice(["\n", "\r\n"]), rng.random() < 0.3)


class Layout(NamedTuple):
    """How a corpus is written, and what this layout cannot express."""

    write: Callable[[Corpus, Path], Path]
    fit: Callable[[Row, int], Row | None]
    """Returns a row (and its number) as the layout holds it, None where it cannot."""
    hows: str = "first"
    """The values of columns.captions that it honours; "each": every caption is a row of its own."""
    is_once: bool = False
    """Names of files or of a json object: each is there once."""
    hides: bool = False
    """Names that start with a dot are no samples."""
    cuts: bool = False
    """The key ends at the first dot: a longer name is ambiguous."""
    quotes: bool | None = None


def expect(rows: list[Row], how: str, layout: Layout) -> list[tuple]:
    """Return (status, caption, image, url) of every row, as the truth says."""
    found = []
    for row in rows:
        if layout.hides and row.name.startswith("."):
            continue
        texts: list[Any] = (
            sorted(row.captions, key=len, reverse=True) if how == "longest" else [*row.captions]
        )
        texts = texts if how == "all" or "each" in layout.hows else texts[:1]
        is_cut = layout.cuts and "." in row.name.rpartition("/")[2]
        found += [_expect_row(row, text, is_cut) for text in texts or [None]]
    return found


def _expect_row(row: Row, text: str | None, is_cut: bool) -> tuple:
    image = None if row.fault == "gone" else row.image
    if is_cut:
        return "no_image" if image is None else "ambiguous_key", None, None, None
    is_bad = row.fault == "latin" and text is not None
    faults = {
        "image_file_missing": row.fault == "gone",
        "no_image": image is None,
        "no_caption": text is None,
        "bad_encoding": is_bad,
        "empty_caption": text in EMPTY,
        "bad_json": row.fault == "broken",
        "ok": True,
    }
    caption = None if text is None or is_bad else text.lstrip(MARK)
    status = next(name for name, is_so in faults.items() if is_so)
    return status, caption, image, None if row.fault == "broken" else row.url


def _about(row: Row, corpus: Corpus, **more: Any) -> bytes:
    if row.fault == "broken":
        return corpus.rng.choice(BROKEN_JSON)
    fields = {corpus.rng.choice(["url", "URL"]): row.url, **more}
    return (MARK * (row.fault == "mark") + corpus.dump(fields)).encode()


def write_folder(corpus: Corpus, folder: Path, has_json: bool) -> Path:
    """Images with texts, and what an archive of macOS leaves there."""
    corpus.put_images(folder)
    for row in corpus.rows:
        stem, kind = corpus.rng.choice([row.name, row.name, row.path]), corpus.rng.choice(["txt", "TXT"])
        for text in row.bytes(corpus.mark)[:1]:
            put(folder / f"{stem}.{kind}", text)
        if has_json:
            put(folder / f"{row.name}.json", _about(row, corpus))
    for junk in ("._first.jpg", "__MACOSX/._first.txt", ".DS_Store", "Thumbs.db"):
        put(folder / junk, b"\0\5\x16\7")
    return folder


def write_tars(corpus: Corpus, folder: Path, in_json: bool = False) -> Path:
    """Captions in members of their own, or in the json."""
    samples = []
    for row in corpus.rows:
        members = {} if row.image is None else {row.kind: row.image}
        texts, told = row.bytes(corpus.mark), row.texts()
        more = {"caption": told[0] if len(told) == 1 else told} if in_json else {}
        members |= {"txt": texts[0]} if texts and not in_json else {}
        samples.append((row.name, {**members, "json": _about(row, corpus, **more)}))
    folder.mkdir(parents=True, exist_ok=True)
    write_tar(str(folder / "00000.tar"), samples)
    return folder / "00000.tar"


def write_parquet(corpus: Corpus, folder: Path, how: str) -> Path:
    """Captions are a list, or a text where no image has more than one; bytes where one is not UTF-8."""
    texts: list[Any] = [row.bytes() or None for row in corpus.rows]
    is_single = all(one is None or len(one) == 1 for one in texts)
    kind = pa.binary() if any(row.fault == "latin" for row in corpus.rows) else pa.string()
    kind = pa.binary() if corpus.rng.random() < 0.3 else kind
    captions = pa.array([one and one[0] for one in texts] if is_single else texts)
    images: list[Any] = [row.image for row in corpus.rows]
    if how == "path":
        corpus.put_images(folder)
        images = [None if row.image is None else row.path for row in corpus.rows]
    elif how == "image":  # Hugging Face's form
        images = [{"bytes": image, "path": None} for image in images]
    columns = {how: images, "text": captions.cast(kind if is_single else pa.list_(kind))}
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        pa.table({**columns, "url": [row.url for row in corpus.rows]}), folder / "a.parquet", row_group_size=3
    )
    return folder / "a.parquet"


def write_table(corpus: Corpus, folder: Path, name: str, delimiters: str, has_quotes: bool = True) -> Path:
    corpus.put_images(folder)
    # Python quotes no carriage return of its own accord.
    is_all = any("\r" in text for row in corpus.rows for text in row.captions)
    quoting: Any = csv.QUOTE_ALL if is_all or corpus.rng.random() < 0.5 else csv.QUOTE_MINIMAL
    how = {"quoting": quoting} if has_quotes else {"quoting": csv.QUOTE_NONE, "quotechar": None}
    buffer, delimiter = io.StringIO(), corpus.rng.choice(delimiters)
    writer = csv.writer(buffer, delimiter=delimiter, lineterminator=corpus.end, **how)
    index = [""] * (corpus.rng.random() < 0.3)  # as pandas writes one
    names = corpus.rng.choice([["image", "caption"], ["file_name", "text"], ["filepath", "title"]])
    writer.writerow([*index, *names, corpus.rng.choice(["url", "URL"])])
    for row in corpus.rows:
        for text in row.bytes() or [b""]:
            image = "" if row.image is None else row.path
            writer.writerow([*index, image, text.decode("utf-8", "surrogateescape"), row.url or ""])
    put(folder / name, (corpus.mark + buffer.getvalue()).encode("utf-8", "surrogateescape"))
    return folder / name


def write_json(corpus: Corpus, folder: Path, name: str, form: str) -> Path:
    corpus.put_images(folder)
    records = [
        {
            "file_name": None if row.image is None else row.path,
            "caption": [*row.texts(), None][0] if len(row.captions) < 2 else row.texts(),
            "url": row.url,
        }
        for row in corpus.rows
    ]
    rows = list(enumerate(corpus.rows, 100))
    images = [{"id": i, "file_name": row.path, "url": row.url} for i, row in rows if row.image is not None]
    notes = [{"image_id": i, "caption": text} for i, row in rows for text in row.texts()]
    whole = {
        "lines": corpus.end.join(map(corpus.dump, records)),
        "list": corpus.dump(records),
        "map": corpus.dump({one["file_name"]: one["caption"] for one in records}),
        "coco": corpus.dump({"images": images[::-1], "annotations": notes}),
    }
    put(folder / name, f"{corpus.mark}{whole[form]}{corpus.end}".encode())
    return folder / name


def write_img2dataset(corpus: Corpus, folder: Path, how: str) -> Path:
    """img2dataset's own tables lie beside its shards."""
    if how == "parquet":
        return write_parquet(corpus, folder, "jpg")
    put(folder / "00000_stats.json", b'{"count": 1}')
    pq.write_table(pa.table({"key": [row.name for row in corpus.rows]}), folder / "00000.parquet")
    return write_folder(corpus, folder / "00000", True) if how == "files" else write_tars(corpus, folder)


def as_member(row: Row, number: int = 0) -> Row:
    """No name is left of an image that is not there."""
    return replace(row, image=None, fault="") if row.fault == "gone" else row


def as_record(row: Row, number: int = 0) -> Row:
    """No image has a json of its own."""
    return replace(row, fault="") if row.fault in ("mark", "broken") else row


def as_text(row: Row, number: int = 0) -> Row:
    """No caption is an empty one."""
    return replace(as_record(row), captions=row.captions or ("",))


def as_line(row: Row, number: int = 0) -> Row | None:
    """Without quotes a caption has neither a tab nor an end of line."""
    return None if any(set("\t\r\n") & set(text) for text in row.captions) else as_text(row)


def as_map(row: Row, number: int = 0) -> Row | None:
    """The names of an object are the images; nothing else is said of them."""
    return None if row.image is None else replace(as_record(row), url=None)


def as_coco(row: Row, number: int = 0) -> Row | None:
    """An image that is not listed has annotations alone."""
    row = as_record(row) if row.image is not None else replace(as_record(row), url=None)
    return row if row.image is not None or row.captions else None


def as_files(row: Row, number: int = 0) -> Row | None:
    """The json of an image that is not there is not read; without a text either nothing is there."""
    row = as_member(row)
    return row if row.image is not None else replace(as_record(row), url=None) if row.captions else None


def as_two_files(row: Row, number: int = 0) -> Row | None:
    found = as_files(row)
    return found and replace(as_record(found), url=None)


def as_downloaded(row: Row, number: int) -> Row | None:
    """img2dataset numbers what it downloads and writes no other row; no caption is an empty one."""
    row = replace(as_text(as_member(row)), name=f"{number:09d}", kind="jpg")
    return None if row.image is None else replace(row, captions=row.captions[:1], fault="")


SOME, ALL, EACH = "first longest", "first longest all", "first longest all each"
LAYOUTS = {
    "folder": Layout(partial(write_folder, has_json=False), as_two_files, is_once=True, hides=True),
    "folder with json": Layout(partial(write_folder, has_json=True), as_files, is_once=True, hides=True),
    "tar": Layout(write_tars, as_member, hides=True, cuts=True),
    "tar of json": Layout(
        partial(write_tars, in_json=True), lambda row, _: as_record(as_member(row)), hides=True, cuts=True
    ),
    "parquet": Layout(partial(write_parquet, how="jpg"), lambda row, _: as_record(as_member(row)), SOME),
    "parquet structs": Layout(
        partial(write_parquet, how="image"), lambda row, _: as_record(as_member(row)), SOME
    ),
    "parquet paths": Layout(partial(write_parquet, how="path"), as_record, SOME),
    "csv": Layout(partial(write_table, name="captions.csv", delimiters=",,\t;"), as_text, EACH),
    "tsv": Layout(partial(write_table, name="a.tsv", delimiters="\t", has_quotes=False), as_line, EACH),
    "tsv with quotes": Layout(
        partial(write_table, name="a.tsv", delimiters="\t"), as_text, EACH, quotes=True
    ),
    "jsonl": Layout(partial(write_json, name="metadata.jsonl", form="lines"), as_record, ALL),
    "json list": Layout(partial(write_json, name="metadata.json", form="list"), as_record, ALL),
    "json map": Layout(partial(write_json, name="captions.json", form="map"), as_map, ALL, is_once=True),
    "coco": Layout(partial(write_json, name="captions_val.json", form="coco"), as_coco, ALL),
    "img2dataset": Layout(partial(write_img2dataset, how="webdataset"), as_downloaded),
    "img2dataset files": Layout(partial(write_img2dataset, how="files"), as_downloaded),
    "img2dataset parquet": Layout(partial(write_img2dataset, how="parquet"), as_downloaded, SOME),
}


def check(corpus: Corpus, layout: Layout, folder: Path) -> tuple[str | None, Counter[str]]:
    """Return what differs from the truth in a layout, None where nothing does, and the rows' statuses."""
    rows = [row for i, one in enumerate(corpus.rows) if (row := layout.fit(one, i)) is not None]
    rows = list({row.path: row for row in reversed(rows)}.values())[::-1] if layout.is_once else rows
    place = layout.write(replace(corpus, rows=rows), folder)
    place = folder if place.parent == folder and place.suffix and corpus.rng.random() < 0.5 else place
    try:
        columns = ColumnsConfig(captions=corpus.how, quotes=layout.quotes)
        shards = expand_input(str(place), columns=columns)
        check_tables(shards)
    except ValueError as error:
        is_due = corpus.how not in layout.hows and str(error).startswith("columns.captions=")
        return (None, Counter(refused=1)) if is_due else (str(error), Counter())
    if corpus.how not in layout.hows:
        return f"columns.captions={corpus.how} is not refused", Counter()
    read = {
        shard.ordinal: [row for table in read_shard(shard, 3) for row in table.to_pylist()]
        for shard in shards
    }
    seen = [row for one in read.values() for row in one]
    found = Counter((row["status"], row["caption"], row["image"], row["url"]) for row in seen)
    truth = Counter(expect(rows, corpus.how, layout))
    statuses = Counter(row["status"] for row in seen)
    if found != truth:
        return f"read {list((found - truth).items())} in place of {list((truth - found).items())}", statuses
    if count_samples(shards) != {ordinal: len(one) for ordinal, one in read.items()}:
        return f"counts {count_samples(shards)} samples of {len(seen)}", statuses
    if not all(_is_extracted(shard, read[shard.ordinal]) for shard in shards):
        return "other bytes are extracted than were read", statuses
    return None, statuses


def _is_extracted(shard: ShardPath, rows: list[dict[str, Any]]) -> bool:
    good = {row["position"]: row for row in rows if row["status"] == "ok"}
    members = dict(extract(shard, good.keys()))
    return members.keys() == good.keys() and all(
        row["image"] in (own := members[place]).values()
        and decode_text(own.get("txt", row["caption"])) == row["caption"]
        for place, row in good.items()
    )


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
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--draws", type=int, default=300)
    parser.add_argument("--csv", required=True, help="a line for each draw")
    options = parser.parse_args()
    with open(options.csv, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["draw", "layouts", "differ", "rows", *STATUSES])
        for number in range(options.draws):
            differs, statuses = run(number)
            counts = [statuses[name] for name in STATUSES]
            writer.writerow([number, len(LAYOUTS), len(differs), statuses.total(), *counts])
            for name, said in differs.items():
                print(f"draw {number}: {name}: {said[:600]}", flush=True)


if __name__ == "__main__":
    main()
