"""The options of a curation, and the selection rules: the measure that each gate of a rule ranks by."""

import inspect
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from raycomp import words
from raycomp.config import as_setting, check_path, flatten, is_marked, list_options, override_all
from raycomp.config.commands import from_dict, is_own, load_own, name_own
from raycomp.config.options import (
    CODE,
    FREE,
    INPUT,
    NUM_PIXELS,
    PLACE,
    SELECT,
    SHARE,
    UPDATE,
    ClusterConfig,
    ColumnsConfig,
    OptionGroup,
    ParserConfig,
    ScorerConfig,
    WavesConfig,
    check,
    check_choice,
    checked_by,
    count_from,
    one_of,
    within,
)

OPTION = "select.rule"

# Measures that a gate can rank by in addition to the alignment, largest first. "pas" is the aggregated PAS.
DRAW, PAS, MINUS_PAS, RESIDUAL, ALIGN_PAS = "draw", "pas", "minus_pas", "residual", "align_pas"
NUM_WORDS, NUM_PHRASES, DISPLACEMENT = "num_words", "num_phrases", "displacement"
PAS_MEASURES = (PAS, MINUS_PAS, RESIDUAL, ALIGN_PAS)


@dataclass(frozen=True)
class Rule:
    """The measures that a rule ranks by, largest first, ties to the smaller uid.

    The align gate ranks the whole corpus. Without an attribute gate it keeps ``attribute.keep``. With one it
    keeps ``align.keep``, and the attribute gate keeps ``attribute.keep`` of the corpus out of the rows past
    the align gate that have a PAS. Every such rule ranks the rows that cpi ranks and differs from cpi only in
    its measure.
    """

    align_by: str = words.ALIGNMENT
    attribute_by: str | None = None
    columns: tuple[str, ...] = ()
    """Columns of a scores file that the attribute gate reads in addition to the PAS."""
    keeps_all: bool = False


RULES = {
    "cpi": Rule(attribute_by=PAS),
    "align_pas": Rule(attribute_by=ALIGN_PAS),
    "align_only": Rule(),
    "random": Rule(align_by=DRAW),
    "full": Rule(keeps_all=True),
    "align70_random50": Rule(attribute_by=DRAW),
    "cpi_reverse": Rule(attribute_by=MINUS_PAS),
    "length": Rule(attribute_by=NUM_WORDS, columns=("caption",)),
    "phrase_count": Rule(attribute_by=NUM_PHRASES, columns=("phrases",)),
    "displacement": Rule(attribute_by=DISPLACEMENT, columns=("phrases",)),
    "pas_residual": Rule(attribute_by=RESIDUAL, columns=("caption", "phrases")),
}
_OF_PAS = ("attribute.aggregate", "attribute.unit", "attribute.targets", "attribute.nonces")
# The column that a measure is computed from, for measures that are no columns.
COLUMN_OF = {NUM_WORDS: words.CAPTION, NUM_PHRASES: words.PHRASES, DISPLACEMENT: words.PHRASES}
_DRAWN = re.compile(r"align(\d{1,9}(?:\.\d{1,9})?)_random(\d{1,9}(?:\.\d{1,9})?)", re.ASCII)


def get_rule(name: str) -> Rule:
    """Return the measures that a rule ranks by. Raises ValueError if there is no such rule.

    FILE.py:NAME names a function of the user's, which is the rule's measure. With a parameter that only
    attributed rows have it ranks at the attribute gate, else the whole corpus. Only ``CurateConfig`` knows
    the shares that the name of a draw past the align gate must hold.
    """
    if is_own(name):
        wanted = find_parameters(name)
        columns = tuple(dict.fromkeys(COLUMN_OF.get(one, one) for one in wanted if one != PAS))
        if {PAS, words.MEAN_PAS, words.PHRASES, words.CONTENT_WORDS} & {*wanted, *columns}:
            return Rule(attribute_by=name, columns=columns)
        return Rule(align_by=name, columns=columns)
    key = "align70_random50" if _DRAWN.fullmatch(name) else name
    if key not in RULES:
        own = "; or alignA_randomB with your own shares, as in align70_random50; or FILE.py:NAME"
        check_choice(OPTION, name, tuple(RULES), own)
    return RULES[key]


def explain_unused(name: str, path: str, is_measured: bool) -> str | None:
    """Return what counts in place of an option that the rule of that name does not use, None if it does. PAS
    that is measured is shown, so its options have an effect without a rule that ranks by it."""
    rule = get_rule(name)
    shares = ("align.keep", "attribute.keep") if rule.keeps_all else ("align.keep",)
    if path in shares and not rule.attribute_by:
        return "it keeps all pairs" if rule.keeps_all else "its share is attribute.keep"
    by_pas = rule.attribute_by in PAS_MEASURES or is_own(name) or path in _OF_PAS[2:]  # which rows have one
    is_used = path not in _OF_PAS or is_measured or (by_pas and rule.attribute_by)
    return None if is_used else "it does not rank by PAS"


def find_parameters(name: str) -> tuple[str, ...]:
    """Return the parameters of the user's function: columns of scores/, or measures.

    Raises ValueError if the file has no function of this name, or the function has no parameters.
    """
    function = load_own(OPTION, name)
    if not inspect.isfunction(function):
        raise ValueError(f"{OPTION}={name}: must name a function in that file")
    wanted = tuple(inspect.signature(function).parameters)
    if not wanted:
        raise ValueError(f"{OPTION}={name}: must have parameters: columns of scores/, such as alignment")
    return wanted


def name_draw(align_keep: float, attribute_keep: float) -> str:
    """Return the name of a draw past the align gate: align70.5_random50 of 0.705 and 0.5."""
    shares = (f"{(100 * Decimal(str(share))).normalize():f}" for share in (align_keep, attribute_keep))
    return "align{}_random{}".format(*shares)


PAPER_READING = "mean drop of nouns"
MOST_BITS = 7
"""Largest value of near.bits (core/near.py)."""


@dataclass(frozen=True)
class PrepareConfig(OptionGroup, name="prepare"):
    """The images that the scorer reads: prepared on CPU tasks, or stored embeddings."""

    max_pixels: int = field(default=100_000_000, metadata=NUM_PIXELS)
    """Images of more pixels (width x height as declared) are refused before decoding. At most 178,956,970:
    Pillow refuses larger images, so a training on them would fail."""
    fast_decode: bool = False
    """Decode large JPEGs at 1/2, 1/4 or 1/8 of their size, never below the model's; scores change a little.
    On 200 web photos it is 2.7 times as fast. Their embeddings (ViT-B/32, random weights) have a cosine of
    0.9997 with the exact ones (0.996 at least), their alignments a correlation of 0.9996."""
    stored_embeddings: str | None = None
    """Use image embeddings that ``scorer`` made and that are stored with Parquet input; no image is read.
    Either ``clip_retrieval`` (``metadata/metadata_I.parquet``, ``img_emb/img_emb_I.npy``), or the name of an
    array in ``STEM.npz`` next to ``STEM.parquet`` (DataComp has ``b32_img`` and ``l14_img``)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        stored = self.stored_embeddings
        check(stored != "", "prepare.stored_embeddings", stored, "clip_retrieval or an array's name")


@dataclass(frozen=True)
class AlignConfig(OptionGroup, name="align"):
    """Gate 1, rho_1 of the paper's Eq. 6."""

    keep: float = field(default=0.70, metadata=SELECT | UPDATE | SHARE)
    """Share of the corpus that is kept: exactly floor(keep * N), read as a decimal, 0 to 1."""


@dataclass(frozen=True)
class AttributeConfig(OptionGroup, name="attribute"):
    """Phrase attribution (Eqs. 2, 3 and 5) and gate 2, rho_2."""

    keep: float = field(default=0.50, metadata=SELECT | UPDATE | SHARE)
    """Share of the corpus (not of the pool) that is kept, 0 to 1."""
    pool: float | None = field(default=None, metadata=UPDATE | SHARE)
    """Share of the corpus that is attributed, best aligned first; none = the share that the rule needs. 1
    attributes every row with an alignment, those that a filter drops too."""
    aggregate: str = field(default="mean", metadata=SELECT | UPDATE | one_of(words.AGGREGATES))
    """How the PAS of a sample is computed from its targets: mean (the paper, Eq. 5), min, max, or
    fraction_supported (share with drop > 0)."""
    unit: str = field(default=words.PER_TARGET, metadata=SELECT | UPDATE | one_of(words.UNITS))
    """The value that is aggregated: each target's drop (the paper, Eq. 3), or per_displacement: the drop
    divided by its displacement, the distance by which the nonces moved the text embedding."""
    targets: str = field(default=words.NOUNS, metadata=SELECT | UPDATE | one_of(words.TARGETS))
    """The words that count. nouns: one target in each phrase (the paper). showable: the nouns that an image
    can show, so without "background", "day", "view". content: the nouns, adjectives, verbs and relation
    words; costs about twice as many counterfactuals. Nouns are always measured, so ``select`` can change to
    nouns or showable. It can change to content only if curate measured content. The column mean_pas is the
    mean drop of the showable nouns."""
    nonces: int = field(default=1, metadata=UPDATE | within("between 1 and 16"))
    """Counterfactuals per target, 1 to 16; fewer where few nonces exist (7 are plurals of one token)."""


@dataclass(frozen=True)
class NonceConfig(OptionGroup, name="nonce"):
    """How nonces are drawn (section 4.3). The first nonces do not depend on attribute.nonces."""

    seed: int = field(default=0, metadata=within("at least 0"))
    """Changes every nonce."""
    key: str = field(default="target", metadata=one_of(("target", "sample")))
    """target: a target has the same nonces in every caption; sample: each sample has its own nonces."""


@dataclass(frozen=True)
class SelectConfig(OptionGroup, name="select"):
    """The rule that selects the subset."""

    rule: str = field(default="cpi", metadata=CODE | checked_by(lambda _, rule: get_rule(rule)))
    """cpi, the paper's rule, ranks the rows past the align gate by PAS. align_pas, for drawn worlds only
    (docs/study_pas.md), ranks them by the sum of alignment and PAS, each divided by its standard deviation.
    The other rules are controls. On the whole corpus: align_only and random keep attribute.keep, full keeps
    all rows. The remaining rules rank the rows that cpi ranks and keep as many as cpi. align70_random50 draws
    at random (its name holds 100 align.keep and 100 attribute.keep). cpi_reverse takes the lowest PAS, length
    the longest captions (words), phrase_count the most targets with a drop, displacement the largest mean
    displacement of the text embedding, pas_residual the largest residual of PAS regressed on caption length,
    phrase count, alignment and displacement. FILE.py:NAME is your own function of columns of scores/; the
    highest values are kept."""
    datacomp_compat: bool = False
    """Keep the rows of DataComp's threshold rule (k + 1 rows and ties) instead of exactly k."""


@dataclass(frozen=True)
class FilterConfig(OptionGroup, name="filter"):
    """Rows that are dropped by their own columns, by a table, or by a list."""

    where: str | None = None
    """A condition in SQL, such as ``nsfw < 0.3 and width >= 200 and lang = 'en'``: rows for which it is not
    true are dropped. Columns: those of scores/ that hold one value, with width, height, aspect, words and
    lang for short; the fields of the samples' json, with ``meta_`` before a name that scores/ has too; those
    of ``filter.join``. Null is a reason of its own."""
    join: str | None = field(default=None, metadata=PLACE)
    """A Parquet, CSV or TSV table with more columns for ``filter.where``, one row for each key."""
    on: str | None = field(default=None, metadata=one_of(("uid", "sha256", "url", "key")))
    """Its key: uid, sha256, url or key; none = the first of these that it has."""
    missing: str = field(default="fail", metadata=one_of(("fail", "drop", "keep")))
    """Rows that the table lacks: fail stops the run, drop drops them, keep keeps them whatever the
    condition."""
    exclude: str | None = field(default=None, metadata=PLACE)
    """A list for choosing: rows to leave out of this subset. Their photos and captions stay in scores/ and in
    explore; an opt-out, which erases, is ``raycomp update DIR --remove FILE``. Text with a uid, key or file
    name, url, SHA-256 or domain in each line, or a CSV or Parquet table with such columns."""
    when: str = field(default="before", metadata=one_of(("before", "after")))
    """before: shares are fractions of the rows that remain; after: the rule selects from all rows, then these
    are dropped."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.on is None or self.join is not None, "filter.on", self.on, "none without filter.join")
        check(self.where is None or bool(self.where.strip()), "filter.where", self.where, "a condition")

    @property
    def is_after(self) -> bool:
        """Whether rows are dropped after the rule's gates."""
        return self.when == "after"


@dataclass(frozen=True)
class NearConfig(OptionGroup, name="near"):
    """Groups of near-duplicates: one row of each stays."""

    rules: tuple[str, ...] = field(default=(), metadata=one_of(words.NEAR_RULES))
    """What makes two rows near-duplicates, one or more of: exact (the image's bytes), pixels (the model's
    pixels), perceptual (perceptual hashes), semantic (image embeddings), captions (the text without case,
    punctuation and spacing). Groups are those of all the rules together."""
    bits: int = field(default=6, metadata=within(f"between 0 and {MOST_BITS}"))
    """perceptual: largest number of the 64 bits in which the hashes differ, 0 to 7."""
    cosine: float = field(default=0.95, metadata=within("above 0, at most 1"))
    """semantic: smallest cosine of the image embeddings, above 0, at most 1."""
    probes: int = field(default=2, metadata=within("between 1 and 64"))
    """semantic: rows are compared within clusters, each row in so many of them; more finds more pairs."""
    clusters: int | None = field(default=None, metadata=within("between 1 and 65,536"))
    """Number of clusters of the image embeddings, by k-means; each row's is written to marks/. none = without
    clusters."""
    cap: int | None = field(default=None, metadata=within("between 1 and 1,000,000"))
    """Most rows of a cluster that stay, of those that are not near-duplicates; none = all."""
    prefer: str = field(default="best", metadata=one_of(("best", "first")))
    """The rows of a group or cluster that stay: best (the highest alignment, ties to the smaller uid) or
    first (the smallest uid)."""
    action: str = field(default="drop", metadata=one_of(("drop", "flag")))
    """drop: the others are dropped before the shares are counted; flag: groups and clusters are only written
    to marks/."""

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = self.cap is None or self.clusters is not None
        check(fits, "near.cap", self.cap, "none without near.clusters")


@dataclass(frozen=True)
class DecontaminateConfig(OptionGroup, name="decontaminate"):
    """Samples that are also in a test set."""

    index: str | None = field(default=None, metadata=PLACE)
    """A folder that ``raycomp index-eval`` wrote; none = no search."""
    bits: int = field(default=8, metadata=within("between 0 and 11"))
    """Largest number of the 64 bits in which the hashes of an image and of a test image's view differ, 0 to
    11; a match is confirmed by the pixels."""
    action: str = field(default="drop", metadata=one_of(("drop", "flag")))
    """drop: such rows are dropped before the shares are counted; flag: ``contaminated_by`` in marks/ names
    the test sets, and the rows stay."""


@dataclass(frozen=True)
class CurateConfig(OptionGroup):
    """Score shards, select a subset and explain each decision (arXiv 2605.22651, section 5)."""

    input: str = field(default="", metadata=INPUT)
    """Paths, globs or brace lists, local or on ``s3://``, ``gs://``, ``az://``, ``hf://``. Join several
    with ``::``, each optionally ``name=``."""
    columns: ColumnsConfig = field(default_factory=ColumnsConfig)
    scorer: ScorerConfig = field(default_factory=ScorerConfig)
    prepare: PrepareConfig = field(default_factory=PrepareConfig)
    align: AlignConfig = field(default_factory=AlignConfig)
    attribute: AttributeConfig = field(default_factory=AttributeConfig)
    nonce: NonceConfig = field(default_factory=NonceConfig)
    select: SelectConfig = field(default_factory=SelectConfig, metadata=SELECT | UPDATE)
    filter: FilterConfig = field(default_factory=FilterConfig, metadata=SELECT | UPDATE)
    decontaminate: DecontaminateConfig = field(default_factory=DecontaminateConfig, metadata=SELECT | UPDATE)
    near: NearConfig = field(default_factory=NearConfig, metadata=SELECT | UPDATE)
    removed: str | None = field(default=None, metadata=PLACE)
    """A list of rows and shards to erase, for opt-outs: text with a uid, key or file name, url, SHA-256,
    domain or shard name in each line, or a table with such columns. Such a row has the status removed: it
    keeps its uid and place, and nothing of its content is scored or written. A shard is not read. ``raycomp
    update DIR --remove FILE`` adds to it later."""
    parser: ParserConfig = field(default_factory=ParserConfig)
    waves: WavesConfig = field(default_factory=WavesConfig, metadata=FREE)
    cluster: ClusterConfig = field(default_factory=ClusterConfig, metadata=FREE | SELECT | UPDATE)
    extra_columns: tuple[str, ...] = ()
    """Fields of the samples' json to copy into scores/, as text (values that are not text as json)."""
    scorers: tuple[str, ...] = field(default=(), metadata=CODE)
    """Your own scorers, FILE.py:CLASS, in the pass that computes alignment; their columns are in scores/. See
    docs/howto/scorer.md."""
    materialize: bool | None = field(default=None, metadata=SELECT | UPDATE)
    """Write the kept samples as shards; none = yes for local output, no for output in a store and for stored
    embeddings."""
    shard_images: str = field(default="kept", metadata=SELECT | UPDATE | one_of(("kept", "png")))
    """kept: shards hold the images' own bytes, but a PNG where open_clip would decode these otherwise (a
    photo that its EXIF turns). png: every image is a PNG, for readers that want one format."""
    max_bad_fraction: float = field(default=0.05, metadata=FREE | SHARE)
    """Share of the rows read that may be bad, 0 to 1; above it the run stops with exit code 3. Duplicates do
    not count as bad."""
    seed: int = field(default=0, metadata=SELECT | UPDATE | within("at least 0"))
    """Seed of the random rules and of the samples shown in the report."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prepare.stored_embeddings is not None:
            wanted = "false or none with prepare.stored_embeddings, which comes without images"
            check(not self.materialize, "materialize", self.materialize, wanted)
            blind = not {*self.near.rules} - {words.SEMANTIC, words.SAME_CAPTION}
            wanted = "semantic or captions with prepare.stored_embeddings: the others read images"
            check(blind, "near.rules", ",".join(self.near.rules), wanted)
        rule = get_rule(self.select.rule)
        if self.select.datacomp_compat:
            keeps = {"align.keep": self.align.keep} if rule.attribute_by else {}
            for path, keep in {**keeps, "attribute.keep": self.attribute.keep}.items():
                check(keep < 1, path, keep, "below 1 with select.datacomp_compat")
            check(not rule.keeps_all, "select.rule", self.select.rule, "no full with datacomp_compat")
        if not rule.attribute_by:
            return
        first, second = self.align.keep, self.attribute.keep
        most = f"at most align.keep={first}; both are shares of the corpus"
        check(second <= first, "attribute.keep", second, most)
        check(self.pool >= first, "attribute.pool", self.pool, f"at least align.keep={first}")
        name = name_draw(first, second)
        if rule.attribute_by == DRAW and self.select.rule != name:
            wanted = f"{name}, which stands for align.keep={first} and attribute.keep={second}"
            match = _DRAWN.fullmatch(self.select.rule)
            assert match, self.select.rule
            named_first, named_second = (float(Decimal(percent) / 100) for percent in match.groups())
            if named_second <= named_first <= 1 and name_draw(named_first, named_second) == self.select.rule:
                wanted += f"; or set align.keep={named_first} and attribute.keep={named_second} too"
            check(False, "select.rule", self.select.rule, wanted)

    def check_typed(self, options: Mapping[str, Any]) -> Any:
        for path, value in options.items():
            if why := explain_unused(self.select.rule, path, bool(self.pool)):
                raise ValueError(f"{path}={as_setting(value)}: is not used by rule {self.select.rule}; {why}")
        return self

    @property
    def has_marks(self) -> bool:
        """Whether rows can be dropped by anything but the rule's gates."""
        chosen, near = self.filter, self.near
        options = (chosen.where, chosen.join, chosen.exclude, self.decontaminate.index)
        return any((*options, near.rules, near.clusters))

    @property
    def pool(self) -> float:
        """Share of the corpus that is attributed; by default 0 for a rule without an attribute gate."""
        if self.attribute.pool is not None:
            return self.attribute.pool
        return self.align.keep if get_rule(self.select.rule).attribute_by else 0.0


def read_config(values: Mapping[str, Any]) -> CurateConfig:
    """Return the config in a curation's run.json."""
    return from_dict(CurateConfig(), values)


@dataclass(frozen=True)
class SelectionRule:
    """A rule and what it keeps."""

    rule: Rule
    align_share: float
    """Share of the corpus that the align gate keeps, 0 to 1."""
    attribute_share: float | None = None
    """Share of the corpus that the attribute gate keeps; none = no such gate."""
    datacomp_compat: bool = False
    aggregate: str = "mean"
    unit: str = words.PER_TARGET
    targets: str = words.SHOWABLE
    seed: int = 0

    @property
    def named(self) -> str:
        """What counts for PAS, for readers: "nouns"."""
        names = {words.NOUNS: "nouns", words.SHOWABLE: "showable nouns", words.CONTENT: "content words"}
        return names[self.targets]

    @property
    def reading(self) -> str:
        """What PAS is, for readers, such as ``PAPER_READING``."""
        named = self.named
        if self.aggregate == "fraction_supported":
            return f"share of {named} with a drop above 0"
        value = "drop per displacement" if self.unit == words.PER_DISPLACEMENT else "drop"
        aggregate = {"min": "least", "max": "largest"}.get(self.aggregate, self.aggregate)
        return f"{aggregate} {value} of {named}"

    @property
    def ranking(self) -> str:
        """The name, for readers, of the measure that the last gate ranks by."""
        names = {
            PAS: self.reading,
            MINUS_PAS: f"minus {self.reading}",
            NUM_WORDS: "words of the caption",
            NUM_PHRASES: "phrases with a drop",
            DISPLACEMENT: "mean displacement",
            RESIDUAL: f"residual of {self.reading}",
            ALIGN_PAS: f"alignment and {self.reading}",
            DRAW: "random draw",
        }
        what = self.rule.attribute_by or self.rule.align_by
        return names.get(what, name_own(what))

    @property
    def by_pas(self) -> "SelectionRule":
        """This rule if PAS is in what it ranks by, else cpi with the same reading."""
        return self if self.rule.attribute_by in PAS_MEASURES else replace(self, rule=get_rule("cpi"))


def make_selection(config: CurateConfig) -> SelectionRule:
    """Return the selection rule that the options describe."""
    rule, how = get_rule(config.select.rule), config.attribute
    first, second = config.align.keep, how.keep if rule.attribute_by else None
    if second is None:
        first = 1.0 if rule.keeps_all else how.keep
    reading = how.aggregate, how.unit, how.targets
    return SelectionRule(rule, first, second, config.select.datacomp_compat, *reading, config.seed)


def describe_rule(config: CurateConfig) -> str:
    """Return rule and reading in a phrase: "cpi: mean drop of nouns, 1 nonce"."""
    name, selection, nonces = config.select.rule, make_selection(config), config.attribute.nonces
    if selection.rule.keeps_all:
        return f"{name}: all pairs"
    if selection.by_pas is selection or (selection.rule.attribute_by and is_own(name)):
        return f"{name}: {selection.reading}, {nonces} nonce{'s' * (nonces > 1)}"
    return name if is_own(name) else f"{name}: {selection.ranking}"


def make_pool_selection(share: float, datacomp_compat: bool) -> SelectionRule:
    """Return the selection rule for the rows to be attributed: a share of the corpus, best aligned first."""
    # DataComp's rule also keeps ties, so only a pool cut by that rule holds all rows that its gate keeps.
    return SelectionRule(Rule(), share, datacomp_compat=datacomp_compat and share < 1)


def choose_config(
    curated: Mapping[str, Any], settings: Mapping[str, Any], source: str = "DIR"
) -> CurateConfig:
    """Return the curation's config with ``settings``.

    Raises ValueError if its scores cannot serve them; the error names the update of the folder ``source``
    that adds what they lack.
    """
    for path, value in settings.items():
        check_path(CurateConfig, path)
        if is_marked(CurateConfig, path, "select"):
            continue
        if is_marked(CurateConfig, path, "update"):
            has, line = as_setting(dict(flatten(curated))[path]), update_line(source, path, value)
            both = f"or, to keep both, curate into another folder with --{path} {as_setting(value)}"
            raise ValueError(f"{path}: the scores have {path}={has}; change them in place: {line}; {both}")
        allowed = ", ".join(option.path for option in list_options(CurateConfig, "select"))
        raise ValueError(f"{path}: select cannot change it, its options are {allowed}; run curate instead")
    scored = read_config(curated)
    config = override_all(scored, {"attribute.pool": None, **settings}).check_typed(settings)
    keep, targets = config.align.keep, config.attribute.targets
    if get_rule(config.select.rule).attribute_by and keep > scored.pool:
        most = f"at most {scored.pool}, the share of the corpus that was attributed"
        line = update_line(source, "attribute.pool", keep)
        raise ValueError(f"align.keep={keep}: must be {most}; attribute more: {line}")
    if targets == words.CONTENT != scored.attribute.targets:
        said = "the scores have no adjectives, verbs, relation words"
        line = update_line(source, "attribute.targets", words.CONTENT)
        raise ValueError(f"attribute.targets={targets!r}: {said}; measure them: {line}")
    return config


def update_line(source: str, path: str, value: Any) -> str:
    """Return the command that changes one option of the curation in ``source``."""
    return f"raycomp update {shlex.quote(source)} --set {shlex.quote(f'{path}={as_setting(value)}')}"


@dataclass(frozen=True)
class VerifyConfig(OptionGroup):
    """What is recomputed of a curation."""

    rows: int = field(default=300, metadata=count_from(1))
    """Random rows that are scored again from their pixels and texts."""
    seed: int = field(default=0, metadata=within("at least 0"))
    """Draws the rows."""
