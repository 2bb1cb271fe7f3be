"""The photos of the negatives that the page shows, from the shards that were curated."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raycomp.config.shared import ColumnsConfig
from raycomp.curation.publish import read_photos
from raycomp.data.inputs import expand_input
from raycomp.data.parquet import read_columns
from raycomp.data.runs import find_curation
from raycomp.run.tasks import map_files
from raycomp.words import POSITION, SHARD, UID

Place = tuple[str, str, int, str]
"""uid, shard, position, scores file."""


def fetch_photos(
    run: dict[str, Any], source: str, scores: Sequence[str], uids: Sequence[str]
) -> dict[str, bytes]:
    """Return image bytes by uid of samples of the curation or selection in ``source`` with record ``run``.

    ``scores``: its scores files. A photo whose shard is missing or has changed is left out: the page shows a
    grey tile instead.
    """
    places = [place for some in map_files(find_places, scores, uids, label="photos") for place in some]
    try:
        config = find_curation(run, source)["config"]
        columns = ColumnsConfig(**config.get("columns", {}))
        shards = {shard.name: shard for shard in expand_input(config["input"], columns=columns)}
        by_shard: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
        for uid, name, position, uri in places:
            if name in shards:
                by_shard[name, uri][position] = uid
        jobs = [(shards[name], uri, at) for (name, uri), at in sorted(by_shard.items())]
        return {uid: image for job in jobs for uid, image in read_photos(job)}
    except (OSError, ValueError):
        return {}


def find_places(scores: str, uids: Sequence[str]) -> list[Place]:
    """Return where a scores file has these samples."""
    rows = read_columns(scores, [UID, SHARD, POSITION])
    rows = rows.filter(pc.is_in(rows[UID], value_set=pa.array(uids, rows[UID].type)))
    found = (tuple(row[name] for name in (UID, SHARD, POSITION)) for row in rows.to_pylist())
    return [(uid, shard, position, scores) for uid, shard, position in found if position is not None]
