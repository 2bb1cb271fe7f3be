"""run.json and lease.json by anyone: read, or one line that names the folder or an option."""

import json
import os
import re
import tempfile
from datetime import UTC, datetime, timedelta
from functools import cache

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raycomp.config import LeaseLost, to_dict
from raycomp.core.selection import Threshold
from raycomp.curation.select.select import Gates
from raycomp.data.files import RUN, Folder
from raycomp.data.parquet import aligned_schema, scores_schema, write_table
from raycomp.data.runs import read_finished
from raycomp.look.show import explain, show
from raycomp.run.run import LEASE, hold_lease, read_lease, read_own_run, read_pid_namespace, refuse_other
from tests.corpus import by_cpi
from tests.fuzz.child import run
from tests.fuzz.inputs import EDITS, JSON_VALUES, ODD_JSON, damage, refused, replace_within
from tests.look.scored import make_phrase
from tests.sealed import seal

pytestmark = pytest.mark.slow

UIDS = [f"{i:032x}" for i in range(3)]
PATHS = st.lists(st.integers(0, 30), min_size=1, max_size=4)
CHANGES = st.lists(st.tuples(PATHS, JSON_VALUES | st.just(...)), min_size=1, max_size=2)
BYTES = st.binary(max_size=40) | (ODD_JSON | JSON_VALUES.map(json.dumps)).map(str.encode)


@cache
def make_run() -> tuple[Folder, dict]:
    """Return a folder with scores of three samples, and the content of its run.json."""
    folder = Folder(os.path.realpath(tempfile.mkdtemp()))
    rows = [
        {"uid": uid, "caption": "a dog", "status": "ok", "position": i, "alignment": i / 4, "mean_pas": 0.1,
         "image_embedding": [0.5] * 4, "phrases": [make_phrase("dog", 0.1)]}
        for i, uid in enumerate(UIDS)
    ]  # fmt: skip
    kind = scores_schema(aligned_schema(4, "float32"))
    write_table(pa.Table.from_pylist(rows, kind), folder.at("scores", "00000.parquet"), kind)
    gates = Gates(3, Threshold(2, 0xBE800000, (0, 1)), Threshold(2, 0x80000000), 2).to_dict()
    run = {"kind": "curate", "status": "finished", "warnings": [], "started": "2026-01-01T00:00:00+00:00"}
    run |= {"commands": {"curate": "raycomp curate"}, "config": to_dict(by_cpi(input="in")), "gates": gates}
    run |= {"versions": {"python": "3.11", "raycomp": "0.1.0"}, "machine": {"system": "Linux", "cores": 2}}
    run |= {"fingerprint": {"input": "0" * 64, "scorer": "1" * 64, "shards": 1}}
    run |= {"scores": folder.at("scores"), "funnel": {"read": 3, "corpus": 3, "kept": 2}}
    run["funnel"] |= {"dropped": {"below_alignment_gate": 1}}
    folder.write_json(run, RUN)
    seal(folder)
    return folder, folder.read_json(RUN)


def check_reads(data: bytes) -> None:
    """Check what every reader of run.json makes of these bytes."""
    folder, whole = make_run()
    folder.write_bytes(data, RUN)
    uri = folder.uri
    readers = [lambda: read_finished(uri), lambda: "".join(show(uri)).encode()]
    readers += [lambda uid=uid: explain(uri, uid).encode() for uid in (*UIDS[:2], "none")]
    readers.append(lambda: refuse_other(read_own_run(folder) or whole, whole, folder))
    for read in readers:
        line = refused(read)
        named = line is None or uri in line or "none: no such uid" in line or re.match(r"[\w.']+=?", line)
        assert named, line


@given(CHANGES)
def changed_runs(changes):
    content = make_run()[1]
    for path, new in changes:
        content = replace_within(content, path, new)
    check_reads(json.dumps(content).encode())


@given(BYTES, st.booleans(), EDITS)
def foreign_runs(data, is_whole, edits):
    check_reads(damage(json.dumps(make_run()[1]).encode(), edits) if is_whole else data)


def _hold(folder: Folder) -> None:
    with hold_lease(folder, 30.0):
        pass


@given(BYTES, st.booleans(), CHANGES, st.sampled_from([-60, 60]), EDITS)
def leases(data, is_lease, changes, seconds, edits):
    if is_lease:
        expires = (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat(timespec="seconds")
        content = {"holder": "0", "host": os.uname().nodename, "process": os.getpid(), "expires": expires}
        content = {**content, "started": expires, "place": read_pid_namespace()}
        for path, new in changes:
            content = replace_within(content, path, new)
        data = damage(json.dumps(content).encode(), edits[:1])
    folder = Folder(os.path.realpath(tempfile.mkdtemp()))
    folder.write_bytes(data, LEASE)
    line = refused(lambda: read_lease(folder))
    assert line is None or folder.uri in line
    try:
        line = refused(lambda: _hold(folder))
    except LeaseLost as error:
        line = str(error)
    assert line is None or folder.uri in line


def load() -> None:
    """Show and explain a whole run."""
    folder, whole = make_run()
    folder.write_bytes(json.dumps(whole).encode(), RUN)
    assert "kept: yes" in explain(folder.uri, UIDS[1]) and "2  kept" in "".join(show(folder.uri))


def test_runs():
    run(changed_runs, 400)
    run(foreign_runs, 200)
    run(leases, 200)
