"""Detects weights that are finite but embed every row as zeros or NaN.

B rows of a part, D dims.
"""

from threading import Lock

from torch import Tensor

from raycomp.config import UserError
from raycomp.core.alignment import has_unit_length
from raycomp.models.faults import say_bad

# A single row may be an unusual sample, in any table.
_ENOUGH = 2


class WeightsCheck:
    """Checks the rows that one tower embeds, until the first good one."""

    def __init__(self, said_weights: str, noun: str):
        """``said_weights``: the option and its value; ``noun``: what is embedded, in the plural."""
        self.said_weights, self.noun = said_weights, noun
        self.num_bad, self.is_settled = 0, False
        self._lock = Lock()  # two calls may run at a time

    def watch(self, *parts: Tensor) -> None:
        """Raise UserError, one line that names the weights, where the first rows are all bad.

        ``parts``: (B, D) each. The caller finds a bad row among good ones, by ``has_unit_length``.
        """
        with self._lock:
            if self.is_settled:
                return
            self.num_bad += sum(map(len, parts))
            self.is_settled = any(bool(has_unit_length(x_BD).any()) for x_BD in parts)
            if not self.is_settled and self.num_bad >= _ENOUGH:
                raise UserError(say_bad(self.said_weights, self.num_bad, self.num_bad, self.noun))


def refuse_bad(x_BD: Tensor, said: str, noun: str, remedy: str = "name other weights") -> None:
    """Raise UserError where any row is bad: for a result that cannot leave out rows."""
    num_bad = int((~has_unit_length(x_BD)).sum())
    if num_bad:
        raise UserError(say_bad(said, num_bad, len(x_BD), noun, remedy))
