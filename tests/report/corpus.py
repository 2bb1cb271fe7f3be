"""A made-up scores table for the report's tests: plausible numbers, chosen as the two gates choose."""

import hashlib
import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from raycomp import words
from raycomp.data.parquet import aligned_schema, scores_schema
from raycomp.words import HEAD, KEPT, OK, UNSEEN

VERBS = set("holding wearing riding carrying throwing catching playing running jumping walking".split())
PREPOSITIONS = set("in on with near of at behind through by from to over under into next".split())
STOPS = VERBS | PREPOSITIONS | set("a an the and is are his her its their for while who that".split())
UNSEEN_WORDS = {"river"}  # as if no picture could show one
NONCES = ("blick", "dax", "wug", "fep", "toma", "zorp")
BAD = (words.CORRUPT_IMAGE, words.BAD_ENCODING, words.DUPLICATE_UID, words.TRUNCATED_SHARD)
SCHEMA = scores_schema(aligned_schema(2, "float32"))


def make_table(captions: Sequence[str], seed: int = 0, bad_every: int = 40) -> pa.Table:
    """Return scores rows for the captions; every ``bad_every``-th row is of a bad status."""
    rng = np.random.default_rng(seed)
    rows = []
    for i, caption in enumerate(captions):
        row = {name: None for name in SCHEMA.names}
        uid = hashlib.sha256(f"{seed} {i}".encode()).hexdigest()[:32]
        row |= {"uid": uid, "key": f"{i:06d}", "shard": f"{i // 100:05d}.tar", "position": i % 100}
        row |= {"caption": caption, "status": OK, "url": f"https://example.com/{i}.jpg"}
        if bad_every and i % bad_every == bad_every - 1:
            row["status"] = BAD[i // bad_every % len(BAD)]
        else:
            row["alignment"] = float(rng.normal(0.29, 0.035))
            row["phrases"] = make_phrases(caption, rng)
            valid = [p for p in row["phrases"] if p["drop"] is not None]
            drops = [p["drop"] for p in valid if p["target_class"] != UNSEEN]
            row["mean_pas"] = float(np.mean(drops)) if drops else None
            lacking = (
                words.NO_SEEN_PHRASE if valid else words.NO_VALID_NONCE if row["phrases"] else words.NO_PHRASE
            )
            row["status"] = OK if drops else lacking
        rows.append(row)
    table = pa.Table.from_pylist(rows, SCHEMA).drop_columns("image_embedding")
    return table.append_column("pas", table["mean_pas"])


def make_phrases(caption: str, rng: np.random.Generator) -> list[dict]:
    """Take each run of words between stop words for a phrase, its last word for the target."""
    phrases, at, run = [], 0, []
    for word in [*caption.split(" "), "the"]:
        if word.lower() in STOPS or not word.isalpha():
            if run:
                phrases.append(_make_phrase(caption, run, rng))
            run = []
        else:
            run.append((at, at + len(word)))
        at += len(word) + 1
    return phrases


def _make_phrase(caption: str, run: list[tuple[int, int]], rng: np.random.Generator) -> dict:
    (start, _), (target_start, end) = run[0], run[-1]
    before = re.search(r"(\w+)( (a|an|the))? $", caption[:start].lower())
    kind = "object"
    if before and before[1] in VERBS | PREPOSITIONS:
        kind, start = "relation" if before[1] in PREPOSITIONS else "predicate", before.start()
    valid = rng.random() > 0.03
    drop = float(np.float32(rng.normal(0.018, 0.022)))
    return {
        "text": caption[start:end],
        "start": start,
        "end": end,
        "kind": kind,
        "target": caption[target_start:end],
        "target_start": target_start,
        "target_end": end,
        "target_class": UNSEEN if caption[target_start:end] in UNSEEN_WORDS else HEAD,
        "nonces": [str(rng.choice(NONCES))] if valid else [],
        "drops": [drop] if valid else [],
        "drop": drop if valid else None,
        "displacement": float(rng.gamma(4, 0.03)) if valid else None,
    }


def choose(table: pa.Table, align: float = 0.7, attribute: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    """Return (reason, score of the last gate or NaN) per row as the two gates choose, by sorting."""
    reason = np.array(table["status"].to_pylist(), dtype=object)
    alignment = np.array(table["alignment"].to_pylist(), dtype=float)
    score = np.array(table["mean_pas"].to_pylist(), dtype=np.float32)
    corpus = np.flatnonzero(~np.isnan(alignment))
    ranked = corpus[np.argsort(-alignment[corpus], kind="stable")]
    passed = ranked[: int(align * len(corpus))]
    reason[ranked] = words.DROPPED_ALIGNMENT
    reason[passed] = words.DROPPED_UNSCORED
    scored = passed[~np.isnan(score[passed])]
    scored = scored[np.argsort(-score[scored], kind="stable")]
    reason[scored] = words.DROPPED_ATTRIBUTION
    reason[scored[: int(attribute * len(corpus))]] = KEPT
    ranked_last = np.zeros(len(score), bool)
    ranked_last[scored] = True
    return reason, np.where(ranked_last, score, np.float32(np.nan))
