"""A trained model in the layout of open_clip's ``save_for_hf``, ready for a model hub."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from raycomp.config import ModelConfig
from raycomp.models.architecture import HUB_CONFIG
from raycomp.models.clip import load_start, load_tokenizer
from raycomp.shards.folder import Folder
from raycomp.shards.paths import ARCHITECTURE, CHECKPOINT, WEIGHTS

PUBLISHED_WEIGHTS = "open_clip_model.safetensors"


def publish(source: str, out: str, say: Callable[[str], object] = print) -> None:
    """Lay the model that a training left in ``source`` out in ``out``, once it has been loaded from there.

    ``open_clip.create_model_and_transforms("local-dir:OUT")`` loads it; uploaded as it is, ``hf-hub:`` does.
    Weights are safetensors alone, no pickle. Raises ValueError where there is no model, or ``out`` holds
    something.
    """
    found, folder = Folder(source), Folder(out)
    if not found.exists(CHECKPOINT, ARCHITECTURE):
        where = f"{CHECKPOINT}/{ARCHITECTURE}"
        raise ValueError(f"{source}: holds no {where}; name a folder in which raycomp train has ended")
    if folder.list_names():
        raise ValueError(f"--out {out}: holds other files; name a folder that is empty or new")
    names = [name for name in found.list_names(CHECKPOINT) if name != ARCHITECTURE and name[0] != "."]
    # What tells of the model comes last.
    names.sort(key=lambda name: name == HUB_CONFIG)
    with TemporaryDirectory() as local:
        for name in names:
            content = found.read_bytes(CHECKPOINT, name)
            (Path(local) / (PUBLISHED_WEIGHTS if name == WEIGHTS else name)).write_bytes(content)
        try:
            published = ModelConfig(name=f"local-dir:{local}")
            load_start(published, "clip")
            load_tokenizer(published)
        except ValueError as error:
            raise ValueError(f"{found.at(CHECKPOINT)}: no whole model ({error})") from error
        for name in names:
            name = PUBLISHED_WEIGHTS if name == WEIGHTS else name
            folder.write_bytes((Path(local) / name).read_bytes(), name)
    say(f'{out}: load it with open_clip.create_model_and_transforms("local-dir:{out}")')
