"""How much of the input may be bad: the shares, the messages, and a line for every status left out."""

from collections import Counter

import pytest

from raycomp.config import TooMuchBadData, UserError
from raycomp.run.progress import check_bad_pictures, check_bad_rows, describe_dropped
from raycomp.words import (
    ALIGNED_STATUSES,
    CONTAMINATED,
    CONTINUAL_STATUSES,
    DROPPED_ALIGNMENT,
    DUPLICATE_UID,
    KEPT,
    NO_PRIMITIVE,
    NOT_DOWNLOADED,
    NOT_IN_SUBSET,
    OK,
    PICTURE_STATUSES,
    REMOVED,
    STATUSES,
)


def test_every_status_is_bad_but_what_is_aligned_or_a_duplicate():
    for status in sorted({*STATUSES, *CONTINUAL_STATUSES, *PICTURE_STATUSES}):
        counts = {OK: 9, status: 1} if status != OK else {OK: 10}
        if status in (*ALIGNED_STATUSES, DUPLICATE_UID, REMOVED, CONTAMINATED, NO_PRIMITIVE, NOT_DOWNLOADED):
            check_bad_rows("input", counts, 0.0)
        else:
            with pytest.raises(TooMuchBadData, match=rf"input: 10\.0% of 10 rows .*1 {status}"):
                check_bad_rows("input", counts, 0.09)
            check_bad_rows("input", counts, 0.1)


def test_a_share_is_read_as_a_decimal():
    """0.29 * 100 is 28.999999999999996 in floats."""
    for percent in range(100):
        check_bad_rows("input", {OK: 700 - 7 * percent, "no_image": 7 * percent}, percent / 100)
        with pytest.raises(TooMuchBadData):
            check_bad_rows("input", {OK: 699 - 7 * percent, "no_image": 7 * percent + 1}, percent / 100)


def test_what_a_subset_leaves_out_does_not_count_and_each_status_has_a_line():
    counts = {OK: 3, "corrupt_image": 57, NOT_IN_SUBSET: 100_000}
    with pytest.raises(TooMuchBadData, match=r"95\.0% of 60 rows .*max_bad_fraction=0\.05"):
        check_bad_rows("input", counts, 0.05)
    counts |= {KEPT: 5, DROPPED_ALIGNMENT: 3, "no_phrase": 2, DUPLICATE_UID: 1}
    lines = describe_dropped("input", counts, "rows", {"corrupt_image": ["a.jpg", "b.jpg"]})
    assert lines[0] == (
        "input: 57 of 71 rows are corrupt_image (the image bytes do not decode), such as a.jpg, b.jpg; "
        "left out"
    )
    assert lines[1].startswith("input: 1 of 71 rows is duplicate_uid (") and len(lines) == 2


def test_where_nothing_is_left_no_limit_helps():
    said = r"none of 3 rows can be used \(2 corrupt_image, 1 truncated_tar\); corrupt_image: the image bytes"
    with pytest.raises(UserError, match=said):
        check_bad_rows("input", {"truncated_tar": 1, "corrupt_image": 2}, 1.0)
    for counts in ({"image_path_refused": 2}, {OK: 1, "image_path_refused": 2}):
        with pytest.raises(
            (UserError, TooMuchBadData), match=r"; image_path_refused: .*; set columns\.root to a folder"
        ):
            check_bad_rows("input", counts, 0.5)
    with pytest.raises(UserError, match=r"^a: none of 0 samples can be used \(no rows\)$"):
        check_bad_rows("a", {}, 1.0, "samples")


def test_missing_pictures_and_bad_ones_have_a_limit_each():
    counts = Counter(ok=20, no_image=100, ambiguous_image=20, corrupt_image=50, image_too_large=10)
    said = r"r: 75\.0% of 80 present images cannot be used \(50 corrupt_image, 10 image_too_large\)"
    with pytest.raises(TooMuchBadData, match=said):
        check_bad_pictures("r", counts, 0.74, 1.0)
    check_bad_pictures("r", counts, 0.75, 1.0)
    said = r"r: 60\.0% of 200 images .*\(100 no_image, 20 ambiguous_image\), .*max_missing_fraction=0\.59"
    with pytest.raises(TooMuchBadData, match=said):
        check_bad_pictures("r", counts, 0.75, 0.59)
    check_bad_pictures("r", counts, 0.75, 0.6)
    check_bad_pictures("r", {"no_image": 3}, 0.0, 1.0)
