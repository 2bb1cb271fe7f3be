"""The keys that a training leaves: those of its pairs, from any kind of input; they are read as written."""

import hashlib
import io
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from raycomp.config import override_all
from raycomp.core.near import Known, count_shared, key_images, key_texts, merge_keys
from raycomp.data.files import Folder
from raycomp.data.samples import write_tar
from raycomp.run.executor import use
from raycomp.run.local import Local
from raycomp.training.command import TRAINED, gather_keys, identify_trained, read_trained, write_trained
from raycomp.training.config import TrainConfig
from raycomp.training.pairs import find_pairs, index_shard
from tests.sealed import seal


def make_image(value: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (8, 8), (value, 0, 0)).save(out, "PNG")
    return out.getvalue()


def leave(folder, known: Known) -> None:
    """Write a finished training that has nothing but its keys."""
    funnel = {"read": 1, "corpus": 1, "kept": 1, "dropped": {}}
    facts = {"steps": 1, "epochs": 1, "pairs": 1, "first_loss": 1, "last_loss": 1}
    run = {"kind": "train", "status": "finished", "config": {}, "fingerprint": {}, "versions": {}}
    (folder / "run.json").write_text(json.dumps({**run, **facts, "funnel": funnel, "warnings": []}))
    write_trained(known, Folder(str(folder)))
    seal(Folder(str(folder)), TRAINED)


def index_to(folder, samples: list[dict[str, bytes]]) -> list[str]:
    """Write shards of three samples each and the index of each; return where that lies."""
    for start in range(0, len(samples), 3):
        rows = [(f"{start + i}", one) for i, one in enumerate(samples[start : start + 3])]
        write_tar(str(folder / "in" / f"{start:02d}.tar"), rows)
    pairs = find_pairs(override_all(TrainConfig(), {"input": str(folder / "in")}))
    uris = [str(folder / f"{shard.ordinal}.parquet") for shard in pairs.shards]
    for ordinal, uri in enumerate(uris):
        pq.write_table(index_shard(pairs, ordinal)[0], uri)
    return uris


def test_what_was_learned_is_what_a_loop_over_the_samples_finds(tmp_path):
    (tmp_path / "in").mkdir()
    images = [make_image(i // 2) for i in range(6)]
    samples = [{"png": image, "txt": f"Image {i}.".encode()} for i, image in enumerate(images)]
    samples += [{"png": b"torn", "txt": b"torn"}, {"png": make_image(99), "txt": b" "}]
    samples.append({"png": make_image(7), "txt": b"one", "json": b'{"captions": ["two", "three"]}'})
    with use(Local(1)):
        known = gather_keys(index_to(tmp_path, samples), None)
    hashes = {hashlib.sha256(image).digest()[:16] for image in [*images, make_image(7)]}
    assert known.image_K.tolist() == sorted(one.rstrip(b"\0") for one in hashes) and len(hashes) == 4
    texts = ["image 0", *(f"image {i}" for i in range(6)), "two", "three", "one", "torn"]
    assert count_shared(known, known.image_K, key_texts(texts)) == (4, 4, 10, 8)


def test_keys_are_read_as_they_were_written_next_to_the_model_alone(tmp_path):
    hashes = [hashlib.sha256(bytes([i])).hexdigest() for i in range(40)]
    hashes[0] = "ab" * 14 + "00" * 2 + hashes[0][32:]
    known = Known(merge_keys([key_images(hashes)]), merge_keys([key_texts(["a", "b"])]))
    weights = str(tmp_path / "checkpoint/model.safetensors")
    assert read_trained(weights) is None
    leave(tmp_path, known)
    found = read_trained(weights)
    assert found is not None and all((a == b).all() for a, b in zip(found, known, strict=True))
    assert identify_trained(found) == identify_trained(known) != identify_trained(Known(*known[::-1]))
    assert (tmp_path / TRAINED[0]).stat().st_size < 40 * 16 + 200
    for other in (str(tmp_path / "model.safetensors"), "openai", "random:0"):
        assert read_trained(other) is None
    (tmp_path / TRAINED[1]).unlink()
    with pytest.raises(ValueError, match=rf"{TRAINED[1]}: is missing; the run wrote it with"):
        read_trained(weights)
    seal(Folder(str(tmp_path)), ())
    assert read_trained(weights) is None  # a training of before


def test_a_file_that_holds_no_keys_is_named(tmp_path):
    for content in [b"no array", np.array([b"b", b"a"], "S16"), np.arange(3)]:
        leave(tmp_path, Known(merge_keys([]), merge_keys([])))
        with open(tmp_path / TRAINED[1], "wb") as file:
            file.write(content) if isinstance(content, bytes) else np.save(file, content)
        seal(Folder(str(tmp_path)), TRAINED)
        with pytest.raises(ValueError, match=rf"{TRAINED[1]}: does not hold the keys of a training"):
            read_trained(str(tmp_path / "checkpoint/model.safetensors"))
