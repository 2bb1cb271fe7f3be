"""The command on S3, from scores to shards."""

from pathlib import Path

import raycomp
from raycomp.cli import main
from raycomp.data.files import Folder
from tests.faults.harness import digests


def test_s3_in_and_out_and_other_workers_blocks_batches_and_waves_change_no_byte(curated, bucket, tmp_path):
    """The scores are those of the run on the disk; what other gates keep is what they keep of its scores."""
    config, out, _ = curated
    on_disk, on_s3 = Folder(str(out)), Folder(f"{bucket}/curated")
    for path in Path(config.input).glob("*.tar"):
        Folder(f"{bucket}/world").write_bytes(path.read_bytes(), path.name)
    gates = {"align.keep": "0.6", "attribute.keep": "0.4", "attribute.targets": "nouns"}
    options = {
        "input": f"{bucket}/world",
        "scorer.model": config.scorer.model,
        "scorer.weights": config.scorer.weights,
        "attribute.pool": config.attribute.pool,
        "attribute.unit": config.attribute.unit,
        "attribute.aggregate": config.attribute.aggregate,
        "select.rule": config.select.rule,
        "cluster.scorers": 2,
        "cluster.block_rows": 7,
        "scorer.batch_size": 5,
        "waves.shards_per_wave": 1,
        "materialize": "true",
        **gates,
    }
    assert main(["curate", *(f"--set={n}={value}" for n, value in options.items()), "--out", on_s3.uri]) == 0
    assert digests(on_s3, "scores") == digests(on_disk, "scores")
    again = raycomp.select(str(out), gates, str(tmp_path / "again"))
    assert again["funnel"]["dropped"] == {"below_alignment_gate": 36, "below_attribution_gate": 18}
    assert again["gates"] == on_s3.read_json("run.json")["gates"]
    chosen = digests(on_s3, "subset", "shards")
    assert chosen == digests(Folder(str(tmp_path / "again")), "subset", "shards") and len(chosen) > 4
    assert on_s3.exists("report.html") and not on_s3.exists("work")
    for name in ("run.json", "report.html"):
        assert b"testing-secret" not in on_s3.read_bytes(name)
