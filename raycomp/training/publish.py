"""A trained model in the layout of open_clip's ``save_for_hf``, ready for a model hub."""

import posixpath
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from raycomp.config import DryRun, ModelConfig
from raycomp.data.files import check_writable, is_dry_run
from raycomp.data.folder import Folder
from raycomp.data.manifest import check_results, read_result
from raycomp.data.paths import ARCHITECTURE, CHECKPOINT, RUN, WEIGHTS
from raycomp.data.runs import read_finished
from raycomp.data.written import ResultFile
from raycomp.models.architecture import HUB_CONFIG

# The files of a model and its tokenizer.
_PUBLISHED = (".safetensors", ".json", ".jsonl", ".txt", ".model", ".jinja")
PUBLISHED_WEIGHTS = "open_clip_model.safetensors"


def publish(source: str, out: str, say: Callable[[str], object] = print) -> None:
    """Write the model of the training in ``source`` to ``out``, after loading it as a test.

    ``open_clip.create_model_and_transforms("local-dir:OUT")`` loads it; uploaded as it is, ``hf-hub:`` does.
    Only files that the training wrote are copied, and of these no pickle. Raises ValueError where ``source``
    holds no finished training, its model has changed, or ``out`` is not empty or cannot be written.
    """
    found, folder = Folder(source), Folder(out)
    files = _list_files(found)
    check_writable(out)
    if folder.list_names():
        raise ValueError(f"--out {out}: holds other files; name a folder that is empty or new")
    if is_dry_run():
        raise DryRun(
            f"dry run of publish: all checks passed, nothing was written; {len(files)} files would be"
        )
    from raycomp.models.clip import load_start, load_tokenizer  # behind all checks

    with TemporaryDirectory() as local:
        for name, file in files.items():
            (Path(local) / name).write_bytes(read_result(file))
        try:
            published = ModelConfig(name=f"local-dir:{local}")
            load_start(published)
            load_tokenizer(published)
        except ValueError as error:
            raise ValueError(f"{found.at(CHECKPOINT)}: the model is incomplete ({error})") from error
        for name in files:
            folder.write_bytes((Path(local) / name).read_bytes(), name)
    say(f'{out}: load it with open_clip.create_model_and_transforms("local-dir:{out}")')


def _list_files(source: Folder) -> dict[str, ResultFile]:
    """Return the files that are published by their new names, the one that describes the model last."""
    above, name = posixpath.split(source.uri.rstrip("/"))
    if name == CHECKPOINT and Folder(above).exists(RUN):
        raise ValueError(f"{source.uri}: is part of a training; name the training's folder, {above}")
    run = read_finished(source.uri)
    if run["kind"] != "train":
        raise ValueError(f"{source.uri}: holds {run['kind']}, must hold a training")
    written = {posixpath.basename(file): file for file in check_results(source, run, CHECKPOINT).values()}
    folders = Folder(source.at(CHECKPOINT)).list_folders()
    if folders:
        raise ValueError(
            f"{source.at(CHECKPOINT, folders[0])}: is a folder; a model has files only; move it out"
        )
    if ARCHITECTURE not in written or WEIGHTS not in written:
        raise ValueError(
            f"{source.at(CHECKPOINT)}: the model is incomplete: {ARCHITECTURE} or {WEIGHTS} is missing"
        )
    names = [name for name in written if name != ARCHITECTURE and name.endswith(_PUBLISHED)]
    names.sort(key=lambda name: name == HUB_CONFIG)
    return {PUBLISHED_WEIGHTS if name == WEIGHTS else name: written[name] for name in names}
