"""The command lines of ``bench.digests``: every command and page, both executors, and refusals.

They are run below one folder: inputs in ``in/`` (``bench.digest_inputs``), and what a case writes in a folder
of its name. A case that names another one's folder is run after it. Lines use the names of today's options;
``digest_names.csv`` maps a name to a later one.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

PHOTOS = "in/photos"
CORE, WHOLE = "core", "whole"


@dataclass(frozen=True)
class Case:
    """One command line."""

    name: str
    line: str
    """What stands behind ``raycomp``; ``--out NAME`` is added where it is missing. ``{uid}`` is the first uid
    that ``paper`` kept, ``{llm}`` the address of the scripted language model, ``{images}`` a table of drawn
    images for what ``rules`` wrote, ``{out}`` the case's folder."""
    group: str = WHOLE
    """core: also part of the short run."""
    exit_code: int = 0
    """2 and 3 are refusals: what counts of them is the line on standard error."""
    copies: str = ""
    """The case whose folder is copied to this one's before the command changes it."""
    same_as: str = ""
    """The case, on the other executor or resumed otherwise, whose result files must be the same."""

    @property
    def command(self) -> str:
        """The command's name."""
        return self.line.split()[0]

    @property
    def is_printed(self) -> bool:
        """Whether the result is what the command prints."""
        return self.command in ("show", "list", "explain", "verify")

    @property
    def needs_photos(self) -> bool:
        """Whether real photos are read."""
        return PHOTOS in self.line

    def needs(self, cases: Iterable["Case"]) -> list["Case"]:
        """Return the cases whose folders this one reads."""
        words = {*re.split(r"[\s=/,:]", self.line)[1:], self.copies, self.same_as}
        words |= {"paper"} if "{uid}" in self.line else set()
        return [case for case in cases if case.name in words and case.name != self.name]


def _sets(text: str) -> str:
    return " ".join(f"--set {one}" for one in text.split())


SCORER = "scorer.model=in/tiny.json scorer.weights=random:0 scorer.batch_size=16"
PAPER = "select.rule=cpi attribute.targets=nouns attribute.unit=drop attribute.aggregate=mean"
PAPER += " attribute.nonces=1 align.keep=0.7 attribute.keep=0.5"
CONTENT = "select.rule=align_pas attribute.targets=content attribute.unit=per_displacement"
CONTENT += " attribute.aggregate=min attribute.nonces=2 align.keep=0.7 attribute.keep=0.5"
CURATE = f"curate {_sets(SCORER)} {_sets(PAPER)} {_sets('max_bad_fraction=1')}"
MIXED = f"curate {_sets(SCORER)} {_sets(CONTENT)} {_sets('max_bad_fraction=1')}"
NEGATIVES = f"negatives {_sets(SCORER)}"
# Small batches: on two threads torch adds up the gradients of a batch's positions, where these are more than
# 32,768 values (texts x tokens x width), in an order that does not repeat: weights differ in their last bits.
FIT = "model.name=in/tiny.json model.weights=random:0 train.batch_size=8 train.steps=6"
FIT += " train.checkpoint_steps=3 max_bad_fraction=1"
TRAIN = f"train {_sets(FIT)} {_sets('train.workers=1')}"
TWO = f"train {_sets(FIT)} {_sets('train.workers=2 cluster.executor=ray cluster.num_cpus=5')}"
TESTS = "benchmarks=sugarcrepe,sugarcrepe_pp,retrieval,zeroshot,linear_probe,in/own.py:counting"
TESTS += " sugarcrepe.annotations=in/sugarcrepe sugarcrepe.images=in/test_images"
TESTS += " sugarcrepe_pp.annotations=in/sugarcrepe_pp sugarcrepe_pp.images=in/test_images"
TESTS += " own.annotations=in/counting own.images=in/test_images retrieval.input=in/folder"
TESTS += " zeroshot.input=in/classes linear_probe.train=in/classes linear_probe.test=in/classes"
TESTS += " controls.captions=in/captions.txt"
EVALUATE = f"evaluate {_sets('model.name=in/tiny.json ' + TESTS)}"
HEADS = "frozen,sequential,replay-text,image-buffer,compo-realign,no-synthetic,no-trust,no-buffer"
HEADS += ",linear-mix,identity-mix,attention-pool,no-shaper,joint"
SHORT = "model.name=in/tiny.json model.weights=random:0 seeds=1 head.steps=3 head.batch_size=8"
SHORT += " trust.first=2 tune.steps=2 tune.batch_size=4 max_bad_fraction=1 checkpoint_steps=1"
CONTINUAL = f"continual {_sets(SHORT)}"
SWEEP = "sweep --set curated=pool --set seeds=1 --set report_seeds=0 --set max_concurrent=1"
SWEEP += " --set train.model.name=in/tiny.json --set train.model.weights=random:0"
SWEEP += " --set train.train.batch_size=4 --set train.train.workers=1 --set evaluate.benchmarks=sugarcrepe"
SWEEP += " --set evaluate.sugarcrepe.annotations=in/sugarcrepe"
SWEEP += " --set evaluate.sugarcrepe.images=in/test_images --set metric=sugarcrepe.accuracy"
RULES = ("align_only", "random", "full", "align70_random50", "cpi_reverse", "length", "phrase_count")
RULES += ("displacement", "pas_residual")
ON_RAY = "--set cluster.executor=ray --set cluster.num_cpus=5"

CURATION = (
    Case("paper", f"{CURATE} --set input=in/pairs", CORE),
    Case("paper-ray", f"{CURATE} --set input=in/pairs {ON_RAY}", CORE, same_as="paper"),
    Case(
        "mixed",
        f"{MIXED} --set input=p=in/parquet::b=in/broken --set waves.shards_per_wave=1"
        " --set nonce.key=sample --set extra_columns=fault --set scorer.embedding_dtype=float16",
        CORE,
    ),
    Case(
        "mixed-ray",
        f"{MIXED} --set input=p=in/parquet::b=in/broken --set waves.shards_per_wave=2"
        f" --set nonce.key=sample --set extra_columns=fault --set scorer.embedding_dtype=float16 {ON_RAY}",
        same_as="mixed",
    ),
    Case("pool", f"{CURATE} --set input=in/pairs --set attribute.pool=1", CORE),
    Case("things", f"{CURATE} --set input=in/things --set attribute.pool=1"),
    Case("index", f"index-eval {_sets(TESTS)}", CORE),
    Case(
        "filtered",
        f"{CURATE} --set input=p=in/pairs::c=in/copies --set attribute.pool=1"
        " --set filter.join=in/joined.parquet --set filter.on=url --set filter.missing=keep"
        " --set near.rules=exact,perceptual,captions --set decontaminate.index=index"
        " --set removed=in/removed.txt --set extra_columns=nsfw --set \"filter.where=source <> 'b'\"",
        CORE,
    ),
    Case(
        "every-caption",
        f"{CURATE} --set input=in/folder --set columns.captions=all --set columns.root=in/folder/images",
        CORE,
    ),
    Case(
        "listed",
        f"{CURATE} --set input=in/list/pairs.csv --set columns.image=file --set columns.caption=words"
        " --set extra_columns=weight",
    ),
    Case(
        "stored",
        f"{CURATE} --set input=in/stored --set prepare.stored_embeddings=tiny_img --set attribute.keep=0.3",
    ),
    Case(
        "photos",
        f"{CURATE} --set input={PHOTOS} --set prepare.fast_decode=true --set attribute.pool=0.7",
    ),
    Case(
        "own-rule",  # which uses no share by alignment
        f"{CURATE.replace(' --set align.keep=0.7', '')} --set input=in/pairs"
        " --set select.rule=in/own.py:per_word --set scorers=in/own.py:Lightness --set attribute.pool=1",
    ),
    Case(
        "showable",
        f"{CURATE} --set input=in/pairs --set attribute.targets=showable --set attribute.unit=drop"
        " --set attribute.nonces=3 --set nonce.seed=5",
    ),
    *(
        Case(
            f"select-{rule}",
            f"select pool --set select.rule={rule}" + " --set materialize=false" * (rule != "length"),
            CORE if rule in ("length", "align_only") else WHOLE,
        )
        for rule in RULES
    ),
    Case("select-ray", f"select pool --set select.rule=length {ON_RAY}", same_as="select-length"),
    Case(
        "select-reading",
        "select pool --set attribute.aggregate=min --set attribute.unit=per_displacement"
        " --set select.datacomp_compat=true --set attribute.keep=0.4 --set materialize=false",
        CORE,
    ),
    Case(
        "select-near",
        "select pool --set near.rules=semantic --set near.cosine=0.99 --set near.clusters=4 --set near.cap=9"
        " --set near.prefer=first --set filter.where=caption_words>9 --set filter.when=after",
    ),
    Case(
        "select-mixed",
        "select mixed --set select.rule=align60_random25 --set align.keep=0.6"
        " --set attribute.keep=0.25 --set seed=1 --set materialize=false",
    ),
)
UPDATES = (
    Case("update-add", "update {out} --add more=in/more", CORE, copies="paper"),
    Case(
        "update-add-ray",
        f"update {{out}} --add more=in/more {ON_RAY}",
        copies="paper",
        same_as="update-add",
    ),
    Case("update-remove", "update {out} --remove in/removed.txt", CORE, copies="paper"),
    Case("update-set", "update {out} --set attribute.keep=0.4 --set near.rules=exact", copies="pool"),
)
LOOKING = (
    Case("verify", "verify paper --rows 20 --seed 1", CORE),
    Case("audit", f"audit --set input=in/copies {_sets(SCORER)}", CORE),
    Case("explore", "explore pool --set thumbnails=true --set neighbours=4", CORE),
    Case("explore-where", "explore filtered --where 'alignment > 0' --set neighbours=0"),
    Case("diff", "diff pool select-length", CORE),
    Case("card", "card paper", CORE),
    Case("show-curate", "show paper", CORE),
    Case("show-train", "show train-clip --verify", CORE),
    Case("show-evaluate", "show evaluate-clip"),
    Case("show-continual", "show heads"),
    Case("show-negatives", "show rules"),
    Case("list-runs", "list evaluate-clip"),
    Case("explain-kept", "explain paper {uid}", CORE),
    Case("explain-select", "explain select-length {uid}"),
    Case("explain-negatives", "explain rules {uid}", CORE),
    Case("explain-pas", "explain probe-pas {uid}"),
)
WRITING = (
    Case("rules", f"{NEGATIVES} --set input=paper", CORE),
    Case("rules-ray", f"{NEGATIVES} --set input=paper {ON_RAY}", same_as="rules"),
    Case(
        "negatives-calls",
        f"{NEGATIVES} --set input=paper --set negatives.operations=SWAP,REPLACE"
        " --set negatives.calls=2 --set negatives.export=negclip,calls,neighbours"
        " --set negatives.materialize=true",
        CORE,
    ),
    Case(
        "negatives-refined",
        f"{NEGATIVES} --set input=pool --set negatives.candidates=13 --set negatives.context=true"
        " --set negatives.judge=ngrams --set negatives.refine=balance",
    ),
    Case(
        "negatives-screened",
        f"{NEGATIVES} --set input=pool --set negatives.screen=2 --set negatives.drop_suspects=true"
        " --set negatives.seed=3",
    ),
    Case(
        "negatives-llm",
        f"{NEGATIVES} --set input=paper --set negatives.engine=http --set llm.url={{llm}} --set llm.tries=2"
        " --set llm.model=scripted",
        CORE,
    ),
    Case(
        "negatives-llm-short",
        f"{NEGATIVES} --set input=paper --set negatives.engine=http --set llm.url={{llm}}"
        " --set llm.prompts=short --set llm.model=scripted --set negatives.rank=false",
    ),
    Case("update-negatives", "update {out}", copies="rules"),
)
TRAINING = (
    Case("train-clip", f"{TRAIN} --set input=paper", CORE),
    Case("train-clip-ray", f"{TRAIN} --set input=paper {ON_RAY}", same_as="train-clip"),
    Case("train-two-ranks", f"{TWO} --set input=paper", CORE),
    Case(
        "train-hard",
        f"{TRAIN} --set input=paper --set negatives=negatives-calls --set train.loss=negclip"
        " --set train.num_negatives=2 --set train.batch_size=5"
        " --set hard_images=negatives-calls/exports/neighbours",
        CORE,
    ),
    Case(
        "ceclip",
        f"{TRAIN} --set input=paper --set negatives=rules --set train.loss=ceclip --set train.freeze=image:1",
    ),
    Case(
        "triplet",
        f"{TRAIN} --set input=paper --set negatives=rules --set train.loss=triplet"
        " --set negative_images={images}",
    ),
    Case(
        "siglip",
        f"{TRAIN} --set input=in/pairs --set train.loss=siglip --set train.accumulate=2"
        " --set train.held_out=0.2 --set train.evaluate_steps=3 --set train.clip_norm=1",
    ),
    Case(
        "lora",
        f"{TRAIN} --set input=in/folder --set columns.captions=longest"
        " --set columns.root=in/folder/images --set train.lora_rank=4",
    ),
    Case(
        "subset",
        f"{TRAIN} --set input=in/pairs --set subset=select-random/subset/kept.parquet"
        " --set train.keep_start=0.5",
    ),
    Case("own-loss", f"{TRAIN} --set input=in/pairs --set train.loss=in/own.py:Margin"),
    Case("publish", "publish train-clip", CORE),
)
EVALUATION = (
    Case("evaluate-clip", f"{EVALUATE} --set model.weights=train-clip", CORE),
    Case("evaluate-ray", f"{EVALUATE} --set model.weights=train-clip {ON_RAY}", same_as="evaluate-clip"),
    Case("evaluate-negclip", f"{EVALUATE} --set model.weights=train-hard --set trained_on=filtered", CORE),
    Case("compare", "compare evaluate-clip evaluate-negclip", CORE),
)
CONTINUALLY = (
    Case("heads", f"{CONTINUAL} --set stream=in/stream/stream.json --set method={HEADS}", CORE),
    Case(
        "heads-ray",
        f"{CONTINUAL} --set stream=in/stream/stream.json --set method={HEADS} {ON_RAY}",
        same_as="heads",
    ),
    Case(
        "heads-other",
        f"{CONTINUAL} --set stream=in/stream/two.json --set method=compo-realign --set seeds=2"
        " --set order=given --set trust.mode=fixed --set trust.gamma=1.5 --set trust.apply=update"
        " --set buffer.reading=anchored --set head.c2v=joint --set primitives=parsed"
        " --set head.optimizer=sgd --set head.text=adapted",
    ),
    Case(
        "tuned",
        f"{CONTINUAL} --set stream=in/stream/two.json --set order=given"
        " --set method=finetune,joint-finetune,zscl,c-clip,diki,cl-moe --set reference=in/folder",
        CORE,
    ),
    Case(
        "own-method",
        f"{CONTINUAL} --set stream=in/stream/two.json --set method=frozen,in/own.py:Anchored"
        " --set develop.seeds=1 --set tune_seeds=1 --set develop.rates=0.5,2",
    ),
)
SWEEPS = (
    Case("sweep-grid", f"{SWEEP} --set train.train.steps=3 --space attribute.keep=grid(0.5,0.4)"),
    Case(
        "sweep-rungs",
        f"{SWEEP} --set train.train.steps=9 --set scheduler=asha --set rungs=steps"
        " --space train.learning_rate=grid(1e-3,1e-4,1e-5)",
    ),
    Case(
        "sweep-continual",
        "sweep --set command=continual --set seeds=1 --set report_seeds=1 --set max_concurrent=1"
        " --set continual.stream=in/stream/two.json --set continual.model.name=in/tiny.json"
        " --set continual.model.weights=random:0 --set continual.head.steps=3"
        " --set continual.head.batch_size=8 --set continual.max_bad_fraction=1"
        " --set metric=two.last --space trust.quantile=grid(0.5,0.9)",
    ),
)
PROBES = (
    Case("probe-overlap", "probe overlap --set input=in --set benchmarks=sugarcrepe,sugarcrepe_pp", CORE),
    Case("probe-pas", f"probe pas --set input=things {_sets(SCORER)}"),
    Case("probe-composition", f"probe composition --set input=rules --set pairs=12 {_sets(SCORER)}"),
)
# The little world, which leaves the product: its results stay the same where it goes.
LITTLE = (
    Case(
        "little-stream",
        "continual --set stream=in/drawn.py:world,in/drawn.py:domains --set method=frozen,compo-realign"
        ",in/drawn.py:compo_realign_adapted,in/drawn.py:experts"
        " --set head.steps=3 --set head.batch_size=8 --set trust.first=2",
    ),
    Case("probe-theory", "probe theory --set seeds=1"),
    Case(
        "screen",
        "screen --set worlds=1 --set sound=60 --set faulty=30 --set scorer_pairs=64 --set scorer_steps=2"
        " --set batch_size=16 --set captions=200 --set side_by_side=1",
    ),
)
# What a user gets wrong: the exit code and the line on standard error. {out} is never written to.
_WRONG = (
    ("share", f"{CURATE} --set input=in/pairs --set align.keep=2", 2),
    ("unknown-option", f"{CURATE} --set input=in/pairs --set align.kep=0.5", 2),
    ("no-equals", "curate --set align.keep", 2),
    ("no-input", f"{CURATE} --set input=in/nothing", 2),
    ("no-shards", f"{CURATE} --set input=in/sugarcrepe", 2),
    ("unknown-command", "curat --set input=in/pairs", 2),
    ("other-run", f"{CURATE} --set input=in/pairs --set attribute.nonces=2 --out paper", 2),
    ("bad-data", f"{CURATE} --set input=in/broken --set max_bad_fraction=0.05", 3),
    ("unknown-model", f"{CURATE} --set input=in/pairs --set scorer.model=ViT-Z-99", 2),
    ("unknown-rule", f"{CURATE} --set input=in/pairs --set select.rule=best", 2),
    ("where", "select pool --set 'filter.where=(alignment'", 2),
    ("no-column", f"{CURATE} --set input=in/list/pairs.csv --set columns.image=picture", 2),
    ("not-a-run", "select in/pairs --set align.keep=0.5", 2),
    ("not-attributed", "select paper --set attribute.nonces=2", 2),
    ("pool-too-small", "select paper --set align.keep=0.9", 2),
    ("few-pairs", f"{TRAIN} --set input=paper --set train.batch_size=4096", 2),
    ("no-negatives", f"{TRAIN} --set input=paper --set train.loss=negclip", 2),
    ("own-code", f"{TRAIN} --set input=paper --set train.loss=in/own.py:Missing", 2),
    ("no-benchmark", "evaluate --set model.name=in/tiny.json --set model.weights=train-clip", 2),
    ("no-images", f"{EVALUATE} --set model.weights=train-clip --set sugarcrepe.images=in/none", 2),
    ("one-run", "compare evaluate-clip", 2),
    ("unknown-method", f"{CONTINUAL} --set stream=in/stream/two.json --set method=best", 2),
    ("no-stream", f"{CONTINUAL} --set stream=in/none.json --set method=frozen", 2),
    ("no-captions", f"{NEGATIVES} --set input=in/pairs", 2),
    ("no-engine", f"{NEGATIVES} --set input=paper --set negatives.engine=gpt", 2),
    ("no-space", SWEEP, 2),
    ("unknown-uid", "explain paper 00000000000000000000000000000000", 2),
    ("update-not-a-run", "update in/pairs", 2),
)
REFUSALS = tuple(Case(f"refused-{name}", line, CORE, exit_code=code) for name, line, code in _WRONG)
CASES = (
    *(*CURATION, *WRITING, *TRAINING, *EVALUATION, *CONTINUALLY),
    *(*UPDATES, *PROBES, *LOOKING, *LITTLE, *SWEEPS, *REFUSALS),
)
