"""Whether the rows that a selection ranks by PAS were attributed when they were scored."""

from raycomp.config import exact_share
from raycomp.curation.choose import count_pool, cut_pool
from raycomp.curation.config import CurateConfig, find_pool_selection, update_line
from raycomp.curation.marks import has_markers
from raycomp.curation.rules import find_rule
from raycomp.curation.scored import ScoresFile
from raycomp.curation.select import Gates
from raycomp.run.tasks import add_counts, map_files


def check_pool(files: list[ScoresFile], config: CurateConfig, scored: CurateConfig, source: str) -> None:
    """Raise ValueError if rows past the first gate were never attributed.

    ``scored``: the config of the curation. Its pool can be too small where other rows are dropped before the
    shares are counted, and where DataComp's rule keeps ties. ``source``: the curation's
    folder; the error names the update of it that attributes them.
    """
    compat = config.select.datacomp_compat and not scored.select.datacomp_compat
    if not find_rule(config.select.rule).attribute_by:
        return
    if not (has_markers(config) or has_markers(scored) or (compat and scored.pool < 1)):
        return
    pool = find_pool_selection(config.align.keep, config.select.datacomp_compat)
    gates = cut_pool(files, pool)
    missing = sum(gates["sizes"])
    if not missing:
        return
    if compat and not has_markers(config):
        attributed = exact_share(scored.pool, gates["gates"]["num_corpus"])
        passing = sum(map_files(count_pool, files, pool, Gates.from_dict(gates["gates"]), fold=add_counts))
        said = f"select.datacomp_compat=true: gate 1 keeps {passing:,} pairs with their ties, {attributed:,}"
        raise ValueError(f"{said} were attributed; attribute all: {update_line(source, 'attribute.pool', 1)}")
    raise ValueError(
        f"filter: {missing:,} rows past gate 1 were never attributed, because rows before them are dropped; "
        f"attribute them: {update_line(source, 'attribute.pool', 1)}"
    )
