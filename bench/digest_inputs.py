"""The inputs of ``bench.digests``: small drawn pictures with captions, in every layout that a command reads.

Nothing of raycomp is imported here, so that a rewrite of raycomp cannot change them. ``KNOWN`` of
``bench.digests`` holds their hashes: JPEG bytes depend on the version of Pillow in constraints.txt. Where the
folder of real photos is there (the environment variable RAYCOMP_SHARED, else ../shared), ``photos/`` has two
shards of them.
"""

import io
import json
import random
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image, ImageDraw

Members = dict[str, bytes]
Sample = tuple[str, Members]

COLOURS = {"red": (214, 39, 40), "blue": (31, 119, 180), "green": (44, 160, 44), "yellow": (240, 200, 30)}
SHAPES = ("ball", "box", "cone")
THINGS = {
    "ball": ("dog", "cat", "horse"),
    "box": ("car", "truck", "bus"),
    "cone": ("apple", "banana", "cake"),
}
PLACES = ("to the left of", "to the right of", "above", "below")
GROUNDS = {"table": (150, 110, 80), "lawn": (120, 170, 110), "wall": (190, 190, 200)}
NUM_PAIRS, PER_SHARD, NUM_PHOTOS, EMBED_DIM = 60, 20, 60, 32
PHOTO_SET = "data/flickr8k_800"
SPLITS = ("add_att", "add_obj", "replace_att", "replace_obj", "replace_rel", "swap_att", "swap_obj")


class Scene:
    """Two coloured things on a ground, and texts about them."""

    def __init__(self, seed: int):
        draw = random.Random(seed)
        self.seed = seed
        (self.colour, self.other_colour) = draw.sample(sorted(COLOURS), 2)
        (self.shape, self.other_shape) = draw.sample(SHAPES, 2)
        self.place, self.ground = draw.choice(PLACES), draw.choice(sorted(GROUNDS))
        self.size = draw.choice((48, 64, 80))

    @property
    def caption(self) -> str:
        """A true caption."""
        return self.say(self.colour, self.shape, self.place, self.other_colour, self.other_shape)

    @property
    def paraphrase(self) -> str:
        """Another true caption."""
        back = {"to the left of": "to the right of", "above": "below"}
        back |= {after: before for before, after in back.items()}
        return self.say(self.other_colour, self.other_shape, back[self.place], self.colour, self.shape)

    def say(self, colour: str, shape: str, place: str, other_colour: str, other_shape: str) -> str:
        """Return a caption of these words."""
        text = f"A {colour} {shape} {place} a {other_colour} {other_shape} on a {self.ground}"
        return text + " in a bright photo." * (self.seed % 3 == 0)

    def negative(self, split: str) -> str:
        """Return a false caption of SugarCrepe's kind."""
        colour, shape, place = self.colour, self.shape, self.place
        other_colour, other_shape = self.other_colour, self.other_shape
        if split == "swap_att":
            return self.say(other_colour, shape, place, colour, other_shape)
        if split == "swap_obj":
            return self.say(colour, other_shape, place, other_colour, shape)
        if split == "replace_att":
            return self.say(_next(sorted(COLOURS), colour), shape, place, other_colour, other_shape)
        if split == "replace_obj":
            return self.say(colour, _next(SHAPES, shape), place, other_colour, other_shape)
        if split == "replace_rel":
            return self.say(colour, shape, _next(PLACES, place), other_colour, other_shape)
        if split == "add_att":
            return self.say(f"striped {colour}", shape, place, other_colour, other_shape)
        return self.caption.replace(" on a ", " and a spoon on a ")

    def draw(self, quality: int = 90, scale: float = 1.0) -> bytes:
        """Return the picture as JPEG."""
        side = 2 * self.size
        image = Image.new("RGB", (side, side), GROUNDS[self.ground])
        drawn = ImageDraw.Draw(image)
        dx, dy = {"to the left of": (-1, 0), "to the right of": (1, 0), "above": (0, -1), "below": (0, 1)}[
            self.place
        ]
        things = ((self.colour, self.shape, 1), (self.other_colour, self.other_shape, -1))
        for colour, shape, sign in things:
            x, y = side / 2 + sign * dx * side / 4, side / 2 + sign * dy * side / 4
            radius = side / 8 + self.seed % 5
            box = (x - radius, y - radius, x + radius, y + radius)
            if shape == "ball":
                drawn.ellipse(box, fill=COLOURS[colour])
            elif shape == "box":
                drawn.rectangle(box, fill=COLOURS[colour])
            else:
                drawn.polygon(
                    [(x, y - radius), (x - radius, y + radius), (x + radius, y + radius)],
                    fill=COLOURS[colour],
                )
        drawn.line((0, self.seed % side, side, self.seed * 7 % side), fill=(90, 90, 90))
        if scale != 1.0:
            image = image.resize((int(side * scale), int(side * scale)))
        written = io.BytesIO()
        image.save(written, "JPEG", quality=quality)
        return written.getvalue()


def _next(words: Any, word: str) -> str:
    return words[(list(words).index(word) + 1) % len(words)]


def write_inputs(folder: Path, shared: Path | None) -> None:
    """Write all inputs below ``folder``; those of real photos only where ``shared`` is given."""
    folder.mkdir(parents=True)
    scenes = [Scene(seed) for seed in range(NUM_PAIRS)]
    samples = [_pair(scene) for scene in scenes]
    shards = {f"{i:05d}.tar": samples[i * PER_SHARD : (i + 1) * PER_SHARD] for i in range(3)}
    _write_model(folder / "tiny.json")
    write_shards(folder / "pairs", shards)
    write_shards(folder / "things", {name: [_rename(one) for one in some] for name, some in shards.items()})
    write_shards(folder / "more", {"00007.tar": [_pair(Scene(100 + i)) for i in range(12)]})
    write_shards(folder / "broken", {"00000.tar": _break([_pair(Scene(200 + i)) for i in range(12)])})
    write_shards(folder / "copies", {"00000.tar": _copies(scenes)})
    _write_parquet(folder / "parquet", shards)
    _write_stored(folder / "stored", scenes)
    _write_folder(folder / "folder", [Scene(300 + i) for i in range(24)])
    _write_list(folder / "list", [Scene(400 + i) for i in range(10)])
    _write_tests(folder, [Scene(500 + i) for i in range(8)])
    _write_classes(folder / "classes", [Scene(600 + i) for i in range(18)])
    _write_streams(folder / "stream")
    _write_own(folder / "own.py")
    (folder / "drawn.py").write_text(DRAWN)
    (folder / "captions.txt").write_text("".join(f"{scene.caption}\n" for scene in scenes))
    removed = ["https://host1.example.org/3.jpg", "host2.example.org", "0" * 32, "pairs/none.tar"]
    (folder / "removed.txt").write_text("\n".join(removed[:3]) + "\n")
    joined = [{"url": _url(i), "aesthetic": i % 7 / 2, "source": "abc"[i % 3]} for i in range(0, 55)]
    pq.write_table(pa.Table.from_pylist(joined), folder / "joined.parquet")
    if shared:
        _write_photos(folder / "photos", shared / PHOTO_SET)


def has_photos(shared: Path) -> bool:
    """Whether the folder of real photos is there."""
    return (shared / PHOTO_SET / "captions.jsonl").is_file()


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


def write_images(negatives: Path, out: Path) -> None:
    """Write a drawn image for each hard negative: a table of uid, negative, image."""
    rows = []
    for path in sorted(negatives.glob("*.parquet")):
        for row in pq.read_table(path, columns=["uid", "negatives"]).to_pylist():
            texts = [one["text"] for one in row["negatives"]]
            images = [Scene(len(rows) + i).draw() for i in range(len(texts))]
            rows += [
                {"uid": row["uid"], "negative": text, "image": image}
                for text, image in zip(texts, images, strict=True)
            ]
    pq.write_table(pa.Table.from_pylist(rows), out)


def _url(number: int) -> str:
    return f"https://host{number % 4}.example.org/{number}.jpg"


def _pair(scene: Scene) -> Sample:
    """Return a sample; one caption in four is false: it is of another scene, or a swap."""
    number = scene.seed
    caption = scene.caption
    if number % 8 == 5:
        caption = Scene(number + 1).caption
    elif number % 8 == 7:
        caption = scene.negative("swap_att")
    facts = {"url": _url(number), "nsfw": number % 10 / 10, "fault": number % 4 == 3, "width": 640}
    data = {"jpg": scene.draw(), "txt": caption.encode(), "json": json.dumps(facts).encode()}
    return f"{number:09d}", data


def _rename(sample: Sample) -> Sample:
    """Return a sample whose caption names things of several categories instead of shapes."""
    key, members = sample
    text = members["txt"].decode()
    for shape, things in THINGS.items():
        text = text.replace(shape, things[int(key) % len(things)])
    return key, {**members, "txt": text.encode()}


def _write_model(path: Path) -> None:
    """Write an open_clip model config: a CLIP of one and two layers, quick, and exact like any other."""
    vision = {"image_size": 32, "layers": 1, "width": 64, "head_width": 32, "patch_size": 16}
    text = {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 2}
    path.write_text(json.dumps({"embed_dim": EMBED_DIM, "vision_cfg": vision, "text_cfg": text}))


def _break(samples: list[Sample]) -> list[Sample]:
    """Return samples of which six are broken: an image, three captions, a duplicate, a uid used again."""
    uid = json.dumps({"uid": "ab" * 16}).encode()
    broken = [(key, dict(members)) for key, members in samples]
    broken[1][1]["jpg"] = b"\xff\xd8 no picture"
    broken[2][1]["txt"] = b"  \n"
    broken[3][1]["txt"] = b"caf\xe9 \xff"
    broken[4][1]["json"] = broken[6][1]["json"] = uid
    broken[5] = (broken[5][0], dict(broken[4][1]))
    broken[7][1]["txt"] = b"Zxq."
    del broken[8][1]["txt"]
    del broken[9][1]["jpg"]
    return broken


def _copies(scenes: list[Scene]) -> list[Sample]:
    """Return pairs, copies of other quality and size, one caption again, three pairs of the folder."""
    samples = [_pair(scene) for scene in scenes[:10]]
    for place, scene in enumerate(scenes[:6]):
        key, members = _pair(scene)
        if place % 3 == 1:
            members["jpg"] = scene.draw(quality=40)
        elif place % 3 == 2:
            members["jpg"] = scene.draw(scale=0.7)
        members["json"] = json.dumps({"url": _url(900 + place)}).encode()
        samples.append((f"9{key[1:]}", members))
    samples += [
        _pair(Scene(300)),
        ("000000301", {"jpg": Scene(301).draw(quality=40), "txt": b"Other words."}),
    ]
    samples.append(("000000303", {**_pair(scenes[30])[1], "txt": Scene(303).caption.encode()}))
    samples.append(("999999999", {**_pair(scenes[20])[1], "txt": scenes[0].caption.encode()}))
    return samples


def _write_parquet(folder: Path, shards: dict[str, list[Sample]]) -> None:
    """Write the same samples as Parquet with the bytes of the images."""
    folder.mkdir(parents=True)
    for name, samples in shards.items():
        rows = [
            {"key": key, "jpg": members["jpg"], "caption": members["txt"].decode()}
            | {"fault": json.loads(members["json"])["fault"]}
            for key, members in samples
        ]
        pq.write_table(pa.Table.from_pylist(rows), folder / name.replace(".tar", ".parquet"))


def _write_stored(folder: Path, scenes: list[Scene]) -> None:
    """Write a metadata table and drawn image embeddings next to it, as DataComp hands them out."""
    folder.mkdir(parents=True)
    rows = [
        {"uid": f"{i:032x}", "url": f"https://example.org/{i}.jpg", "text": scene.caption}
        for i, scene in enumerate(scenes)
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "00000.parquet")
    drawn = np.random.default_rng(0).standard_normal((len(rows), EMBED_DIM)).astype(np.float32)
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    np.savez(folder / "00000.npz", tiny_img=drawn.astype(np.float16))


def _write_folder(folder: Path, scenes: list[Scene]) -> None:
    """Write pictures with captions.jsonl, two captions each."""
    (folder / "images").mkdir(parents=True)
    lines = []
    for place, scene in enumerate(scenes):
        (folder / "images" / f"{place:03d}.jpg").write_bytes(scene.draw())
        lines.append({"image": f"{place:03d}.jpg", "captions": [scene.caption, scene.paraphrase]})
    (folder / "captions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def _write_list(folder: Path, scenes: list[Scene]) -> None:
    """Write pictures and a CSV file that names them in columns of its own."""
    folder.mkdir(parents=True)
    lines = ["file,words,weight"]
    for place, scene in enumerate(scenes):
        (folder / f"p{place}.jpg").write_bytes(scene.draw())
        lines.append(f'p{place}.jpg,"{scene.caption}",{place / 4}')
    (folder / "pairs.csv").write_text("\n".join(lines) + "\n")


def _write_tests(folder: Path, scenes: list[Scene]) -> None:
    """Write test sets in the layouts of SugarCrepe and SugarCrepe++, and one for ``own.py``."""
    for name in ("sugarcrepe", "sugarcrepe_pp"):
        (folder / name).mkdir(parents=True)
    (folder / "test_images").mkdir()
    for place, scene in enumerate(scenes):
        (folder / "test_images" / f"{place}.jpg").write_bytes(scene.draw())
    for split in SPLITS:
        rows = [
            {"filename": f"{place}.jpg", "caption": scene.caption, "negative_caption": scene.negative(split)}
            for place, scene in enumerate(scenes)
        ]
        keyed = {str(place): row for place, row in enumerate(rows)}
        (folder / "sugarcrepe" / f"{split}.json").write_text(json.dumps(keyed))
        listed = [
            {"id": str(place), "caption2": scene.paraphrase, **row}
            for place, (scene, row) in enumerate(zip(scenes, rows, strict=True))
        ]
        if not split.startswith("add"):
            (folder / "sugarcrepe_pp" / f"{split}.json").write_text(json.dumps(listed))
    own = [
        {"image": f"{place}.jpg", "caption": scene.caption, "wrong": scene.negative("swap_obj")}
        for place, scene in enumerate(scenes)
    ]
    (folder / "counting").mkdir()
    (folder / "counting" / "counting.jsonl").write_text("".join(json.dumps(row) + "\n" for row in own))


def _write_classes(folder: Path, scenes: list[Scene]) -> None:
    """Write a folder of images for each of three classes."""
    for place, scene in enumerate(scenes):
        name = (f"{scene.colour}_{scene.shape}", "ball", "box")[place % 3] if place % 3 else "red_cone"
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / f"{place:03d}.jpg").write_bytes(scene.draw())


def _write_streams(folder: Path) -> None:
    """Write a stream of four tasks in four layouts: captions, classes, MIT-States, and one of ``own.py``."""
    folder.mkdir(parents=True)
    for half, first in (("train", 700), ("test", 800)):
        _write_folder(folder / "pairs" / half, [Scene(first + i) for i in range(16)])
        _write_classes(folder / "classes" / half, [Scene(first + 20 + i) for i in range(12)])
        _write_states(folder / "states", half, [Scene(first + 40 + i) for i in range(24)])
    dishes = []
    for place in range(16):
        scene = Scene(760 + place)
        (folder / "dishes").mkdir(exist_ok=True)
        (folder / "dishes" / f"{place}.jpg").write_bytes(scene.draw())
        dishes.append(
            {"photo": f"dishes/{place}.jpg", "dish": f"{scene.colour} {scene.shape}"}
            | {"split": ("train", "test")[place % 2]}
        )
    (folder / "dishes.json").write_text(json.dumps(dishes))
    tasks: list[dict[str, Any]] = [
        {"name": "pairs", "train": "pairs/train", "test": "pairs/test"},
        {"name": "classes", "layout": "classes", "train": "classes/train", "test": "classes/test"},
        {"name": "states", "layout": "mit_states", "train": "states", "test": "states"},
        {"name": "dishes", "layout": "../own.py:dishes", "train": "dishes.json", "test": "dishes.json"},
    ]
    zero_shot = [{"name": "things", "layout": "classes", "test": "classes/test"}]
    (folder / "stream.json").write_text(json.dumps({"tasks": tasks, "zero_shot": zero_shot}))
    (folder / "two.json").write_text(json.dumps({"tasks": tasks[:2]}))


def _write_states(folder: Path, half: str, scenes: list[Scene]) -> None:
    """Write half of MIT-States: pairs of adjective and noun, those of the test in no training."""
    seen = {"train": {"red", "blue", "green"}, "test": {"yellow"}}[half]
    pairs = set()
    for place, scene in enumerate(scenes):
        if scene.colour in seen:
            pairs.add(f"{scene.colour} {scene.shape}")
            where = folder / "images" / f"{scene.colour} {scene.shape}"
            where.mkdir(parents=True, exist_ok=True)
            (where / f"{half}{place}.jpg").write_bytes(scene.draw())
    split = folder / "compositional-split-natural"
    split.mkdir(parents=True, exist_ok=True)
    (split / f"{half}_pairs.txt").write_text("".join(f"{pair}\n" for pair in sorted(pairs)))


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


OWN = '''"""A rule, a scorer, a loss, a benchmark, a method and a layout of a user's own."""

import json

import numpy as np
import torch

from raycomp.continual.layouts.row import Row
from raycomp.continual.methods.tuner import Tuner
from raycomp.evaluate.benchmarks.choice import Choice, read_lines, take
from raycomp.train.losses import Loss


def per_word(alignment, num_words):
    """Alignment per word of the caption."""
    return alignment / num_words


class Lightness:
    """The mean of the first half of an embedding; any number will do."""

    columns = {"lightness": "float32"}
    needs = ("image_embeddings",)

    def __call__(self, image_embeddings):
        return {"lightness": image_embeddings[:, ::2].mean(1).astype(np.float32)}


class Margin(Loss):
    """CLIP's loss with a margin."""

    def __call__(self, batch, config):
        cosine = batch.image_ND @ batch.text_ND.T - 0.1 * torch.eye(len(batch.image_ND))
        target = torch.arange(len(batch.image_ND))
        both = (cosine * batch.scale, cosine.T * batch.scale)
        return sum(torch.nn.functional.cross_entropy(one, target) for one in both) / 2


def counting(folder):
    """Rows of counting.jsonl."""
    for place, (where, row) in enumerate(read_lines(folder, "counting.jsonl")):
        image, caption, wrong = (take(row, name, str, where) for name in ("image", "caption", "wrong"))
        yield Choice("counting", "numbers", str(place), image, (caption,), (wrong,))


class Anchored(Tuner):
    """CLIP's loss, and the squared distance from the first weights."""

    def __init__(self, clip, spec, config, seed):
        super().__init__(clip, spec, config, seed)
        self.first = [weight.detach().clone() for weight in self.model.parameters()]

    def losses(self, made, batch):
        moved = zip(self.model.parameters(), self.first)
        distance = torch.stack([(now - first).square().sum() for now, first in moved]).sum()
        return {**super().losses(made, batch), "distance": 0.01 * distance}


def dishes(folder, name, half):
    """Records of one file."""
    for record in json.loads(folder.read_bytes(name)):
        if record["split"] == half:
            yield Row(record["photo"], f"a photo of {record['dish']}", (record["dish"],))
'''

DRAWN = '''"""Small streams of the drawn world, and methods of the lab."""

from lab.continual.ablations import compo_realign_adapted, experts
from lab.continual.streams import Sizes, draw_stream

SIZES = Sizes(backbone_pairs=64, backbone_steps=2, train=16, test=12)
world, domains = draw_stream("world", SIZES), draw_stream("domains", SIZES)
'''


def _write_own(path: Path) -> None:
    path.write_text(OWN)
