"""What raycomp defers is there when it is used, with the same bits, and is not imported before.

Only the processes that raycomp starts defer anything.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from raycomp.config.commands import FOLDERS, import_command

TINY = {
    "embed_dim": 8,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 64, "head_width": 32, "patch_size": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 2},
}
EMBED = """
import numpy as np
from raycomp.config import ScorerConfig
from raycomp.models.clip import Clip
clip = Clip(ScorerConfig(model="tiny.json", weights="random:0"), num_threads=1)
pixels = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3)).astype(np.uint8)
tokens = np.arange(2 * 77).reshape(2, 77).astype(np.int32)
tokens[:, 0], tokens[:, 9], tokens[:, 10:] = 49406, 49407, 0
print(clip.embed_pixels(pixels).numpy().tobytes().hex(), clip.text.embed(tokens)[0].numpy().tobytes().hex())
"""
INSTALL = "from raycomp.models import deferred; deferred.install()"
SLOW = "import sys; print(sorted({'torch', 'torch._dynamo', 'transformers', 'timm'} & set(sys.modules)))"


def run(lines: str, folder: Path) -> str:
    done = subprocess.run([sys.executable, "-c", lines], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def run_deferring(lines: str, folder: Path) -> str:
    """Run lines, of any indent, in a process that defers imports as a command does."""
    return run("\n".join([INSTALL, *(line.strip() for line in lines.splitlines())]), folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("deferred")
    (folder / "tiny.json").write_text(json.dumps(TINY))
    roberta = {"model_type": "roberta", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes = {"intermediate_size": 16, "vocab_size": 64, "max_position_embeddings": 40, "pad_token_id": 1}
    (folder / "roberta").mkdir()
    (folder / "roberta/config.json").write_text(json.dumps({**roberta, **sizes}))
    return folder


def test_a_scorer_loads_only_torch(folder):
    assert run(f"{INSTALL}\n{EMBED}\n{SLOW}", folder).splitlines()[1] == "['torch']"


@pytest.mark.slow
def test_a_scorer_has_the_same_bits(folder):
    assert run(EMBED, folder) == run(f"{INSTALL}\n{EMBED}", folder)


@pytest.mark.slow
def test_training_uses_torch_dynamo(folder):
    lines = """
    import os, open_clip, sys, torch
    assert "torch._dynamo" not in sys.modules
    model = torch.nn.Linear(2, 1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters())
    before = model.weight.clone()
    ddp(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert not torch.equal(before, model.weight)
    compiled = torch.compile(lambda x: x.sin() + 1, backend="eager")
    assert torch.equal(compiled(torch.ones(3)), torch.ones(3).sin() + 1)
    from torchvision.ops.roi_align import roi_align
    print(roi_align(torch.ones(1, 1, 4, 4), [torch.tensor([[0.0, 0, 2, 2]])], 1).item())
    import torch._dynamo
    assert sys.modules["torch._dynamo"] is torch._dynamo and torch._dynamo.__file__
    """
    assert run_deferring(lines, folder) == "1.0"


@pytest.mark.slow
def test_towers_of_transformers_and_timm_are_built(folder):
    lines = """
    import open_clip, sys, torch
    from open_clip.hf_model import HFTextEncoder
    from open_clip.timm_model import TimmModel
    assert not {"transformers", "timm"} & set(sys.modules)
    text = HFTextEncoder("roberta", 8, pooler_type="mean_pooler", proj_type="linear", pretrained=False)
    image = TimmModel("resnet10t", embed_dim=8, image_size=32)
    assert {"transformers", "timm"} <= set(sys.modules)
    import transformers
    assert isinstance(text.config, transformers.PretrainedConfig)
    print(*text(torch.arange(2, 10)[None]).shape, *image(torch.zeros(2, 3, 32, 32)).shape)
    """
    assert run_deferring(lines, folder) == "1 8 2 8"


def test_the_packaged_parser_does_without_torch_and_others_have_it(folder):
    lines = """
    import sys
    from raycomp.models.parser import load_parser
    print(len(load_parser().parse(["A dog runs on the grass."])[0]), "torch" in sys.modules)
    from thinc.api import PyTorchWrapper
    from thinc.compat import has_torch
    import numpy, torch
    wrapped = PyTorchWrapper(torch.nn.Linear(2, 1)).initialize()
    print(has_torch, wrapped.predict(numpy.ones((1, 2), "f")).shape)
    """
    reported = run_deferring(lines, folder).splitlines()
    assert reported == ["2 False", "True (1, 1)"]


STATE = """
import builtins, gc, logging, signal, sys, threading, warnings
def state():
    loggers = {name: (one.level, [*one.handlers]) for name, one in logging.root.manager.loggerDict.items()
               if isinstance(one, logging.Logger)}
    return {
        "finders": [*sys.meta_path], "path hooks": [*sys.path_hooks], "names": {**vars(builtins)},
        "gc": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), *gc.callbacks),
        "signals": [signal.getsignal(number) for number in signal.valid_signals()],
        "warnings": [*warnings.filters], "logs": (logging.root.level, [*logging.root.handlers]),
        "hooks": (sys.excepthook, sys.displayhook, sys.gettrace(), threading.excepthook),
        "threads": threading.active_count(),
    }, loggers
before, known = state()
"""
SAME = """
after, found = state()
assert before == after, {name for name in before if before[name] != after[name]}
assert all(one == known.get(name, one) for name, one in found.items())
assert not any(handlers for name, (level, handlers) in found.items() if name not in known)
"""


COMMANDS = sorted({import_command(name).function.partition(":")[0] for name in FOLDERS})


def test_an_import_of_raycomp_changes_nothing_in_a_session(folder):
    """With its commands, too: PyArrow has a logger, fsspec warns, which is theirs."""
    modules = ["raycomp", "raycomp.cli", "raycomp.run.local", *COMMANDS]
    libraries = "import numpy, pyarrow, pyarrow.parquet, fsspec"
    run("\n".join([libraries, STATE, *(f"import {module}" for module in modules), SAME]), folder)


def test_a_command_defers_imports(folder):
    lines = """
    import sys
    from raycomp.models.deferred import _Finder
    from raycomp.cli import main
    assert not any(isinstance(finder, _Finder) for finder in sys.meta_path)
    assert main(["show", "nowhere"]) == 2 == main(["show", "nowhere"])
    print(sum(isinstance(finder, _Finder) for finder in sys.meta_path))
    """
    assert run("\n".join(line.strip() for line in lines.splitlines()), folder) == "1"
