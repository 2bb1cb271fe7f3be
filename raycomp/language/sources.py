"""What captions and file names have in common with those of a test set: text, runs of words, ids."""

import re
import unicodedata

GRAM_WORDS = 8
_LETTERS = re.compile(r"[\W_]+")
_IDS = {
    "coco": re.compile(
        r"COCO_(?:train|val|test)\d{4}_0*(\d+)|cocodataset\.org/\S*?/0*(\d+)\.jpg|\b0{6}(\d{6})\.jpg"
    ),
    "flickr": re.compile(r"\b(\d{6,11})_[0-9a-f]{8,10}(?:_\w)?\.jpg"),
    "visual_genome": re.compile(r"VG_100K(?:_2)?/(\d+)\.jpg"),
}


def normalise_caption(caption: str) -> str:
    """Return a caption without what does not count: compatibility forms, case, punctuation, spacing."""
    return _LETTERS.sub(" ", unicodedata.normalize("NFKC", caption).casefold()).strip()


def list_grams(normalised: str) -> list[str]:
    """Return the runs of eight words of a normalised caption."""
    words = normalised.split()
    return [" ".join(words[i : i + GRAM_WORDS]) for i in range(len(words) - GRAM_WORDS + 1)]


def find_source_ids(name: str | None) -> list[str]:
    """Return the ids of COCO, Flickr and Visual Genome in a file name or url, such as ``coco:397133``."""
    found = {
        f"{source}:{int(next(filter(None, match.groups())))}"
        for source, pattern in _IDS.items()
        for match in pattern.finditer(name or "")
    }
    return sorted(found)
