"""What raycomp defers is there when it is used, with the same bits, and is not imported before.

Only the processes that raycomp starts defer anything.
"""

import json
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from raycomp.config.commands import FOLDERS, import_command

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
STEP = """
import torch
model = torch.nn.Linear(2, 1)
model(torch.ones(1, 2)).sum().backward()
torch.optim.AdamW(model.parameters()).step()
"""
INSTALL = "from raycomp.models import deferred; deferred.install()"
SLOW = "import sys; print(sorted({'torch', 'torch._dynamo', 'transformers', 'timm'} & set(sys.modules)))"


def run(lines: str, folder: Path) -> str:
    """Run lines, of any indent but in functions, in a process of their own."""
    lines = textwrap.dedent(lines)
    done = subprocess.run([sys.executable, "-c", lines], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def folder(tiny_scorer, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("deferred")
    shutil.copy(tiny_scorer.model, folder / "tiny.json")
    roberta = {"model_type": "roberta", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes = {"intermediate_size": 16, "vocab_size": 64, "max_position_embeddings": 40, "pad_token_id": 1}
    (folder / "roberta").mkdir()
    (folder / "roberta/config.json").write_text(json.dumps({**roberta, **sizes}))
    return folder


def test_a_scorer_and_a_step_load_only_torch(folder):
    assert run(f"{INSTALL}\n{EMBED}\n{STEP}\n{SLOW}", folder).splitlines()[1] == "['torch']"


@pytest.mark.slow
def test_scorers_training_and_towers_of_other_libraries_have_the_same_bits(folder):
    uses = """
    import os, open_clip, torch
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters())
    ddp(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    compiled = torch.compile(lambda x: x.sin() + 1, backend="eager")
    print(model.weight.tolist(), compiled(torch.ones(3)).tolist())
    from open_clip.hf_model import HFTextEncoder
    from open_clip.timm_model import TimmModel
    text = HFTextEncoder("roberta", 8, pooler_type="mean_pooler", proj_type="linear", pretrained=False)
    image = TimmModel("resnet10t", embed_dim=8, image_size=32)
    print(text.eval()(torch.arange(2, 10)[None]).tolist(), *image(torch.zeros(2, 3, 32, 32)).shape)
    """
    lines = EMBED + textwrap.dedent(uses)
    assert run(lines, folder) == run(f"{INSTALL}\n{lines}", folder)


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
    reported = run(f"{INSTALL}\n{textwrap.dedent(lines)}", folder).splitlines()
    assert reported == ["2 False", "True (1, 1)"]


STATE = """
import builtins, gc, logging, signal, sys, threading, warnings
def state():
    return {
        "finders": [*sys.meta_path], "path hooks": [*sys.path_hooks], "names": {**vars(builtins)},
        "gc": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), *gc.callbacks),
        "signals": [signal.getsignal(number) for number in signal.valid_signals()],
        "warnings": [*warnings.filters], "logs": (logging.root.level, [*logging.root.handlers]),
        "hooks": (sys.excepthook, sys.displayhook, sys.gettrace(), threading.excepthook),
        "threads": threading.active_count(),
    }
before = state()
"""


SAME = """
after = state()
assert before == after, {name for name in before if before[name] != after[name]}
from raycomp.models.deferred import _Finder
from raycomp.cli import main
assert main(["show", "nowhere"]) == 2 == main(["show", "nowhere"])
print(sum(isinstance(finder, _Finder) for finder in sys.meta_path))
"""


def test_an_import_of_raycomp_changes_nothing_in_a_session_and_a_command_defers_imports(folder):
    """With its commands, too: PyArrow has a logger, fsspec warns, which is theirs."""
    modules = ["raycomp", "raycomp.cli", "raycomp.run.local", *COMMANDS]
    libraries = "import numpy, pyarrow, pyarrow.parquet, fsspec"
    lines = [libraries, STATE, *(f"import {module}" for module in modules), SAME]
    assert run("\n".join(lines), folder) == "1"


COMMANDS = sorted({import_command(name).function.partition(":")[0] for name in FOLDERS})
