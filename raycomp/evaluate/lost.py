"""Images of an evaluation that cannot be judged: said in lines, and refused where they are too many."""

from collections import Counter
from collections.abc import Callable, Iterable

from raycomp.evaluate.config import EvaluateConfig
from raycomp.evaluate.exam import Exam, Pictures
from raycomp.run.bad_data import check_bad_pictures, describe_dropped


def check_images(
    exams: Iterable[Exam], pictures: Pictures, config: EvaluateConfig, say: Callable[[str], None]
) -> list[str]:
    """Say and return a line for every status whose images are left out, exam by exam.

    Raises TooMuchBadData above ``max_missing_fraction`` or ``max_bad_fraction``, once all lines are said, and
    ValueError where a shard has no sample.
    """
    lines: list[str] = []
    counted: dict[str, Counter[str]] = {}
    for exam in exams:
        for said, statuses in exam.find_statuses(pictures).items():
            counted[said] = Counter(status for _, status in statuses)
            examples = {status: image for image, status in reversed(statuses)}
            lines += describe_dropped(said, counted[said], "images", examples)
    for line in lines:
        say(line)
    for said, counts in counted.items():
        check_bad_pictures(said, counts, config.max_bad_fraction, config.max_missing_fraction)
    return lines
