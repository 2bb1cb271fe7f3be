"""Every dial: frozen dataclasses, checked at birth, changed in one way (``override``)."""

from raycomp.config.change import (
    as_setting,
    changed_dials,
    check_path,
    exact_share,
    flatten,
    from_dict,
    override,
    override_all,
    read_value,
    to_dict,
)
from raycomp.config.check import ClusterFailed, LeaseLost, Terminated, TooMuchBadData, UserError
from raycomp.config.continual import ContinualConfig
from raycomp.config.curate import (
    AGGREGATES,
    AlignConfig,
    AttributeConfig,
    CurateConfig,
    NonceConfig,
    PrepareConfig,
    SelectConfig,
)
from raycomp.config.describe import describe_dials
from raycomp.config.dials import is_marked, list_dials
from raycomp.config.evaluate import BenchmarkConfig, CompareConfig, ControlsConfig, EvaluateConfig
from raycomp.config.exams import LinearProbeConfig, RetrievalConfig, ZeroshotConfig
from raycomp.config.jobs import load_job
from raycomp.config.negatives import ENGINES, LlmConfig, NegativesConfig, WritingConfig
from raycomp.config.probe import ProbeConfig
from raycomp.config.rules import RULES, Rule, find_rule, name_draw, name_ranking
from raycomp.config.shared import (
    PRECISIONS,
    ClusterConfig,
    ModelConfig,
    ParserConfig,
    ScorerConfig,
    WavesConfig,
)
from raycomp.config.space import Domain, read_space, write_space
from raycomp.config.study import StudyConfig
from raycomp.config.sweep import SWEPT, Part, SweepConfig, WorldsConfig
from raycomp.config.train import LOSSES, FitConfig, TrainConfig

# The config that run.json of each kind of run holds; no dial of a kind that is not here is free.
CONFIGS = {
    "curate": CurateConfig,
    "select": CurateConfig,
    "negatives": NegativesConfig,
    "probe": ProbeConfig,
    "study": StudyConfig,
    "sweep": SweepConfig,
    "train": TrainConfig,
    "evaluate": EvaluateConfig,
    "compare": CompareConfig,
    "continual": ContinualConfig,
}

__all__ = [
    "AGGREGATES",
    "CONFIGS",
    "ENGINES",
    "LOSSES",
    "PRECISIONS",
    "RULES",
    "SWEPT",
    "AlignConfig",
    "AttributeConfig",
    "BenchmarkConfig",
    "ClusterConfig",
    "ClusterFailed",
    "CompareConfig",
    "ContinualConfig",
    "ControlsConfig",
    "CurateConfig",
    "Domain",
    "EvaluateConfig",
    "FitConfig",
    "LeaseLost",
    "LinearProbeConfig",
    "LlmConfig",
    "ModelConfig",
    "NegativesConfig",
    "NonceConfig",
    "ParserConfig",
    "Part",
    "PrepareConfig",
    "ProbeConfig",
    "RetrievalConfig",
    "Rule",
    "ScorerConfig",
    "SelectConfig",
    "StudyConfig",
    "SweepConfig",
    "Terminated",
    "TooMuchBadData",
    "TrainConfig",
    "UserError",
    "WavesConfig",
    "WorldsConfig",
    "WritingConfig",
    "ZeroshotConfig",
    "as_setting",
    "changed_dials",
    "check_path",
    "describe_dials",
    "exact_share",
    "find_rule",
    "flatten",
    "from_dict",
    "is_marked",
    "list_dials",
    "load_job",
    "name_draw",
    "name_ranking",
    "override",
    "override_all",
    "read_space",
    "read_value",
    "to_dict",
    "write_space",
]
