"""Tokens per second through ``ask`` (ray.data.llm) against bare vLLM, same model, prompts and sampling.

    python -m bench.llm_tokens [--prompts 1000] [--rounds 2] [--model FOLDER]

Bare: ``LLM.generate`` of chats that are already text, in a process of its own. Ask: rows of chats in, replies
in Parquet files out, all stages of Ray included. Both with the settings of ``raycomp.cluster.negatives.ask``,
in turn; the model is a Llama of two layers with random weights unless one is given, the hardest case:
the less an engine has to compute, the more everything around it shows. Start-up (until the engine stands) is
told apart; the time of ask ends with the last file. Last line one JSON object.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from raycomp.cluster.negatives import ask as asking
from raycomp.cluster.session import Session, connect
from raycomp.config import ClusterConfig, LlmConfig
from raycomp.language.prompts import REPLY_SCHEMA
from raycomp.loops.negatives.replies import MESSAGES, read_replies
from raycomp.words import KEY
from tests.cluster.llm import make_prompts, write_tiny_model

COLOURS = "red green blue yellow black white brown grey".split()
THINGS = "dog cat horse boat chair lamp bicycle kite".split()


def draw_prompts(count: int) -> pa.Table:
    """Return prompts for captions that all differ."""
    captions = [
        f"A {COLOURS[i % 8]} {THINGS[i // 8 % 8]} beside {i} {COLOURS[i // 64 % 8]} stones on the grass."
        for i in range(count)
    ]
    return make_prompts(captions)


def run_bare(prompts: pa.Table, config: LlmConfig, settings: dict[str, Any]) -> dict[str, Any]:
    """Generate all replies with vLLM alone."""
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    started = time.time()
    llm = LLM(config.model, **settings)
    template = llm.get_tokenizer().apply_chat_template
    texts = [
        template(json.loads(chat), tokenize=False, add_generation_prompt=True)
        for chat in prompts[MESSAGES].to_pylist()
    ]
    params = [
        SamplingParams(
            **asking.sampling(config, key),
            structured_outputs=StructuredOutputsParams(json=json.dumps(REPLY_SCHEMA)),
        )
        for key in prompts[KEY].to_pylist()
    ]
    ready = time.time()
    outputs = llm.generate(texts, params, use_tqdm=False)
    ended = time.time()
    tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    replies = {key: out.outputs[0].text for key, out in zip(prompts[KEY].to_pylist(), outputs, strict=True)}
    return {"startup_s": ready - started, "run_s": ended - ready, "tokens": tokens, "replies": replies}


def count_stage(folder: Path) -> type:
    """Return Ray's stage with a note of when its engine stood, and of the tokens of every batch."""
    from ray.llm._internal.batch.stages.vllm_engine_stage import vLLMEngineStageUDF

    class Counted(vLLMEngineStageUDF):
        def __init__(self, *args: Any, **kwargs: Any):
            super().__init__(*args, **kwargs)
            (folder / "ready").write_text(repr(time.time()))

        async def udf(self, batch: list[dict[str, Any]]) -> Any:
            tokens = 0
            async for row in super().udf(batch):
                tokens += row["num_generated_tokens"]
                yield row
            with open(folder / "tokens", "a") as file:
                file.write(f"{tokens}\n")
            await asyncio.sleep(0)

    return Counted


def run_ask(prompts: pa.Table, config: LlmConfig, build: Any) -> dict[str, Any]:
    """Generate all replies through Ray."""
    import ray

    with tempfile.TemporaryDirectory() as name, connect(ClusterConfig()) as session:
        folder = Path(name)

        def build_counted(config: LlmConfig, session: Session) -> Any:
            processor = build(config, session)
            # Assigning would run the stage's checks again, which by then ask for a GPU.
            vars(processor.get_stage_by_name("vLLMEngineStage"))["fn"] = count_stage(folder)
            return processor

        asking._build_vllm = build_counted
        started = time.time()
        make = partial(ray.data.from_arrow, prompts)
        found = asking.ask(make, len(prompts), config, "vllm", str(folder / "replies"), session)
        ended = time.time()
        assert found.answered == len(prompts), found
        ready = float((folder / "ready").read_text())
        tokens = sum(map(int, (folder / "tokens").read_text().split()))
        replies = read_replies(str(folder / "replies"), 0)
    return {"startup_s": ready - started, "run_s": ended - ready, "tokens": tokens, "replies": replies}


def run_apart(kind: str, options: argparse.Namespace, model: str) -> dict[str, Any]:
    """Run one measurement in a process of its own, its output in a file."""
    with tempfile.TemporaryDirectory() as folder:
        target = str(Path(folder) / "found.json")
        command = [sys.executable, "-m", "bench.llm_tokens", "--prompts", str(options.prompts)]
        command += ["--model", model, "--only", kind, "--out", target]
        with open(Path(folder) / "log", "w+") as log:
            if subprocess.run(command, stdout=log, stderr=log).returncode:
                log.seek(0)
                raise RuntimeError(log.read()[-4000:])
        return json.loads(Path(target).read_text())


def run_one(options: argparse.Namespace) -> None:
    """Measure one of the two in this process."""
    prompts, config = draw_prompts(options.prompts), LlmConfig(model=options.model)
    if options.only == "ask":
        found = run_ask(prompts, config, asking._build_vllm)
    else:
        with connect(ClusterConfig()) as session:
            settings = asking.engine_settings(session)
        found = run_bare(prompts, config, settings)
    Path(options.out).write_text(json.dumps(found))


def main() -> None:
    """Measure in turn and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--model")
    parser.add_argument("--only", choices=("bare", "ask"), help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    if options.only:
        return run_one(options)
    with tempfile.TemporaryDirectory() as folder:
        model = options.model or write_tiny_model(Path(folder))
        found: dict[str, list[dict[str, Any]]] = {"bare": [], "ask": []}
        print(f"{'':6} {'start-up s':>10} {'run s':>8} {'tokens':>9} {'tokens/s':>9} {'prompts/s':>9}")
        for _ in range(options.rounds):
            for kind, results in found.items():
                result = run_apart(kind, options, model)
                results.append(result)
                rate = result["tokens"] / result["run_s"]
                print(
                    f"{kind:6} {result['startup_s']:10.1f} {result['run_s']:8.1f} {result['tokens']:9,} "
                    f"{rate:9,.0f} {options.prompts / result['run_s']:9.1f}",
                    flush=True,
                )
    speed = {k: statistics.median(r["tokens"] / r["run_s"] for r in results) for k, results in found.items()}
    bare, through = (found[kind][-1]["replies"] for kind in ("bare", "ask"))
    same = sum(bare[key] == through.get(key) for key in bare) / len(bare)
    again = [results[0]["replies"] == results[-1]["replies"] for results in found.values()]
    summary = {"prompts": options.prompts, "tokens_per_s": speed, "ratio": speed["ask"] / speed["bare"]}
    summary |= {"same_replies": same, "same_again": dict(zip(found, again, strict=True))}
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
