"""Models of a corpus that a run of negatives takes from an earlier one, instead of counting anew.

These are the counts of the n-gram judge, of contexts and of photos, and what the refinement fitted. With them
the negatives of a caption depend on its own inputs alone. They are copied, so that a run is complete.
"""

from typing import Any

from raycomp.data.files import copy_file
from raycomp.data.folder import Folder
from raycomp.data.manifest import check_results
from raycomp.data.runs import digest, read_finished
from raycomp.negatives.config import WritingConfig
from raycomp.negatives.judges import NGRAMS

NGRAMS_FILE, PHOTOS_FILE, CONTEXT_FILE = "judges/ngrams.parquet", "judges/photos.parquet", "context.parquet"
TILTING_FILE, THRESHOLDS_FILE = "judges/tilting.parquet", "judges/thresholds.json"


def list_models(config: WritingConfig) -> list[str]:
    """Return the files of the corpus that a run with these options counts or fits."""
    wanted = {
        NGRAMS_FILE: NGRAMS in config.judge,
        PHOTOS_FILE: config.screen > 0,
        CONTEXT_FILE: config.context or config.screen > 0,
        TILTING_FILE: config.refine != "none",
        THRESHOLDS_FILE: config.refine == "balance",
    }
    return [name for name, is_wanted in wanted.items() if is_wanted]


def is_by_row(config: WritingConfig) -> bool:
    """Whether the negatives of a caption depend on its own inputs alone, and no comparison is exported."""
    return (config.frozen is not None or not list_models(config)) and "calls" not in config.export


def find_models(config: WritingConfig) -> dict[str, Any]:
    """Return the files of ``negatives.frozen`` by name; empty without it.

    Raises ValueError where the folder holds no finished run of negatives, or one of other options.
    """
    if config.frozen is None:
        return {}
    run = read_finished(config.frozen)
    files = check_results(Folder(config.frozen), run) if run["kind"] == "negatives" else {}
    lacking = [name for name in list_models(config) if name not in files]
    if run["kind"] != "negatives" or lacking:
        what = f"has no {', '.join(lacking)}" if lacking else f"holds {run['kind']}"
        raise ValueError(
            f"negatives.frozen={config.frozen!r}: {what}; name a run of negatives with the same options"
        )
    return {name: files[name] for name in list_models(config)}


def fingerprint_frozen(config: WritingConfig) -> dict[str, str]:
    """Return a digest of the models that are taken."""
    models = find_models(config)
    return {"frozen": digest({name: file.sha256 for name, file in models.items()})} if models else {}


def take_models(config: WritingConfig, out: Folder) -> None:
    """Copy the models of ``negatives.frozen`` into the run."""
    for name, file in find_models(config).items():
        copy_file(file, out.at(*name.split("/")))
