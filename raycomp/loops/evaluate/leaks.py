"""Which images of an evaluation were learned from: by the linear probe, or by the model itself."""

from collections.abc import Iterable

import numpy as np

from raycomp.core.leaks import Known, count_shared, key_texts, merge_keys
from raycomp.core.uids import KEY
from raycomp.loops.evaluate.exam import Exam, Pictures, key_pictures
from raycomp.loops.evaluate.labelled import LabelledImages
from raycomp.loops.evaluate.linear_probe import LinearProbe
from raycomp.loops.leaks import Leak

OF_PROBE, OF_MODEL = "the training images", "the images that the model was trained on"


def find_leaks(exams: Iterable[Exam], pictures: Pictures, trained: Known | None) -> list[Leak]:
    """Return of every exam what it shares with ``trained``, where that is known, and of the probe its own.

    Each example of an exam counts with its image. Training images of the probe are no test: the model may
    have seen them.
    """
    leaks = []
    for exam in exams:
        asked = exam.test if isinstance(exam, LinearProbe) else exam
        image_N, no_texts = list_keys(asked, pictures), np.zeros(0, KEY)
        if isinstance(exam, LinearProbe):
            learned = Known(merge_keys([list_keys(exam.train, pictures)]), no_texts)
            leaks.append(Leak(exam.name, OF_PROBE, count_shared(learned, image_N, no_texts)))
        if trained is not None:
            text_T = key_texts(exam.list_texts(pictures))
            leaks.append(Leak(exam.name, OF_MODEL, count_shared(trained, image_N, text_T)))
    return leaks


def list_keys(needs: Exam | LabelledImages, pictures: Pictures) -> np.ndarray:
    """Return the key of every image that is needed, as often as it is, those that can be read."""
    place_N = np.array([pictures.place[picture] for picture in needs.pictures], np.int64)
    of_shards = [key_pictures(pictures.shards[shard.uri]) for shard in needs.shards]
    return np.concatenate([pictures.key_M[place_N], *of_shards])
