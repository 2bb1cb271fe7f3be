"""Linear probe (Radford et al. 2021, arXiv:2103.00020, section 3.2): a linear classifier on image embeddings.

Multinomial logistic regression on embeddings of length 1. The penalty with the highest accuracy on a fifth of
every class of the training images is selected; then all training images are used. Identical images stay
together. M images to learn from, C classes.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from raycomp.config.shared import ColumnsConfig
from raycomp.core.outcomes import number_duplicates
from raycomp.data.paths import ShardPath
from raycomp.evaluation.classification import LabelledImages, classify_images, list_unread, open_labelled
from raycomp.evaluation.config import LinearProbeConfig
from raycomp.evaluation.evaluation import Picture, Pictures, Statuses, Texts
from raycomp.words import DROP, WARN

NAME = "linear_probe"
# Keys of the schema's metadata.
PENALTY, VALIDATION = b"penalty", b"validation_acc1"


@dataclass(frozen=True)
class LinearProbe:
    """Labelled images for training, and others for testing."""

    train: LabelledImages
    test: LabelledImages
    seed: int = 0
    overlap: str = WARN
    """warn, or drop: training images are left out of the test set."""
    name: str = NAME

    @property
    def pictures(self) -> list[Picture]:
        return self.train.pictures + self.test.pictures

    @property
    def shards(self) -> list[ShardPath]:
        return [*self.train.shards, *self.test.shards]

    def list_texts(self, pictures: Pictures) -> list[str]:
        """Return an empty list: no text is read."""
        return []

    def find_statuses(self, pictures: Pictures) -> dict[str, Statuses]:
        """Return the status of every training image, and of every test image."""
        parts = {"train": self.train, "test": self.test}
        return {f"{NAME}.{name}": images.find_statuses(pictures) for name, images in parts.items()}

    def grade(self, pictures: Pictures, texts: Texts) -> pa.Table:
        """Return CLASSIFIED_SCHEMA's rows: the test images, then the training images that were unusable.

        The schema's metadata hold the penalty and its accuracy on the fifth. Raises ValueError where the test
        has a class without training images, and where no images are left to select the penalty.
        """
        from raycomp.core.logistic import choose_penalty, fit_logistic, hold_out_fifth

        known = self.train.find_examples(pictures)
        seen = pictures.bar(known.key_N[known.good]) if self.overlap == DROP else pictures
        asked = self.test.find_examples(seen.asked)
        names = sorted({str(known.labels[i]) for i in known.good})
        number = {name: i for i, name in enumerate(names)}
        if len(names) < 2:
            raise ValueError(f"{self.train.option}: has one class, {names[0]!r}; must have at least 2")
        unknown = sorted({str(asked.labels[i]) for i in asked.good} - set(names))
        if unknown:
            said = f"{len(unknown)} of its classes are not in {self.train.option}, such as {unknown[0]!r}"
            raise ValueError(f"{self.test.option}: {said}")
        label_M = np.array([number[str(known.labels[i])] for i in known.good])
        image_MD = known.image_ND[known.good]
        is_held_M = hold_out_fifth(label_M, number_duplicates(image_MD), np.random.default_rng(self.seed))
        if not is_held_M.any():
            raise ValueError(f"{self.train.option}: must have a class with at least two different images")
        penalty, shares = choose_penalty(image_MD, label_M, len(names), is_held_M)
        fitted = fit_logistic(image_MD, label_M, len(names), penalty)
        image_GD = asked.image_ND[asked.good]
        label_G = np.array([number[str(asked.labels[i])] for i in asked.good])
        # The bias is the weight of a feature that is 1.
        feature_GD = np.append(image_GD, np.ones((len(image_GD), 1), np.float32), axis=1)
        weight_CD = np.append(fitted.weight_CD, fitted.bias_C[:, None], axis=1)
        tested = classify_images(NAME, asked, label_G, feature_GD, weight_CD, names)
        found = {PENALTY: str(penalty).encode(), VALIDATION: str(max(shares)).encode()}
        return pa.concat_tables([tested, list_unread(NAME, known)]).replace_schema_metadata(found)


def open_linear_probe(
    config: LinearProbeConfig, overlap: str = WARN, columns: ColumnsConfig | None = None
) -> LinearProbe:
    """Return the benchmark. Raises ValueError, one line that names the option, where a part is missing."""
    halves = ((getattr(config, name), f"{NAME}.{name}") for name in ("train", "test"))
    train, test = (open_labelled(*half, columns) for half in halves)
    return LinearProbe(train, test, config.seed, overlap)
