"""The runs of ``bench.digests``: small inputs, and the command lines that read them.

Everything lies below one folder, in which the commands are run: inputs in ``in/``, and what a case writes in
a folder of its name. A case that names another one's folder is run after it. Inputs are drawn by the little
world, the only part of raycomp that is imported here; where the folder of real photos is there (the
environment variable RAYCOMP_SHARED, else ../shared), some cases read those.
"""

import io
import json
import re
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raycomp.worlds.samples import world_shards
from raycomp.worlds.test_set import draw_test_set

Sample = tuple[str, dict[str, bytes]]
NUM_CLEAN, NUM_FAULTY, PER_SHARD = 40, 20, 20
NUM_PHOTOS = 60
PHOTO_SET = "data/flickr8k_800"
EMBED_DIM = 32
PHOTOS = "in/photos"


@dataclass(frozen=True)
class Case:
    """One command line."""

    name: str
    line: str
    """What stands behind ``raycomp``; ``{uid}`` is a uid that ``curate-world`` kept. ``--out NAME`` is added
    unless ``is_text``."""
    exit_code: int = 0
    is_text: bool = False
    """Whether the result is what the command prints."""

    @property
    def command(self) -> str:
        """The command's name, as ``--only`` takes it."""
        return self.line.split()[0]

    @property
    def needs_photos(self) -> bool:
        """Whether real photos are read."""
        return PHOTOS in self.line

    def needs(self, cases: Iterable["Case"]) -> list["Case"]:
        """Return the cases whose folders the line names."""
        words = set(re.split(r"[\s=/]", self.line)[1:])
        return [case for case in cases if case.name in words]


SCORER = "--set scorer.model=in/tiny.json --set scorer.weights=random:0 --set scorer.batch_size=16"
# Small batches: on two threads torch adds up the gradients of a batch's positions, where these are more than
# 32,768 values (texts x tokens x width), in an order that does not repeat: weights differ in their last bits.
MODEL = "--set model.name=in/tiny.json --set train.batch_size=8"
FIT = f"{MODEL} --set train.steps=6 --set train.checkpoint_steps=3"
TRAIN = f"train {FIT} --set train.workers=1"
TEST_SET = "--set benchmarks=world,retrieval,zeroshot,linear_probe --set world.annotations=in/exam"
TEST_SET += " --set retrieval.input=in/clean --set controls.captions=in/captions.txt"
TEST_SET += " --set zeroshot.input=in/classes --set linear_probe.train=in/classes"
TEST_SET += " --set linear_probe.test=in/classes"
CONTINUAL = "continual --set stream=world --set method=frozen,compo-realign,finetune"
CONTINUAL += " --set little.backbone_pairs=64 --set little.backbone_steps=2 --set little.train=16"
CONTINUAL += " --set little.test=12 --set head.steps=3 --set head.batch_size=8 --set trust.first=2"
CONTINUAL += " --set tune.steps=1 --set tune.batch_size=4"
STUDY = "study --set worlds=1 --set seeds=1 --set other_seeds=1 --set steps=2 --set batch_size=8"
STUDY += " --set pairs=48 --set scorer_pairs=32 --set scorer_steps=2 --set scenes=12"
STUDY += " --set unseen_scenes=6 --set runs=clip-cpi50,clip-align50,negclip-full-add"
SWEEP = "sweep --space attribute.keep=grid(0.5,0.4) --set curated=curate-world --set seeds=1"
SWEEP += " --set report_seeds=0 --set train.model.name=in/tiny.json --set train.model.weights=random:0"
SWEEP += " --set train.train.steps=3 --set train.train.batch_size=8 --set evaluate.benchmarks=world"
SWEEP += " --set evaluate.world.annotations=in/exam --set metric=world.accuracy --set max_concurrent=1"

CASES = (
    Case("curate-world", f"curate --set input=in/world {SCORER} --set attribute.pool=0.8"),
    Case(
        "curate-mixed",
        f"curate --set input=p=in/parquet::b=in/broken {SCORER} --set select.rule=pas_residual"
        " --set max_bad_fraction=1 --set waves.shards_per_wave=1 --set attribute.aggregate=min"
        " --set attribute.nonces=3 --set nonce.key=sample --set extra_columns=fault"
        " --set scorer.embedding_dtype=float16",
    ),
    Case("curate-mistake", f"curate --set input=in/world {SCORER} --set align.keep=2", exit_code=2),
    Case(
        "curate-stored",
        f"curate --set input=in/stored --set prepare.stored_embeddings=tiny_img {SCORER}"
        " --set attribute.keep=0.3",
    ),
    Case(
        "curate-photos",
        f"curate --set input=in/photos {SCORER} --set prepare.fast_decode=true --set select.rule=align_only"
        " --set attribute.pool=0.7",
    ),
    Case(
        "select-length",
        "select curate-world --set select.rule=length --set align.keep=0.6 --set attribute.keep=0.3",
    ),
    Case(
        "select-displacement",
        "select curate-world --set select.rule=displacement --set select.datacomp_compat=true"
        " --set attribute.keep=0.4 --set materialize=false",
    ),
    Case(
        "select-random",
        "select curate-mixed --set select.rule=align60_random25 --set align.keep=0.6"
        " --set attribute.keep=0.25 --set seed=1 --set materialize=false",
    ),
    Case("negatives-world", "negatives --set input=curate-world"),
    Case(
        "negatives-calls",
        "negatives --set input=curate-world --set negatives.operations=SWAP,REPLACE"
        " --set negatives.calls=2 --set negatives.export=negclip,calls --set negatives.materialize=true",
    ),
    Case("train-clip", f"{TRAIN} --set input=curate-world"),
    Case("train-negclip", f"{TRAIN} --set input=curate-world --set negatives=negatives-calls"
         " --set train.loss=negclip --set train.num_negatives=2 --set train.batch_size=5"),
    Case("train-ceclip", f"{TRAIN} --set input=select-length --set negatives=negatives-world"
         " --set train.loss=ceclip --set train.freeze=image:1"),
    Case("train-two-workers", f"train {FIT} --set input=in/world --set train.loss=siglip"
         " --set train.workers=2"),
    Case("publish", "publish train-clip"),
    Case("evaluate-clip", f"evaluate --set model.weights=train-clip {TEST_SET}"),
    Case("evaluate-negclip", f"evaluate --set model.weights=train-negclip {TEST_SET}"),
    Case("compare", "compare evaluate-clip evaluate-negclip"),
    Case("continual", CONTINUAL),
    Case("study", STUDY),
    Case("sweep", SWEEP),
    Case("probe-theory", "probe theory --set seeds=1"),
    Case("probe-overlap", "probe overlap --set input=in/overlap --set benchmarks=sugarcrepe_pp"),
    Case("probe-pas", "probe pas --set input=curate-world"),
    Case("probe-composition", "probe composition --set input=negatives-world --set pairs=12"),
    Case("show-curate", "show curate-world", is_text=True),
    Case("show-train", "show train-clip --verify", is_text=True),
    Case("explain-curate", "explain curate-world {uid}", is_text=True),
    Case("explain-negatives", "explain negatives-world {uid}", is_text=True),
    Case("explain-pas", "explain probe-pas {uid}", is_text=True),
)  # fmt: skip


def write_inputs(folder: Path, shared: Path) -> None:
    """Write all inputs below ``folder``; those of real photos only where ``shared`` has them."""
    _write_model(folder / "tiny.json")
    shards = dict(world_shards(NUM_CLEAN, NUM_FAULTY, 0, per_shard=PER_SHARD))
    write_shards(folder / "world", shards)
    samples = [sample for shard in shards.values() for sample in shard]
    _write_parquet(folder / "parquet", shards)
    clean = [sample for _, shard in world_shards(30, 0, 1, per_shard=30) for sample in shard]
    write_shards(folder / "clean", {"00000.tar": clean[:20]})
    write_shards(folder / "broken", {"00000.tar": _break(clean[20:])})
    _write_stored(folder / "stored", samples)
    _write_test_set(folder / "exam", num_scenes=8)
    _write_classes(folder / "classes", clean)
    _write_overlap(folder / "overlap" / "sugarcrepe_pp")
    (folder / "captions.txt").write_text("\n".join(_caption(members) for _, members in samples) + "\n")
    if has_photos(shared):
        _write_photos(folder / "photos", shared / PHOTO_SET)


def has_photos(shared: Path) -> bool:
    """Whether the folder of real photos is there."""
    return (shared / PHOTO_SET / "captions.jsonl").is_file()


def _caption(members: dict[str, bytes]) -> str:
    return members["txt"].decode()


def _write_model(path: Path) -> None:
    """Write an open_clip model config: a CLIP of one and two layers, quick, and exact like any other."""
    vision = {"image_size": 32, "layers": 1, "width": 64, "head_width": 32, "patch_size": 16}
    text = {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 2}
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"embed_dim": EMBED_DIM, "vision_cfg": vision, "text_cfg": text}))


def write_shards(folder: Path, shards: dict[str, list[Sample]]) -> None:
    """Write WebDataset tars without times or owners."""
    folder.mkdir(parents=True)
    for name, samples in shards.items():
        with tarfile.open(folder / name, "w", format=tarfile.USTAR_FORMAT) as tar:
            for key, members in samples:
                for extension, data in members.items():
                    info = tarfile.TarInfo(f"{key}.{extension}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))


def _write_parquet(folder: Path, shards: dict[str, list[Sample]]) -> None:
    """Write the same samples as Parquet with the bytes of the images."""
    folder.mkdir(parents=True)
    for name, samples in shards.items():
        rows = [
            {"key": key, "jpg": members["jpg"], "caption": _caption(members), "fault": _fault(members)}
            for key, members in samples
        ]
        pq.write_table(pa.Table.from_pylist(rows), folder / name.replace(".tar", ".parquet"))


def _fault(members: dict[str, bytes]) -> str:
    return json.loads(members["json"])["fault"]


def _break(samples: list[Sample]) -> list[Sample]:
    """Return samples of which five are broken: an image, two captions, a duplicate, a uid used again."""
    uid = json.dumps({"uid": "ab" * 16}).encode()
    broken = [(key, dict(members)) for key, members in samples]
    broken[1][1]["jpg"] = b"\xff\xd8 no picture"
    broken[2][1]["txt"] = b"  \n"
    broken[3][1]["txt"] = b"caf\xe9 \xff"
    broken[4][1]["json"] = broken[6][1]["json"] = uid
    broken[5] = (broken[5][0], dict(broken[4][1]))
    return broken


def _write_stored(folder: Path, samples: list[Sample]) -> None:
    """Write a metadata table and drawn image embeddings next to it, as DataComp hands them out."""
    folder.mkdir(parents=True)
    rows = [
        {"uid": f"{i:032x}", "url": f"https://example.org/{i}.jpg", "text": _caption(members)}
        for i, (_, members) in enumerate(samples)
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "00000.parquet")
    drawn = np.random.default_rng(0).standard_normal((len(rows), EMBED_DIM)).astype(np.float32)
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    np.savez(folder / "00000.npz", tiny_img=drawn.astype(np.float16))


def _write_test_set(folder: Path, num_scenes: int) -> None:
    """Write the little world's benchmark: a picture of each scene, a row for each of its negatives."""
    (folder / "images").mkdir(parents=True)
    rows = []
    for place, scene in enumerate(draw_test_set(num_scenes, 0)):
        image = f"{place:05d}.jpg"
        (folder / "images" / image).write_bytes(scene.image)
        for negative in scene.negatives:
            facts = {"id": str(place), "image": image, "op": negative.operation, "kind": negative.kind}
            facts |= {"split": f"{negative.operation}_{negative.kind}".lower(), "negative": negative.caption}
            rows.append({**facts, "caption": scene.caption, "paraphrase": scene.paraphrase})
    (folder / "world.json").write_text(json.dumps(rows))


def _write_classes(folder: Path, samples: list[Sample]) -> None:
    """Write a folder of images for each of three classes."""
    for place, (_, members) in enumerate(samples):
        name = ("cube", "ball", "red_cone")[place % 3]
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / f"{place:03d}.jpg").write_bytes(members["jpg"])


def _write_overlap(folder: Path) -> None:
    """Write a benchmark of captions in SugarCrepe++'s layout, the little world's negatives in it."""
    folder.mkdir(parents=True)
    splits = ("swap_att", "swap_obj", "replace_att", "replace_obj", "replace_rel")
    rows: dict[str, list[dict[str, str]]] = {split: [] for split in splits}
    for place, scene in enumerate(draw_test_set(12, 1)):
        for negative in scene.negatives:
            split = f"{negative.operation}_{negative.kind[:3]}".lower()
            texts = {"caption": scene.caption, "caption2": scene.paraphrase}
            row = {"id": str(place), "filename": f"{place}.jpg", "negative_caption": negative.caption}
            if split in rows:
                rows[split].append({**row, **texts})
    for split, found in rows.items():
        (folder / f"{split}.json").write_text(json.dumps(found))


def _write_photos(folder: Path, photos: Path) -> None:
    """Write two shards of real photos with their own captions."""
    lines = (photos / "captions.jsonl").read_text("utf-8").splitlines()[:NUM_PHOTOS]
    samples = []
    for place, row in enumerate(map(json.loads, lines)):
        image = (photos / "images" / row["image"]).read_bytes()
        facts = json.dumps({"image": row["image"], "captions": row["captions"]}).encode()
        samples.append((f"{place:09d}", {"jpg": image, "txt": row["captions"][0].encode(), "json": facts}))
    half = NUM_PHOTOS // 2
    write_shards(folder, {"00000.tar": samples[:half], "00001.tar": samples[half:]})
