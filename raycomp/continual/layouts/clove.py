"""CLOVE (Lei et al. 2023, arXiv:2208.12037): questions by scene or by function, one file per task.

``*.json``: a list of {question_id, image_id, question, answer, answers, stage, ...}; images are
``IMAGE_ID.jpg``. Scenes come as ShopAndDining, Workplace, HomeOrHotel, Transportation, SportAndLeisure,
Outdoors; functions as object, attribute, relation, logical, knowledge, scenetext.
"""

from collections.abc import Iterator

from raycomp.continual.layouts.row import QuestionRow, Row, name_file, offer_answers
from raycomp.data.files import Folder
from raycomp.evaluation.benchmarks.choice import read_json, take

NAME = "clove"


def read(folder: Folder, name: str, half: str) -> Iterator[Row]:
    """Yield the questions with answers to choose from; ValueError where a field is missing or misshapen."""
    asked = []
    for place, record in enumerate(read_json(folder, name, list)):
        where = f"{folder.at(name)}: row {place}"
        question, answer = (take(record, field, str, where).strip() for field in ("question", "answer"))
        image = take(record, "image_id", str | int, where)
        asked.append(QuestionRow(name_file(image), question, answer))
    yield from offer_answers(asked)
