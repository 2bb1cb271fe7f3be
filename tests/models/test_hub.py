"""The model hub, played by a server in this process."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from raycomp.config import ModelConfig, ScorerConfig
from raycomp.models import architecture
from raycomp.models.architecture import announce_download, describe_scorer, is_reachable
from tests.models.test_architecture import TINY


class _Hub(BaseHTTPRequestHandler):
    """Answers a request for the head of a file with its size; the file itself is not there."""

    def do_HEAD(self) -> None:
        self.send_response(200 if self.path == "/" or self.path.endswith(".safetensors") else 404)
        self.send_header("Content-Length", "599000000")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def endpoint(monkeypatch, tmp_path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(architecture, "_failed_at", [])
    yield address
    server.shutdown()
    server.server_close()


def test_a_download_is_announced_with_its_size(endpoint, capsys):
    assert is_reachable()
    announce_download({"hf_hub": "timm/some.openai/"}, "the weights 'openai' of ViT-B-16")
    line = f"downloading the weights 'openai' of ViT-B-16, 599 MB, from {endpoint}\n"
    assert capsys.readouterr().err == line
    for tag in ({"hf_hub": "timm/some/weights.bin"}, {"url": "https://no.where/x.pt"}, {}):
        announce_download(tag, "x")
    assert capsys.readouterr().err == f"downloading x, 599 MB, from {endpoint}\n"  # that of the first tag


def test_a_hub_that_does_not_answer_is_asked_once_and_named(endpoint, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    (tmp_path / "own.json").write_text(json.dumps(TINY | {"text_cfg": {"hf_model_name": "no/such-model"}}))
    for config, option in [
        (ScorerConfig("ViT-B-32", weights="openai"), "scorer.weights='openai' of ViT-B-32"),
        (ModelConfig("hf-hub:no/such-model", "random:0"), "model.name='hf-hub:no/such-model'"),
        (ScorerConfig(str(tmp_path / "own.json"), weights="random:0"), "scorer.model="),
    ]:
        with pytest.raises(ValueError) as error:
            describe_scorer(config)
        said = str(error.value)
        assert said.startswith(option) and "the model hub http://127.0.0.1:9 does not answer" in said, said
    assert len(architecture._failed_at) == 1
    assert not is_reachable() and "random:0" in said
