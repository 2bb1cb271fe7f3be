"""``raycomp probe``: what a probe reads, and the files that it writes."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from raycomp.benchmarks import sugarcrepe_pp
from raycomp.benchmarks.choice import Choice
from raycomp.benchmarks.read import read_benchmark
from raycomp.config import ProbeConfig, to_dict
from raycomp.loops.probes.calibration_table import format_pas
from raycomp.loops.probes.composition import Material, read_negatives, read_sugarcrepe_pp
from raycomp.loops.probes.overlap import format_overlap, measure_overlap
from raycomp.loops.probes.overlap_plot import draw_overlap
from raycomp.loops.probes.pas import measure_pas
from raycomp.loops.probes.probe import probe_composition
from raycomp.loops.probes.probe_table import format_probe
from raycomp.loops.probes.theory import format_theory, run_theory
from raycomp.loops.tables import readable
from raycomp.models.clip import Clip, load_tokenizer
from raycomp.models.lexicon import load_lexicon
from raycomp.models.parser import load_parser
from raycomp.shards.files import check_writable
from raycomp.shards.folder import Folder
from raycomp.shards.paths import absolute_uri


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
    """Probe the scorer's text encoder with the texts in ``config.input``; write rows, return tables."""
    folder = _open(out)
    found = _read_material(config)
    clip, tokenize = Clip(found.scorer), load_tokenizer(found.scorer)

    def encode(texts: list[str]) -> np.ndarray:
        tokens_TN = tokenize([readable(text) for text in texts]).numpy().astype(np.int32)
        return clip.text.embed(tokens_TN)[0].numpy()

    result = probe_composition(encode, found.rows, found.images, config.seed, config.pairs)
    rows = asdict(result) | {"notes": found.notes}
    return _write(folder, "composition", config, rows, format_probe(result, found.notes))


def _read_material(config: ProbeConfig) -> Material:
    """Read negatives, or SugarCrepe++ where that alone is named in ``config.benchmarks``."""
    if config.benchmarks != (sugarcrepe_pp.NAME,):
        return read_negatives(config)
    if config.images:
        raise ValueError(f"images={config.images!r}: must be none with SugarCrepe++, which has no uids")
    rows = _draw(read_benchmark(sugarcrepe_pp.NAME, f"{config.input}/{sugarcrepe_pp.NAME}"), config)
    return read_sugarcrepe_pp(rows, config.scorer)


def probe_pas(config: ProbeConfig, out: str) -> str:
    """Calibrate phrase attribution on the curation in ``config.input``; write rows, return tables.

    Raises ValueError where the folder holds no curation or selection, or another scorer scored it.
    """
    folder = _open(out)
    result, scorer = measure_pas(config)
    return _write(folder, "pas", config, asdict(result), format_pas(result, scorer))


def _open(out: str) -> Folder:
    folder = Folder(absolute_uri(out))
    check_writable(folder.uri)
    return folder


def _write(folder: Folder, name: str, config: ProbeConfig, rows: Any, text: str) -> str:
    """Write rows and table of a probe; return the table."""
    folder.write_json({"config": to_dict(config), "rows": rows}, f"{name}.json")
    folder.write_bytes((text + "\n").encode(), f"{name}.txt")
    return text
