"""``raycomp probe``: a probe as a run of its own; and the probe overlap.

Overlap is the share of a benchmark that SWAP, REPLACE and ADD explain, and the share that the rules
regenerate. The token-level causal lens (arXiv:2510.26302) reports that its algorithms replicate 60 to 80 % of
the hard negatives of ARO and VALSE, judged by an LLM. Here ``language/overlap.py`` judges, by a stated
definition over words. The table gives both figures; they need not agree. ``jobs/judge_overlap.py`` asks an
LLM about the same rows.

A definition over words also explains many paraphrases: "a cat rests on a mat" for "a cat lies on a mat" is
one REPLACE by that definition. So where a benchmark's rows hold a second true caption, it is explained like a
negative. The explained share of negatives is meaningful only where it exceeds that of these paraphrases.

A probe has two steps. ``open_probe`` reads and checks the input, so that all errors of the user come first.
``Probe.measure`` does the long work.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import reduce
from hashlib import sha256
from itertools import groupby
from operator import add
from typing import Any, NamedTuple

import numpy as np

from raycomp.config import ScorerConfig, as_setting, changed_options, to_dict
from raycomp.config.options import check_choice
from raycomp.core.metrics import share_interval
from raycomp.data.files import Folder, absolute_uri, check_writable, join_uri
from raycomp.data.inputs import with_absolute_paths
from raycomp.data.parquet import readable
from raycomp.data.runs import digest
from raycomp.evaluation.benchmarks.choice import Choice
from raycomp.evaluation.benchmarks.published import read_benchmark
from raycomp.language import overlap as words
from raycomp.language.concepts import parse_concepts
from raycomp.language.lexicon import Lexicon, Token
from raycomp.language.overlap import ANSWERS, TWO_CALLS
from raycomp.language.prompts import propose
from raycomp.models.architecture import fingerprint_folder, fingerprint_scorer
from raycomp.models.parser import PACKAGED, Parser, fingerprint_parser, load_lexicon, load_parser
from raycomp.probe import composition, pas
from raycomp.probe.config import ProbeConfig
from raycomp.report.page import render_page
from raycomp.run.run import Say, start_run
from raycomp.table import Cell, Column, Columns, Estimate, Numeral, Table, join_text, write_cell
from raycomp.words import OK, OPERATIONS

PAPER = {"aro": (0.6, 0.8), "valse": (0.6, 0.8)}
MOST_EDITS = 1000
SUGARCREPE_PP = "sugarcrepe_pp"
_NULLS = {"sugarcrepe": "those of sugarcrepe_pp are of its captions"}
_HINT = "those of another benchmark, of other captions, are a hint at most"
# Answers of one call first, so that the end of the third part is their share.
_COLOURS = dict(zip(ANSWERS, ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#bbbbbb"), strict=True))
LEFT, WIDTH = 250, 500


@dataclass(frozen=True)
class Overlap:
    """One split: its sound rows by the explanation of their first negative."""

    benchmark: str
    split: str
    count: int
    explained: Counter[str] = field(default_factory=Counter)
    """Rows by ``ANSWERS``."""
    paraphrased: Counter[str] = field(default_factory=Counter)
    """Rows with a second true caption, by its explanation from the first, of ``ANSWERS``; empty = none."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Unexplained rows by ``language.overlap.REASONS``."""
    left_out: int = 0
    """Rows with a defect; not in ``count``."""
    named: int = 0
    """Rows for which the benchmark names an operation."""
    agreed: int = 0
    """Of ``named``: rows that this one operation explains."""
    agreed_kind: int = 0
    """Of ``agreed``: rows whose kind of concept also equals the benchmark's, if it names one."""
    regenerated: int | None = None
    """Rows whose negative the rules engine writes, word for word, in one call; None without a lexicon."""
    same_edit: int | None = None
    """Rows where the engine applies the same operation to exactly the same words."""


def measure_overlap(
    choices: Sequence[Choice], parser: Parser, lexicon: Lexicon | None, seed: int = 0
) -> list[Overlap]:
    """Return one row per benchmark and split, in order; the first two captions of each choice are compared.

    With a ``lexicon`` the rules engine makes all its edits of every positive; ``seed`` draws its choice of
    words.
    """
    groups = groupby(choices, key=lambda choice: (choice.benchmark, choice.split))
    return [_measure_split(list(group), parser, lexicon, seed) for _, group in groups]


def _measure_split(rows: list[Choice], parser: Parser, lexicon: Lexicon | None, seed: int) -> Overlap:
    choices = [choice for choice in rows if not choice.defects]
    positives = parser.tokens([choice.positives[0] for choice in choices])

    def explain_all(sources: Sequence[Sequence[Token]], texts: Sequence[str]) -> list[words.Explanation]:
        return [words.explain(*pair) for pair in zip(sources, parser.tokens(texts), strict=True)]

    found = explain_all(positives, [choice.negatives[0] for choice in choices])
    pairs = [
        (own, one.positives[1]) for own, one in zip(positives, choices, strict=True) if one.positives[1:]
    ]
    reworded = explain_all([tokens for tokens, _ in pairs], [text for _, text in pairs])
    named = [(choice, answer) for choice, answer in zip(choices, found, strict=True) if choice.op]
    agreed = [(choice, answer) for choice, answer in named if answer.name == choice.op]
    exact, same = None, None
    if lexicon is not None:
        exact, same = _count_repeats(choices, positives, found, parser, lexicon, seed)
    return Overlap(
        benchmark=rows[0].benchmark,
        split=rows[0].split,
        count=len(choices),
        explained=Counter(answer.answer for answer in found),
        paraphrased=Counter(answer.answer for answer in reworded),
        reasons=Counter(answer.reason for answer in found if answer.reason),
        left_out=len(rows) - len(choices),
        named=len(named),
        agreed=len(agreed),
        agreed_kind=sum(choice.kind in ("", answer.calls[0].kind) for choice, answer in agreed),
        regenerated=exact,
        same_edit=same,
    )


def _count_repeats(
    choices: Sequence[Choice],
    positives: Sequence[Sequence[Token]],
    found: Sequence[words.Explanation],
    parser: Parser,
    lexicon: Lexicon,
    seed: int,
) -> tuple[int, int]:
    """Return how many negatives the rules engine writes word for word, and how many by the same edit."""
    num_exact = num_same = 0
    for choice, tokens, answer in zip(choices, positives, found, strict=True):
        positive, negative = choice.positives[0], choice.negatives[0]
        parsed = parse_concepts(positive, tokens, lexicon, parser.labels)
        key = f"{choice.benchmark}/{choice.split}/{choice.id}"
        edits = [edit for op in OPERATIONS for edit in propose(parsed, op, lexicon, seed, key, MOST_EDITS)]
        is_exact = words.is_regenerated(negative, edits)
        num_exact += is_exact
        num_same += is_exact or words.is_same_edit(positive, negative, answer.name, edits)
    return num_exact, num_same


def count_calls(answers: Counter[str]) -> tuple[int, int]:
    """Return how many of the answers take one call, and how many at most two."""
    one_call = sum(answers[op] for op in OPERATIONS)
    return one_call, one_call + answers[TWO_CALLS]


def sum_rows(rows: Sequence[Overlap]) -> list[Overlap]:
    """Return one row for each benchmark over all its splits, named "all"."""
    totals = []
    for benchmark, group in groupby(rows, key=lambda row: row.benchmark):
        ours = list(group)
        sums: dict[str, Any] = {}
        for name in (one.name for one in fields(Overlap)[2:]):
            values = [getattr(row, name) for row in ours]
            sums[name] = None if None in values else reduce(add, values)
        totals.append(Overlap(benchmark, "all", **sums))
    return totals


def report_overlap(rows: Sequence[Overlap]) -> list[Table | str]:
    """Return the rows and each benchmark's total as two tables, in percent with 95 % intervals by Wilson.

    The first table explains the negatives and the second true captions. The second gives the agreement with
    the benchmark and with the rules.
    """
    totals = sum_rows(rows)
    shares = [Column(name, "%", 1) for name in (*ANSWERS, "one call", "one or two")]
    null = [Column(name, "%", 1) for name in ("theirs, one call", "theirs, one or two")]
    columns: Columns = ("benchmark", "split", "rows", "left out", *shares, "paper", "paraphrases", *null)
    # Paraphrases are a reference for the negatives; where a benchmark has none, which ones to read.
    lead = "Paraphrases: second true captions, explained in the same way, as a reference for the negatives."
    lacking = [row.benchmark for row in totals if not row.paraphrased]
    paraphrases = [lead, *(f"{name}: no paraphrases; {_NULLS.get(name, _HINT)}." for name in lacking)]
    agreed = ("benchmark", "split", "its op", "its op and kind", "rules: same edit", "rules: word for word")
    counts = [(t.benchmark, ", ".join(f"{why} {n}" for why, n in t.reasons.most_common())) for t in totals]
    unexplained = [f"{name}: unexplained because of {said}." for name, said in counts if said]
    explained_rows: list[list[Cell]] = []
    agreed_rows: list[list[Cell]] = []
    for row in [*rows, *totals]:
        paper = Numeral("{:.0%}-{:.0%}".format(*PAPER[row.benchmark])) if row.benchmark in PAPER else None
        cells: list[Cell] = [row.benchmark, row.split, row.count, row.left_out]
        cells += [100 * row.explained[answer] / row.count if row.count else None for answer in ANSWERS]
        cells += [estimate_percent(part, row.count) for part in count_calls(row.explained)]
        reworded = row.paraphrased.total()
        null_cells = [estimate_percent(part, reworded) for part in count_calls(row.paraphrased)]
        explained_rows.append([*cells, paper, reworded or None, *null_cells])
        parts = ((row.agreed, row.named), (row.agreed_kind, row.named))
        repeats = ((row.same_edit, row.count), (row.regenerated, row.count))
        agreed_rows.append([row.benchmark, row.split, *(_of(*pair) for pair in (*parts, *repeats))])
    return [
        Table("Explanations of the negatives", columns, explained_rows, " ".join(paraphrases)),
        Table("Agreement with the benchmark and with the rules", agreed, agreed_rows, " ".join(unexplained)),
    ]


def say_overlap(rows: Sequence[Overlap]) -> str:
    """Return a sentence with the first benchmark's share of negatives that one call explains."""
    total = next(iter(sum_rows(rows)), None)
    if total is None or not total.count:
        return ""
    share = estimate_percent(count_calls(total.explained)[0], total.count)
    return (
        f"One call of SWAP, REPLACE or ADD explains {write_cell(share, 1)} % of {total.benchmark}'s negatives"
    )


def estimate_percent(part: int, whole: int) -> Estimate | None:
    """Return a share in percent with its interval, None for an empty whole."""
    return Estimate(part / whole, *share_interval(part, whole)).times(100) if whole else None


def _of(part: int | None, whole: int) -> Numeral | None:
    """Return a share with its counts: "3/4 75.0 [30.1, 95.4]"."""
    if part is None or not whole:
        return None
    return Numeral(f"{part}/{whole} {write_cell(estimate_percent(part, whole), 1)}")


def draw_overlap(rows: Sequence[Overlap]) -> str:
    """Return an SVG file's text: stacked shares, 500 px for all rows; dashes mark the paper's range."""
    values = {"rows": rows, "colours": _COLOURS, "paper": PAPER, "left": LEFT, "width": WIDTH}
    return render_page("probe/overlap.svg.jinja", **values) + "\n"


DEFECTIVE = "defective"


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
    check_choice("probe", name, tuple(PROBES))
    open_one, taken = PROBES[name].open, PROBES[name].options
    for path, value in changed_options(config).items():
        if path.partition(".")[0] not in taken:
            raise ValueError(
                f"{path}={as_setting(value)}: not an option of probe {name}; remove it; valid options: "
                f"{', '.join(taken)}"
            )
    return open_one(config)


def _open_overlap(config: ProbeConfig) -> Probe:
    choices = read_choices(config)
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


def read_choices(config: ProbeConfig) -> list[Choice]:
    """Return the drawn rows of all benchmarks. Raises ValueError for errors that the user can fix."""
    if not config.input:
        raise ValueError("input: must name a folder with a folder for each benchmark")
    if not config.benchmarks or len({*config.benchmarks}) < len(config.benchmarks):
        raise ValueError("benchmarks: name at least one, each once, as in benchmarks=sugarcrepe,valse")
    choices = [choice for name in config.benchmarks for choice in _draw(name, config)]
    if not choices:
        raise ValueError(f"benchmarks={','.join(config.benchmarks)}: {config.input} has none of their rows")
    return choices


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
    if config.benchmarks != (SUGARCREPE_PP,):
        found = composition.read_negatives(config)
    elif config.images:
        raise ValueError(f"images={config.images!r}: must be none with SugarCrepe++, which has no uids")
    else:
        found = composition.read_sugarcrepe_pp(_draw(SUGARCREPE_PP, config), config.scorer or ScorerConfig())
    read = {"input": digest(found.rows)}
    if found.images is not None:
        read["images"] = sha256(found.images.tobytes()).hexdigest()

    def measure() -> ProbeOutput:
        encode = _load_encoder(found.scorer)
        result = composition.probe_composition(encode, found.rows, found.images, config.seed, config.pairs)
        rows, blocks = asdict(result) | {"notes": found.notes}, composition.report_probe(result, found.notes)
        came = {OK: len(found.rows), **found.left_out}
        return ProbeOutput(rows, blocks, found.num_read, came, headline=composition.say_probe(result))

    return Probe(lambda: {**read, "scorer": fingerprint_scorer(found.scorer)}, measure, _name_device())


def _load_encoder(scorer: ScorerConfig) -> Callable[[list[str]], np.ndarray]:
    """Return the scorer's text encoder: texts -> fp32 (texts, dims)."""
    from raycomp.models.clip import Clip, load_tokenizer, refuse_bad

    clip, tokenize = Clip(scorer), load_tokenizer(scorer)

    def encode(texts: list[str]) -> np.ndarray:
        tokens_TN = tokenize([readable(text) for text in texts]).numpy().astype(np.int32)
        text_TD = clip.text.embed(tokens_TN)[0]
        refuse_bad(text_TD, scorer.said_weights, "texts")
        return text_TD.numpy()

    return encode


def _open_pas(config: ProbeConfig) -> Probe:
    opened = pas.open_pas(config)

    def measure() -> ProbeOutput:
        result = pas.measure_pas(opened, config.seed)
        criteria = pas.list_criteria(result, opened)
        is_noise = opened.scorer.weights.startswith("random:")
        blocks = pas.report_pas(result, criteria, opened.name, is_noise)
        came = {OK: len(result.targets), **result.left_out}
        judged = [asdict(one.found) | {"criterion": one.name, "result": one.result} for one in criteria]
        rows = asdict(result) | {"criteria": [] if is_noise else judged}
        return ProbeOutput(rows, blocks, result.num_targets, came, headline=pas.say_verdict(criteria))

    return Probe(opened.fingerprint, measure, _name_device())


def _name_device() -> str:
    from raycomp.models.device import name_device  # torch, after all checks

    return name_device()


class Kind(NamedTuple):
    """How a probe is opened, what it measures, and its options: another would have no effect."""

    open: Callable[[ProbeConfig], Probe]
    text: str
    options: tuple[str, ...]


PROBES = {
    "overlap": Kind(
        _open_overlap,
        "Share of benchmark negatives that SWAP, REPLACE and ADD explain",
        ("input", "benchmarks", "sample", "parser", "seed"),
    ),
    "composition": Kind(
        _open_composition,
        "Text embeddings of edited captions",
        ("input", "benchmarks", "sample", "scorer", "images", "pairs", "seed"),
    ),
    "pas": Kind(
        _open_pas,
        "Calibration, reliability and correlates of PAS",
        ("input", "sample", "scorer", "seed"),
    ),
}


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
        shown = {"blocks": found.blocks, "plot": found.plot, "text": PROBES[name].text}
        shown["headline"] = run.noise or found.headline
        page = render_page("probe/page.html.jinja", run=run.record, **shown)
        part = f"{found.came[OK]:,} of {found.num_read:,} {'targets' if name == 'pas' else 'rows'} took part"
        run.report(part if run.noise or not found.headline else f"{found.headline}; {part}", page)
    return run.record
