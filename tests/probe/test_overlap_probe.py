from dataclasses import replace
from xml.etree import ElementTree

from raycomp.data.files import Folder
from raycomp.evaluation.benchmarks.choice import EQUAL, Choice
from raycomp.language.overlap import NONE, TWO_CALLS
from raycomp.models.parser import load_lexicon, load_parser
from raycomp.probe.config import ProbeConfig
from raycomp.probe.overlap import (
    WIDTH,
    count_calls,
    draw_overlap,
    measure_overlap,
    open_probe,
    report_overlap,
)
from raycomp.table import join_text
from raycomp.words import ATTRIBUTE, OBJECT, REPLACE, SWAP


def choice(place, positive, negative, op="", kind="", defects=()):
    return Choice("valse", "made", str(place), "1.jpg", (positive,), (negative,), op, kind, defects)


CHOICES = [
    choice(0, "A red ball on a table.", "A blue ball on a table.", REPLACE, ATTRIBUTE),
    choice(1, "A dog chases a cat.", "A cat chases a dog.", SWAP, OBJECT),
    choice(2, "A red ball on a table.", "A red ball on a table.", SWAP, OBJECT, (EQUAL,)),
    choice(3, "A dog sits on a mat.", "Nothing whatever of this is to be seen anywhere near here."),
    choice(4, "A dog on a mat.", "A small dog on a red mat."),
]


def reworded(place, positive, paraphrase, negative, defects=()):
    return Choice("pp", "made", str(place), "1.jpg", (positive, paraphrase), (negative,), defects=defects)


PARAPHRASED = [
    reworded(0, "A red ball on a table.", "A round ball on a table.", "A blue ball on a table."),
    reworded(1, "A dog on a mat.", "A tired dog on a red mat.", "A cat on a mat."),
    reworded(2, "A dog on a mat.", "Lying there, quite at ease, we see somebody's pet.", "A cat on a mat."),
    reworded(3, "A dog on a mat.", "The dogs on the mat!", "A cat on a mat."),
    reworded(4, "A dog on a mat.", "A cat on a mat.", "A dog on a mat.", (EQUAL,)),
]


def test_the_null_stands_next_to_the_negatives_in_table_and_plot():
    """1 and 2 of 4 paraphrases, 4 of 4 negatives, each with its interval; "-" where there are none."""
    rows = measure_overlap([*PARAPHRASED, *CHOICES], load_parser(), None)
    table = join_text(report_overlap(rows))
    assert "75.0 [30.1, 95.4]" in table and "60%-80%" in table
    assert "2/2 100.0 [34.2, 100.0]" in table, "two of four rows name an operation"
    null = next(line for line in table.splitlines() if line.startswith("pp"))
    cells = [cell.strip() for cell in null.split("  ") if cell]
    assert cells[-3:] == ["4", "25.0 [4.6, 69.9]", "50.0 [15.0, 85.0]"]
    lacking = next(line for line in table.splitlines() if line.startswith("valse"))
    assert lacking.split()[-3:] == ["-", "-", "-"]
    assert "valse: no paraphrases" in table and "pp: no paraphrases" not in table
    picture = ElementTree.fromstring(draw_overlap(rows))
    rects = [rect for rect in picture.iter("{http://www.w3.org/2000/svg}rect") if rect.get("class") == "null"]
    assert [float(rect.get("width")) for rect in rects] == [0, WIDTH / 4, 0, WIDTH / 4, WIDTH / 2]


def test_a_benchmark_in_a_store_is_probed_as_on_a_disk(bucket, tmp_path):
    row = {"bbox_x": 0, "bbox_y": 0, "bbox_w": 9, "bbox_h": 9, "image_path": "1.jpg"}
    row |= {"true_caption": "A dog chases a cat.", "false_caption": "A cat chases a dog."}
    for root in (bucket, str(tmp_path)):
        Folder(root).write_json([row, row], "aro", "visual_genome_relation.json")
    config = ProbeConfig(input=bucket, benchmarks=("aro",))
    there, here = (open_probe("overlap", replace(config, input=root)) for root in (bucket, str(tmp_path)))
    assert there.fingerprint() == here.fingerprint()
    found = there.measure()
    assert join_text(found.blocks) == join_text(here.measure().blocks)
    (row,) = found.rows
    assert (row["count"], row["explained"], row["left_out"]) == (1, {SWAP: 1}, 1)


def test_every_sound_row_and_second_true_caption_is_counted_once():
    """Of these one by a REPLACE, one by two calls, one by nothing, one is the same; a defect is out."""
    (row,) = measure_overlap(CHOICES, load_parser(), None)
    assert (row.count, row.left_out, row.regenerated, count_calls(row.explained)) == (4, 1, None, (2, 3))
    assert row.explained == {REPLACE: 1, SWAP: 1, TWO_CALLS: 1, NONE: 1} and not row.paraphrased
    assert (row.named, row.agreed, row.agreed_kind, sum(row.reasons.values())) == (2, 2, 2, 1)
    (row,) = measure_overlap(PARAPHRASED, load_parser(), None)
    assert row.paraphrased == {REPLACE: 1, TWO_CALLS: 1, NONE: 2} and row.explained == {REPLACE: 4}
    assert count_calls(row.paraphrased) == (1, 2)
    (row,) = measure_overlap(CHOICES[1:2], load_parser(), load_lexicon())
    assert (row.same_edit, row.regenerated) == (1, 1), "the rules write a plain swap again"
