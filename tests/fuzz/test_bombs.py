"""Small inputs that ask for much: each ends with its documented outcome, in little memory and time."""

import asyncio
import io
import json
import re
import struct
import tempfile
import threading
import zlib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from raycomp.data.inputs import ShardPath
from raycomp.data.samples import parse_object, read_tar
from raycomp.words import BAD_JSON, IMAGE_TOO_LARGE, STATUSES
from tests.fuzz.child import run
from tests.fuzz.inputs import refused

pytestmark = pytest.mark.slow

# 43 bytes: a frame of 65,535 x 65,535 on a screen as large.
GIF = bytes.fromhex("474946383961ffffffff800000000000ffffff21f90408000000002c00000000ffffffff0002024401003b")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _png(width: int, height: int, *chunks: bytes) -> bytes:
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + _chunk(b"IEND", b"")


def _packed_zeros(num_bytes: int) -> bytes:
    packer = zlib.compressobj(9)
    piece = bytes(1 << 20)
    return b"".join(packer.compress(piece) for _ in range(num_bytes >> 20)) + packer.flush()


def _status_of(data: bytes) -> str:
    from raycomp.models.images import ImageFault, decode_image

    with pytest.raises(ImageFault) as fault:
        decode_image(data, 100_000_000)
    return fault.value.status


def gif_of_four_gigapixels():
    assert _status_of(GIF) == IMAGE_TOO_LARGE


def png_that_declares_too_much():
    assert _status_of(_png(30_000, 30_000, _chunk(b"IDAT", _packed_zeros(1 << 29)))) == IMAGE_TOO_LARGE


def png_with_more_data_than_it_declares():
    from raycomp.models.images import decode_image

    assert decode_image(_png(4, 4, _chunk(b"IDAT", _packed_zeros(1 << 29))), 100_000_000).size == (4, 4)


def png_with_a_profile_of_a_gigabyte():
    for kind in (b"iCCP", b"zTXt"):
        data = _png(
            4, 4, _chunk(kind, b"x\0\0" + _packed_zeros(1 << 29)), _chunk(b"IDAT", _packed_zeros(1 << 20))
        )
        _status_of_any(data)


def _status_of_any(data: bytes) -> str | None:
    from raycomp.models.images import ImageFault, decode_image

    try:
        decode_image(data, 100_000_000)
    except ImageFault as fault:
        return fault.status
    return None


def tar_that_claims_an_exabyte():
    import tarfile

    info = tarfile.TarInfo("a.jpg")
    for size in (1 << 60, (1 << 30) + 1, 1 << 30):
        info.size = size
        shard = ShardPath(0, "0.tar", "0.tar", "tar")
        (table,) = read_tar(io.BytesIO(info.tobuf(tarfile.GNU_FORMAT) + b"data"), shard, 10)
        assert set(table["status"].to_pylist()) == {"truncated_shard"}


def json_of_great_depth():
    for text in (b'{"a":' * 500_000, b'{"a":' + b"[" * 500_000 + b"]" * 500_000 + b"}", b"[" * 5_000_000):
        assert parse_object(text) == (None, None) and BAD_JSON in STATUSES


def caption_of_at_signs():
    from raycomp.models.parser import squeeze_spaces

    for unit in ("@.", "a@", "a.", "<a", "&", "www.", "-.", "a@b.", "<!--", "\u00e9@."):
        words, places = squeeze_spaces(unit * 1000)
        assert len(places) >= len(words)


def captions_of_one_word():
    from raycomp.models.parser import load_parser

    parser = load_parser()
    for caption in ("x" * 2000, "dog " * 500, "a " * 1000, "." * 2000, "dog, " * 400, "((" * 1000):
        assert len(parser.parse([caption])) == 1


def negatives_of_a_long_caption():
    import pyarrow as pa

    from raycomp.negatives.config import NegativesConfig, WritingConfig
    from raycomp.negatives.write import write_by_rules

    for caption in ("dog, cat, " * 200, "two women in blue dresses hold an umbrella under a tree " * 40):
        table = pa.table(
            {"uid": ["0"], "caption": [caption], "others": pa.array([[]], pa.list_(pa.string()))}
        )
        config = NegativesConfig(negatives=WritingConfig(rank=False, calls=2))
        assert len(write_by_rules(table, config)) == 1


def model_of_width_a_billion():
    from raycomp.config import ScorerConfig
    from raycomp.models.architecture import describe_scorer

    vision = {"image_size": 32, "layers": 1, "width": 64, "head_width": 32, "patch_size": 16}
    text = {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 2}
    path = Path(tempfile.mkdtemp()) / "wide.json"
    for part, name in ((vision, "width"), (text, "width"), (text, "vocab_size"), (vision, "image_size")):
        old, part[name] = part[name], 10**9
        path.write_text(json.dumps({"embed_dim": 32, "vision_cfg": vision, "text_cfg": text}))
        line = refused(lambda: describe_scorer(ScorerConfig(model=str(path), weights="random:0")))
        assert line and line.startswith("scorer.model=")
        part[name] = old


def _most_kilobytes() -> int:
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])


class _Bomb(BaseHTTPRequestHandler):
    """Answers a gigabyte of zeros, packed though nobody said that it may be."""

    body = b""

    def do_POST(self) -> None:
        self.send_response(200)
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        pass


def reply_that_unpacks_to_a_gigabyte():
    from raycomp.negatives.ask import AskServer, to_prompt_table
    from raycomp.negatives.config import LlmConfig

    packer = zlib.compressobj(9, wbits=31)
    piece = b" " * (1 << 20)
    _Bomb.body = b"".join(packer.compress(piece) for _ in range(1 << 10)) + packer.flush()
    most = _most_kilobytes()
    server = HTTPServer(("127.0.0.1", 0), _Bomb)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()

    config = LlmConfig(url=f"http://127.0.0.1:{server.server_port}", timeout_s=30.0, patience_s=0.0)
    prompts = to_prompt_table([("0" * 8, "a", [], "caption")], 0)
    (answer,) = asyncio.run(AskServer(config, None)(prompts)).to_pylist()
    assert answer["reply"] is None and len(answer["error"].splitlines()) == 1
    # aiohttp calls a lack of memory a bad answer, so what was held is looked at.
    assert _most_kilobytes() - most < 100 << 10
    server.shutdown()


BOMBS = [
    gif_of_four_gigapixels,
    png_that_declares_too_much,
    png_with_more_data_than_it_declares,
    png_with_a_profile_of_a_gigabyte,
    tar_that_claims_an_exabyte,
    json_of_great_depth,
    caption_of_at_signs,
    captions_of_one_word,
    negatives_of_a_long_caption,
    model_of_width_a_billion,
    reply_that_unpacks_to_a_gigabyte,
]
# What these import is no small thing itself.
HEAVY = (
    captions_of_one_word,
    negatives_of_a_long_caption,
    model_of_width_a_billion,
    reply_that_unpacks_to_a_gigabyte,
)


def test_bombs():
    for bomb in BOMBS:
        run(bomb, megabytes=4096 if bomb in HEAVY else 256, cpu_s=30 if bomb in HEAVY else 10)
