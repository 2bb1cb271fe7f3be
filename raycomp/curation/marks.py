"""Marks: the reasons to drop a row that are not the rule's own gates.

``marks/`` has a file for every scores file, with a row for every row of it. ``mark`` is the reason of a drop
before the shares are counted: the row is not in the corpus. ``mark_after`` is the reason of a drop after the
rule's gates. Both are null for other rows. Further columns are the evidence.
"""

import json
import posixpath
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from raycomp.curation.clusters import cap_clusters
from raycomp.curation.config import CurateConfig
from raycomp.curation.contamination import load_contamination
from raycomp.curation.exclusion import load_exclusion
from raycomp.curation.filters import check_types, load_condition
from raycomp.curation.metadata import METADATA, name_types
from raycomp.curation.near import find_groups
from raycomp.curation.own_scorers import list_own_columns
from raycomp.curation.scored import Marker, ScoresFile
from raycomp.data.folder import Folder
from raycomp.data.manifest import check_results
from raycomp.data.parquet import read_columns, read_schema, write_table
from raycomp.data.paths import ShardPath
from raycomp.data.reader import read_shard
from raycomp.data.runs import list_scores, list_tables
from raycomp.run.tasks import map_files
from raycomp.schema import aligned_schema, scores_schema
from raycomp.words import JSON, MARK, MARK_AFTER, UID

MARKS = "marks"
# Rows of the first shard whose json shows the fields of the metadata.
_ROWS = 256


def has_markers(config: CurateConfig) -> bool:
    """Return whether rows can be dropped by anything but the rule's gates."""
    chosen = config.filter
    options = (chosen.where, chosen.join, chosen.exclude, config.decontaminate.index)
    return any((*options, config.near.rules, config.near.clusters))


def list_markers(config: CurateConfig, file: ScoresFile, shards: Sequence[ShardPath]) -> list[Marker]:
    """Return the markers of a config, in their order: the first reason of a row counts.

    ``file``: one of the files to be marked; all have its columns. ``shards``: the input's, empty where it is
    gone. Raises ValueError or UserError where a
    marker does not fit them.
    """
    markers: list[Marker] = []
    chosen = config.filter
    if chosen.where is not None or chosen.join is not None:
        fields = [] if file.metadata is None else read_schema(file.metadata).names
        markers.append(load_condition(chosen, read_schema(file.uri), fields))
    if chosen.exclude is not None:
        markers.append(load_exclusion(chosen.exclude, chosen.is_after))
    if config.decontaminate.index is not None:
        markers.append(load_contamination(config.decontaminate, shards))
    return markers


def check_markers(config: CurateConfig, shards: Sequence[ShardPath]) -> None:
    """Raise ValueError or UserError where a marker cannot be right, before anything is scored.

    The fields of the metadata, and their types, are those of the first rows of the first shard.
    """
    chosen = config.filter
    if chosen.exclude is not None:
        load_exclusion(chosen.exclude, chosen.is_after)
    if config.decontaminate.index is not None:
        load_contamination(config.decontaminate, shards)
    if chosen.where is not None or chosen.join is not None:
        scores = scores_schema(
            aligned_schema(1, "float32", config.extra_columns, list_own_columns(config.scorers))
        )
        first = pa.concat_tables(islice(read_shard(shards[0], _ROWS), 1))
        kinds = name_types(json.loads(text) for text in first[JSON].to_pylist() if text)
        check_types(load_condition(chosen, scores, kinds), scores, kinds)


def mark_rows(
    scores: Sequence[str],
    config: CurateConfig,
    out: Folder,
    origin: Folder,
    work: Folder,
    shards: Sequence[ShardPath] = (),
) -> dict[str, Any]:
    """Write ``marks/`` of the files to ``out``, if the config has markers; return facts for run.json.

    ``origin``: the folder with their metadata; ``work``: for parts; ``shards``: the input's. Safe to repeat:
    equal files and options give equal bytes.
    """
    files = pair_marks(scores, config, out)
    if not files or not has_markers(config):
        return {}
    names = {*origin.list_names(METADATA)}
    jobs = [_add_metadata(file, origin, names) for file in files]
    for _ in map_files(_mark_file, jobs, list_markers(config, jobs[0], shards), label="mark"):
        pass
    facts: dict[str, Any] = {}
    if config.near.rules:
        facts["near_duplicates"] = find_groups(files, config.near, work)
    if config.near.clusters is not None:
        facts["clusters"] = cap_clusters(files, config.near)
    return facts


def _add_metadata(file: ScoresFile, origin: Folder, names: set[str]) -> ScoresFile:
    name = posixpath.basename(file.uri)
    return file._replace(metadata=origin.at(METADATA, name) if name in names else None)


def pair_marks(scores: Sequence[str], config: CurateConfig, out: Folder) -> list[ScoresFile]:
    """Return the files with the marks that ``mark_rows`` writes for them."""
    if not has_markers(config):
        return [ScoresFile(uri) for uri in scores]
    return [ScoresFile(uri, out.at(MARKS, posixpath.basename(uri))) for uri in scores]


def list_marked(run: dict[str, Any], source: str) -> list[ScoresFile]:
    """Return the scores files behind the finished run in ``source``, with the run's own marks.

    Raises as ``list_scores``, and where a marks file is missing or was changed.
    """
    scores = list_scores(run, source)
    marks = list_tables(check_results(Folder(source), run, MARKS))
    if marks and sorted(marks) != list(range(len(scores))):
        raise ValueError(f"{source}: holds {len(marks)} marks files, the run wrote {len(scores)}")
    return [ScoresFile(uri, marks.get(ordinal)) for ordinal, uri in enumerate(scores)]


def _mark_file(file: ScoresFile, markers: Sequence[Marker]) -> None:
    """Write the marks of one file."""
    uid, evidence = read_columns(file.uri, [UID])[UID], dict[str, pa.Array]()
    reasons = {name: np.full(len(uid), None, object) for name in (MARK, MARK_AFTER)}
    for marker in markers:
        found = marker(file)
        reason_N = reasons[MARK_AFTER if found.is_after else MARK]
        is_free_N = np.array([reason is None for reason in reason_N], bool)
        reason_N[is_free_N] = found.reason_N[is_free_N]
        evidence |= found.evidence
    columns = {name: pa.array(reason_N, pa.string()) for name, reason_N in reasons.items()}
    table = pa.table({UID: uid, **columns, **evidence})
    assert file.marks is not None
    write_table(table, file.marks, table.schema)
