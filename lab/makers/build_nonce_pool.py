"""Build the shipped nonces: words that mean nothing, by CLIP-BPE length and surface form.

Command: apt-get install wamerican-insane wbritish-insane; python lab/makers/build_nonce_pool.py
Cost: two minutes on one core, 2 GB.
Result: raycomp/models/data/nonces/nonces.tsv, the same bytes every time.

The word list is the union of
- wordfreq 3.1.1, the largest list of every language written in Latin letters (Apache 2.0 and CC BY-SA 4.0);
- Debian's wamerican-insane and wbritish-insane 2020.12.07-2 (SCOWL 2020.12.07 at size 95, free to use with
  its copyright notice), which hold rare words and names.
Frequencies are wordfreq's Zipf values for English: 3 is once per million words, 4 is ten times.

What a token says to a text encoder it has from the words that hold it: "culars" ends "binoculars". The host
of a token is the word, singular and plural together, that has most of the mass of all English words whose BPE
holds the token, itself among them if it is one. Mass is frequency; a word that Debian alone knows weighs as
one of Zipf 0. Every nonce is shipped with the largest share that a host has of one of its tokens, and with
that host.

One-token nonces have to come from CLIP's vocabulary, where an entry that is not a word is a fragment of one,
a hashtag, a handle or an acronym. A whole-word entry of 4 to 8 letters stays if it
1. is not in the list. Below Zipf 1.7 wordfreq holds torn fragments as well as words ("ongi" is Italian,
   "reng" German), so there only an entry that Debian knows too is taken as a word;
2. can be spoken: onsets, vowels and codas of English;
3. has no host above half of its mass. Where the words that hold it say little, being under 5 or together
   rarer than Zipf 2, its letters must suggest no word either: of the words of Zipf 3.5 that it begins or ends
   and that are at most 4 letters longer, or that hold it inside and are at most 2 letters longer, no one
   family has more than 0.6 of the frequency; nor are its first or last 3 letters a word of Zipf 4.5;
4. is not an ending of English: fewer than 6 words of Zipf 2.5 end in it, and it does not end like a verb, an
   adverb or an adjective. A mere rhyme of one syllable ("acks") may end many words, as it is not a suffix;
5. hides no word: no 4 letters of it are a word of Zipf 3.5, and it is not two words of 3 letters or more;
6. is not a typo of a word of Zipf 3.5: not a single edit away (below 7 letters: no swap, no double made
   single, from 5 letters on no letter too many, and no letter missing where one word has over half of the
   frequency of all that it could then be: "houn" is "hound", "acks" may be "backs", "packs" or "sacks");
7. is neither rude nor in READ_OUT: what a reader found in the result and still understood.
Longer nonces are syllables, drawn until their BPE length fits, under rule 1 without the exception, rules 4
and 5 with the letters of rule 3, and rule 7, at every length a full edit away from words of Zipf 3.5; none of
their BPE pieces of 3 letters or more is a word of Zipf 4. Hosts do not choose among them.

What it looks like: the one-token pools are small (14 that begin with a consonant, 15 with a vowel, 7 plurals)
and read like torn ends of words and names that could be many: "chett", "sner", "throp"; "aglia", "onga";
"acks", "saries". Longer nonces are plainly invented: "alphork", "gomdank", "hurlosk"; from 4 tokens on they
are longer than English words are.
"""

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from math import log10
from pathlib import Path
from string import ascii_lowercase

import wordfreq
from open_clip.tokenizer import SimpleTokenizer

OUT = Path(__file__).parents[2] / "raycomp/models/data/nonces/nonces.tsv"
DEBIAN = ("/usr/share/dict/american-english-insane", "/usr/share/dict/british-english-insane")
OTHER_SCRIPTS = "ar bg bn el fa he hi ja ko mk ru ta uk ur zh".split()
MAX_TOKENS = 12
WANTED = {2: 400, 3: 400, 4: 200}  # nonces of each form by token length; 100 of every longer one
RARE = 1.7  # rule 1
MOST_OF_HOST = 0.5  # rule 3
WELL_KNOWN = (5, 100.0)  # rule 3: families and mass, in words per 10^9

ONSETS = (
    "b bl br c ch cl cr d dr f fl fr g gl gr h j k kl kr l m n p ph pl pr qu r s sc sh shr sk sl sm sn sp "
    "spl spr st str sw t th thr tr tw v w wh y z"
).split()
VOWELS = "a e i o u ai au ay ea ee ei eo eu ia ie io iu oa oe oi oo ou oy ua ue ui y".split()
CODAS = (
    "b c ch ck ct d f ff ft g k l ld lf lk ll lm lp lt m mb mp n nch nd ng nk nn nt p pt r rb rc rd rf rg rk "
    "rl rm rn rp rsh rst rt rth s sh sk sm sp ss st t tch th tt v w x z zz"
).split()
PLAIN_VOWELS = "a e i o u a e i o u ai ee oo ou".split()
CODAS_MID = ["", "", "", *"b d l m n r s t".split()]
CODAS_END = ["", *"b d ft g k lk lm lp lt m mp n nd nk nt p rb rd rk rm rn rp sk st t".split()]
VERBAL = re.compile(r".*(?:ing|ed|ly|est|ize|ise|ied|ness|ful|less|ible|able|ous|ive|ical|tion|tional|ating)")
RUDE = re.compile(
    r"fuck|shit|cunt|nig|fag|rape|cock|dick|tit|cum|ass$|arse|anus|anal|porn|sex|piss|homo|slut|whor|spic|chin"
    r"k|gook|jew|nazi|hitl|puss|boob|bitch|bast|poo|pee|fart|turd|wank|kike|coon|dyke|pedo|jizz|vag|penis|twat"
)
TAGS = (  # hashtags, handles, brands
    "abpoli akaif ausbiz awec coscino coyi enyc exol fiawec frifotos friyay gobeavs gocougs govuk "
    "ilysm ingco instapic itup lyrix myjaps onpoli oott regrann scom sosfam thulhu yotpo"
)
NAMES = (  # ends of names of people or places that identify them
    "amoto arelli arrell ayama daipur delavin ellini enham esville fodils garwal icki inski insky "
    "kirstel kowski nikov nington opoulos ovic ovich ovski quez rabhu shenko sliga tenberg wamy zawa"
)
REPORTING = (  # still understood
    "abolic aboo aceae alizes anium arers arium aroo atric bular derers dians dism elic enary ergy "
    "ials icks illery itec itian ittin itton iture izen matics matology mium oids olithic oodle oods "
    "politan ratri stamatic tarians thians thium tician tium toid tronics vism"
)
READ_OUT = frozenset(f"{TAGS} {NAMES} {REPORTING}".split())
NO_HOST = "-"


def alternatives(parts: list[str]) -> str:
    return "(?:" + "|".join(sorted(parts, key=len, reverse=True)) + ")"


_ONSET, _VOWEL, _CODA = alternatives(ONSETS), alternatives(VOWELS), alternatives(CODAS)
RHYME = re.compile(f"{_VOWEL}{_CODA}?(?:e|e?s)?")
SPEAKABLE = re.compile(f"{_ONSET}?{_VOWEL}(?:(?:{_CODA}?{_ONSET}|{_CODA}){_VOWEL})*{_CODA}?(?:e|e?s)?")


class Words:
    """The word list and the frequencies of English words."""

    def __init__(self) -> None:
        self.rarity: dict[str, float] = {}
        for language in set(wordfreq.available_languages("best")) - set(OTHER_SCRIPTS):
            for word, frequency in wordfreq.get_frequency_dict(language, "best").items():
                self.rarity[word] = max(self.rarity.get(word, 0.0), log10(frequency) + 9)
        english = wordfreq.get_frequency_dict("en", "best")
        self.zipf = {word: log10(frequency) + 9 for word, frequency in english.items() if word.isalpha()}
        self.debian = {line.lower() for path in DEBIAN for line in Path(path).read_text().splitlines()}
        self.mass = {word: 1.0 for word in self.debian if re.fullmatch("[a-z]+", word)}
        self.mass.update((word, 10**zipf) for word, zipf in self.zipf.items() if re.fullmatch("[a-z]+", word))
        self.holders: dict[str, list[str]] = defaultdict(list)
        self.endings: Counter[str] = Counter()
        for word, zipf in self.zipf.items():
            if zipf >= 2.5:
                self.endings.update(word[i:] for i in range(1, len(word)))
            if zipf >= 3.5:
                for part, at_edge in parts_of(word):
                    if len(word) - len(part) <= (4 if at_edge else 2):
                        self.holders[part].append(word)

    def holds(self, word: str, rarer_than: float = 0.0) -> bool:
        """Whether ``word`` is an entry of the list, leaving out those rarer than this Zipf value."""
        return word in self.debian or self.rarity.get(word, -1.0) >= rarer_than

    def is_revealed_by(self, word: str) -> bool:
        """Rule 3, letters: one frequent word shows through."""
        families: dict[str, float] = defaultdict(float)
        for holder in self.holders.get(word, ()):
            families[holder[: holder.index(word) + len(word)]] += 10 ** self.zipf[holder]
        if families and max(families.values()) > 0.6 * sum(families.values()):
            return True
        return self.has_short_word(word)

    def has_short_word(self, word: str) -> bool:
        """Rule 3, first and last letters."""
        return any(self.zipf.get(part, 0) >= 4.5 for part in (word[:3], word[-3:]))

    def is_ending(self, word: str) -> bool:
        """Rule 4."""
        is_common = self.endings[word] >= 6 and not RHYME.fullmatch(word)
        return is_common or VERBAL.fullmatch(word) is not None

    def hides_a_word(self, word: str) -> bool:
        """Rule 5."""
        if any(self.zipf.get(part, 0) >= 3.5 for part, _ in parts_of(word) if len(part) >= 4):
            return True
        halves = [(word[:i], word[i:]) for i in range(3, len(word) - 2)]
        return any(min(self.zipf.get(half, 0) for half in pair) >= 3.5 for pair in halves)

    def is_typo(self, word: str) -> bool:
        """Rule 6."""
        if len(word) >= 7:
            return self.knows_any(edits(word))
        return self.knows_any(slips(word)) or self.misses_a_letter(word)

    def misses_a_letter(self, word: str) -> bool:
        """Whether with one letter more it would mostly be one word of Zipf 3.5."""
        longer = {word[:i] + letter + word[i:] for i in range(len(word) + 1) for letter in ascii_lowercase}
        zipfs = [zipf for other in longer if (zipf := self.zipf.get(other, 0)) >= 3.5]
        mass = [10**zipf for zipf in zipfs]
        return bool(mass) and max(mass) > 0.5 * sum(mass)

    def knows_any(self, others: list[str]) -> bool:
        return any(self.zipf.get(other, 0) >= 3.5 for other in others)


class Hosts:
    """Which words hold a token of CLIP's BPE."""

    def __init__(self, words: Words, tokenizer: SimpleTokenizer):
        self.mass, self.tokenizer = words.mass, tokenizer
        self.holders: dict[str, list[str]] = defaultdict(list)
        for word in words.mass:
            for token in {*tokenizer.bpe(word).split()}:
                self.holders[token].append(word)
        self.find = cache(self._find)

    def _find(self, token: str) -> tuple[float, str]:
        """Return the host's share of the mass of all words that hold the token, and the host."""
        families = self.families(token)
        if not families:
            return 0.0, NO_HOST
        host = max(families, key=lambda name: (families[name], name))
        forms = [word for word in self.holders[token] if singular(word) == host]
        share = families[host] / sum(families.values())
        return share, max(forms, key=lambda word: (self.mass[word], word))

    def families(self, token: str) -> dict[str, float]:
        """Return the masses of all words that hold the token, singular and plural together."""
        families: dict[str, float] = defaultdict(float)
        for word in sorted(self.holders.get(token, ())):
            families[singular(word)] += self.mass[word]
        return families

    def find_worst(self, word: str) -> tuple[float, str]:
        """Return the result of ``find`` for the token of the word with the largest one."""
        return max(self.find(token) for token in self.tokenizer.bpe(word).split())

    def are_known(self, token: str) -> bool:
        """Rule 3: whether the words that hold the token are enough to go by."""
        families = self.families(token)
        return len(families) >= WELL_KNOWN[0] and sum(families.values()) >= WELL_KNOWN[1]


def singular(word: str) -> str:
    """Return one name for a noun's singular and plural; not always the singular itself."""
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if re.search("(?:s|x|z|ch|sh)es$", word):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def parts_of(word: str) -> Iterator[tuple[str, bool]]:
    """Yield every proper part of 3 letters or more, and whether it begins or ends the word."""
    for i in range(len(word)):
        for j in range(i + 3, len(word) + 1):
            if j - i < len(word):
                yield word[i:j], i == 0 or j == len(word)


def swaps(word: str) -> list[str]:
    return [word[:i] + word[i + 1] + word[i] + word[i + 2 :] for i in range(len(word) - 1)]


def slips(word: str) -> list[str]:
    """Return everything one swap, one letter too many or one doubled letter away."""
    shorter = [word[:i] + word[i + 1 :] for i in range(len(word))] if len(word) >= 5 else []
    return swaps(word) + shorter + [word[:i] + word[i] + word[i:] for i in range(len(word))]


def edits(word: str) -> list[str]:
    """Return everything one swap, deletion, substitution or insertion away."""
    splits = [(word[:i], word[i:]) for i in range(len(word) + 1)]
    near = [a + c + rest for a, b in splits for c in ascii_lowercase for rest in (b, b[1:])]
    return near + [a + b[1:] for a, b in splits if b] + swaps(word)


def form_of(word: str) -> str | None:
    """Return plural, vowel or consonant; None where an ending or an initial is ambiguous."""
    if word.endswith("s"):
        return "plural" if re.fullmatch(r".*[^iusxz]s", word) and not word.endswith(("shs", "chs")) else None
    if re.match(r"u|eu|y[^aeiou]", word):
        return None
    return "vowel" if word[0] in "aeio" else "consonant"


def one_token_nonces(words: Words, hosts: Hosts) -> Iterator[str]:
    """Yield the entries of CLIP's vocabulary that pass rules 1 to 7."""
    for entry in sorted(hosts.tokenizer.encoder):
        word = entry.removesuffix("</w>")
        if word == entry or not re.fullmatch("[a-z]{4,8}", word) or words.holds(word, RARE):
            continue
        if not SPEAKABLE.fullmatch(word) or hosts.find(entry)[0] > MOST_OF_HOST:
            continue
        if (hosts.are_known(entry) or not words.is_revealed_by(word)) and is_clean(words, word):
            yield word


def is_clean(words: Words, word: str) -> bool:
    """Rules 4 to 7."""
    if words.is_ending(word) or words.hides_a_word(word) or words.is_typo(word):
        return False
    return RUDE.search(word) is None and word not in READ_OUT


def pseudo_words(words: Words, tokenizer: SimpleTokenizer, num_tokens: int, form: str) -> list[str]:
    """Draw WANTED words of ``num_tokens`` BPE tokens and of one form, sorted."""
    draw = random.Random(f"{num_tokens} {form}")
    wanted = WANTED.get(num_tokens, 100)
    found: set[str] = set()
    while len(found) < wanted:
        word = pronounceable(draw, draw.randint(1 + num_tokens // 2, 1 + num_tokens))
        if form == "plural":
            word += "s"
        if form_of(word) != form or word in found:
            continue
        pieces = tokenizer.bpe(word).removesuffix("</w>").split()
        if len(pieces) != num_tokens or len(word) > 4 + 2 * num_tokens:
            continue
        reported = any(words.zipf.get(piece, 0) >= 4 for piece in pieces if len(piece) >= 3)
        reported = reported or words.has_short_word(word)
        if reported or words.holds(word) or words.knows_any(edits(word)):
            continue
        if is_clean(words, word):
            found.add(word)
    return sorted(found)


def pronounceable(draw: random.Random, num_syllables: int) -> str:
    """Return syllables of onset, vowel and coda; half of the words begin with a vowel."""
    syllables = []
    for i in range(num_syllables):
        coda = draw.choice(CODAS_MID if i + 1 < num_syllables else CODAS_END)
        onset = draw.choice(ONSETS) if i or draw.random() < 0.5 else ""
        syllables.append(onset + draw.choice(PLAIN_VOWELS) + coda)
    return "".join(syllables)


def main() -> None:
    words, tokenizer = Words(), SimpleTokenizer()
    hosts = Hosts(words, tokenizer)
    rows = [(1, form, word) for word in one_token_nonces(words, hosts) if (form := form_of(word))]
    for num_tokens in range(2, MAX_TOKENS + 1):
        for form in ("consonant", "vowel", "plural"):
            rows += [(num_tokens, form, word) for word in pseudo_words(words, tokenizer, num_tokens, form)]
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text("".join(as_line(hosts, *row) for row in sorted(rows)))
    print(OUT, Counter((n, form) for n, form, _ in rows))


def as_line(hosts: Hosts, num_tokens: int, form: str, word: str) -> str:
    share, host = hosts.find_worst(word)
    return f"{num_tokens}\t{form}\t{word}\t{share:.3f}\t{host}\n"


if __name__ == "__main__":
    main()
