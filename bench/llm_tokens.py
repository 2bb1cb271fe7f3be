"""Tokens per second through ``ask`` (actors of Ray Data) against bare vLLM, same model, prompts and sampling.

    python -m bench.llm_tokens [--prompts 1000] [--rounds 2] [--model FOLDER] [--set llm.OPTION=VALUE ...]

Bare: ``LLM.generate`` of chats that are already text, in a process of its own. Ask: rows of chats in, replies
in Parquet files out, all stages of Ray included. Both with the settings of ``raycomp.negatives.ask``,
in turn; the model is a Llama of two layers with random weights unless one is given, the hardest case:
the less an engine has to compute, the more everything around it shows. Start-up (until the engine stands) is
measured separately; the time of ask ends with the last file. CPU milliseconds are those of all processes,
from when the engine stands to the end, by what they are for; other programs of a busy machine are not in
them. Last line one JSON object.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from raycomp.config import ClusterConfig, override_all
from raycomp.language.prompts import CAPTION_FORM, SCHEMAS
from raycomp.negatives import vllm as engine
from raycomp.negatives.ask import MESSAGES, PromptSource, ask, read_replies, sampling
from raycomp.negatives.config import LlmConfig, NegativesConfig
from raycomp.run.executor import connect
from raycomp.words import KEY
from tests.negatives.llm import make_prompts, write_tiny_model

COLOURS = "red green blue yellow black white brown grey".split()
THINGS = "dog cat horse boat chair lamp bicycle kite".split()


def draw_prompts(count: int) -> pa.Table:
    """Return prompts for captions that all differ."""
    captions = [
        f"A {COLOURS[i % 8]} {THINGS[i // 8 % 8]} beside {i} {COLOURS[i // 64 % 8]} stones on the grass."
        for i in range(count)
    ]
    return make_prompts(captions)


class Seconds:
    """CPU seconds of this process and all below it, by what they are for, since ``start``."""

    def __init__(self, is_ready: Callable[[], bool]):
        self.is_ready = is_ready
        self.before: dict[int, float] | None = None
        self.now: dict[int, tuple[str, float]] = {}
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Seconds":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()

    def _watch(self) -> None:
        is_last = False
        while not is_last:
            is_last = self.ended.wait(0.5)
            for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
                try:
                    times, name = process.cpu_times(), _name(process)
                except psutil.Error:  # it ended: what was last seen stays
                    continue
                self.now[process.pid] = name, times.user + times.system
            if self.before is None and self.is_ready():
                self.before = {pid: seconds for pid, (_, seconds) in self.now.items()}

    def count(self) -> dict[str, float]:
        """Return seconds by the kind of process."""
        found: Counter[str] = Counter()
        for pid, (name, seconds) in self.now.items():
            found[name] += seconds - (self.before or {}).get(pid, 0.0)
        return dict(found)


def _name(process: psutil.Process) -> str:
    if process.pid == os.getpid():
        return "driver"
    said = " ".join(process.cmdline())
    if "VLLM::" in said or "VLLM::" in process.name():
        return "engine"
    if "ray::" in said:
        return "actor" if any("VLLM::" in child.name() for child in process.children()) else "tasks"
    return "daemons"


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
            **sampling(config, key),
            structured_outputs=StructuredOutputsParams(json=json.dumps(SCHEMAS[CAPTION_FORM])),
        )
        for key in prompts[KEY].to_pylist()
    ]
    ready = time.time()
    with Seconds(lambda: True) as cpu:
        time.sleep(1.0)
        ready = time.time()
        outputs = llm.generate(texts, params, use_tqdm=False)
        ended = time.time()
    tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    replies = {key: out.outputs[0].text for key, out in zip(prompts[KEY].to_pylist(), outputs, strict=True)}
    spent = {"cpu_s": cpu.count(), "startup_s": ready - started, "run_s": ended - ready}
    return {**spent, "tokens": tokens, "replies": replies}


def count_in(folder: Path) -> type:
    """Return the actor with a note of when its engine stood, and of the tokens of every block."""

    class Counted(engine.AskEngine):
        def __init__(self, *args: Any):
            super().__init__(*args)
            self.tokens, self.generate = 0, self.engine.generate
            self.engine.generate = self.count_tokens
            (folder / "ready").write_text(repr(time.time()))

        async def count_tokens(self, *args: Any) -> Any:
            async for output in self.generate(*args):
                self.tokens += len(output.outputs[0].token_ids)
                yield output

        async def __call__(self, table: pa.Table) -> pa.Table:
            table = await super().__call__(table)
            (folder / "tokens").write_text(f"{self.tokens}")
            return table

    return Counted


def yield_it(table: pa.Table) -> Iterator[pa.Table]:
    """Yield a table."""
    yield table


def run_ask(prompts: pa.Table, config: LlmConfig) -> dict[str, Any]:
    """Generate all replies through Ray."""
    with tempfile.TemporaryDirectory() as name, connect(ClusterConfig(executor="ray")) as session:
        folder = Path(name)
        engine.AskEngine = count_in(folder)
        started = time.time()
        asked = PromptSource([prompts], yield_it, len(prompts))
        with Seconds((folder / "ready").exists) as cpu:
            found = ask(asked, config, "vllm", str(folder / "replies"), session)
            ended = time.time()
        assert found.answered == len(prompts), found
        ready = float((folder / "ready").read_text())
        tokens = int((folder / "tokens").read_text())
        replies = read_replies(str(folder / "replies"), 0)
    spent = {"cpu_s": cpu.count(), "startup_s": ready - started, "run_s": ended - ready}
    return {**spent, "tokens": tokens, "replies": replies}


def run_apart(kind: str, options: argparse.Namespace, model: str) -> dict[str, Any]:
    """Run one measurement in a process of its own, its output in a file."""
    with tempfile.TemporaryDirectory() as folder:
        target = str(Path(folder) / "found.json")
        command = [sys.executable, "-m", "bench.llm_tokens", "--prompts", str(options.prompts)]
        command += ["--model", model, "--only", kind, "--out", target]
        command += [part for pair in options.set for part in ("--set", pair)]
        with open(Path(folder) / "log", "w+") as log:
            if subprocess.run(command, stdout=log, stderr=log).returncode:
                log.seek(0)
                raise RuntimeError(log.read()[-4000:])
        return json.loads(Path(target).read_text())


def run_one(options: argparse.Namespace) -> None:
    """Measure one of the two in this process."""
    named = dict(pair.split("=", 1) for pair in options.set)
    config = override_all(NegativesConfig(), {"llm.model": options.model, **named}).llm
    prompts = draw_prompts(options.prompts)
    if options.only == "ask":
        found = run_ask(prompts, config)
    else:
        with connect(ClusterConfig(executor="ray")) as session:
            settings = engine.engine_settings(config, session)
        found = run_bare(prompts, config, settings)
    Path(options.out).write_text(json.dumps(found))


def main() -> None:
    """Measure in turn and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--model")
    parser.add_argument("--set", action="append", default=[], metavar="llm.OPTION=VALUE")
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
                spent = {name: 1e3 * s / options.prompts for name, s in result["cpu_s"].items()}
                reported = ", ".join(f"{name} {ms:.1f}" for name, ms in spent.items())
                print(f"       CPU ms per prompt: {sum(spent.values()):.1f} ({reported})", flush=True)
    speed = {k: statistics.median(r["tokens"] / r["run_s"] for r in results) for k, results in found.items()}
    bare, through = (found[kind][-1]["replies"] for kind in ("bare", "ask"))
    same = sum(bare[key] == through.get(key) for key in bare) / len(bare)
    again = [results[0]["replies"] == results[-1]["replies"] for results in found.values()]
    summary = {"prompts": options.prompts, "tokens_per_s": speed, "ratio": speed["ask"] / speed["bare"]}
    summary |= {"same_replies": same, "same_again": dict(zip(found, again, strict=True))}
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
