"""Which images of an evaluation were learned from: by the linear probe, or by the model itself."""

from collections.abc import Iterable

import numpy as np

from raycomp.core.leaks import Known, count_shared, key_texts, merge_keys
from raycomp.core.uids import KEY
from raycomp.evaluate.exam import Exam, Pictures, key_pictures
from raycomp.evaluate.labelled import LabelledImages
from raycomp.evaluate.linear_probe import LinearProbe
from raycomp.run.leaks import Leak

OF_PROBE, OF_MODEL = "the training images", "the images that the model was trained on"


def find_leaks(exams: Iterable[Exam], pictures: Pictures, trained: Known | None) -> list[Leak]:
    """Return of every exam what it shares with ``trained``, where that is known, and of the probe its own.

    Each example of an exam counts with its image. Training images of the probe are no test: the model may
    have seen them.
    """
    leaks = []
    for exam in exams:
        if isinstance(exam, LinearProbe):
            image_N, no_texts = _list_labelled(exam.test, pictures), np.zeros(0, KEY)
            learned = Known(merge_keys([_list_labelled(exam.train, pictures)]), no_texts)
            leaks.append(Leak(exam.name, OF_PROBE, count_shared(learned, image_N, no_texts)))
        else:
            image_N = list_keys(exam, pictures)
        if trained is not None:
            text_T = key_texts(exam.list_texts(pictures))
            leaks.append(Leak(exam.name, OF_MODEL, count_shared(trained, image_N, text_T)))
    return leaks


def _list_labelled(images: LabelledImages, pictures: Pictures) -> np.ndarray:
    """Return the keys of images that can be learned from, or judged."""
    examples = images.find_examples(pictures)
    return examples.key_N[examples.good]


def list_keys(exam: Exam, pictures: Pictures) -> np.ndarray:
    """Return the keys of the images of an exam, each as often as an example has it."""
    place_N = np.array([pictures.place[picture] for picture in exam.pictures], np.int64)
    of_shards = [key_pictures(pictures.shards[shard.uri]) for shard in exam.shards]
    return np.concatenate([pictures.key_M[place_N], *of_shards])
