"""A node that AWS takes back is drained: the watcher, with metadata and a cluster that are stood in for."""

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest

from raycomp.run import ray_spot

DEADLINE = datetime(2030, 5, 6, 7, 8, 9, tzinfo=UTC)


class Metadata(HTTPServer):
    """Answers as an instance's metadata do in their second version: who brings no token is turned away."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.answers: list[tuple[int, dict[str, str]]] = []
        """One after the other; the last again and again."""
        self.asked = 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Answer(BaseHTTPRequestHandler):
    server: Metadata

    def do_PUT(self) -> None:
        asks = self.path == "/latest/api/token" and self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
        self._send(200 if asks else 400, b"secret")

    def do_GET(self) -> None:
        if self.headers["X-aws-ec2-metadata-token"] != "secret":
            return self._send(401, b"")
        self.server.asked += 1
        answers = self.server.answers
        status, notice = answers.pop(0) if len(answers) > 1 else answers[0]
        asks = self.path == "/latest/meta-data/spot/instance-action"
        return self._send(status if asks else 400, json.dumps(notice).encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    server = Metadata()
    yield server
    server.shutdown()
    server.server_close()


def test_it_waits_until_the_node_is_taken_back(metadata, capsys):
    """A node that only sleeps is kept."""
    time = {"time": f"{DEADLINE:%Y-%m-%dT%H:%M:%SZ}"}
    sleeps, ends = ({"action": action, **time} for action in ("hibernate", "terminate"))
    metadata.answers = [(404, {}), (500, {}), (200, sleeps), (404, {}), (200, ends), (404, {})]
    assert ray_spot.wait_for_notice(metadata.url, poll_s=0) == DEADLINE
    assert metadata.asked == 5 and "500" in capsys.readouterr().err


class Gcs:
    """A cluster of two nodes that says no, or nothing, to being drained."""

    why_not = ""
    drained: tuple = ()

    def __init__(self, address: str):
        assert address == "10.0.0.1:6379"

    def get_all_node_info(self) -> dict:
        return {i: SimpleNamespace(instance_id=f"i-{i}", node_id=bytes([i])) for i in (1, 2)}

    def drain_node(self, *said: object) -> tuple[bool, str]:
        Gcs.drained = said
        return not self.why_not, self.why_not


@pytest.mark.parametrize(
    ("instance", "why_not", "code"), [("i-2", "", 0), ("i-2", "is the head", 1), ("i-3", "", 1)]
)
def test_the_node_of_this_instance_is_drained(metadata, monkeypatch, capsys, instance, why_not, code):
    monkeypatch.setattr("ray._raylet.GcsClient", Gcs)
    monkeypatch.setattr(Gcs, "why_not", why_not)
    monkeypatch.setattr(Gcs, "drained", ())
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata.url)
    monkeypatch.setenv("RAY_CLOUD_INSTANCE_ID", instance)
    metadata.answers = [(200, {"action": "terminate", "time": f"{DEADLINE:%Y-%m-%dT%H:%M:%SZ}"})]
    assert ray_spot.main("10.0.0.1:6379") == code
    said = capsys.readouterr().out
    assert f"{instance}: AWS will stop this machine at 07:08:09 UTC" in said
    if instance == "i-3":
        assert "no node of the cluster" in said and not Gcs.drained
    else:
        assert (why_not or "drained") in said
        assert Gcs.drained == ("02", 2, "spot interruption", int(DEADLINE.timestamp() * 1000))
