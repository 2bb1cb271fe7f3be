"""``raycomp probe``: what a probe reads, and the files that it writes."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from raycomp.benchmarks.choice import Choice
from raycomp.benchmarks.read import read_benchmark
from raycomp.config import NegativesConfig, ProbeConfig, ScorerConfig, from_dict, to_dict
from raycomp.core.probe import swap_conjuncts
from raycomp.loops.captions import is_scored_by, list_curated, load_captions, read_aligned
from raycomp.loops.overlap import format_overlap, measure_overlap
from raycomp.loops.overlap_plot import draw_overlap
from raycomp.loops.probe import PARAPHRASE, format_probe, probe_composition
from raycomp.loops.tables import OTHERS, readable, to_matrix
from raycomp.loops.theory import format_theory, run_theory
from raycomp.models.clip import Clip, load_tokenizer
from raycomp.models.lexicon import load_lexicon
from raycomp.models.parser import load_parser
from raycomp.schema import CAPTION, IMAGE_EMBEDDING, NEGATIVES, UID
from raycomp.shards.files import check_writable
from raycomp.shards.folder import Folder
from raycomp.shards.paths import absolute_uri, join_uri
from raycomp.shards.runs import identify, list_scores, list_tables, read_finished, read_run
from raycomp.shards.scores import read_columns


def probe_theory(config: ProbeConfig, out: str) -> str:
    """Run the toy causal model with ``config.seeds`` seeds; write its rows, return its table."""
    folder = _open(out)
    rows = run_theory(range(config.seeds))
    return _write(folder, "theory", config, rows, format_theory(rows))


def probe_overlap(config: ProbeConfig, out: str) -> str:
    """Explain the negatives of the benchmarks in ``config.input``; write rows, plot and table.

    Raises ValueError where a benchmark's files are not there.
    """
    folder = _open(out)
    if not config.benchmarks or len({*config.benchmarks}) < len(config.benchmarks):
        raise ValueError("benchmarks: name at least one, each once, as in benchmarks=sugarcrepe,valse")
    choices = [
        choice
        for name in config.benchmarks
        for choice in _draw(read_benchmark(name, f"{config.input}/{name}"), config)
    ]
    if not choices:
        raise ValueError(f"benchmarks={','.join(config.benchmarks)}: no row in {config.input}")
    rows = measure_overlap(choices, load_parser(config.parser.name), load_lexicon(), config.seed)
    folder.write_bytes(draw_overlap(rows).encode(), "overlap.svg")
    return _write(folder, "overlap", config, [vars(row) for row in rows], format_overlap(rows))


def _draw(choices: Sequence[Choice], config: ProbeConfig) -> list[Choice]:
    """Return at most ``config.sample`` rows of every split, drawn by the seed, in their order."""
    if config.sample is None:
        return list(choices)
    drawn = []
    rng = np.random.default_rng(config.seed)
    for split in dict.fromkeys(choice.split for choice in choices):
        rows = [choice for choice in choices if choice.split == split]
        kept = rng.permutation(len(rows))[: config.sample]
        drawn += [rows[i] for i in sorted(kept)]
    return drawn


def probe_composition_of(config: ProbeConfig, out: str) -> str:
    """Probe the scorer's text encoder with the negatives in ``config.input``; write rows, return tables.

    Images come from the curation behind the negatives, where the same scorer embedded them. Paraphrases are
    other captions of a row's image, else the caption with two conjuncts in the other order. Raises ValueError
    where the folder holds no negatives.
    """
    folder = _open(out)
    run = read_finished(config.input)
    if run["kind"] != "negatives":
        raise ValueError(f"input={config.input!r}: holds {run['kind']}, must hold negatives")
    written = from_dict(NegativesConfig(), run["config"])
    scorer = written.scorer if config.scorer == ScorerConfig() else config.scorer
    rows = [row for row in _read_rows(run, config.input) if row[CAPTION]]
    if config.sample is not None:
        drawn = np.random.default_rng(config.seed).permutation(len(rows))[: config.sample]
        rows = [rows[i] for i in sorted(drawn)]
    parser = load_parser(written.parser.name)
    for row, phrases in zip(rows, parser.parse([row[CAPTION] for row in rows]), strict=True):
        row[PARAPHRASE] = swap_conjuncts(row[CAPTION], phrases)
    images = _add_curated(rows, written, run["fingerprint"]["input"], scorer)
    clip, tokenize = Clip(scorer), load_tokenizer(scorer)

    def encode(texts: list[str]) -> np.ndarray:
        tokens_TN = tokenize([readable(text) for text in texts]).numpy().astype(np.int32)
        return clip.text.embed(tokens_TN)[0].numpy()

    result = probe_composition(encode, rows, images, config.seed)
    return _write(folder, "composition", config, asdict(result), format_probe(result))


def _read_rows(run: dict[str, Any], source: str) -> list[dict[str, Any]]:
    tables = list_tables(Folder(absolute_uri(join_uri(source, "negatives"))))
    uris = [tables[ordinal] for ordinal in sorted(tables)]
    rows = [row for uri in uris for row in read_columns(uri, [UID, CAPTION, NEGATIVES]).to_pylist()]
    if len(rows) != run["funnel"]["read"]:
        raise ValueError(f"input={source!r}: holds {len(rows)} rows, the run wrote {run['funnel']['read']}")
    return rows


def _add_curated(
    rows: list[dict[str, Any]], written: NegativesConfig, made_of: str, scorer: ScorerConfig
) -> np.ndarray | None:
    """Give rows another caption of their image, where there is one, as a paraphrase.

    ``made_of`` identifies the curation behind the negatives; where another lies there, none is followed.
    Returns the images' embeddings if ``scorer`` made them, else None.
    """
    folder = Folder(absolute_uri(written.input))
    run = read_run(folder)
    if run is None or identify(run) != made_of:
        return None
    others = {
        uid: texts[0]
        for source in list_curated(run, folder.uri)
        for table in load_captions(source, 10_000)
        for uid, texts in zip(table[UID].to_pylist(), table[OTHERS].to_pylist(), strict=True)
        if texts
    }
    for row in rows:
        row[PARAPHRASE] = others.get(row[UID], row[PARAPHRASE])
    if not is_scored_by(scorer, run):
        return None
    wanted = {row[UID]: i for i, row in enumerate(rows)}
    images: list[np.ndarray | None] = [None] * len(rows)
    for uri in list_scores(run, folder.uri):
        table = read_aligned(uri, [UID, IMAGE_EMBEDDING])
        image_ND = to_matrix(table[IMAGE_EMBEDDING])
        for i, uid in enumerate(table[UID].to_pylist()):
            if uid in wanted:
                images[wanted[uid]] = image_ND[i]
    if any(image is None for image in images):
        raise ValueError(f"input={folder.uri!r}: the curation no longer holds all captions of the negatives")
    return np.stack(images).astype(np.float32)


def _open(out: str) -> Folder:
    folder = Folder(absolute_uri(out))
    check_writable(folder.uri)
    return folder


def _write(folder: Folder, name: str, config: ProbeConfig, rows: Any, text: str) -> str:
    """Write rows and table of a probe; return the table."""
    folder.write_json({"config": to_dict(config), "rows": rows}, f"{name}.json")
    folder.write_bytes((text + "\n").encode(), f"{name}.txt")
    return text
