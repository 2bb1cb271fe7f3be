"""The model hub: whether it answers is known within seconds, and a download is announced with its size."""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Thread
from urllib.error import HTTPError
from urllib.request import Request, urlopen

_ANSWERS_WITHIN_S = 5.0
# For this long the hub counts as out of reach without being asked again.
_ASKED_AGAIN_AFTER_S = 60.0
_failed_at: list[float] = []


def is_reachable() -> bool:
    """Whether the hub answers within 5 s; False where HF_HUB_OFFLINE is set."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    if _failed_at and time.monotonic() - _failed_at[-1] < _ASKED_AGAIN_AFTER_S:
        return False
    answers: list[bool] = []

    def ask() -> None:
        try:
            urlopen(Request(constants.ENDPOINT, method="HEAD"), timeout=_ANSWERS_WITHIN_S).close()
        except HTTPError:  # an answer, too
            pass
        except (OSError, ValueError):
            return
        answers.append(True)

    asking = Thread(target=ask, daemon=True)  # a name server may take longer than the time limit
    asking.start()
    asking.join(_ANSWERS_WITHIN_S)
    _failed_at[:] = [] if answers else [time.monotonic()]
    return bool(answers)


def say_unreachable() -> str:
    """Return in words why the hub was not asked, or did not answer."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE and not _failed_at:
        return "it is not in the cache of this machine, and HF_HUB_OFFLINE is set"
    return f"it is not in the cache of this machine, and the model hub {constants.ENDPOINT} does not answer"


@contextmanager
def ask_once(is_needed: bool = True) -> Iterator[bool]:
    """Give the block whether the hub answers; if not, libraries use their caches alone in it.

    They would repeat each request for a minute. The hub is asked only if it ``is_needed``.
    """
    if not is_needed:
        yield True
        return
    from huggingface_hub import constants

    before, answers = constants.HF_HUB_OFFLINE, is_reachable()
    constants.HF_HUB_OFFLINE = before or not answers
    try:
        yield answers
    finally:
        constants.HF_HUB_OFFLINE = before


def announce_download(tag: Mapping[str, str], what: str) -> None:
    """Print the size of weights that open_clip will download, to standard error; ``tag`` is its entry."""
    from huggingface_hub import constants, try_to_load_from_cache
    from open_clip.constants import HF_SAFE_WEIGHTS_NAME, HF_WEIGHTS_NAME

    repository, _, name = tag.get("hf_hub", "").rpartition("/")
    names = (
        [f"{name.rpartition('.')[0]}.safetensors", name] if name else [HF_SAFE_WEIGHTS_NAME, HF_WEIGHTS_NAME]
    )
    if not repository or any(isinstance(try_to_load_from_cache(repository, one), str) for one in names):
        return
    for one in names:
        with suppress(
            OSError, ValueError
        ):  # another name, or a failed download, which is an error of its own
            url = f"{constants.ENDPOINT}/{repository}/resolve/main/{one}"
            found = urlopen(Request(url, method="HEAD"), timeout=_ANSWERS_WITHIN_S)
            size = int(found.headers.get("Content-Length", 0)) / 1e6
            print(
                f"downloading {what}, {size:,.0f} MB, from {constants.ENDPOINT}", file=sys.stderr, flush=True
            )
            return
