"""The pages of explore over generated rows: time to write them, and time of a page in Chromium.

    python -m bench.explore [--rows 100000,1000000] [--folder FOLDER]

A curation of generated scores files, 100,000 rows each, is written first, which is not timed: captions of
eight words of 20,000, three phrases with drops, embeddings of 64 dims around 1,000 centres, no photos. Timed
are the command, on the local executor, and in Chromium (playwright): from the address to the first 40 cards,
and from each act to its 40 cards: the next page, the last page, a filter by outcome, a word, a word in a
phrase, a range of alignment, a sort, the nearest rows. The first of six tries of an act loads its part of the
index and is given apart; the others are in a random order. Prints seconds: first, median, largest.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from playwright.sync_api import sync_playwright

import raycomp
from bench.filters import peak_mb
from lab.worlds.samples import world_shards
from raycomp.config import override_all
from raycomp.core.selection import format_uids
from raycomp.curation.config import CurateConfig
from raycomp.data.files import Folder
from raycomp.data.parquet import aligned_schema, scores_schema, write_table
from raycomp.data.runs import write_manifest
from raycomp.data.samples import write_tar
from raycomp.look.config import ExploreConfig

PER_FILE, DIM, TRIES = 100_000, 64, 5
WORDS = [f"word{i}" for i in range(20_000)]
ACTS = {
    "next page": "go({ ...START, page: '2' })",
    "last page": "go({ ...START, page: '999999' })",
    "outcome": "go({ ...START, outcome: ['below_alignment_gate'] })",
    "word": "go({ ...START, word: 'word7' })",
    "word in a phrase": "go({ ...START, word: 'word3', phrase: '1' })",
    "alignment from 0.9": "go({ ...START, alignment_from: '0.9' })",
    "sort by mean PAS": "go({ ...START, sort: '-mean_pas' })",
    "nearest rows": "go({ ...START, near: '77777' })",
}


def write_scores(number: int, folder: Path) -> int:
    """Write one scores file; return the number of its rows."""
    rng = np.random.default_rng([2, number])
    word_NW = np.minimum(rng.zipf(1.3, (PER_FILE, 8)), len(WORDS)) - 1
    texts = [[WORDS[i] for i in row] for row in word_NW.tolist()]
    drop_NP = rng.normal(0.03, 0.03, (PER_FILE, 3)).astype(np.float32)
    vector = np.random.default_rng(3).normal(size=(1000, DIM))[rng.integers(1000, size=PER_FILE)]
    vector = vector + 0.3 * rng.normal(size=vector.shape)
    vector /= np.linalg.norm(vector, axis=1, keepdims=True)
    alignment = np.clip(rng.normal(0.8, 0.1, PER_FILE), -1, 1)
    columns = {
        "uid": format_uids(rng.integers(0, 2**64, (PER_FILE, 2), dtype=np.uint64)),
        "key": [f"{i:08d}" for i in range(PER_FILE)],
        "shard": [f"{number:05d}.tar"] * PER_FILE,
        "position": range(PER_FILE),
        "caption": [" ".join(row) for row in texts],
        "caption_words": [8] * PER_FILE,
        "status": ["ok"] * PER_FILE,
        "alignment": alignment,
        "mean_pas": drop_NP.mean(axis=1),
        "phrases": [make_phrases(*row) for row in zip(texts, drop_NP.tolist(), strict=True)],
        "image_embedding": vector.astype(np.float32).tolist(),
    }
    schema = scores_schema(aligned_schema(DIM, "float32"))
    arrays = [
        pa.array(columns[one.name], one.type) if one.name in columns else pa.nulls(PER_FILE, one.type)
        for one in schema
    ]
    write_table(pa.table(arrays, schema=schema), str(folder / f"{number:05d}.parquet"), schema)
    return PER_FILE


def make_phrases(words: list[str], drops: list[float]) -> list[dict[str, Any]]:
    """Return a phrase of two words for each drop, the first pairs of the caption."""
    starts = np.cumsum([0, *(len(word) + 1 for word in words)]).tolist()
    found = []
    for i, drop in enumerate(drops):
        start, middle, end = starts[2 * i], starts[2 * i + 1], starts[2 * i + 2] - 1
        places = {"start": start, "end": end, "target_start": middle, "target_end": end}
        names = {"text": f"{words[2 * i]} {words[2 * i + 1]}", "target": words[2 * i + 1]}
        moved = {"nonces": ["acks", "ymes"], "drops": [drop, drop], "drop": drop, "displacement": 0.1}
        found.append({**places, **names, **moved, "kind": "object", "target_class": "head"})
    return found


def make_curation(folder: Path, num_rows: int) -> Path:
    """Write a curation whose scores files are generated; return its folder."""
    tower = {"layers": 1, "width": 64}
    vision = {"image_size": 32, "head_width": 32, "patch_size": 16, **tower}
    text = {"context_length": 77, "vocab_size": 49408, "heads": 2, **tower}
    model = folder / "tiny.json"
    model.write_text(json.dumps({"embed_dim": DIM, "vision_cfg": vision, "text_cfg": text}))
    for name, samples in world_shards(20, 0, 0, per_shard=20):
        write_tar(str(folder / "in" / name), samples)
    settings = {"scorer.model": str(model), "scorer.weights": "random:0", "attribute.pool": 1.0}
    settings |= {"select.rule": "cpi", "attribute.targets": "showable"}
    settings |= {"attribute.unit": "drop", "attribute.aggregate": "mean"}
    out = Folder(str(folder / "curated"))
    raycomp.curate(override_all(CurateConfig(input=str(folder / "in"), materialize=False), settings), out.uri)
    out.remove("metadata")
    for number in range(num_rows // PER_FILE):
        write_scores(number, folder / "curated/scores")
    run = out.read_json("run.json")
    run["fingerprint"]["shards"] = num_rows // PER_FILE
    for gate, value in (("align", 0.75), ("attribute", 0.03)):
        bits = int(np.float32(value).view(np.uint32)) ^ 0x8000_0000  # see Threshold
        run["gates"][gate] = {**run["gates"][gate], "bits": bits, "uid": None}
    out.write_json({**run, "manifest": write_manifest(out, ("scores", "subset"), {})}, "run.json")
    return folder / "curated"


def time_pages(report: Path) -> dict[str, list[float]]:
    """Return the seconds of the first 40 cards, and of each act: the first one and the others."""
    with sync_playwright() as playwright:
        found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        times: dict[str, list[float]] = {"opening": []}
        for _ in range(TRIES):
            page = browser.new_page()
            times["opening"].append(time_act(page, lambda page=page: page.goto(report.as_uri())))
            page.close()
        page = browser.new_page()
        time_act(page, lambda: page.goto(report.as_uri()))
        rng = np.random.default_rng(0)
        rounds = [list(ACTS), *(rng.permutation(list(ACTS)).tolist() for _ in range(TRIES))]
        for name in [name for acts in rounds for name in acts]:
            times.setdefault(name, []).append(time_act(page, lambda name=name: page.evaluate(ACTS[name])))
            assert page.locator(".card").count(), name
        browser.close()
    return times


def time_act(page: Any, act: Callable[[], Any]) -> float:
    """Return the seconds from an act until the page shows a later state."""
    before = page.evaluate("typeof latest === 'undefined' ? 0 : latest") if page.url != "about:blank" else 0
    started = time.perf_counter()
    act()
    while True:
        latest, ready = page.evaluate("[latest, Number(document.getElementById('cards').dataset.ready)]")
        if latest > before and ready == latest:
            return time.perf_counter() - started
        time.sleep(0.005)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="100000,1000000")
    parser.add_argument("--folder", default=None, help="where the temporary files are written")
    arguments = parser.parse_args()
    for num_rows in map(int, arguments.rows.split(",")):
        with tempfile.TemporaryDirectory(dir=arguments.folder) as place:
            source, out = make_curation(Path(place), num_rows), Path(place) / "out"
            started = time.perf_counter()
            raycomp.explore(source, ExploreConfig(rows=num_rows), out)
            seconds = time.perf_counter() - started
            files = [path.stat().st_size for path in out.rglob("*") if path.is_file()]
            size = f"{len(files):,} files, {sum(files) / 1e6:,.0f} MB"
            print(
                f"{num_rows:,} rows: written in {seconds:.0f} s, {size}, peak {peak_mb():,.0f} MB", flush=True
            )
            for name, (first, *others) in time_pages(out / "report.html").items():
                middle, most = statistics.median(others), max(others)
                print(f"  {name}: first {first:.2f}, then {middle:.2f}, at most {most:.2f} s", flush=True)


if __name__ == "__main__":
    main()
