"""The demo's tables: planted faults by score, and by selection rule."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lab.worlds.faults import (
    ALL_FAULTS,
    NO_FAULT,
    KeptShare,
    compare_kept,
    count_kept,
    fault_table,
    group_faults,
    group_traits,
)
from lab.worlds.scenes import ABOVE, BELOW, COLOURS, SHAPES, SIZES
from raycomp.config import override
from raycomp.core.metrics import correlation_interval, spearman
from raycomp.curation.config import DISPLACEMENT, NUM_PHRASES, PAS, CurateConfig, make_selection
from raycomp.curation.select.measures import corpus_columns, read_corpus
from raycomp.curation.select.select import choose_tables
from raycomp.data.parquet import read_columns
from raycomp.table import Cell, Column, Columns, Estimate, Numeral, Table, number, write_cell
from raycomp.words import (
    ALIGNMENT,
    CAPTION,
    DROPPED_ATTRIBUTION,
    KEPT,
    PHRASES,
    STATUS,
    UID,
)

FAULT = "fault"
ALIGN_ONLY = "align_only"
_COLUMNS = [UID, STATUS, CAPTION, ALIGNMENT, PHRASES, FAULT]


@dataclass(frozen=True)
class Planted:
    """The N rows of a world's scores, and the rows that each rule keeps."""

    fault_N: np.ndarray
    caption_N: list[str]
    alignment_N: np.ndarray
    pas_N: np.ndarray
    """PAS by the config's reading, NaN where a row has none."""
    num_phrases_N: np.ndarray
    """Number of phrases that count for the PAS; 0 if none were scored."""
    displacement_N: np.ndarray
    """Mean over the same phrases, NaN if there is none."""
    targets: list[str]
    """Their words that were replaced."""
    pool_N: np.ndarray
    """The rows that the rule's second gate ranks."""
    kept: dict[str, np.ndarray]
    """Rows kept by the config's rule, and by align_only: bool [N], both of one size, attribute.keep of the
    corpus."""

    @property
    def clean_pool_N(self) -> np.ndarray:
        return self.pool_N & (self.fault_N == NO_FAULT)

    @property
    def rule(self) -> str:
        return next(iter(self.kept))

    @property
    def budget(self) -> int:
        return int(self.kept[self.rule].sum())

    @property
    def chance(self) -> float:
        """Share of the pool that a random draw of the budget keeps."""
        return self.budget / max(int(self.pool_N.sum()), 1)


def make_tables(scores: list[str], config: CurateConfig) -> list[Table]:
    """Return the demo's tables of planted faults in these scores files."""
    planted = read_planted(pa.concat_tables([read_columns(uri, _COLUMNS) for uri in scores]), config)
    return [report_separation(planted), report_budget(planted), report_traits(planted)]


def read_planted(table: pa.Table, config: CurateConfig) -> Planted:
    """Select by the config's rule and by align_only; ``fault`` is null or "none" where a row has none."""
    rule = config.select.rule
    reasons = {name: _choose(table, config, name) for name in (rule, ALIGN_ONLY)}
    corpus = read_corpus(table, make_selection(config))
    measures = {name: np.full(len(table), np.nan) for name in (PAS, NUM_PHRASES, DISPLACEMENT)}
    for name, value_N in measures.items():
        value_N[corpus.row_M] = corpus.measures[name]
    phrases = table[PHRASES].combine_chunks().flatten()
    has_drop = pc.is_valid(pc.struct_field(phrases, "drop"))
    return Planted(
        fault_N=np.array(pc.fill_null(table[FAULT], NO_FAULT).to_pylist(), dtype=str),
        caption_N=[caption or "" for caption in table[CAPTION].to_pylist()],
        alignment_N=_floats(table[ALIGNMENT]),
        pas_N=measures[PAS],
        num_phrases_N=np.nan_to_num(measures[NUM_PHRASES]),
        displacement_N=measures[DISPLACEMENT],
        targets=pc.struct_field(phrases.filter(has_drop), "target").to_pylist(),
        pool_N=np.isin(reasons[rule], (KEPT, DROPPED_ATTRIBUTION)),
        kept={rule: reason_N == KEPT for rule, reason_N in reasons.items()},
    )


def _choose(table: pa.Table, config: CurateConfig, rule: str) -> np.ndarray:
    selection = make_selection(override(config, "select.rule", rule))
    _, judged = choose_tables([table.select(corpus_columns(selection, with_attribute=True))], selection)
    return judged[0][0]


def _floats(column: pa.ChunkedArray) -> np.ndarray:
    return column.to_numpy().astype(np.float64)


def report_separation(planted: Planted) -> Table:
    """Return the detection of each fault by each score: over all rows, and within the second gate's pool."""
    pooled_N = np.where(planted.pool_N, planted.alignment_N, np.nan)
    found = {
        "all pairs": fault_table(planted.fault_N, planted.alignment_N, planted.pas_N),
        "the pool": fault_table(planted.fault_N, pooled_N, planted.pas_N),
    }
    rows = [
        (_words(row.fault), row.num_planted, over, row.num_scored, row.alignment, row.mean_pas)
        for same_fault in zip(*found.values(), strict=True)
        for over, row in zip(found, same_fault, strict=True)
    ]
    aucs = Column("AUC by alignment", digits=3), Column("AUC by PAS", digits=3)
    columns = ("Planted fault", "planted", "over", "of these", *aucs)
    note = (
        "Faults were planted in known pairs. AUC is the chance that a pair without a fault scores above one "
        "with this fault (0.5 finds nothing), on the same rows for both scores; 95 % intervals after DeLong. "
        "PAS ranks the pairs that passed the gate by alignment, the pool, so both scores are also compared "
        "there, where the gate has already removed many faults. "
        f"{_describe_targets(planted.targets)}"
    )
    return Table("How well each score finds the planted faults", columns, rows, note)


def _describe_targets(targets: Sequence[str]) -> str:
    """Return a sentence on the words that PAS replaced: it cannot detect a fault in another word."""
    kinds = {
        "name a shape": SHAPES,
        "name a colour or a size": (*COLOURS, *SIZES),
        f"are {ABOVE} or {BELOW}": (ABOVE, BELOW),
    }
    counts = [f"{number(sum(t in words for t in targets))} {name}" for name, words in kinds.items()]
    return (
        f"Of {number(len(targets))} words that were replaced, {', '.join(counts)}: PAS sees no word that is "
        "never replaced."
    )


def report_budget(planted: Planted) -> Table:
    """Return the number of pairs of each fault that the rules keep, each at the same budget."""
    faults = group_faults(planted.fault_N)
    found = count_kept(faults, planted.kept, planted.pool_N, planted.budget)
    rows = [
        (
            _words(row.what),
            row.num_rows,
            row.num_pooled,
            *map(_report_share, (*row.by_rule.values(), row.drawn)),
        )
        for row in found
    ]
    faulty_N = faults[ALL_FAULTS]
    kept_N = planted.kept[planted.rule][faulty_N]
    others = (planted.kept[ALIGN_ONLY], planted.pool_N * planted.chance)
    differences = (Estimate(*compare_kept(kept_N, other_N[faulty_N])) for other_N in others)
    reported = (Numeral(write_cell(one, 1)) for one in differences)
    rows.append((f"all faults, {planted.rule} minus these", *(Numeral(""),) * 3, *reported))
    columns = ("Planted fault", "planted", "in the pool", *planted.kept, "random in the pool")
    note = (
        f"Faulty pairs kept, fewer being better. {_describe_budgets(planted)} "
        "In brackets the share of planted, "
        "by the two rules with 95 % intervals after Wilson; by a draw of as many from the pool (rule "
        "align70_random50) the mean and the central 95 % of all draws, exactly (hypergeometric). Last row: "
        f"the difference in pairs, with a 95 % interval paired by pair; below 0, {planted.rule} keeps fewer."
    )
    return Table("What each rule keeps of the planted faults at one budget", columns, rows, note)


def _describe_budgets(planted: Planted) -> str:
    kept = (f"{rule} keeps {number(int(kept_N.sum()))}" for rule, kept_N in planted.kept.items())
    return f"Of {number(int(np.isfinite(planted.alignment_N).sum()))} pairs {', '.join(kept)}."


def _report_share(share: KeptShare) -> Numeral | None:
    if not share.whole:
        return None
    part = number(share.part, 1) if share.part % 1 else number(int(share.part))
    return Numeral(f"{part} ({write_cell(Estimate.of(share), 3)})")


def report_traits(planted: Planted) -> Table:
    """Return what the second gate favours other than correctness: keep rates of clean pairs by their
    contents."""
    at_N = planted.clean_pool_N
    groups = group_traits(planted.caption_N, planted.num_phrases_N)
    clean = {what: at_N & group_N for what, group_N in groups.items()}
    found = count_kept(clean, planted.kept, planted.pool_N, planted.budget)
    rows: list[tuple[Cell, ...]] = [
        (
            row.what,
            row.num_rows,
            float(planted.displacement_N[clean[row.what]].mean()),
            *(Estimate.of(share, row.drawn.value) for share in row.by_rule.values()),
        )
        for row in found
        if row.num_rows
    ]
    kept = (Column(f"kept by {rule}", digits=3) for rule in planted.kept)
    columns: Columns = ("Clean pairs in the pool with", "pairs", "mean displacement", *kept)
    note = (
        "None of these pairs has a fault, so a rule that looked for faults alone would keep all kinds alike. "
        f"The mark is what a draw from the pool keeps of any kind, {number(planted.chance, 3)}; 95 % "
        "intervals after Wilson. Displacement is how far nonsense words move the text, whatever the image. "
        f"Over these {number(int(at_N.sum()))} pairs {_describe_rhos(planted)}."
    )
    return Table("What the scores favour among pairs without a fault", columns, rows, note)


def _describe_rhos(planted: Planted) -> str:
    """Return the correlation of each score with the number of phrases and with displacement, over the clean
    pool."""
    at_N, reported = planted.clean_pool_N, []
    for name, score_N in (("PAS", planted.pas_N), ("alignment", planted.alignment_N)):
        rhos = []
        for what, trait_N in (
            ("number of phrases", planted.num_phrases_N),
            ("displacement", planted.displacement_N),
        ):
            rho = spearman(score_N[at_N], trait_N[at_N])
            bounds = correlation_interval(rho, int(at_N.sum()), ranks=True)
            rhos.append(f"{write_cell(Estimate(rho, *bounds), 3)} with {what}")
        reported.append(f"{name} has Spearman's rho {' and '.join(rhos)}")
    return ", ".join(reported)


def _words(fault: str) -> str:
    return fault.replace("_", " ")
