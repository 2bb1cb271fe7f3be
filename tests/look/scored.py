"""Finished curations made by hand, with any captions and scores, for the tests of this folder."""

from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import pyarrow as pa

import raycomp
from raycomp.config import ClusterConfig, override_all, to_dict
from raycomp.curation.config import CurateConfig, make_selection
from raycomp.curation.select.measures import corpus_columns
from raycomp.curation.select.select import choose_tables
from raycomp.data.files import Folder
from raycomp.data.parquet import aligned_schema, scores_schema, write_table
from raycomp.schema import KEPT_SCHEMA
from raycomp.words import KEPT, OK
from tests.corpus import by_cpi
from tests.sealed import seal

SCHEMA = scores_schema(aligned_schema(4, "float32"))


def make_phrase(noun: str, drop: float, start: int = 0) -> dict[str, Any]:
    end = start + 2 + len(noun)
    place = {"start": start, "end": end, "target_start": start + 2, "target_end": end}
    said = {"text": f"a {noun}", "kind": "object", "target": noun, "target_class": "head"}
    return said | place | {"nonces": ["blick"], "drops": [drop], "drop": drop, "displacement": 0.2}


def make_rows(count: int, words: Sequence[str], seed: int, chance: float = 0.3) -> list[dict[str, Any]]:
    """Return rows whose captions name each word by ``chance``; scores do not depend on them."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(count):
        nouns = [word for word in words if rng.random() < chance] or ["thing"]
        drop = float(rng.normal())
        caption = " and ".join(f"a {noun}" for noun in nouns)
        starts = np.cumsum([0, *(len(noun) + 7 for noun in nouns)]).tolist()
        phrases = [make_phrase(noun, drop, start) for noun, start in zip(nouns, starts, strict=False)]
        uid = f"{(0x9E3779B97F4A7C15F39CC0605CEDC835 * (i + 1)) % 2**128:032x}"
        rows.append(
            {"uid": uid, "key": str(i), "caption": caption, "status": OK, "alignment": float(rng.random())}
            | {"mean_pas": drop, "phrases": phrases, "image_embedding": [0.5] * 4}
        )
    return rows


def write_curation(
    uri: str, rows: Sequence[dict[str, Any]], files: int = 3, settings: dict[str, Any] | None = None
) -> str:
    """Write a finished curation of these rows, split into ``files`` scores files."""
    folder = Folder(uri)
    base = by_cpi(input=f"{uri}-gone", materialize=False, cluster=ClusterConfig(executor="local"))
    config = override_all(base, {"attribute.pool": 1.0, **(settings or {})})
    size = -(-len(rows) // files)
    tables = []
    for ordinal in range(files):
        own = [
            {"shard": f"{ordinal}.tar", "position": i, **row}
            for i, row in enumerate(rows[ordinal * size : (ordinal + 1) * size])
        ]
        tables.append(pa.Table.from_pylist(own, SCHEMA))
        write_table(tables[-1], folder.at("scores", f"{ordinal:05d}.parquet"), SCHEMA)
    selection = make_selection(config)
    columns = corpus_columns(selection, with_attribute=True)
    gates, judged = choose_tables([table.select(columns) for table in tables], selection)
    reasons = [reason_N for reason_N, _ in judged]
    _write_kept(folder, tables, judged)
    _write_record(folder, config, gates.to_dict(), np.concatenate(reasons))
    return uri


def _write_kept(folder: Folder, tables: Sequence[pa.Table], judged: Sequence[Any]) -> None:
    parts = [
        table.append_column("score", pa.array(score_N)).filter(pa.array(reason_N == KEPT))
        for table, (reason_N, score_N) in zip(tables, judged, strict=True)
    ]
    kept = pa.concat_tables(parts).select(KEPT_SCHEMA.names)
    write_table(kept, folder.at("subset", "kept.parquet"), KEPT_SCHEMA)


def _write_record(folder: Folder, config: CurateConfig, gates: dict[str, Any], reason_N: np.ndarray) -> None:
    dropped = dict(Counter(reason_N.tolist()))
    kept = dropped.pop(KEPT, 0)
    prints = {"input": "0" * 64, "shards": len(folder.list_names("scores")), "scorer": "1" * 64}
    run = {"kind": "curate", "status": "finished", "device": "cpu", "warnings": [], "machine": {"cores": 2}}
    run |= {"started": "2026-01-01T00:00:00+00:00", "finished": "2026-01-01T00:01:00+00:00"}
    run |= {"commands": {"Rerun": "raycomp curate --set input=gone --out out"}, "config": to_dict(config)}
    run |= {"versions": {"raycomp": version("raycomp")}, "scores": folder.at("scores"), "gates": gates}
    run |= {"fingerprint": prints | {"lexicon": "2" * 64, "parser": "3" * 64, "nonces": "4" * 64}}
    run |= {
        "funnel": {"read": len(reason_N), "corpus": gates["num_corpus"], "kept": kept, "dropped": dropped}
    }
    folder.write_json(run, "run.json")
    seal(folder)


def select(source: str, settings: dict[str, Any], out: str) -> str:
    raycomp.select(source, settings, out)
    return out
