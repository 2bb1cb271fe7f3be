"""Stand-ins for language models: a tiny real one for vLLM, and a server that misbehaves."""

import json
import socket
import struct
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from raycomp.language.prompts import CAPTION_FORM, make_messages, request_key
from raycomp.negatives.ask import to_prompt_table
from raycomp.words import OPERATIONS

GOOD_REPLY = json.dumps({"negative": "A dog under a red car."})
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_prompts(captions: list[str], ordinal: int = 0, model: str = "tiny") -> pa.Table:
    """Return a row for every caption, operations taking turns."""
    rows = []
    for i, caption in enumerate(captions):
        messages = make_messages(OPERATIONS[i % len(OPERATIONS)], caption, ())
        uid = f"{ordinal:016x}{i:016x}"
        rows.append((request_key(uid, messages, model, {}), uid, messages, CAPTION_FORM))
    return to_prompt_table(rows, ordinal)


def write_tiny_tokenizer(folder: Path) -> Any:
    """Write a tokenizer with a chat template, trained on the prompts; return it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1024, special_tokens=special, initial_alphabet=alphabet)
    texts = [message["content"] for op in OPERATIONS for message in make_messages(op, "A cat.", ())]
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return fast


def write_tiny_model(folder: Path, context: int = 4096) -> str:
    """Write a Llama of two layers with random weights and a tokenizer of its own; return the folder."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    fast = write_tiny_tokenizer(folder)
    config = LlamaConfig(
        vocab_size=len(fast),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=context,
        eos_token_id=0,
        bos_token_id=None,
        pad_token_id=0,
        dtype="float32",
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


class FakeServer(ThreadingHTTPServer):
    """Behaves as the first word of the caption in a request says; counts what it was asked."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int = 0):
        super().__init__(("127.0.0.1", port), _Handler)
        self.asked: Counter[str] = Counter()
        self.keys: set[str | None] = set()
        self.bodies: list[dict[str, Any]] = []
        self.open = self.most_open = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        """What goes into ``llm.url``."""
        return f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, *_: Any) -> None:
        """Stay silent when a client goes away."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeServer

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        content = body["messages"][-1]["content"]
        caption = json.loads(content[len("<caption>") : content.index("</caption>")])
        self.caption = caption
        server = self.server
        with server.lock:
            server.asked[caption] += 1
            server.keys.add(self.headers.get("Authorization"))
            server.bodies.append(body)
            server.open += 1
            server.most_open = max(server.most_open, server.open)
            times = server.asked[caption]
        try:
            getattr(self, f"be_{caption.split()[0]}", self.be_good)(times)
        finally:
            with server.lock:
                server.open -= 1

    def send(self, status: int, data: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def say(self, content: Any) -> None:
        self.send(200, json.dumps({"choices": [{"message": {"content": content}}]}).encode())

    def be_good(self, times: int) -> None:
        time.sleep(0.02)
        self.say(GOOD_REPLY)

    def be_busy(self, times: int) -> None:
        """429 once, with a wish to wait."""
        if times > 1:
            return self.say(GOOD_REPLY)
        return self.send(429, b'{"error": "slow down"}', Retry_After="1")

    def be_closed(self, times: int) -> None:
        self.send(429, b'{"error": "come back tomorrow"}', Retry_After="80000")

    def be_shaky(self, times: int) -> None:
        """500 once."""
        return self.say(GOOD_REPLY) if times > 1 else self.send(500, b"oops")

    def be_broken(self, times: int) -> None:
        self.send(500, b"oops, as ever, for " + (self.headers.get("Authorization") or "").encode())

    def be_refusing(self, times: int) -> None:
        self.send(400, b'{"error": "maximum context length"}')

    def be_locked(self, times: int) -> None:
        key = (self.headers.get("Authorization") or "").encode()
        self.send(401, b'{"error": "Incorrect API key provided: ' + key + b'"}')

    def be_garbage(self, times: int) -> None:
        self.send(200, b"<html>\xff\x00 welcome</html>")

    def be_empty(self, times: int) -> None:
        self.send(200, b"")

    def be_silent(self, times: int) -> None:
        self.say(None)

    def be_echo(self, times: int) -> None:
        """Say the key itself, and half a surrogate."""
        self.say(f"{self.headers.get('Authorization')} \ud800")

    def be_prose(self, times: int) -> None:
        """About 10,000 tokens."""
        self.say("Here is a lovely story about that picture. " * 1200)

    def be_huge(self, times: int) -> None:
        self.send(200, b"[" + b"0," * (5 << 20) + b"0]")

    def be_packed(self, times: int) -> None:
        """Compress as the caption's second word says, asked to or not."""
        kind = self.caption.split()[1]
        data = json.dumps({"choices": [{"message": {"content": GOOD_REPLY}}]}).encode()
        if kind != "br":
            data = zlib.compress(data, wbits={"raw": -15, "gzip": 31, "deflate": 15}[kind])
        self.send(200, data, Content_Encoding="deflate" if kind == "raw" else kind)

    def be_bomb(self, times: int) -> None:
        """A quarter of a megabyte that unpacks to a quarter of a gigabyte."""
        kind = self.caption.split()[1]
        packer = zlib.compressobj(9, wbits=31 if kind == "gzip" else 15)
        data = b"".join(packer.compress(bytes(1 << 20)) for _ in range(256)) + packer.flush()
        self.send(500 if "failing" in self.caption else 200, data, Content_Encoding=kind)

    def be_leaky(self, times: int) -> None:
        """Say the key in a form of its own, where the answer's beginning or an error is cut."""
        key = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        form = self.caption.split()[1]
        if form == "long":
            return self.send(200, b"[" + b"0" * 70 + key.encode() + b" " * (2 << 20))
        said = {
            "url": quote(key, safe=""),
            "json": json.dumps(key),
            "upper": key.upper(),
            "broken": key.replace(" ", "\n"),
            "wide": key.encode("utf-16-le").decode("latin-1"),
        }
        return self.send(400, ("x" * 260 + said[form]).encode("latin-1"))

    def be_reset(self, times: int) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def be_dropped(self, times: int) -> None:
        """End in the middle of an answer."""
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b'{"choices": [')
        self.close_connection = True

    def be_hanging(self, times: int) -> None:
        time.sleep(20)


@contextmanager
def fake_server() -> Iterator[FakeServer]:
    """Serve for as long as the block runs."""
    with FakeServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
