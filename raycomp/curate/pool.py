"""Whether the rows that a selection ranks by PAS were attributed when they were scored."""

import numpy as np
import pyarrow as pa

from raycomp.config import exact_share
from raycomp.config.change import changed_options
from raycomp.curate.choose import cut_pool
from raycomp.curate.config import CurateConfig, SelectionRule, find_pool_selection
from raycomp.curate.marks import has_markers
from raycomp.curate.measures import corpus_columns, take_columns
from raycomp.curate.rules import find_rule
from raycomp.curate.scored import ScoresFile
from raycomp.curate.select import Gates, judge_table
from raycomp.run.run import command_line
from raycomp.run.tasks import add_counts, map_files
from raycomp.words import KEPT, PHRASES


def check_pool(files: list[ScoresFile], config: CurateConfig, scored: CurateConfig, out: str) -> None:
    """Raise ValueError if rows past the first gate were never attributed.

    ``scored``: the config of the curation. Its pool can be too small where other rows are dropped before the
    shares are counted, and where DataComp's rule keeps ties. ``out``: the folder of the selection; a command
    in the error names a folder next to it.
    """
    compat = config.select.datacomp_compat and not scored.select.datacomp_compat
    if not find_rule(config.select.rule).attribute_by:
        return
    if not (has_markers(config) or has_markers(scored) or (compat and scored.pool < 1)):
        return
    pool = find_pool_selection(config.align.keep, config.select.datacomp_compat)
    gates = cut_pool(files, pool)
    missing = sum(
        map_files(_count_unattributed, files, pool, Gates.from_dict(gates["gates"]), fold=add_counts)
    )
    if not missing:
        return
    if compat and not has_markers(config):
        attributed = exact_share(scored.pool, gates["gates"]["num_corpus"])
        raise ValueError(
            f"select.datacomp_compat=true: gate 1 keeps {sum(gates['sizes']):,} pairs with their ties, of "
            f"which {attributed:,} were attributed; curate with it, or with a larger attribute.pool"
        )
    command = command_line("raycomp curate", changed_options(config), f"{out}-curated")
    raise ValueError(
        f"filter: {missing:,} rows past gate 1 were never attributed, because rows before them are dropped; "
        f"score them: {command}"
    )


def _count_unattributed(file: ScoresFile, pool: SelectionRule, gates: Gates) -> int:
    """Return how many rows of the pool have no phrases, not even an empty list."""
    table = file.read([*corpus_columns(pool, with_attribute=False), PHRASES])
    reason_N, _ = judge_table(take_columns(table, pool, with_attribute=False), pool, gates)
    in_pool = table.filter(pa.array(np.equal(reason_N, KEPT).astype(bool)))
    return int(in_pool[PHRASES].null_count)
