"""run.json: what a run was, what came of every row, how long each stage took."""

import json
import os
import platform
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import numpy as np

from raycomp.cluster.curate.choose import Choice
from raycomp.cluster.lease import LEASE
from raycomp.cluster.progress import DEVICE, ON_SCORERS, name_bottleneck
from raycomp.cluster.waves import Stats
from raycomp.config import CurateConfig, NegativesConfig, to_dict
from raycomp.core.metrics import auc
from raycomp.loops.curate.select import describe_shortage
from raycomp.report.pages.negatives import Tally
from raycomp.shards.folder import Folder
from raycomp.shards.paths import RUN
from raycomp.shards.runs import bound_dials, read_run
from raycomp.words import KEPT, NO_PHRASE, NO_SEEN_PHRASE, OK

PACKAGES = ("raycomp", "ray", "torch", "open_clip_torch", "spacy", "pyarrow", "numpy")


def now() -> str:
    """Return the time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def describe_run(
    kind: str, config: CurateConfig | NegativesConfig, fingerprint: dict[str, Any], commands: dict[str, str]
) -> dict[str, Any]:
    """Return what is known of a run before it begins."""
    return {
        "kind": kind,
        "status": "running",
        "commands": commands,
        "started": now(),
        "config": to_dict(config),
        "fingerprint": fingerprint,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
        "machine": {
            "system": platform.platform(),
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
        },
    }


def find_run(folder: Folder) -> dict[str, Any] | None:
    """Return the folder's run.json, None where it is empty.

    Raises ValueError where the folder holds something else.
    """
    try:
        run = read_run(folder)
        names = [name for name in folder.list_names() if name != LEASE]
    except OSError as error:
        line = " ".join(str(error).split())
        raise ValueError(f"out={folder.uri!r}: cannot be read: {line}") from error
    if names and run is None:
        raise ValueError(f"out={folder.uri!r}: holds files but no {RUN}; name an empty or new folder")
    return run


def refuse_other(previous: dict[str, Any], run: dict[str, Any], folder: Folder) -> None:
    """Raise ValueError naming what differs if the folder holds the results of another run."""
    names = []
    # A finished run is only looked at; one that goes on must go on with what it was begun with.
    versions = {} if previous["status"] == "finished" else previous["versions"]
    for read in (
        lambda r: {"kind": r["kind"]},
        lambda r: r["fingerprint"],
        lambda r: bound_dials(r["config"]),
        lambda r: {name: r["versions"].get(name) for name in versions},
    ):
        a, b = read(previous), read(json.loads(json.dumps(run)))
        names += [name for name in {**a, **b} if a.get(name) != b.get(name)]
    if names:
        raise ValueError(
            f"out={folder.uri!r}: holds a run that differs in {', '.join(names)}; name another folder"
        )


def bind_device(folder: Folder, run: dict[str, Any], device: str) -> dict[str, Any]:
    """Return ``run`` with the device it scores on, cpu or gpu, and write it down.

    Raises ValueError where the run was begun on the other.
    """
    begun = folder.read_json(RUN).get("device", device)
    if begun != device:
        raise ValueError(
            f"out={folder.uri!r}: was begun on a {begun} and would go on on a {device}, where scores end in "
            f"other bits; set cluster.gpu={'true' if begun == 'gpu' else 'false'} or name another folder"
        )
    run = {**run, "device": device}
    folder.write_json(run, RUN)
    return run


def command_line(start: str, settings: Mapping[str, Any], out: str) -> str:
    """Return the command that sets these dials."""
    sets = (f"{path}={_as_setting(value)}" for path, value in settings.items())
    return " ".join([start, *(f"--set {shlex.quote(text)}" for text in sets), "--out", shlex.quote(out)])


def _as_setting(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def close_run(
    run: dict[str, Any],
    config: CurateConfig,
    choice: Choice,
    stats: dict[str, Stats],
    workers: dict[str, int],
) -> dict[str, Any]:
    """Return run.json's content for a finished run.

    Raises RuntimeError unless read = kept + dropped, reason by reason.
    """
    read = sum(choice.reasons.values())
    if "align" in stats and read != sum(stats["align"].statuses.values()):
        raise RuntimeError(
            f"the funnel does not close: {stats['align'].statuses.total()} read, {read} judged"
        )
    dropped = {reason: count for reason, count in sorted(choice.reasons.items()) if reason != KEPT}
    if read != choice.num_kept + sum(dropped.values()):
        raise RuntimeError(
            f"the funnel does not close: {read} read, {choice.num_kept} kept, {dropped} dropped"
        )
    return {
        **run,
        "status": "finished",
        "finished": now(),
        "funnel": {
            "read": read,
            "corpus": choice.gates.num_corpus,
            "kept": choice.num_kept,
            "dropped": dropped,
        },
        "gates": choice.gates.to_dict(),
        "warnings": describe_shortage(config, choice.gates),
        **({"phases": describe_phases(stats), "stages": describe_stages(stats, workers)} if stats else {}),
        **({"coverage": describe_coverage(stats["attribute"])} if "attribute" in stats else {}),
        **({"scorer_check": check_scorer(stats["align"])} if "align" in stats else {}),
    }


def close_negatives(
    run: dict[str, Any], stats: dict[str, Stats], workers: dict[str, int], tally: Tally
) -> dict[str, Any]:
    """Return run.json's content for finished negatives. Raises RuntimeError unless the funnel adds up."""
    statuses = stats["negatives"].statuses
    if statuses != tally.statuses:
        raise RuntimeError(
            f"the funnel does not close: {dict(statuses)} written, {dict(tally.statuses)} found"
        )
    read = statuses.total()
    return {
        **run,
        "status": "finished",
        "finished": now(),
        "funnel": {
            "read": read,
            "corpus": read,
            "kept": statuses[OK],
            "dropped": {status: count for status, count in sorted(statuses.items()) if status != OK},
        },
        "written": tally.negatives.total(),
        "negatives": dict(sorted(tally.negatives.items())),
        "captions_with": dict(sorted(tally.captions.items())),
        "rejected": dict(stats["negatives"].faults.most_common()),
        "warnings": [],
        "phases": describe_phases(stats),
        "stages": describe_stages(stats, workers),
    }


def describe_phases(stats: dict[str, Stats]) -> list[dict[str, Any]]:
    """Return the wall time of every phase, how busy its scorers (and their GPUs) were, what held it up.

    Shares are of the wall time, 0 to 1; ``waves.py`` says what that is after a restart.
    """
    phases = []
    for name, part in stats.items():
        shares = part.busy_shares()
        on_scorers = [shares[stage] for stage in ON_SCORERS if stage in shares]
        phases.append(
            {
                "phase": name,
                "rows": part.statuses.total(),
                "wall_s": part.wall_s,
                "commit_s": part.commit_s,
                "commit_share": part.commit_s / part.wall_s if part.wall_s else 0.0,
                **({"scorer_busy_share": min(1.0, sum(on_scorers))} if on_scorers else {}),
                **({"gpu_busy_share": shares[DEVICE]} if DEVICE in shares else {}),
                "bottleneck": name_bottleneck(shares),
            }
        )
    return phases


def describe_stages(stats: dict[str, Stats], workers: dict[str, int]) -> list[dict[str, Any]]:
    """Return rows, busy seconds (of all workers), workers at most and busy share of every stage.

    ``rows_per_s`` is what one worker does while it is busy. After a restart with other workers,
    ``busy_share`` is of what each try had, ``workers`` the last one's.
    """
    rows = []
    for phase, part in stats.items():
        shares, num_rows = part.busy_shares(), part.statuses.total()
        for stage in sorted(shares.keys() - {DEVICE}, key=list(workers).index):
            seconds = part.seconds[stage]
            rows.append(
                {
                    "phase": phase,
                    "stage": stage,
                    "rows": num_rows,
                    "seconds": seconds,
                    "workers": workers[stage],
                    "busy_share": shares[stage],
                    "rows_per_s": num_rows / seconds if seconds else None,
                }
            )
    return rows


def describe_coverage(stats: Stats) -> dict[str, Any]:
    """Return how many captions of the pool got a valid counterfactual, and why phrases did not.

    ``of_captions`` compares with the paper's 99.79 %.
    """
    captions, covered = stats.statuses.total(), stats.statuses[OK] + stats.statuses[NO_SEEN_PHRASE]
    with_phrase = captions - stats.statuses[NO_PHRASE]
    return {
        "captions": captions,
        "with_phrase": with_phrase,
        "with_nonce": covered,
        "of_captions": covered / captions if captions else None,
        "of_captions_with_phrase": covered / with_phrase if with_phrase else None,
        "phrases_without_nonce": dict(stats.faults),
    }


def check_scorer(stats: Stats) -> dict[str, Any] | None:
    """Return how well alignments tell a sample of pairs from the same images with other captions."""
    if not stats.matched:
        return None
    matched, shuffled = np.array(stats.matched), np.array(stats.shuffled)
    return {
        "n": len(matched),
        "matched_mean": float(matched.mean()),
        "shuffled_mean": float(shuffled.mean()),
        "auc": float(auc(matched, shuffled)),
    }
