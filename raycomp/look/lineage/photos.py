"""The pictures of a few gained and lost rows, from the input of the run that keeps them."""

from collections import defaultdict
from collections.abc import Iterable

from raycomp.curation.publish import read_photos
from raycomp.curation.removal import list_shards
from raycomp.curation.samples import Sample
from raycomp.data.paths import ShardPath, fingerprint_shards
from raycomp.data.runs import digest
from raycomp.look.lineage.sides import Side


def fetch_photos(side: Side, samples: Iterable[Sample]) -> tuple[dict[str, bytes], list[str]]:
    """Return image bytes by uid, and a line on why others cannot be shown.

    An image is shown only if its SHA-256 is that of the scored one.
    """
    wanted: dict[str, dict[int, str]] = defaultdict(dict)
    for sample in samples:
        if sample.position is not None:
            wanted[sample.shard][sample.position] = sample.uid
    if not wanted or side.config.prepare.stored_embeddings is not None:
        return {}, []
    photos: dict[str, bytes] = {}
    try:
        shards = {shard.name: shard for shard in _find_shards(side)}
        for name, uids in sorted(wanted.items()):
            if name in shards:
                job = shards[name], side.files[shards[name].ordinal].uri, uids
                photos |= dict(read_photos(job))
    except (ValueError, OSError) as error:
        return photos, [f"{side.uri}: pictures cannot be shown: {' '.join(str(error).split())}"]
    return photos, []


def _find_shards(side: Side) -> list[ShardPath]:
    """Return the shards of the input. Raises ValueError where they are not the scored ones."""
    config = side.config
    shards = list_shards(config)
    if digest(fingerprint_shards(shards)) != side.curated["fingerprint"].get("input"):
        raise ValueError(f"input={config.input!r}: was changed after scoring")
    return shards
