"""Checks that a run's shards hold what it wrote: every sample is compared when it is read."""

import pyarrow as pa

from raycomp.config import UserError
from raycomp.words import CAPTION, IMAGE_SHA256, OK, STATUS, UID


class WrittenSamples:
    """Compares a shard, block by block, with the samples that the run wrote."""

    def __init__(self, uri: str, written: pa.Table | None):
        """``written``: uid, caption and image_sha256 of each in their order; none where that is unknown."""
        self._uri, self._written = uri, written

    def check(self, table: pa.Table, start: int) -> None:
        """Raise UserError unless a block, whose first row is sample ``start``, is unchanged."""
        if self._written is None:
            return
        written = self._written.slice(start, len(table))
        if len(written) == len(table):
            names = [name for name in (UID, CAPTION, IMAGE_SHA256) if not table[name].equals(written[name])]
            bad = next((status for status in table[STATUS].to_pylist() if status != OK), None)
            if not names and bad is None:
                return
            what = f"a sample has status {bad}" if bad else f"{names[0]} of a sample is another"
            raise UserError(f"{self._uri}: differs from what the run wrote: {what}")
        raise UserError(f"{self._uri}: holds more than the {len(self._written):,} samples that the run wrote")

    def check_end(self, count: int) -> None:
        """Raise UserError unless the shard has as many samples as were written."""
        if self._written is not None and count != len(self._written):
            raise UserError(
                f"{self._uri}: holds {count:,} of the {len(self._written):,} samples that the run wrote"
            )
