"""Options are checked at birth, named in errors, and changed in one way."""

import re
from dataclasses import dataclass
from fractions import Fraction

import pytest

from raycomp.config import (
    ScorerConfig,
    changed_options,
    exact_share,
    from_dict,
    get_config,
    is_marked,
    list_kinds,
    list_options,
    override,
    override_all,
    to_dict,
)
from raycomp.config.options import Seconds, Span, split_none
from raycomp.curation.config import RULES, AlignConfig, AttributeConfig, CurateConfig, SelectConfig
from raycomp.negatives.config import NegativesConfig
from raycomp.probe.config import ProbeConfig


@dataclass(frozen=True)
class Odd:
    """Options of types that no command has together."""

    ratios: tuple[float, ...] = (0.3, 0.7)
    sizes: tuple[int, ...] = ()
    wait_s: Seconds | None = None


def test_a_share_is_read_as_the_decimal_it_prints_as():
    for count in [0, 1, 9, 10, 90, 1001, 2_222_261]:
        for share in [0.0, 0.05, 0.1, 0.29, 0.5, 0.57, 0.7, 1.0]:
            assert exact_share(share, count) == Fraction(str(share)) * count // 1


def test_what_only_fails_later_is_named_at_birth():
    for path, value in [
        ("llm.temperature", "inf"),
        ("negatives.seed", "-1"),
        ("llm.url", "http://[::1"),
        ("llm.url", "http://host:99999/v1"),
        ("llm.url", "http://me:secret\u2100@host"),
    ]:
        with pytest.raises(ValueError, match=path) as error:
            override(NegativesConfig(), path, value)
        assert type(error.value) is ValueError and "secret" not in str(error.value)


def test_override_reads_text_as_the_fields_type():
    for kind, path, text, value in [
        (CurateConfig, "align.keep", "0.8", 0.8),
        (CurateConfig, "scorer.batch_size", "16", 16),
        (CurateConfig, "select.datacomp_compat", "true", True),
        (CurateConfig, "materialize", "none", None),
        (CurateConfig, "cluster.scorers", "3", 3),
        (CurateConfig, "cluster.scorers", "2..8", "2..8"),
        (CurateConfig, "cluster.wait_s", "15m", 900.0),
        (CurateConfig, "extra_columns", "url,license", ("url", "license")),
        (CurateConfig, "scorer.weights", "random:7", "random:7"),
        (Odd, "ratios", "0.1,1,1e-3", (0.1, 1.0, 0.001)),
        (Odd, "ratios", "", ()),
        (Odd, "ratios", [0.5, "1"], (0.5, 1.0)),
        (Odd, "sizes", "1, 20 ,", (1, 20)),
        (Odd, "wait_s", 90, 90.0),
        (Odd, "wait_s", "30s", 30.0),
        (Odd, "wait_s", "2h", 7200.0),
        (Odd, "wait_s", "none", None),
    ]:
        config = override(kind(), path, text)
        for name in path.split("."):
            config = getattr(config, name)
        assert config == value and repr(config) == repr(value), path


def test_a_mistake_is_named_in_one_line():
    for path, value, words in [
        ("align.kep", "1", ["'align.kep': unknown option; the closest is align.keep; valid here: keep"]),
        ("datacomp_compat", "true", ["the closest is select.datacomp_compat;", "valid here: input"]),
        ("nothing.of.it", "0.5", ["'nothing.of.it': unknown option; valid here: input"]),
        ("attribute.aggregate", "meen", ["must be one of mean, min, max", "the closest is mean"]),
        ("prepare.fast_decode", "maybe", ["prepare.fast_decode='maybe': must be true or false"]),
        ("materialize", "maybe", ["materialize='maybe': must be true, false or none"]),
        *(
            ("cluster.scorers", bad, [f"cluster.scorers={bad!r}: must be N or MIN..MAX, whole numbers"])
            for bad in ("8..2", "0..2", "1..", "many", "1..4..8")
        ),
        ("cluster.scorers", "0", ["cluster.scorers=0: must be N or MIN..MAX"]),
        ("cluster.wait_s", "inf", ["cluster.wait_s=inf: must be at least 0, and finite"]),
        ("seed", "-1", ["seed=-1: must be at least 0"]),
        ("select.rule", "best", ["select.rule='best'", "cpi", "pas_residual"]),
        ("select.rule", "align80_random90", ["must be align70_random50", "attribute.keep=0.5"]),
        ("select.rule", "align60_random40", ["set align.keep=0.6 and attribute.keep=0.4 too"]),
        ("select.rule", "align1.2.3_random4", ["must be one of cpi, align_pas", "alignA_randomB"]),
        ("scorer", "none", ["'scorer': is a group of options; set one of scorer.model"]),
        ("seed.more", "1", ["seed"]),
        ("align.keep", "1.5", ["align.keep=1.5", "between 0 and 1"]),
        ("align.keep", "much", ["align.keep='much'", "float"]),
        ("scorer.batch_size", "2.5", ["scorer.batch_size", "int"]),
        ("attribute.keep", "0.9", ["attribute.keep=0.9", "align.keep=0.7"]),
        ("attribute.pool", "0.1", ["attribute.pool=0.1", "align.keep=0.7"]),
        ("align\nkeep", "0.5", ["'align\\nkeep'", "align"]),
        ("extra_columns", ["url", 5.5, []], ["extra_columns=", "tuple"]),
        ("input", {"a": 1}, ["input={'a': 1}", "text"]),
        ("input", "caf\udce9", ["input='caf\\udce9'", "UTF-8"]),
        ("scorer.weights", "random:\u00b2", ["scorer.weights", "random:"]),
        ("scorer.weights", "random:" + "9" * 20, ["scorer.weights", "below 2^64"]),
        ("prepare.max_pixels", "200000000", ["prepare.max_pixels=200000000", "178,956,970"]),
        ("cluster.block_rows", "9" * 20, ["cluster.block_rows", "between 1 and 1000000"]),
        ("ratios", "0.1,much", ["ratios='0.1,much': must be of type tuple of float"]),
        ("sizes", "1,2.5", ["sizes='1,2.5': must be of type tuple of int"]),
        ("wait_s", "10min", ["wait_s='10min': must be seconds, as in 90, 30s, 10m or 2h"]),
    ]:
        with pytest.raises(ValueError) as error:
            override((Odd if hasattr(Odd(), path) else CurateConfig)(), path, value)
        assert type(error.value) is ValueError and len(str(error.value).splitlines()) == 1
        assert all(word in str(error.value) for word in words), error.value


def test_configs_are_frozen_and_survive_a_round_trip():
    config = CurateConfig(
        input="a",
        align=AlignConfig(0.9),
        attribute=AttributeConfig(keep=0.4, pool=1.0),
        extra_columns=("x",),
    )
    with pytest.raises(AttributeError):
        config.seed = 3
    groups = [NegativesConfig(scorer=one) for one in (None, ScorerConfig(), ScorerConfig(weights="random:1"))]
    for one in (config, *groups):
        assert from_dict(type(one)(), to_dict(one)) == one
        assert override_all(type(one)(), changed_options(one)) == one
    assert changed_options(CurateConfig()) == {}
    shares = {"attribute.keep": 0.2, "align.keep": 0.3}  # that bound each other, in any order
    for options in (shares, dict(reversed(shares.items()))):
        assert changed_options(override_all(CurateConfig(), options)) == shares


def test_a_group_that_is_none_starts_as_its_defaults_where_an_option_of_it_is_set():
    for kind in [NegativesConfig, ProbeConfig]:
        assert kind().scorer is None
        bf16 = override(kind(), "scorer.precision", "bf16")
        assert bf16.scorer == ScorerConfig(precision="bf16")
        assert override(bf16, "scorer.batch_size", "8").scorer == ScorerConfig(precision="bf16", batch_size=8)
        assert override(bf16, "scorer", "none") == kind()
        assert override_all(bf16, {"scorer": None, "scorer.batch_size": 8}).scorer == ScorerConfig(
            batch_size=8
        )


def test_every_option_has_a_sentence():
    for kind in (CurateConfig, NegativesConfig, ProbeConfig):
        options = list_options(kind)
        assert len(options) > 10 and all(option.text for option in options)


def test_controls_need_no_attribution_and_may_keep_more_than_the_first_gate():
    config = CurateConfig(select=SelectConfig("random"), attribute=AttributeConfig(keep=0.9))
    assert config.pool == 0.0
    assert CurateConfig().pool == 0.7


def test_rules_of_two_gates_are_checked_alike_and_need_what_cpi_needs():
    for rule in [name for name, rule in RULES.items() if rule.attribute_by]:
        assert override(CurateConfig(), "select.rule", rule).pool == 0.7
        refused = [
            ({"attribute.keep": 0.8}, r"attribute\.keep=0\.8: must be at most align\.keep=0\.7"),
            ({"attribute.pool": 0.6}, r"attribute\.pool=0\.6: must be at least align\.keep=0\.7"),
            ({"select.datacomp_compat": True, "align.keep": 1}, r"align\.keep=1\.0: must be below 1 with"),
        ]
        for settings, said in refused:
            with pytest.raises(ValueError, match=said):
                override_all(CurateConfig(), {"select.rule": rule, **settings})


def test_a_draw_in_the_pool_must_be_named_by_its_shares():
    for align, attribute, name in [
        (0.6, 0.4, "align60_random40"),
        (0.705, 0.5, "align70.5_random50"),
        (1.0, 0.1, "align100_random10"),
        (0.07, 0.0, "align7_random0"),
        (1e-05, 1e-05, "align0.001_random0.001"),
    ]:
        shares = {"align.keep": align, "attribute.keep": attribute}
        assert override_all(CurateConfig(), {**shares, "select.rule": name}).select.rule == name
        other = "align70_random50"
        with pytest.raises(
            ValueError, match=f"select.rule='{other}': must be {re.escape(name)}, which stands for"
        ):
            override_all(CurateConfig(), {**shares, "select.rule": other})


def test_a_share_lies_between_nought_and_one_and_is_never_minus_nought():
    for path in ["align.keep", "attribute.keep", "attribute.pool", "max_bad_fraction"]:
        for value in [-0.0, -0.1, 1.1, float("nan")]:
            with pytest.raises(ValueError, match=f"{re.escape(path)}={value}: must be between 0 and 1"):
                override(CurateConfig(select=SelectConfig("align_only")), path, value)


def test_arguments_of_a_library_are_set_by_name_and_found_again():
    config = override_all(
        NegativesConfig(),
        {"llm.engine.max_num_seqs": "64", "llm.engine.compilation_config.level": 3, "llm.engine.eager": True},
    )
    assert config.llm.engine == {"max_num_seqs": "64", "compilation_config.level": "3", "eager": "true"}
    options = changed_options(config)
    assert options["llm.engine.max_num_seqs"] == "64" and len(options) == 3
    assert override_all(NegativesConfig(), options) == from_dict(NegativesConfig(), to_dict(config)) == config
    assert override(config, "llm.engine.max_num_seqs", 8).llm.engine["max_num_seqs"] == "8"
    assert NegativesConfig().llm.engine == {}
    assert not is_marked(NegativesConfig, "llm.engine.max_num_seqs", "free")
    assert is_marked(NegativesConfig, "llm.engines", "free")


def test_whole_numbers_beyond_what_arrays_hold_are_refused():
    for kind in dict.fromkeys(map(get_config, list_kinds())):
        for option in list_options(kind):
            hint = split_none(option.hint)[0]
            more = ["1.." + "9" * 5000] if hint == Span else []
            for value in (2**53, -1, "9" * 30, *more) if hint in (int, Span) else ():
                with pytest.raises(ValueError, match=r"=.*: must be [^\n]*$") as caught:
                    override_all(kind(), {option.path: value})
                assert type(caught.value) is ValueError
