"""The dials of what judges a benchmark's captions without their image."""

from dataclasses import dataclass, field

from raycomp.config.check import check_choice
from raycomp.config.dials import PLACE
from raycomp.config.shared import PRECISIONS


@dataclass(frozen=True)
class ControlsConfig:
    """Judges that see no image: what they get right, a model need not have looked for."""

    captions: str | None = field(default=None, metadata=PLACE)
    """Captions that unigram and bigram learn: .jsonl of {image, captions}, .json of [{image, caption}] as
    Karpathy's splits, else text with one a line; none = without these two. Captions of images and captions
    that are in a benchmark are left out."""
    language_model: str | None = field(default=None, metadata=PLACE)
    """Folder of a causal language model as transformers writes it, with safetensors; none = without."""
    precision: str = "fp32"
    """fp32 or bf16: what the language model computes in."""

    def __post_init__(self) -> None:
        check_choice("controls.precision", self.precision, PRECISIONS)
