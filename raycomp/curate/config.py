"""The options of a curation."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from raycomp.config import check_path, is_marked, list_options, override_all
from raycomp.config.change import from_dict
from raycomp.config.check import check, check_choice, check_share
from raycomp.config.options import FREE, INPUT, SELECT
from raycomp.config.shared import ClusterConfig, ParserConfig, ScorerConfig, WavesConfig
from raycomp.curate.rules import (
    ALIGN_PAS,
    DISPLACEMENT,
    DRAW,
    MINUS_PAS,
    NUM_PHRASES,
    NUM_WORDS,
    PAS,
    RESIDUAL,
    Rule,
    find_rule,
    name_draw,
    read_draw,
)
from raycomp.words import AGGREGATES, CONTENT, NOUNS, PER_DISPLACEMENT, PER_TARGET, SHOWABLE, TARGETS, UNITS


@dataclass(frozen=True)
class PrepareConfig:
    """What the scorer sees of an image, made on CPU tasks or stored."""

    max_pixels: int = 100_000_000
    """Images of more pixels (width x height as declared) are refused before decoding. At most 178,956,970:
    what is larger Pillow refuses to whoever trains on it."""
    fast_decode: bool = False
    """Decode large JPEGs at 1/2, 1/4 or 1/8 of their size, never below the model's; scores change a little.
    On 200 web photos 2.7 times as fast; their embeddings (ViT-B/32, random weights) keep a cosine of 0.9997
    to the exact ones (0.996 at least), their alignments a correlation of 0.9996."""
    stored_embeddings: str | None = None
    """Take image embeddings that ``scorer`` made and that lie beside Parquet input; no image is read. Either
    ``clip_retrieval`` (``metadata/metadata_I.parquet``, ``img_emb/img_emb_I.npy``), or which array of
    ``STEM.npz`` beside ``STEM.parquet`` (DataComp has ``b32_img`` and ``l14_img``)."""

    def __post_init__(self) -> None:
        fits = 1 <= self.max_pixels <= 178_956_970
        check(fits, "prepare.max_pixels", self.max_pixels, "between 1 and 178,956,970")
        stored = self.stored_embeddings
        check(stored != "", "prepare.stored_embeddings", stored, "clip_retrieval or an array's name")


@dataclass(frozen=True)
class AlignConfig:
    """Gate 1, rho_1 of the paper's Eq. 6."""

    keep: float = field(default=0.70, metadata=SELECT)
    """Share of the corpus that stays: exactly floor(keep * N), read as a decimal, 0 to 1."""

    def __post_init__(self) -> None:
        check_share("align.keep", self.keep)


@dataclass(frozen=True)
class AttributeConfig:
    """Phrase attribution (Eqs. 2, 3 and 5) and gate 2, rho_2."""

    keep: float = field(default=0.50, metadata=SELECT)
    """Share of the corpus (not of the pool) that stays, 0 to 1."""
    pool: float | None = None
    """Share of the corpus that is attributed, best aligned first; none = what the rule needs."""
    aggregate: str = field(default="min", metadata=SELECT)
    """How a sample's targets become one PAS: mean (Eq. 5), min, max, or fraction_supported (drop > 0). The
    minimum shows one unsupported word among many supported ones."""
    unit: str = field(default=PER_DISPLACEMENT, metadata=SELECT)
    """What is aggregated: each target's drop (Eq. 3), or the drop divided by its displacement, which is how
    far the nonces moved the text embedding."""
    targets: str = field(default=CONTENT, metadata=SELECT)
    """Which words count. nouns: one target in each phrase (the paper). showable: the nouns that an image can
    show, so without "background", "day", "view". content: the nouns, adjectives, verbs and relation words;
    costs about twice as many counterfactuals. Nouns are always measured, so ``select`` can change to nouns or
    showable; it can change to content only where curate measured content. The column mean_pas is the mean
    drop of the showable nouns."""
    nonces: int = 2
    """Counterfactuals per target, 1 to 16; fewer where nonces are few (7 are plurals of one token)."""

    def __post_init__(self) -> None:
        check_share("attribute.keep", self.keep)
        if self.pool is not None:
            check_share("attribute.pool", self.pool)
        check_choice("attribute.aggregate", self.aggregate, AGGREGATES)
        check_choice("attribute.unit", self.unit, UNITS)
        check_choice("attribute.targets", self.targets, TARGETS)
        check(1 <= self.nonces <= 16, "attribute.nonces", self.nonces, "between 1 and 16")


@dataclass(frozen=True)
class NonceConfig:
    """How nonces are drawn (section 4.3): the first are the same however many attribute.nonces asks for."""

    seed: int = 0
    """Changes every nonce."""
    key: str = "target"
    """target: a target has the same nonces in every caption; sample: drawn anew in every sample."""

    def __post_init__(self) -> None:
        check(self.seed >= 0, "nonce.seed", self.seed, "at least 0")
        check_choice("nonce.key", self.key, ("target", "sample"))


@dataclass(frozen=True)
class SelectConfig:
    """Which rule chooses the subset."""

    rule: str = "align_pas"
    """align_pas ranks the rows past the gate by alignment by the sum of alignment and PAS, each in units of
    its standard deviation; cpi, the paper's rule, ranks them by PAS alone. The others are controls. On the
    whole corpus: align_only and random keep attribute.keep, full keeps all. On the rows that cpi ranks, and
    as many as it keeps: align70_random50 draws (its name says 100 align.keep and 100 attribute.keep),
    cpi_reverse takes the lowest PAS, length the longest captions (words), phrase_count the most targets with
    a drop, displacement the largest mean displacement of the text embedding, pas_residual the largest
    residual of PAS regressed on caption length, phrase count, alignment and displacement."""
    datacomp_compat: bool = False
    """Keep what DataComp's threshold rule keeps (k + 1 rows and ties) instead of exactly k."""

    def __post_init__(self) -> None:
        find_rule(self.rule)


def _say_shares(rule: str) -> str:
    """Return which options the name of a draw within the pool asks for, where it can have them."""
    first, second = read_draw(rule)
    fits = second <= first <= 1 and name_draw(first, second) == rule
    return f"; or set align.keep={first} and attribute.keep={second} too" if fits else ""


@dataclass(frozen=True)
class CurateConfig:
    """Raw shards in, a chosen and explained subset out (arXiv 2605.22651, section 5)."""

    input: str = field(default="", metadata=INPUT)
    """Paths, globs, brace lists, on a disk or on ``s3://``, ``gs://``, ``az://``, ``hf://``; several joined
    with ``::``, each optionally ``name=``."""
    scorer: ScorerConfig = field(default_factory=ScorerConfig)
    prepare: PrepareConfig = field(default_factory=PrepareConfig)
    align: AlignConfig = field(default_factory=AlignConfig)
    attribute: AttributeConfig = field(default_factory=AttributeConfig)
    nonce: NonceConfig = field(default_factory=NonceConfig)
    select: SelectConfig = field(default_factory=SelectConfig, metadata=SELECT)
    parser: ParserConfig = field(default_factory=ParserConfig)
    waves: WavesConfig = field(default_factory=WavesConfig, metadata=FREE)
    cluster: ClusterConfig = field(default_factory=ClusterConfig, metadata=FREE | SELECT)
    extra_columns: tuple[str, ...] = ()
    """Fields of the samples' json to carry into scores/, as text (json for what is not text)."""
    materialize: bool | None = field(default=None, metadata=SELECT)
    """Write the kept samples as shards; none = yes for local output, no in a store and of stored
    embeddings."""
    max_bad_fraction: float = field(default=0.05, metadata=FREE)
    """Share of the rows read that may be bad, 0 to 1; the run stops with exit code 3 above it. Duplicates are
    not bad."""
    seed: int = field(default=0, metadata=SELECT)
    """Draws the random rules and the samples shown in the report."""

    def __post_init__(self) -> None:
        check_share("max_bad_fraction", self.max_bad_fraction)
        check(self.seed >= 0, "seed", self.seed, "at least 0")
        if self.prepare.stored_embeddings is not None:
            wanted = "false or none with prepare.stored_embeddings, which comes without images"
            check(not self.materialize, "materialize", self.materialize, wanted)
        rule = find_rule(self.select.rule)
        if self.select.datacomp_compat:
            keeps = {"align.keep": self.align.keep} if rule.attribute_by else {}
            for path, keep in {**keeps, "attribute.keep": self.attribute.keep}.items():
                check(keep < 1, path, keep, "below 1 with select.datacomp_compat")
            check(not rule.keeps_all, "select.rule", self.select.rule, "no full with datacomp_compat")
        if rule.attribute_by:
            self._check_gates(rule)

    def _check_gates(self, rule: Rule) -> None:
        first, second = self.align.keep, self.attribute.keep
        most = f"at most align.keep={first}; both are shares of the corpus"
        check(second <= first, "attribute.keep", second, most)
        check(self.pool >= first, "attribute.pool", self.pool, f"at least align.keep={first}")
        if rule.attribute_by == DRAW:
            name = name_draw(first, second)
            wanted = f"{name}, which says align.keep={first} and attribute.keep={second}"
            wanted += _say_shares(self.select.rule)
            check(self.select.rule == name, "select.rule", self.select.rule, wanted)

    @property
    def pool(self) -> float:
        """Share of the corpus that is attributed; a rule without an attribute gate needs none."""
        if self.attribute.pool is not None:
            return self.attribute.pool
        return self.align.keep if find_rule(self.select.rule).attribute_by else 0.0


def read_config(values: Mapping[str, Any]) -> CurateConfig:
    """Return the config that a curation's run.json holds, of any version.

    Until 0.3 the rule was cpi, PAS was the mean drop of nouns, and ``attribute.unseen`` said whether
    ``targets`` were all nouns or the showable ones.
    """
    before = {"aggregate": "mean", "unit": PER_TARGET, "targets": SHOWABLE}
    attribute = before | values.get("attribute", {})
    select = {"rule": "cpi"} | values.get("select", {})
    if "unseen" in attribute:
        attribute["targets"] = NOUNS if attribute.pop("unseen") else SHOWABLE
    return from_dict(CurateConfig(), {**values, "attribute": attribute, "select": select})


@dataclass(frozen=True)
class SelectionRule:
    """A rule and what it keeps."""

    rule: Rule
    align_share: float
    """What the align gate keeps of the corpus, 0 to 1."""
    attribute_share: float | None = None
    """What the attribute gate keeps of the corpus; none = there is no such gate."""
    datacomp_compat: bool = False
    aggregate: str = "mean"
    unit: str = PER_TARGET
    targets: str = SHOWABLE
    seed: int = 0

    @property
    def ranking(self) -> str:
        """What the last gate ranks by, as a reader says it."""
        pas = {"fraction_supported": "supported share"}.get(self.aggregate, f"{self.aggregate} PAS")
        pas += " per displacement" if self.unit == PER_DISPLACEMENT else ""
        pas += {NOUNS: " of all nouns", CONTENT: " of all content words"}.get(self.targets, "")
        words = {
            PAS: pas,
            MINUS_PAS: f"minus {pas}",
            NUM_WORDS: "words of the caption",
            NUM_PHRASES: "phrases with a drop",
            DISPLACEMENT: "mean displacement",
            RESIDUAL: f"residual of {pas}",
            ALIGN_PAS: f"alignment and {pas}",
        }
        what = self.rule.attribute_by or self.rule.align_by
        return words.get(what, what)


def find_selection(config: CurateConfig) -> SelectionRule:
    """Return the arm that the options describe."""
    rule, how = find_rule(config.select.rule), config.attribute
    if rule.attribute_by:
        shares: tuple[float, float | None] = config.align.keep, how.keep
    else:
        shares = 1.0 if rule.keeps_all else how.keep, None
    reading = how.aggregate, how.unit, how.targets
    return SelectionRule(rule, *shares, config.select.datacomp_compat, *reading, config.seed)


def find_pool_selection(share: float, datacomp_compat: bool) -> SelectionRule:
    """Return the arm that keeps the rows to be attributed: a share of the corpus, best aligned first."""
    # DataComp's rule keeps ties too, so only a pool cut by it holds all that its gate keeps.
    return SelectionRule(Rule(), share, datacomp_compat=datacomp_compat and share < 1)


def choose_config(curated: Mapping[str, Any], settings: Mapping[str, Any]) -> CurateConfig:
    """Return the curation's config with ``settings``, or say why its scores cannot serve them."""
    for path in settings:
        check_path(CurateConfig, path)
        if not is_marked(CurateConfig, path, "select"):
            allowed = ", ".join(option.path for option in list_options(CurateConfig, "select"))
            raise ValueError(f"{path}: select cannot change it, its dials are {allowed}; run curate instead")
    scored = read_config(curated)
    config = override_all(scored, {"attribute.pool": None, **settings})
    if find_rule(config.select.rule).attribute_by and config.align.keep > scored.pool:
        raise ValueError(
            f"align.keep={config.align.keep}: must be at most {scored.pool}, the share of the corpus that "
            f"was attributed; curate with a larger attribute.pool"
        )
    if config.attribute.targets == CONTENT != scored.attribute.targets:
        raise ValueError(
            "attribute.targets='content': the scores have no adjectives, verbs, relation words: curate anew"
        )
    return config
