"""``raycomp update``: what it scores, what it keeps, what it refuses, and that nothing removed is left."""

import io
import json
import random
import shlex
import shutil
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import raycomp
from raycomp.cli import main
from raycomp.config import ClusterConfig, ScorerConfig
from raycomp.curation import update as updates
from raycomp.curation.config import AlignConfig, CurateConfig, NearConfig, read_config
from raycomp.curation.score import score as scoring
from raycomp.curation.select.filters import list_shards
from raycomp.curation.update import update as update_run
from raycomp.curation.verify import Rescorer, compare_rows, read_and_count
from raycomp.data.files import Folder, link_file
from raycomp.data.runs import write_manifest
from raycomp.data.samples import write_tar
from raycomp.models.architecture import describe_scorer
from raycomp.run.run import hold_lease
from raycomp.training.config import TrainConfig
from raycomp.training.pairs import find_pairs
from raycomp.words import ALIGNMENT, CAPTION, REMOVED, STATUS, UID
from tests.corpus import by_cpi, mean_drop, scenes
from tests.curation.histories import Killed, kill_at

NAMES = ("scores", "subset", "shards", "metadata", "state")
NAMED = {*NAMES, "run.json", "manifest.json", "report.html", "logs"}


def write_shard(folder: Path, name: str, samples: list[dict[str, bytes]], first: int) -> None:
    rows = []
    for i, members in enumerate(samples, first):
        fields = {"uid": f"{i:032x}", "url": f"https://img{i}.example.org/secret-{i}.jpg"}
        rows.append((f"{i:03d}", {**members, "json": json.dumps(fields).encode()}))
    write_tar(str(folder / name), rows)


def read(folder: Path) -> dict[str, bytes]:
    paths = [path for name in NAMES for path in (folder / name).rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def read_rows(folder: Path) -> list[dict[str, Any]]:
    return [row for path in (folder / "scores").glob("*") for row in pq.read_table(path).to_pylist()]


def read_record(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run.json").read_text())


def check_from_scratch(folder: Path, run: str = "run") -> None:
    """Curate anew with the options that the run has now: every file must be the same."""
    raycomp.curate(read_config(read_record(folder / run)["config"]), str(folder / "whole"))
    assert read(folder / run) == read(folder / "whole")


def make_config(folder: Path, scorer: ScorerConfig, **options: Any) -> CurateConfig:
    cluster = ClusterConfig(executor="local", num_cpus=2)
    return by_cpi(input=str(folder), scorer=scorer, cluster=cluster, materialize=True, **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, tiny_scorer) -> tuple[Path, Path]:
    """A folder with two shards in ``in``, curated into ``run``, and a copy of it."""
    folder, samples = tmp_path_factory.mktemp("updated"), scenes(24, seed=5)
    write_shard(folder / "now/in", "a.tar", samples[:12], 0)
    write_shard(folder / "now/in", "b.tar", samples[12:], 12)
    raycomp.curate(make_config(folder / "now/in", tiny_scorer), str(folder / "now/run"))
    return folder / "now", shutil.copytree(folder / "now", folder / "copy")


@pytest.fixture
def corpus(whole) -> Path:
    """The folder as it was: a run names its input."""
    shutil.rmtree(whole[0])
    return shutil.copytree(whole[1], whole[0])


def update(folder: Path, *arguments: str) -> int:
    return main(["update", str(folder / "run"), *arguments])


def remove(folder: Path, lines: str, run: str = "run") -> int:
    (folder / "list.txt").write_text(lines)
    return main(["update", str(folder / run), "--remove", str(folder / "list.txt")])


@pytest.fixture
def scored(monkeypatch) -> dict[str, int]:
    """The rows that each pass has worked on since, by the name of its first stage."""
    seen: dict[str, int] = {}
    run = scoring.Pass.run

    def count(steps, *args):
        for parts in run(steps, *args):
            name = steps.stages[0].name
            seen[name] = seen.get(name, 0) + sum(part["rows"] for part in parts)
            yield parts

    monkeypatch.setattr(scoring.Pass, "run", count)
    return seen


def test_only_new_rows_are_scored(corpus, scored, capsys):
    before = read(corpus / "run"), read_record(corpus / "run")
    write_shard(corpus / "in", "c.tar", scenes(3, seed=6), 24)
    (corpus / "list.txt").write_text(f"{3:032x}\n{4:032x}")
    assert update(corpus, "--remove", str(corpus / "list.txt"), "--dry-run") == 0
    assert (
        "nothing was written; it would remove 2 of 24 rows, add 3 and attribute about"
        in capsys.readouterr().out
    )
    assert (read(corpus / "run"), read_record(corpus / "run")) == before
    assert not (corpus / "run/work").exists()
    assert update(corpus) == 0 and "run: removed 0 of 24 rows, added 3; kept" in capsys.readouterr().out
    assert scored["decode"] == 3 and scored["parse"] <= 5
    assert update(corpus) == 0 and "nothing has changed" in capsys.readouterr().out
    assert scored["decode"] == 3 and {one.name for one in (corpus / "run").iterdir()} == NAMED


def find_bytes(folder: Path, wanted: list[bytes]) -> list[tuple[str, bytes]]:
    """Return the files that hold one of the texts, as they are or in a column of Parquet."""
    found = []
    for path in sorted(one for one in folder.rglob("*") if one.is_file()):
        data = path.read_bytes()
        if path.suffix == ".parquet":
            data += repr(pq.read_table(path).to_pydict()).encode()
        found += [(str(path.relative_to(folder)), text) for text in wanted if text in data]
    return found


def find_secrets(corpus: Path, uid: str) -> list[bytes]:
    """Return what a run may hold of a row: image hash, url, caption, key, and a piece of the image."""
    (row,) = [one for one in read_rows(corpus / "run") if one[UID] == uid]
    texts = [
        row["url"],
        row["image_sha256"],
        row[CAPTION],
        row[CAPTION].split(" ", 1)[1],
        f"{row['key']}.jpg",
    ]
    with tarfile.open(corpus / "in" / row["shard"]) as tar:
        image = tar.extractfile(f"{row['key']}.jpg").read()[-200:]
    return [*(text.encode() for text in texts), bytes.fromhex(row["image_sha256"]), image]


def test_a_list_takes_what_explain_takes_and_counts_lines_that_match_nothing(corpus, capsys):
    """A file name, a key and a domain; one line is of a new shard; dry run and update say the same."""
    write_shard(corpus / "in", "c.tar", scenes(3, seed=6), 24)
    lines = ["003.jpg", "004", "img5.example.org", "25.jpg", "025.jpg", "a/004.jpg"]
    (corpus / "list.txt").write_text("\n".join(lines))
    said = "list.txt: 2 of 6 lines matched no row: 25.jpg, a/004.jpg"
    assert update(corpus, "--remove", str(corpus / "list.txt"), "--dry-run") == 0
    printed = capsys.readouterr().out
    assert "would remove 3 of 24 rows, add 3 and" in printed and said in printed
    assert update(corpus, "--remove", str(corpus / "list.txt")) == 0
    printed = capsys.readouterr().out
    assert "run: removed 3 of 24 rows, added 3; kept" in printed and said in printed
    gone = [row[UID] for row in read_rows(corpus / "run") if row[STATUS] == REMOVED]
    assert gone == [f"{i:032x}" for i in (3, 4, 5, 25)]
    assert "removed on request" in raycomp.explain(corpus / "run", gone[0])
    with pytest.raises(ValueError, match=r"removed\.parquet lists it"):
        raycomp.explain(corpus / "run", "003.jpg")
    check_from_scratch(corpus)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
def test_a_removed_row_is_gone_after_kills(corpus, seed):
    """Killed at random writes and run again, the command leaves nothing of the row: texts, image, its key."""
    draw = random.Random(seed)
    uid = draw.choice(pq.read_table(corpus / "run/subset/kept.parquet")[UID].to_pylist())
    secrets = find_secrets(corpus, uid)
    assert all(find_bytes(corpus / "run", [secret]) for secret in [*secrets[:4], secrets[-1]])
    for count in (20, draw.randrange(1, 90), draw.randrange(1, 90)):
        with kill_at(count), suppress(Killed):
            remove(corpus, uid)
    assert remove(corpus, uid) == 0 and not find_bytes(corpus / "run", secrets)
    assert main(["show", str(corpus / "run"), "--verify"]) == 0
    funnel = read_record(corpus / "run")["funnel"]
    assert funnel["dropped"][REMOVED] == 1 and sum(funnel["dropped"].values()) + funnel["kept"] == 24
    assert find_pairs(TrainConfig(input=str(corpus / "run"))).num_kept == funnel["kept"]
    check_from_scratch(corpus)
    (corpus / "run").rename(corpus / "moved")
    assert remove(corpus, f"{(int(uid, 16) + 1) % 24:032x}", "moved") == 0
    gone = [row for row in read_rows(corpus / "moved") if row[STATUS] == REMOVED]
    assert len(gone) == 2 and all(row[CAPTION] is None is row["image_embedding"] for row in gone)


def test_a_folder_whose_files_are_being_replaced_is_refused(corpus, capsys, monkeypatch):
    """Killed between its first and its last file, an update is finished by the next one, whatever it is."""
    left = [2]

    def link(*args: Any) -> None:
        left[0] -= 1
        if not left[0]:
            raise Killed
        link_file(*args)

    with monkeypatch.context() as patch, suppress(Killed):
        patch.setattr(updates, "link_file", link)
        update_run(str(corpus / "run"), settings={"attribute.keep": "0.4"}, say=lambda line: None)
    assert read_record(corpus / "run")["status"] == "updating"
    run, out = str(corpus / "run"), ["--out", str(corpus / "other")]
    config = ["--set", f"input={corpus}/in", "--out", run]
    for line in (["show", run], ["select", run, *out], ["verify", run], ["curate", *config]):
        assert main(line) == 2
        assert f"an update was cut off; raycomp update {run} finishes it" in capsys.readouterr().err
    assert main(["update", run, "--dry-run"]) == 0
    assert "would first finish the update" in capsys.readouterr().out
    assert main(["update", run, "--set", "attribute.keep=0.3"]) == 0
    assert read_record(corpus / "run")["config"]["attribute"]["keep"] == 0.3
    check_from_scratch(corpus)


def test_a_command_between_two_attempts_does_no_harm(corpus):
    """The finished run is as it was until the update is published; its own command drops what was staged."""
    run, before = str(corpus / "run"), read(corpus / "run")
    with kill_at(12), suppress(Killed):
        update_run(run, settings={"align.keep": "0.9"}, say=lambda line: None)
    assert (corpus / "run/work/next").is_dir()
    assert main(["show", run, "--verify"]) == 0
    raycomp.curate(read_config(read_record(corpus / "run")["config"]), run)
    assert read(corpus / "run") == before and not (corpus / "run/work").exists()


def test_select_names_the_update_that_attributes_only_what_is_missing(corpus, scored, capsys):
    """Each update adds to the one before it; the last result is that of a run from scratch."""
    run, low = str(corpus / "run"), sorted(row["alignment"] for row in read_rows(corpus / "run"))[2]
    assert update(corpus, "--set", "attribute.keep=0.3") == 0 and not scored
    for wanted, lacks, most in [
        ("align.keep=0.9", "attribute.pool=0.9", 5),
        (f"filter.where=alignment < {low}", "attribute.pool=1", 8),
        ("attribute.targets=content", "attribute.targets=content", 24),
        ("attribute.nonces=2", "attribute.nonces=2", 24),
    ]:
        scored.clear()
        assert main(["select", run, "--set", wanted, "--out", str(corpus / lacks)]) == 2
        said, line = capsys.readouterr().err, f"raycomp update {run} --set {lacks}"
        assert line in said and said.count("\n") == 1
        assert main([*shlex.split(line)[1:], "--dry-run"]) == 0
        said = capsys.readouterr().out
        assert main(shlex.split(line)[1:]) == 0
        assert "decode" not in scored and 0 < scored["parse"] <= most, wanted
        assert f"would remove 0 of 24 rows, add 0 and attribute about {scored['parse']}" in said, wanted
    assert main(["select", run, "--set", "align.keep=0.9", "--out", str(corpus / "other")]) == 0
    check_from_scratch(corpus)


def test_changed_shards_are_rescored(corpus):
    """Also a tar with the same samples in other places: its offsets differ. A touched one is taken over."""
    path = corpus / "in/a.tar"
    path.touch()
    with tarfile.open(corpus / "in/b.tar") as tar:
        members = [(member, tar.extractfile(member).read()) for member in tar]
    with tarfile.open(corpus / "in/b.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        for member, content in members:
            member.pax_headers = {"comment": "packed again"}
            tar.addfile(member, io.BytesIO(content))
    assert update(corpus) == 0
    assert read_record(corpus / "run")["taken_over"]["changed"] == ["b.tar"]
    write_shard(corpus / "in", "b.tar", scenes(4, seed=9), 12)
    assert update(corpus) == 0
    assert read_record(corpus / "run")["funnel"]["read"] == 16
    check_from_scratch(corpus)


def test_another_input_leaves_the_names_of_the_first(corpus, capsys):
    write_shard(corpus / "more", "a.tar", scenes(3, seed=8), 24)
    for _ in range(2):  # the second time it is there already
        assert update(corpus, "--add", f"new={corpus}/more") == 0
    assert "nothing has changed" in capsys.readouterr().out
    record = read_record(corpus / "run")
    assert record["config"]["input"] == f"={corpus}/in::new={corpus}/more"
    assert {row["shard"] for row in read_rows(corpus / "run")} == {"a.tar", "b.tar", "new=a.tar"}
    assert record["taken_over"]["shards"] == 2


def test_the_later_of_two_equal_uids_rises_and_groups_split(tmp_path, tiny_scorer):
    """Rows 0, 1, 2 have one uid; 3 and 4 one caption, 4 and 5 one image."""
    samples, rows, run = scenes(7, seed=11), [], tmp_path / "run"
    samples[4] = {**samples[4], "txt": samples[3]["txt"]}
    samples[5] = {**samples[5], "jpg": samples[4]["jpg"]}
    for i, members in enumerate(samples):
        fields = {"uid": f"{0 if i < 3 else i:032x}", "url": f"http://a/{i}"}
        rows.append((f"{i}", {**members, "json": json.dumps(fields).encode()}))
    write_tar(str(tmp_path / "in/a.tar"), rows)
    shares = {"align": AlignConfig(1.0), "attribute": mean_drop(keep=1.0), "max_bad_fraction": 1.0}
    config = make_config(tmp_path / "in", tiny_scorer, near=NearConfig(rules=("captions", "exact")), **shares)
    raycomp.curate(config, str(run))

    def find() -> tuple[list[str], int]:
        marks = pq.read_table(run / "marks/00000.parquet")["mark"].to_pylist()
        return [row[STATUS] for row in read_rows(run)], marks.count("near_duplicate")

    statuses, num_lost = find()
    assert (statuses[1:3], num_lost) == (["uid_conflict"] * 2, 2)
    for url, later in (("http://a/0", 1), ("http://a/1", 2)):
        assert remove(tmp_path, url) == 0
        assert find()[0][later] != "uid_conflict" and read_rows(run)[later]["alignment"] is not None
    assert remove(tmp_path, "http://a/4") == 0 and find()[1] == 0
    check_from_scratch(tmp_path)


def test_another_model_under_the_same_name_is_refused(corpus, capsys):
    path = Path(read_record(corpus / "run")["config"]["scorer"]["model"])
    text = path.read_text()
    write_shard(corpus / "in", "c.tar", scenes(3, seed=6), 24)
    try:
        path.write_text(text.replace('"heads": 2', '"heads": 4'))
        assert update(corpus) == 2
        assert "scorer: changed since" in capsys.readouterr().err
    finally:
        path.write_text(text)
    assert update(corpus) == 0


def test_mistakes_are_one_line_and_change_nothing(corpus, capsys):
    (corpus / "all.txt").write_text("a.tar\nb.tar")
    assert main(["select", f"{corpus}/run", "--set", "materialize=false", "--out", f"{corpus}/other"]) == 0
    before, run = (read(corpus / "run"), read_record(corpus / "run")), str(corpus / "run")
    for said, *arguments in [
        ("would change scores", run, "--set", "scorer.batch_size=8"),
        ("attribute.keep", run, "--set", "attribute.kepe=8"),
        ("--remove takes a file of lines (.txt)", run, "--remove", f"{corpus}/none.jpg"),
        ("--remove takes a file of lines (.txt)", run, "--remove", f"{corpus}/none.parquet"),
        ("same file", run, "--add", f"{corpus}/in/*.tar"),
        ("every shard", run, "--remove", f"{corpus}/all.txt"),
        ("a curation or negatives", f"{corpus}/other"),
        ("none", f"{corpus}/none"),
    ]:
        assert main(["update", *arguments]) == 2
        assert said in capsys.readouterr().err.splitlines()[-1]
    with hold_lease(Folder(run)):
        assert update(corpus) == 2
    assert "has been writing it since" in capsys.readouterr().err
    assert (read(corpus / "run"), read_record(corpus / "run")) == before


def test_a_run_in_a_store_is_updated(corpus, s3_store, tiny_scorer, capsys):
    s3_store.create_dir("updates")
    raycomp.curate(make_config(corpus / "in", tiny_scorer), "s3://updates/run")
    write_shard(corpus / "in", "c.tar", scenes(3, seed=6), 24)
    assert remove(corpus, f"{3:032x}") == 0
    assert main(["update", "s3://updates/run", "--remove", str(corpus / "list.txt")]) == 0
    assert "s3://updates/run: removed 1 of 24 rows, added 3; kept" in capsys.readouterr().out
    assert main(["show", "s3://updates/run", "--verify"]) == 0
    there = Folder("s3://updates/run")
    assert {name: there.read_bytes(name) for name in read(corpus / "run")} == read(corpus / "run")
    assert not [name for name in there.find_names() if name.startswith("work/")]


OUTPUTS = ("scores", "metadata", "marks", "subset", "shards", "state")


def set_value(table: pa.Table, name: str, row: int, value: float | None) -> pa.Table:
    values = table[name].to_pylist()
    values[row] = value
    column = pa.array(values, table.schema.field(name).type)
    return table.set_column(table.schema.get_field_index(name), name, column)


def forge(run: Path, table: pa.Table) -> None:
    """Write a scores file, and make manifest and record fit it."""
    pq.write_table(table, run / "scores/00000.parquet")
    record = read_record(run)
    record["manifest"] = write_manifest(Folder(str(run)), OUTPUTS, {})
    (run / "run.json").write_text(json.dumps(record))


def test_a_true_corpus_is_verified_before_and_after_an_update(corpus, capsys):
    run = str(corpus / "run")
    assert main(["verify", run, "--rows", "10"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["files", "gates", "count", "scores"]
    assert "10 random rows of 24 scored again, bit for bit" in lines[-1] and "25.89%" in lines[-1]
    (corpus / "list.txt").write_text("\n".join(row[UID] for row in read_rows(corpus / "run")[:3]))
    assert update(corpus, "--remove", str(corpus / "list.txt"), "--set", "attribute.keep=0.4") == 0
    assert main(["verify", run, "--rows", "300"]) == 0
    assert "21 random rows of 21" in capsys.readouterr().out


def test_what_is_false_is_found_by_each_check(corpus, capsys, local):
    run = corpus / "run"

    def said(*arguments: str) -> str:
        assert main(["verify", str(run), *arguments]) == 2
        return capsys.readouterr().err

    assert "rows=0: must be between 1" in said("--rows", "0")
    whole = pq.read_table(run / "scores/00000.parquet")
    record, subset = (run / "run.json").read_text(), np.load(run / "subset/subset.npy")
    shifted = float(np.float32(whole[ALIGNMENT][2].as_py()) + np.float32(1e-7))
    pq.write_table(set_value(whole, ALIGNMENT, 2, shifted), run / "scores/00000.parquet")
    assert any(text in said() for text in ("SHA-256", "than the run wrote it"))
    forge(run, set_value(whole, ALIGNMENT, 2, shifted))
    assert "1 of 24 random rows differ" in said()
    forge(run, set_value(whole, ALIGNMENT, 2, None))
    assert "gates: are not" in said()
    np.save(run / "subset/subset.npy", subset[1:])
    forge(run, whole)
    assert "subset/subset.npy: does not hold the rows that the gates keep" in said()
    np.save(run / "subset/subset.npy", subset)
    (run / "run.json").write_text(record.replace('"kept": 12', '"kept": 11'))
    forge(run, whole)
    assert "funnel: has other counts" in said()
    (run / "run.json").write_text(record)
    forge(run, whole)
    (corpus / "in/a.tar").write_bytes((corpus / "in/a.tar").read_bytes() + bytes(512))
    assert "is not what was scored; restore it" in said()


def test_rows_are_compared_bit_for_bit_or_within_a_bound(corpus):
    """A row outside the pool must have no PAS; on another kind of device alignments may differ a little."""
    config = read_config(read_record(corpus / "run")["config"])
    rescorer = Rescorer(config, describe_scorer(config.scorer))
    uri, (shard, *_) = str(corpus / "run/scores/00000.parquet"), list_shards(config)
    table = pq.read_table(uri)
    outside = np.flatnonzero(table["phrases"].is_null().to_numpy(zero_copy_only=False))
    samples, _ = read_and_count(shard, outside)
    (found,) = rescorer.score(samples, np.zeros(len(outside), bool))
    assert compare_rows(uri, found, None) == []
    row, alignment = int(outside[0]), table[ALIGNMENT][int(outside[0])].as_py()
    for name, value, exact, bounded in [
        ("mean_pas", 9.0, ["mean_pas"], []),
        (ALIGNMENT, alignment + 1e-3, [ALIGNMENT], []),
        (ALIGNMENT, alignment + 3e-2, [ALIGNMENT], [ALIGNMENT]),
        (ALIGNMENT, None, [ALIGNMENT], [ALIGNMENT]),
    ]:
        pq.write_table(set_value(table, name, row, value), uri)
        for bound, expected in ((None, exact), (2e-2, bounded)):
            assert [column for _, column, *_ in compare_rows(uri, found, bound)] == expected, (name, value)


@pytest.fixture
def older(tmp_path) -> Path:
    """The folder of the older run."""
    with tarfile.open(Path(__file__).with_name("run_of_format_1.tar.gz")) as tar:
        tar.extractall(tmp_path, filter="data")
    return tmp_path / "run"


def test_a_finished_run_is_shown_selected_from_and_trained_on(older, tmp_path, capsys):
    assert main(["show", str(older), "--verify"]) == 0
    assert "kept 12 of 24 rows" in capsys.readouterr().out
    settings = ["--set", "attribute.keep=0.3", "--set", "materialize=false"]
    assert main(["select", str(older), *settings, "--out", str(tmp_path / "other")]) == 0
    assert len(pq.read_table(tmp_path / "other/subset/kept.parquet")) == 7
    pairs = find_pairs(TrainConfig(input=str(older)))
    assert pairs.num_kept == 12 and sum(pairs.sizes) == 12


def test_it_is_not_updated_and_an_unfinished_one_is_refused(older, tmp_path, capsys):
    assert main(["update", str(older)]) == 2
    assert "was written by an older version; curate it anew in another folder" in capsys.readouterr().err
    record = json.loads((older / "run.json").read_text()) | {"status": "running"}
    for name in ("format", "manifest", "funnel"):
        del record[name]
    (older / "run.json").write_text(json.dumps(record))
    write_shard(tmp_path / "in", "a.tar", scenes(3, seed=5), 0)
    for line in (["show", str(older)], ["curate", "--set", f"input={tmp_path}/in", "--out", str(older)]):
        assert main(line) == 2
        error = capsys.readouterr().err
        assert "was started by an older version; start it anew in another folder" in error
        assert error.count("\n") == 1
