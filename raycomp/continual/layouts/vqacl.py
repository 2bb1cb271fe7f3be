"""VQACL (Zhang et al. 2023): ``karpathy_HALF_TASK.json`` in VL-T5's layout of VQA v2, one file per task.

A list of {question_id, img_id, sent, label: {answer: its score}}; images are ``IMG_ID.jpg``. The answer with
the highest score is used. Tested only on synthetic rows: the published files were not available.
"""

from collections.abc import Iterator
from typing import Any

from raycomp.continual.layouts.row import QuestionRow, Row, name_file, offer_answers
from raycomp.data.files import Folder
from raycomp.evaluation.benchmarks.choice import is_text, read_json, take

NAME = "vqacl"


def read(folder: Folder, name: str, half: str) -> Iterator[Row]:
    """Yield the questions with candidate answers, with an empty caption if the label has no answer.

    Raises ValueError where a field is missing or misshapen.
    """
    asked = []
    for place, record in enumerate(read_json(folder, name, list)):
        where = f"{folder.at(name)}: row {place}"
        question, image = (take(record, field, str, where).strip() for field in ("sent", "img_id"))
        asked.append(
            QuestionRow(name_file(image), question, _choose(take(record, "label", dict, where), where))
        )
    yield from offer_answers(asked)


def _choose(label: dict[str, Any], where: str) -> str | None:
    for answer, right in label.items():
        if not is_text(answer) or isinstance(right, bool) or not isinstance(right, int | float):
            raise ValueError(f"{where}: label={label!r:.80}: must be answers, each with a number")
    return max(sorted(label), key=lambda answer: label[answer]) if label else None
