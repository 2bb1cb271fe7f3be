"""``raycomp probe``: a probe as a run of its own, with rows, tables and a page.

A probe has two steps. ``open_probe`` reads and checks the input, so that all errors of the user come first.
``Probe.measure`` does the long work.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any

import numpy as np

from raycomp.config import ScorerConfig, as_setting, changed_options, to_dict
from raycomp.config.options import check_choice
from raycomp.data.files import Folder, check_writable
from raycomp.data.inputs import with_absolute_paths
from raycomp.data.parquet import readable
from raycomp.data.paths import absolute_uri, join_uri
from raycomp.data.runs import digest
from raycomp.evaluation.benchmarks import sugarcrepe_pp
from raycomp.evaluation.benchmarks.choice import Choice
from raycomp.evaluation.benchmarks.read import read_benchmark
from raycomp.models.describe import fingerprint_scorer
from raycomp.models.parser import PACKAGED, fingerprint_folder, fingerprint_parser, load_lexicon, load_parser
from raycomp.probe.composition import (
    probe_composition,
    read_negatives,
    read_sugarcrepe_pp,
    report_probe,
    say_probe,
)
from raycomp.probe.config import ProbeConfig
from raycomp.probe.overlap import draw_overlap, measure_overlap, report_overlap, say_overlap
from raycomp.probe.pas import measure_pas, open_pas, report_pas, say_pas
from raycomp.report.page import render_page
from raycomp.run.run import Say, start_run
from raycomp.table import Table, join_text
from raycomp.words import OK

DEFECTIVE = "defective"
# The options of each probe. Any other option would be recorded and have no effect.
_TAKEN = {
    "overlap": ("input", "benchmarks", "sample", "parser", "seed"),
    "composition": ("input", "benchmarks", "sample", "scorer", "images", "pairs", "seed"),
    "pas": ("input", "sample", "scorer", "seed"),
}


@dataclass(frozen=True)
class ProbeOutput:
    """The results of a probe on ``num_read`` rows, captions or targets."""

    rows: Any
    """Plain rows, for further analysis."""
    blocks: Sequence[Table | str]
    num_read: int
    came: dict[str, int]
    """Number of rows that took part, as ``ok``, and of others by the reason of exclusion."""
    plot: str | None = None
    """An SVG file's text."""
    headline: str = ""
    """The main result in one sentence, with its interval."""


@dataclass(frozen=True)
class Probe:
    """A probe whose input is read; ``measure`` loads its models."""

    fingerprint: Callable[[], dict[str, str]]
    """What results depend on in addition to the options: the input as read, the models as they are now."""
    measure: Callable[[], ProbeOutput]
    device: str | None = None
    """The scorer's device, cpu or gpu."""


def open_probe(name: str, config: ProbeConfig) -> Probe:
    """Read the input of the probe of that name. Raises ValueError for errors that the user can fix."""
    check_choice("probe", name, tuple(_TAKEN))
    for path, value in changed_options(config).items():
        if path.partition(".")[0] not in _TAKEN[name]:
            raise ValueError(
                f"{path}={as_setting(value)}: not an option of probe {name}; remove it; valid options: "
                f"{', '.join(_TAKEN[name])}"
            )
    return {"overlap": _open_overlap, "composition": _open_composition, "pas": _open_pas}[name](config)


def _open_overlap(config: ProbeConfig) -> Probe:
    if not config.input:
        raise ValueError("input: must name a folder with a folder for each benchmark")
    if not config.benchmarks or len({*config.benchmarks}) < len(config.benchmarks):
        raise ValueError("benchmarks: name at least one, each once, as in benchmarks=sugarcrepe,valse")
    choices = [choice for name in config.benchmarks for choice in _draw(name, config)]
    if not choices:
        raise ValueError(f"benchmarks={','.join(config.benchmarks)}: {config.input} has none of their rows")
    read = digest([repr(choice) for choice in choices])

    def fingerprint() -> dict[str, str]:
        lexicon = fingerprint_folder(PACKAGED.with_name("lexicon"))
        return {"input": read, "parser": fingerprint_parser(config.parser.name), "lexicon": lexicon}

    def measure() -> ProbeOutput:
        rows = measure_overlap(choices, load_parser(config.parser.name), load_lexicon(), config.seed)
        came = {OK: sum(row.count for row in rows), DEFECTIVE: sum(row.left_out for row in rows)}
        shown = (draw_overlap(rows), say_overlap(rows))
        return ProbeOutput([vars(row) for row in rows], report_overlap(rows), len(choices), came, *shown)

    return Probe(fingerprint, measure)


def _draw(name: str, config: ProbeConfig) -> list[Choice]:
    """Return at most ``config.sample`` rows of every split of a benchmark, drawn by the seed, in order."""
    choices = read_benchmark(name, Folder(join_uri(config.input, name)))
    if config.sample is None:
        return choices
    drawn = []
    rng = np.random.default_rng(config.seed)
    for split in dict.fromkeys(choice.split for choice in choices):
        rows = [choice for choice in choices if choice.split == split]
        kept = rng.permutation(len(rows))[: config.sample]
        drawn += [rows[i] for i in sorted(kept)]
    return drawn


def _open_composition(config: ProbeConfig) -> Probe:
    """Read negatives, or SugarCrepe++ where it is the only entry of ``config.benchmarks``."""
    if config.benchmarks != (sugarcrepe_pp.NAME,):
        found = read_negatives(config)
    elif config.images:
        raise ValueError(f"images={config.images!r}: must be none with SugarCrepe++, which has no uids")
    else:
        found = read_sugarcrepe_pp(_draw(sugarcrepe_pp.NAME, config), config.scorer or ScorerConfig())
    read = {"input": digest(found.rows)}
    if found.images is not None:
        read["images"] = sha256(found.images.tobytes()).hexdigest()

    def measure() -> ProbeOutput:
        encode = _load_encoder(found.scorer)
        result = probe_composition(encode, found.rows, found.images, config.seed, config.pairs)
        rows, blocks = asdict(result) | {"notes": found.notes}, report_probe(result, found.notes)
        came = {OK: len(found.rows), **found.left_out}
        return ProbeOutput(rows, blocks, found.num_read, came, headline=say_probe(result))

    return Probe(lambda: {**read, "scorer": fingerprint_scorer(found.scorer)}, measure, _name_device())


def _load_encoder(scorer: ScorerConfig) -> Callable[[list[str]], np.ndarray]:
    """Return the scorer's text encoder: texts -> fp32 (texts, dims)."""
    from raycomp.models.clip import Clip, load_tokenizer
    from raycomp.models.text import refuse_bad

    clip, tokenize = Clip(scorer), load_tokenizer(scorer)

    def encode(texts: list[str]) -> np.ndarray:
        tokens_TN = tokenize([readable(text) for text in texts]).numpy().astype(np.int32)
        text_TD = clip.text.embed(tokens_TN)[0]
        refuse_bad(text_TD, scorer.said_weights, "texts")
        return text_TD.numpy()

    return encode


def _open_pas(config: ProbeConfig) -> Probe:
    """Open the curation in ``config.input`` on which phrase attribution is calibrated."""
    opened = open_pas(config)

    def measure() -> ProbeOutput:
        result = measure_pas(opened, config.seed)
        blocks, came = report_pas(result, opened.name), {OK: len(result.targets), **result.left_out}
        return ProbeOutput(asdict(result), blocks, result.num_targets, came, headline=say_pas(result))

    return Probe(opened.fingerprint, measure, _name_device())


def _name_device() -> str:
    from raycomp.models.device import name_device  # torch, after all checks

    return name_device()


def probe(name: str, config: ProbeConfig, out: str, say: Say = print) -> dict[str, Any]:
    """Run the probe of that name into the folder ``out``, print its tables; return what run.json holds.

    A finished run of the same config is unchanged. Raises ValueError for errors that the user can fix.
    """
    out, config = absolute_uri(str(out)), with_absolute_paths(config)
    check_writable(out)  # before anything is loaded
    opened = open_probe(name, config)
    outputs = (*(f"{name}.{kind}" for kind in ("json", "txt", "svg")), "tables")
    with start_run(f"probe {name}", config, opened.fingerprint, out, say, outputs=outputs) as run:
        if run.is_finished:
            return run.record
        if opened.device is not None:
            run.bind(opened.device)
        found = opened.measure()
        run.folder.write_json({"config": to_dict(config), "rows": found.rows}, f"{name}.json")
        run.folder.write_bytes((join_text(found.blocks) + "\n").encode(), f"{name}.txt")
        for i, table in enumerate((block for block in found.blocks if isinstance(block, Table)), 1):
            run.folder.write_bytes(table.to_csv().encode(), "tables", f"{name}-{i}.csv")
        if found.plot is not None:
            run.folder.write_bytes(found.plot.encode(), f"{name}.svg")
        run.close({OK: found.num_read}, {why: num for why, num in found.came.items() if num}, OK)
        say(join_text(found.blocks))
        shown = {"blocks": found.blocks, "plot": found.plot, "headline": found.headline}
        page = render_page("probe/page.html.jinja", run=run.record, **shown)
        run.report(f"{found.came[OK]:,} of {found.num_read:,} took part", page)
    return run.record
