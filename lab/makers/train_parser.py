"""Train the English tagger and dependency parser that ships as ``parser.name=raycomp``.

What: spaCy's small CPU architecture (hashed embeddings, a convolutional encoder, tagger, arc-eager parser)
without word vectors, on the Universal Dependencies English Web Treebank (CC BY-SA 4.0). Captions are not web
text: many are noun phrases, lower-cased, without a final period. So of the training sentences a third are the
treebank's own, a third are cut out of its trees ("The dog is running" -> "dog running"), and a third come out
of a grammar of captions (caption_grammar.py); some are in lower case.

Command: OMP_NUM_THREADS=1 python lab/makers/train_parser.py --treebank ../shared/data/ud_english_ewt
Cost: about 12 minutes on one core, 1 GB of memory. Same seed, machine and library versions: same weights.
Result: on the treebank's test part tag accuracy 0.932, UAS 0.837, LAS 0.794 (written to meta.json); heads of
noun phrases in 200 hand-labelled captions F1 0.978 (bench/parsing.py).
"""

import argparse
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import spacy
from spacy.language import Language
from spacy.scorer import Scorer
from spacy.tokens import Doc
from spacy.training import Example
from spacy.util import fix_random_seed, minibatch
from thinc.api import Adam, warmup_linear

from lab.makers.caption_grammar import Grammar, flatten

SEED = 0
WIDTH, DEPTH, HIDDEN = 96, 3, 64
STEPS, EVAL_EVERY, WORDS_PER_BATCH = 2500, 250, 900
LEARN_RATE, WARMUP_STEPS = 0.0015, 100
OUT = Path(__file__).parents[2] / "raycomp" / "models" / "data" / "parser"
BE = {"is", "are", "was", "were", "'s", "'re", "am", "been", "being", "be"}


class Sentence(NamedTuple):
    """A tree in columns; ``heads`` are positions in the sentence, the root is its own head."""

    words: list[str]
    spaces: list[bool]
    tags: list[str]
    heads: list[int]
    deps: list[str]


def read_conllu(path: Path) -> list[Sentence]:
    """Read a CoNLL-U file; empty nodes are left out, ranges only say where a space follows."""
    return [read_tree(block) for block in path.read_text(encoding="utf-8").strip().split("\n\n")]


def read_tree(block: str) -> Sentence:
    """Read the lines of one CoNLL-U sentence."""
    words, spaces, tags, heads, deps = new = Sentence([], [], [], [], [])
    range_end, range_space = 0, True
    for line in block.split("\n"):
        cells = line.split("\t")
        if line.startswith("#") or "." in cells[0]:
            continue
        space = "SpaceAfter=No" not in cells[9]
        if "-" in cells[0]:
            range_end, range_space = int(cells[0].split("-")[1]), space
            continue
        place = len(words)
        words.append(cells[1].replace(" ", "_"))
        spaces.append(space if place + 1 > range_end else range_space and place + 1 == range_end)
        tags.append(cells[4])
        heads.append(int(cells[6]) - 1 if cells[6] != "0" else place)
        deps.append("ROOT" if cells[6] == "0" else cells[7])
    return new


def cut(tree: Sentence, keep: list[int], root: int) -> Sentence:
    """Return the part of ``tree`` at the sorted positions ``keep``, headed by ``root``."""
    new = {old: place for place, old in enumerate(keep)}
    heads = [new[root] if old == root else new.get(tree.heads[old], new[root]) for old in keep]
    deps = ["ROOT" if old == root else tree.deps[old] for old in keep]
    words, spaces = [tree.words[old] for old in keep], [tree.spaces[old] for old in keep]
    return Sentence(words, spaces, [tree.tags[old] for old in keep], heads, deps)


def subtree(tree: Sentence, top: int) -> list[int]:
    """Return the sorted positions of ``top`` and all below it."""
    inside, todo = {top}, [top]
    while todo:
        head = todo.pop()
        below = [i for i, h in enumerate(tree.heads) if h == head and i not in inside]
        inside.update(below)
        todo.extend(below)
    return sorted(inside)


def noun_phrases(tree: Sentence) -> Iterator[Sentence]:
    """Yield every noun phrase of 2 to 25 words without the preposition or conjunction before it."""
    for noun, tag in enumerate(tree.tags):
        if not tag.startswith("NN") or tree.deps[noun] in ("compound", "flat", "ROOT"):
            continue
        drop: set[int] = set()
        for child in (i for i, head in enumerate(tree.heads) if head == noun and i != noun):
            if tree.deps[child] in ("case", "cc", "mark", "punct", "cop") and child < noun:
                drop.update(subtree(tree, child))
        keep = [i for i in subtree(tree, noun) if i not in drop]
        if 2 <= len(keep) <= 25 and keep[-1] - keep[0] < len(keep):
            yield cut(tree, keep, noun)


def clauses(tree: Sentence) -> Iterator[Sentence]:
    """Yield clauses that start with their noun subject, and without "be" as noun phrases: "dogs running"."""
    for subject, dep in enumerate(tree.deps):
        verb = tree.heads[subject]
        if dep not in ("nsubj", "nsubj:pass") or not tree.tags[subject].startswith("NN") or subject > verb:
            continue
        first = subtree(tree, subject)[0]
        keep = [i for i in subtree(tree, verb) if i >= first]
        if not tree.tags[verb].startswith("VB") or not 3 <= len(keep) <= 30:
            continue
        clause = cut(tree, keep, verb)
        yield clause
        noun, verb = keep.index(subject), keep.index(verb)
        auxiliaries = [
            i for i, d in enumerate(clause.deps) if d in ("aux", "aux:pass") and clause.heads[i] == verb
        ]
        be = [i for i in auxiliaries if clause.words[i].lower() in BE]
        if clause.tags[verb] in ("VBG", "VBN") and be and len(be) == len(auxiliaries):
            heads, deps = list(clause.heads), list(clause.deps)
            heads[noun], heads[verb], deps[noun], deps[verb] = noun, noun, "ROOT", "acl"
            reduced = clause._replace(heads=heads, deps=deps)
            yield cut(reduced, [i for i in range(len(heads)) if i not in auxiliaries], noun)


def like_caption(tree: Sentence, rng: random.Random) -> Sentence:
    """Return a caption-like part of ``tree`` where it has one, else ``tree``."""
    makers: list[Callable[[Sentence], Iterator[Sentence]]] = [noun_phrases, clauses, clauses]
    rng.shuffle(makers)
    parts = next((found for found in (list(make(tree)) for make in makers) if found), [])
    part = rng.choice(parts) if parts else tree
    positions = list(range(len(part.words)))
    root = next(i for i, head in enumerate(part.heads) if head == i)
    if part.deps[0] == "det" and 0 not in part.heads and rng.random() < 0.3:
        positions = positions[1:]
    has_stop = part.deps[positions[-1]] == "punct"
    if has_stop and len(positions) > 2 and positions[-1] not in part.heads:
        positions = positions[:-1]
    part = cut(part, positions, root)
    if rng.random() < 0.4:
        root = next(i for i, head in enumerate(part.heads) if head == i)
        part = Sentence(
            [*part.words, "."],
            [*part.spaces, False],
            [*part.tags, "."],
            [*part.heads, root],
            [*part.deps, "punct"],
        )
    return part


def paired_nouns(trees: list[Sentence]) -> list[tuple[str, str]]:
    """Return (singular, plural) of the nouns that the treebank has in both numbers with a plain s."""
    words = [pair for tree in trees for pair in zip(tree.words, tree.tags, strict=True)]
    singular, plural = ({word for word, tag in words if tag == wanted} for wanted in ("NN", "NNS"))
    return sorted((noun, noun + "s") for noun in singular if noun + "s" in plural and noun.islower())


def draw_caption(grammar: Grammar) -> Sentence:
    """Return a caption of the grammar, half of them with a capital, marks set off by a space or not."""
    words, tags, heads, deps = flatten(grammar.draw())
    if grammar.chance(0.5):
        words[0] = words[0].capitalize()
    tight = not grammar.chance(0.6)
    spaces = [not (tight and following in (".", ",", "'s", ":")) for following in [*words[1:], ""]]
    return Sentence(words, spaces, tags, heads, deps)


def vary(tree: Sentence, rng: random.Random) -> Sentence:
    """Return one training variant of ``tree``: half caption-like, a third of all in lower case."""
    if rng.random() < 0.5:
        tree = like_caption(tree, rng)
    if rng.random() < 0.35:
        tree = tree._replace(words=[word.lower() for word in tree.words])
    return tree


def join(first: Sentence, second: Sentence) -> Sentence:
    """Return two sentences as one text with two trees."""
    shift = len(first.words)
    spaces = [*first.spaces[:-1], True, *second.spaces]
    heads = first.heads + [head + shift for head in second.heads]
    return Sentence(
        first.words + second.words, spaces, first.tags + second.tags, heads, first.deps + second.deps
    )


def to_example(nlp: Language, tree: Sentence) -> Example:
    """Return a spaCy example: spaCy's tokens of the text, the gold tree aligned where they agree."""
    gold = Doc(
        nlp.vocab, words=tree.words, spaces=tree.spaces, tags=tree.tags, heads=tree.heads, deps=tree.deps
    )
    return Example(nlp.make_doc(gold.text), gold)


def build_pipeline(trees: list[Sentence]) -> Language:
    """Return the untrained pipeline with its labels."""
    nlp = spacy.blank("en")
    embed = {
        "@architectures": "spacy.MultiHashEmbed.v2",
        "width": WIDTH,
        "attrs": ["NORM", "PREFIX", "SUFFIX", "SHAPE"],
        "rows": [5000, 1000, 2500, 1000],
        "include_static_vectors": False,
    }
    encode = {
        "@architectures": "spacy.MaxoutWindowEncoder.v2",
        "width": WIDTH,
        "depth": DEPTH,
        "window_size": 1,
        "maxout_pieces": 2,
    }
    tok2vec = {"@architectures": "spacy.Tok2Vec.v2", "embed": embed, "encode": encode}
    listener = {"@architectures": "spacy.Tok2VecListener.v1", "width": WIDTH, "upstream": "tok2vec"}
    parser = {
        "@architectures": "spacy.TransitionBasedParser.v2",
        "state_type": "parser",
        "extra_state_tokens": False,
        "hidden_width": HIDDEN,
        "maxout_pieces": 2,
        "use_upper": True,
        "nO": None,
        "tok2vec": listener,
    }
    nlp.add_pipe("tok2vec", config={"model": tok2vec})
    nlp.add_pipe(
        "tagger", config={"model": {"@architectures": "spacy.Tagger.v2", "nO": None, "tok2vec": listener}}
    )
    nlp.add_pipe("parser", config={"model": parser})
    nlp.initialize(lambda: [to_example(nlp, tree) for tree in trees])
    return nlp


def draw_batches(trees: list[Sentence], rng: random.Random) -> Iterator[list[Sentence]]:
    """Yield batches of about WORDS_PER_BATCH words forever, every epoch in a new order and variant."""
    grammar = Grammar(rng, paired_nouns(trees))
    batch: list[Sentence] = []
    while True:
        for place in rng.sample(range(len(trees)), len(trees)):
            tree = draw_caption(grammar) if rng.random() < 0.3 else vary(trees[place], rng)
            if rng.random() < 0.1:
                tree = join(tree, vary(rng.choice(trees), rng))
            batch.append(tree)
            if sum(len(tree.words) for tree in batch) >= WORDS_PER_BATCH:
                yield batch
                batch = []


def measure(nlp: Language, trees: list[Sentence]) -> dict[str, float]:
    """Return tag accuracy, UAS and LAS (punctuation left out), each in [0, 1]."""
    examples = [to_example(nlp, tree) for tree in trees]
    for chunk in minibatch(examples, 256):
        for example, doc in zip(chunk, nlp.pipe([e.predicted for e in chunk]), strict=True):
            example.predicted = doc
    parser: Any = nlp.get_pipe("parser")
    scores = {**Scorer.score_token_attr(examples, "tag"), **parser.score(examples)}
    return {name: round(scores[name], 4) for name in ("tag_acc", "dep_uas", "dep_las")}


def train(treebank: Path, steps: int) -> tuple[Language, dict[str, dict[str, float]]]:
    """Return the pipeline of the best development score and its scores on the test part."""
    fix_random_seed(SEED)
    rng = random.Random(SEED)
    trees = read_conllu(treebank / "en_ewt-ud-train.rebuilt.conllu")
    plain = {part: read_conllu(treebank / f"en_ewt-ud-{part}.conllu") for part in ("dev", "test")}
    fixed = random.Random(SEED)
    captions = {part: [like_caption(tree, fixed) for tree in plain[part]] for part in plain}
    nlp = build_pipeline(trees)
    rate: Any = warmup_linear(LEARN_RATE, WARMUP_STEPS, steps)
    optimizer = Adam(rate, L2=0.01, use_averages=True)
    best, best_bytes = 0.0, b""
    for step, batch in zip(range(1, steps + 1), draw_batches(trees, rng), strict=False):
        losses: dict[str, float] = {}
        nlp.update([to_example(nlp, tree) for tree in batch], sgd=optimizer, drop=0.1, losses=losses)
        optimizer.step_schedules()
        if step % EVAL_EVERY == 0 or step == steps:
            with nlp.use_params(optimizer.averages):
                web, cap = measure(nlp, plain["dev"]), measure(nlp, captions["dev"])
                print(step, {name: round(loss) for name, loss in losses.items()}, web, cap, flush=True)
                if sum(web.values()) + sum(cap.values()) > best:
                    best, best_bytes = sum(web.values()) + sum(cap.values()), nlp.to_bytes()
    nlp.from_bytes(best_bytes)
    return nlp, {"treebank": measure(nlp, plain["test"]), "caption_like": measure(nlp, captions["test"])}


def write_pipeline(nlp: Language, scores: dict[str, dict[str, float]], folder: Path) -> None:
    """Write the pipeline without the words of the treebank: it needs no strings but its labels."""
    nlp.meta.update(
        name="raycomp",
        version="1",
        description="English tagger and dependency parser for image captions, by lab/makers/train_parser.py",
        license="CC BY-SA 4.0",
        sources=[{"name": "Universal Dependencies English Web Treebank", "license": "CC BY-SA 4.0"}],
        performance=scores,
    )
    nlp.to_disk(folder)
    pipes: list[Any] = [nlp.get_pipe("tagger"), nlp.get_pipe("parser")]
    labels = sorted({"ROOT", "dep"}.union(*(pipe.labels for pipe in pipes)))
    (folder / "vocab" / "strings.json").write_text(json.dumps(labels, indent=1), encoding="utf-8")


def main() -> None:
    """Train, measure on the test part, write the pipeline."""
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--treebank", type=Path, required=True)
    options.add_argument("--out", type=Path, default=OUT)
    options.add_argument("--steps", type=int, default=STEPS)
    chosen = options.parse_args()
    nlp, scores = train(chosen.treebank, chosen.steps)
    write_pipeline(nlp, scores, chosen.out)
    print(scores)


if __name__ == "__main__":
    main()
