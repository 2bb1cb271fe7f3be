"""Random histories of a corpus: shards come and go, rows are removed, options change, runs are killed."""

import hashlib
import json
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import raycomp
from raycomp.config import ClusterConfig, ScorerConfig, override_all
from raycomp.curation.config import CurateConfig, explain_unused, read_config
from raycomp.curation.update import update
from raycomp.data.samples import write_tar
from tests.corpus import scenes

COMPARED = ("scores", "subset", "shards", "metadata", "marks", "state")
RULES = ("cpi", "align_pas", "align_only", "random", "length", "full")


class Killed(BaseException):
    """Ends a command as a signal would."""


class History:
    """A corpus in a folder, the run that follows it, and a seed that decides what happens."""

    def __init__(self, folder: Path, scorer: ScorerConfig, seed: int):
        self.random, self.folder, self.run = random.Random(seed), folder, folder / "run"
        self.samples = iter(scenes(400, seed))
        self.written: list[dict[str, bytes]] = []
        self.steps: list[str] = []
        for name in ("b", "d"):
            self.write_shard(f"in/{name}.tar", self.draw_samples(6))
        cluster = ClusterConfig(executor="local", num_cpus=2)
        config = CurateConfig(input=str(folder / "in"), scorer=scorer, cluster=cluster, max_bad_fraction=1.0)
        self.config = override_all(config, {"materialize": True, **self.draw_options()})
        raycomp.curate(self.config, str(self.run))

    def draw_samples(self, count: int) -> list[dict[str, bytes]]:
        """Return new samples, some with the uid of an earlier one, or copies of it."""
        found = []
        for _ in range(count):
            sample = dict(next(self.samples))
            fields = {"url": f"http://site{self.random.randrange(4)}.org/{len(self.written)}.jpg"}
            fields["uid"] = hashlib.sha256(repr(len(self.written)).encode()).hexdigest()[:32]
            fields["nsfw"] = self.random.choice([0.1, 0.9, None, "high"])
            if self.written and self.random.random() < 0.3:
                other = self.random.choice(self.written)
                sample = dict(other) if self.random.random() < 0.5 else sample
                fields["uid"] = json.loads(other["json"])["uid"]
            sample["json"] = json.dumps(fields).encode()
            self.written.append(sample)
            found.append(sample)
        return found

    def write_shard(self, name: str, samples: list[dict[str, bytes]]) -> None:
        write_tar(str(self.folder / name), ((f"{i:03d}", one) for i, one in enumerate(samples)))

    def list_shards(self) -> list[Path]:
        return sorted((self.folder / "in").glob("*.tar"))

    def draw_options(self) -> dict[str, Any]:
        """Return options of a selection."""
        draw = self.random.choice
        drawn = {
            "align.keep": draw([0.5, 0.7, 0.9]),
            "attribute.keep": draw([0.3, 0.5]),
            "select.rule": draw(RULES),
            "attribute.targets": draw(["nouns", "content", "content"]),
            "attribute.nonces": draw([1, 1, 2]),
            "attribute.pool": draw([None, None, 0.9, 1.0]),
            "near.rules": draw([(), (), ("exact",), ("captions", "perceptual")]),
            "filter.where": draw([None, None, "words > 4"]),
        }
        is_measured = bool(override_all(CurateConfig(), drawn).pool)
        unused = [path for path in drawn if explain_unused(drawn["select.rule"], path, is_measured)]
        return {path: value for path, value in drawn.items() if path not in unused}

    def step(self) -> dict[str, Any]:
        """Change the corpus; return the arguments of an update."""
        kinds = ("add", "add", "insert", "replace", "delete", "touch", "input", "remove", "options")
        kind = self.random.choice(kinds)
        self.steps.append(kind)
        shards = self.list_shards()
        if kind in ("add", "insert"):
            name = f"{'z' if kind == 'add' else 'a'}{self.random.randrange(1000)}"
            self.write_shard(f"in/{name}.tar", self.draw_samples(self.random.randrange(1, 7)))
        elif kind == "replace":
            name = self.random.choice(shards).name
            self.write_shard(f"in/{name}", self.draw_samples(self.random.randrange(1, 7)))
        elif kind == "delete" and len(shards) > 2:
            self.random.choice(shards).unlink()
        elif kind == "touch":
            os.utime(self.random.choice(shards), ns=(1, self.random.randrange(10**18)))
        elif kind == "input":
            name = f"more{self.random.randrange(10**6)}"
            self.write_shard(f"{name}/x.tar", self.draw_samples(3))
            return {"add": str(self.folder / name)}
        elif kind == "remove":
            return {"remove": self.write_removals(), "settings": self.draw_options()}
        return {"settings": self.draw_options()} if kind == "options" else {}

    def write_removals(self) -> str:
        """Write a list of some uids, images, urls and domains, or of a shard."""
        lines = []
        for sample in self.random.sample(self.written, 3):
            fields = json.loads(sample["json"])
            image = hashlib.sha256(sample["jpg"]).hexdigest()
            lines.append(self.random.choice([fields["uid"], image, fields["url"], fields["url"]]))
        if self.random.random() < 0.2 and len(self.list_shards()) > 2:
            lines.append(self.random.choice(self.list_shards()).name)
        path = self.folder / f"removals-{self.random.randrange(10**9)}.txt"
        path.write_text("\n".join(lines))
        return str(path)

    def update(self, kills: int) -> None:
        """Run an update, killed so many times at a random write before it may finish."""
        arguments = self.step()
        for _ in range(kills):
            with kill_at(self.random.randrange(1, 120)), suppress(Killed):
                update(str(self.run), say=lambda line: None, **arguments)
        update(str(self.run), say=lambda line: None, **arguments)

    def read(self, folder: Path) -> dict[str, bytes]:
        """Return the compared files of a run by name."""
        paths = [path for name in COMPARED for path in (folder / name).rglob("*") if path.is_file()]
        return {str(path.relative_to(folder)): path.read_bytes() for path in paths}

    def from_scratch(self) -> Path:
        """Curate anew with the options that the run has now; return the folder."""
        config = read_config(json.loads((self.run / "run.json").read_text())["config"])
        whole = self.folder / "whole"
        raycomp.curate(config, str(whole))
        return whole


@contextmanager
def kill_at(count: int) -> Iterator[None]:
    """Raise Killed at a write of a file, whose temporary file stays."""
    left, replace = [count], os.replace

    def end(source: Any, target: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Killed
        replace(source, target)

    with mock.patch("os.replace", end):
        yield
