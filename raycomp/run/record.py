"""The times in run.json: the duration of each phase and how busy its stages were."""

from typing import Any

from raycomp.run.parts import Stats
from raycomp.run.progress import GPUS, name_bottleneck
from raycomp.run.stage import GPU_KIND, SCORERS


def describe_phases(stats: dict[str, Stats]) -> list[dict[str, Any]]:
    """Return the wall time, the busy share of scorers (and their GPUs) and the bottleneck of every phase.

    Shares are of the wall time, 0 to 1; ``waves.py`` defines it after a restart. ``growth``, on an elastic
    cluster: [second of the wall time, scorers, CPUs] at every change. ``gpu_rows``, where a run may have
    GPUs of several kinds: the rows that each kind computed.
    """
    phases = []
    for name, part in stats.items():
        shares = part.busy_shares()
        on_scorers, on_gpus = (
            [share for stage, share in shares.items() if part.worker_pools[stage].where == where]
            for where in (SCORERS, GPUS)
        )
        phases.append(
            {
                "phase": name,
                "rows": part.statuses.total(),
                "wall_s": part.wall_s,
                "commit_s": part.commit_s,
                "commit_share": part.commit_s / part.wall_s if part.wall_s else 0.0,
                **({"scorer_busy_share": min(1.0, sum(on_scorers))} if on_scorers else {}),
                **({"gpu_busy_share": sum(on_gpus)} if on_gpus else {}),
                **({"gpu_rows": dict(part.counts[GPU_KIND])} if GPU_KIND in part.counts else {}),
                **({"growth": [list(step) for step in part.growth]} if part.growth else {}),
                "bottleneck": name_bottleneck(shares, part.worker_pools),
            }
        )
    return phases


def describe_stages(stats: dict[str, Stats]) -> list[dict[str, Any]]:
    """Return rows, busy seconds (of all workers), maximum workers and busy share of every stage.

    ``rows_per_s`` is the throughput of one worker while it is busy. After a restart with other workers,
    ``busy_share`` uses each attempt's workers, ``workers`` the last one's.
    """
    rows = []
    for phase, part in stats.items():
        shares, num_rows = part.busy_shares(), part.statuses.total()
        for stage, place in part.worker_pools.items():
            if stage not in shares or place.where == GPUS:
                continue
            seconds = part.seconds[stage]
            rows.append(
                {
                    "phase": phase,
                    "stage": stage,
                    "rows": num_rows,
                    "seconds": seconds,
                    "workers": place.workers,
                    "busy_share": shares[stage],
                    "rows_per_s": num_rows / seconds if seconds else None,
                    "says": place.says,
                }
            )
    return rows
