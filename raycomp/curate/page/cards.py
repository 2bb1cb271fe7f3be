"""Photo cards: the picture, what became of it, and its caption with every phrase shaded by its drop."""

from collections.abc import Mapping, Sequence
from typing import Any

from raycomp.curate.page.funnel import reason_words
from raycomp.curate.page.samples import Sample
from raycomp.report.markup import Html, tag
from raycomp.report.photos import make_thumbnail
from raycomp.table import number
from raycomp.words import ALIGNMENT, KEPT, OK, UNSEEN

NUM_SHADES = 4


def shade(drop: float | None, scale: float) -> str:
    """Return the class that shades a drop: -4 to 4 in equal steps up to ``scale`` > 0."""
    if drop is None:
        return "shade-none"
    step = round(min(abs(drop) / scale, 1.0) * NUM_SHADES)
    return f"shade-{'n' if drop < 0 else 'p'}{step}" if step else "shade-0"


def shade_caption(sample: Sample, scale: float) -> Html:
    """Return the caption with its phrases marked; a phrase that overlaps an earlier one stays unmarked."""
    text, parts, at = sample.caption or "", [], 0
    for phrase in sorted(sample.phrases, key=lambda p: p["start"]):
        if at <= phrase["start"] <= phrase["target_start"] <= phrase["target_end"] <= phrase["end"]:
            parts += [text[at : phrase["start"]], _mark_phrase(text, phrase, scale)]
            at = phrase["end"]
    rest = f"\u2026 ({number(sample.cut)} more characters)" if sample.cut else ""
    return tag("p", *parts, text[at:], rest, class_="caption", dir="auto")


def _mark_phrase(text: str, phrase: Mapping[str, Any], scale: float) -> Html:
    start, end = phrase["target_start"], phrase["target_end"]
    nonces = ", ".join(phrase["nonces"] or ())
    said = f"drop {number(phrase['drop'])}, nonce {nonces}" if nonces else "no valid nonce"
    return tag(
        "mark",
        text[phrase["start"] : start],
        tag("u", text[start:end]),
        text[end : phrase["end"]],
        class_=shade(phrase["drop"], scale),
        title=f"{said} ({phrase['kind']}{_tell_class(phrase)})",
    )


def _tell_class(phrase: Mapping[str, Any]) -> str:
    return "; no picture can show it" if phrase["target_class"] == UNSEEN else ""


def draw_legend(scale: float) -> Html:
    """Return the colour scale of the shades, with its ends and middle named."""
    names = [f"n{i}" for i in range(NUM_SHADES, 0, -1)] + ["0"] + [f"p{i}" for i in range(1, NUM_SHADES + 1)]
    return tag(
        "p",
        tag("span", "Drop of a phrase:", class_="label"),
        tag(
            "span",
            f"\u2264\u00a0{number(-scale, 3)}",
            tag("span", *(tag("i", class_=f"shade-{name}") for name in names), class_="ramp"),
            f"\u2265\u00a0+{number(scale, 3)}",
            class_="scale",
        ),
        tag("span", tag("mark", "dotted", class_="shade-none"), " no nonce"),
        tag("span", tag("u", "underlined"), " the target word"),
        class_="legend",
    )


def draw_cards(samples: Sequence[Sample], photos: Mapping[str, bytes], scale: float, score: str) -> Html:
    """Return a grid of cards; ``score`` names what the gate compared."""
    if not samples:
        return tag("p", "None.", class_="quiet")
    return tag("div", *(_draw_card(s, photos, scale, score) for s in samples), class_="cards")


def _draw_card(sample: Sample, photos: Mapping[str, bytes], scale: float, score: str) -> Html:
    data = photos.get(sample.uid)
    uri = make_thumbnail(data) if data else None
    missing = tag("span", "unreadable image" if data else "no image")
    kept = sample.reason == KEPT
    return tag(
        "article",
        tag("div", tag("img", src=uri, alt="") if uri else missing, class_="photo"),
        tag(
            "div",
            tag(
                "p",
                tag("b", "kept" if kept else "dropped", class_="badge"),
                None if kept else tag("span", reason_words(sample.reason), class_="quiet"),
            ),
            shade_caption(sample, scale),
            tag("p", tag("span", score), tag("b", number(sample.score)), class_="score"),
            tag("p", tag("span", ALIGNMENT), tag("b", number(sample.alignment)), class_="score")
            if score != ALIGNMENT
            else None,
            _draw_details(sample),
            class_="text",
        ),
        class_="card kept-card" if kept else "card dropped-card",
    )


def _draw_details(sample: Sample) -> Html:
    phrases = [
        tag(
            "p",
            tag("span", f"{p['target']} \u2192 {', '.join(p['nonces'] or ()) or 'no nonce'}{_tell_class(p)}"),
            tag("b", number(p["drop"])),
            class_="score",
        )
        for p in sample.phrases
    ]
    where = [sample.key, f"{sample.shard} #{sample.position}", None if sample.status == OK else sample.status]
    count = len(sample.phrases)
    return tag(
        "details",
        tag("summary", f"{number(count)} phrase{'' if count == 1 else 's'}"),
        *phrases,
        tag("p", " \u00b7 ".join(part for part in where if part), class_="quiet"),
        tag("p", sample.uid, class_="quiet uid"),
    )
