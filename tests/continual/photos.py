"""Real photos with real captions as a stream of tasks: flickr8k_800, cc_web_400, coco_val_40."""

import json
from pathlib import Path
from typing import Any

NAMES = ("flickr8k_800", "cc_web_400", "coco_val_40")


def write_photos(data: Path, folder: Path, num: int | None = None) -> dict[str, list[dict[str, Any]]]:
    """Write ``folder``/photos.json and what it lists, every other photo to learn of; return the rows of each.

    ``num``: so many photos of each, at most.
    """
    rows, tasks = {}, []
    for name in NAMES:
        lines = (data / name / "captions.jsonl").read_text().splitlines()
        rows[name] = [json.loads(line) for line in lines][:num]
        for half, some in (("train", rows[name][::2]), ("test", rows[name][1::2])):
            (folder / name / half).mkdir(parents=True)
            (folder / name / half / "captions.jsonl").write_text("\n".join(map(json.dumps, some)))
            (folder / name / half / "images").symlink_to(data / name / "images")
        tasks.append({"name": name, "train": f"{name}/train", "test": f"{name}/test"})
    (folder / "photos.json").write_text(json.dumps({"tasks": tasks}))
    return rows
