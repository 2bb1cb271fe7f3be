"""A scorer's fingerprint, without loading it, and its description, from an earlier run if possible.

A description requires building the whole model. It is kept as a small file below ``RAYCOMP_CACHE`` (by
default ``~/.cache/raycomp``), under a key of everything that it depends on. Without that file, or where it is
damaged or the folder cannot be written, the model is built. This module imports neither torch nor open_clip.
"""

import hashlib
import json
import os
import tempfile
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from raycomp.models.architecture import (
    HUB_CONFIG,
    ClipConfig,
    ScorerSpec,
    list_config_files,
    read_preprocessing,
)
from raycomp.models.images import ImageSpec
from raycomp.models.nonces import read_config
from raycomp.models.parser import fingerprint_folder

# Increase it when ScorerSpec, or how it is measured, changes.
_FORMAT = 1
# Fields of a tower's config that name files of another library, which the fingerprint does not cover.
_FOREIGN = {"timm_model_name", "hf_model_name", "hf_tokenizer_name", "tokenizer_kwargs"}


def describe_scorer(config: ClipConfig) -> ScorerSpec:
    """Check that the model and its weights are available, and describe it; from the cache if it is known.

    Raises ValueError with a user message: unknown model, unknown tag, weights that are missing, cannot be
    downloaded, or embed a text as zeros or NaN.
    """
    key = _make_key(config)
    spec = key and _read(key)
    if spec:
        return spec
    from raycomp.models.clip import measure_scorer

    spec = measure_scorer(config)
    if key:
        _write(key, spec)
    return spec


def fingerprint_scorer(config: ClipConfig) -> str:
    """Return an id that distinguishes scorers, without loading one.

    SHA-256 of a user's file or folder, name and revision of a hub's model, name of a tag or seed; then what
    else the last bits depend on, where it is not the default: size of a pass, kernels, widths of texts.
    """
    parts = []
    for value in (config.model, config.weights):
        schema, _, place = value.partition(":")
        path = Path(value)
        if path.is_file():
            digest = _hash(path)
            companions = read_preprocessing(value) if path.suffix == ".json" else None
            parts.append(f"{digest}+{json.dumps(companions, sort_keys=True)}" if companions else digest)
        elif schema == "local-dir":
            parts.append(fingerprint_folder(Path(place)))
        elif schema == "hf-hub":
            from huggingface_hub import try_to_load_from_cache

            cached = try_to_load_from_cache(place, HUB_CONFIG)
            revision = Path(cached).parent.name if isinstance(cached, str) else "unknown revision"
            parts.append(f"{value}@{revision}")
        else:
            parts.append(value)
    if config.pass_size is not None:
        parts.append(f"pass_size={config.pass_size}")
    if config.compile:
        parts.append("compile=" + " ".join(f"{name}-{_read_version(name)}" for name in ("torch", "triton")))
    if config.graph:
        parts.append("graph")
    if config.attention:
        parts.append(f"attention={config.attention}")
    if config.text_widths:
        parts.append("text_widths=" + ",".join(map(str, config.text_widths)))
    return ":".join(parts)


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _make_key(config: ClipConfig) -> str | None:
    """Return a SHA-256 of everything that the description depends on; None where that is unknown."""
    weights = Path(config.weights)
    # The fingerprint covers weights of a seed, of the model's folder, or of a file; a tag has no suffix.
    is_known = config.model.startswith("local-dir:") or config.weights.startswith("random:")
    try:
        if not (is_known or (weights.suffix and weights.is_file())) or not _has_known_model(config.model):
            return None
        companions = [*list_config_files(config.weights), str(Path(config.model).with_name(HUB_CONFIG))]
        found = {
            "format": _FORMAT,
            "fingerprint": fingerprint_scorer(config),
            "model": Path(config.model).name,
            "precision": config.precision,
            "companions": [_hash(Path(path)) if Path(path).is_file() else None for path in companions],
            "versions": [version(name) for name in ("open_clip_torch", "torch")],
        }
    except (ValueError, OSError, RecursionError):
        return None  # building the model reports it
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def _has_known_model(name: str) -> bool:
    """Whether the fingerprint covers the model's config: a file's, a folder's, one that open_clip ships."""
    if name.startswith("local-dir:"):  # a folder without a model may have any content, so it is not hashed
        return Path(name.removeprefix("local-dir:"), HUB_CONFIG).is_file()
    config = read_config(name)
    towers = [config.get(part) for part in ("vision_cfg", "text_cfg")] if isinstance(config, dict) else []
    return len(towers) == 2 and all(isinstance(one, dict) and not _FOREIGN & {*one} for one in towers)


def _place(key: str) -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(os.environ.get("RAYCOMP_CACHE") or Path(home, "raycomp"), "scorers", f"{key}.json")


def _read(key: str) -> ScorerSpec | None:
    """Return the cache entry of a key; None where it is missing or not as it was written."""
    try:
        found = json.loads(_place(key).read_text())
        if found["sha256"] != _digest(key, found["spec"]):
            return None
        fields = found["spec"]["image"].items()
        image: dict[str, Any] = {name: tuple(x) if isinstance(x, list) else x for name, x in fields}
        return ScorerSpec(**found["spec"] | {"image": ImageSpec(**image)})
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None


def _write(key: str, spec: ScorerSpec) -> None:
    """Store a description under a key, whole or not at all; do nothing where the folder cannot be written."""
    content = {"sha256": _digest(key, asdict(spec)), "spec": asdict(spec)}
    path = _place(key)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        try:
            with open(number, "w") as file:
                json.dump(content, file)
            os.replace(name, path)
        except OSError:
            os.unlink(name)


def _digest(key: str, spec: dict[str, Any]) -> str:
    return hashlib.sha256(f"{key} {json.dumps(spec, sort_keys=True)}".encode()).hexdigest()
