"""What explain says of a sample that has no score, out of hand-made scores."""

from pathlib import Path

import pyarrow as pa
import pytest

from raycomp.cli import USER_ERROR, main
from raycomp.config import AttributeConfig, CurateConfig, to_dict
from raycomp.core.selection import Threshold
from raycomp.loops.curate.select import Gates
from raycomp.loops.inspect import explain
from raycomp.schema import aligned_schema, scores_schema
from raycomp.shards.folder import Folder
from raycomp.shards.parquet import read_columns, write_table
from raycomp.words import (
    ALIGNMENT,
    CAPTION,
    IMAGE_EMBEDDING,
    MEAN_PAS,
    NO_SEEN_PHRASE,
    OK,
    PHRASES,
    POSITION,
    SHARD,
    STATUS,
    UID,
    UNSEEN,
)

UIDS = [f"{i:032x}" for i in range(2)]
LOW = Threshold(2, 0x8000_0000)  # 0.0


def make_phrase(noun: str, target_class: str) -> dict:
    phrase = {"text": f"a {noun}", "start": 0, "end": 2 + len(noun), "kind": "object", "target": noun}
    phrase |= {"target_start": 2, "target_end": 2 + len(noun), "target_class": target_class}
    return phrase | {"nonces": ["blick"], "drops": [0.1], "drop": 0.1, "displacement": 0.2}


def write_run(folder: Folder, config: CurateConfig) -> None:
    """Write a finished run of a dog and of a view, which no gate cuts."""
    said = [("dog", "head", OK, 0.1), ("view", UNSEEN, NO_SEEN_PHRASE, None)]
    rows = [
        {"uid": uid, "caption": f"a {noun}", "status": status, "position": i, "alignment": 0.25}
        | {"mean_pas": pas, "image_embedding": [0.5] * 4, "phrases": [make_phrase(noun, target_class)]}
        for i, (uid, (noun, target_class, status, pas)) in enumerate(zip(UIDS, said, strict=True))
    ]
    kind = scores_schema(aligned_schema(4, "float32"))
    write_table(pa.Table.from_pylist(rows, kind), folder.at("scores", "00000.parquet"), kind)
    run = {
        "kind": "curate",
        "status": "finished",
        "started": "2026-01-01T00:00:00+00:00",
        "commands": {"Rerun": "raycomp curate"},
        "versions": {"raycomp": "0.1.0"},
        "machine": {"cores": 2},
        "config": to_dict(config),
        "fingerprint": {"input": "0" * 64, "shards": 1},
        "scores": folder.at("scores"),
        "funnel": {"read": 2, "corpus": 2, "kept": 1, "dropped": {"no_score_for_attribution_gate": 1}},
        "gates": Gates(2, LOW, LOW, 1).to_dict(),
        "warnings": [],
    }
    folder.write_json(run, "run.json")


@pytest.mark.parametrize("unseen", [False, True])
def test_a_caption_that_no_picture_shows_is_explained(tmp_path: Path, unseen):
    write_run(Folder(str(tmp_path)), CurateConfig(attribute=AttributeConfig(unseen=unseen)))
    dog, view = (explain(str(tmp_path), uid) for uid in UIDS)
    assert "kept: yes" in dog and "no picture" not in dog
    assert "target 'view', which no picture can show" in view
    if unseen:
        assert "gate 2: mean PAS with unseen targets 0.100000" in view and "kept: yes" in view
    else:
        assert "gate 2: mean PAS none" in view
        said = "(aligned, but no phrase with a valid nonce has a target that a picture can show)"
        assert f"kept: no, no_score_for_attribution_gate {said}" in view


@pytest.mark.parametrize(
    "column", [UID, SHARD, POSITION, CAPTION, STATUS, ALIGNMENT, MEAN_PAS, PHRASES, IMAGE_EMBEDDING]
)
def test_a_scores_file_that_lacks_a_column_is_said_in_one_line(tmp_path: Path, column, capsys):
    folder = Folder(str(tmp_path))
    write_run(folder, CurateConfig())
    uri = folder.at("scores", "00000.parquet")
    table = read_columns(uri).drop_columns([column])
    write_table(table, uri, table.schema)
    assert main(["explain", str(tmp_path), UIDS[0]]) == USER_ERROR
    assert capsys.readouterr().err == f"raycomp: {uri}: has no column {column}\n"
