"""Options are checked at birth, named in errors, and changed in one way."""

import re
from dataclasses import dataclass, replace
from fractions import Fraction

import pytest

from raycomp import schema
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

CONFIGS = (CurateConfig, NegativesConfig, ProbeConfig)


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
    for kind, path, value in [
        *((NegativesConfig, f"llm.{name}", "inf") for name in ("temperature", "timeout_s", "patience_s")),
        *((NegativesConfig, path, "-1") for path in ("llm.seed", "negatives.seed")),
        (NegativesConfig, "llm.url", "http://[::1"),
        (NegativesConfig, "llm.url", "http://host:99999/v1"),
        (NegativesConfig, "llm.url", "http://me:secret\u2100@host"),
        (ProbeConfig, "seed", "-1"),
    ]:
        with pytest.raises(ValueError, match=path) as error:
            override(kind(), path, value)
        assert type(error.value) is ValueError and "secret" not in str(error.value)


def test_override_reads_text_as_the_fields_type():
    for path, text, value in [
        ("align.keep", "0.8", 0.8),
        ("scorer.batch_size", "16", 16),
        ("select.datacomp_compat", "true", True),
        ("materialize", "false", False),
        ("materialize", "none", None),
        ("attribute.pool", "0.9", 0.9),
        ("cluster.scorers", "3", 3),
        ("cluster.scorers", "2..8", "2..8"),
        ("cluster.scorers", "none", None),
        ("cluster.wait_s", "15m", 900.0),
        ("prepare.fast_decode", "true", True),
        ("prepare.stored_embeddings", "b32_img", "b32_img"),
        ("prepare.stored_embeddings", "none", None),
        ("extra_columns", "url,license", ("url", "license")),
        ("scorer.weights", "random:7", "random:7"),
    ]:
        config = override(CurateConfig(), path, text)
        for name in path.split("."):
            config = getattr(config, name)
        assert config == value and type(config) is type(value)


def test_a_mistake_is_named_in_one_line():
    for path, value, words in [
        ("align.kep", "0.5", ["'align.kep': unknown option; the closest is align.keep; valid here: keep"]),
        ("alinement.keep", "0.5", ["alinement.keep", "the closest is align.keep;", "attribute"]),
        (
            "datacomp_compat",
            "true",
            ["the closest is select.datacomp_compat;", "valid here: input, columns, scorer"],
        ),
        ("nothing.of.it", "0.5", ["'nothing.of.it': unknown option; valid here: input"]),
        (
            "attribute.aggregate",
            "meen",
            ["must be one of mean, min, max, fraction_supported; the closest is mean"],
        ),
        ("prepare.fast_decode", "maybe", ["prepare.fast_decode='maybe': must be true or false"]),
        ("materialize", "maybe", ["materialize='maybe': must be true, false or none"]),
        *(
            ("cluster.scorers", bad, [f"cluster.scorers={bad!r}: must be N or MIN..MAX, whole numbers"])
            for bad in ("8..2", "0..2", "1..", "..4", "1...4", "many", "1..4..8", "-1..2")
        ),
        ("cluster.scorers", "0", ["cluster.scorers=0: must be N or MIN..MAX"]),
        ("cluster.wait_s", "inf", ["cluster.wait_s=inf: must be at least 0, and finite"]),
        ("seed", "-1", ["seed=-1: must be at least 0"]),
        ("nonce.seed", "-1", ["nonce.seed=-1: must be at least 0"]),
        ("select.rule", "align80_random90", ["must be align70_random50", "attribute.keep=0.5"]),
        (
            "select.rule",
            "align1.2.3_random4",
            ["must be one of cpi, align_pas, align_only", "alignA_randomB"],
        ),
        (
            "select.rule",
            "pas_residuals",
            ["your own shares, as in align70_random50; or FILE.py:NAME; the closest is pas_residual"],
        ),
        ("scorer", "none", ["'scorer': is a group of options; set one of scorer.model"]),
        ("align", "0.5", ["align.keep"]),
        ("seed.more", "1", ["seed"]),
        ("align.keep", "1.5", ["align.keep=1.5", "between 0 and 1"]),
        ("align.keep", "much", ["align.keep='much'", "float"]),
        ("scorer.batch_size", "2.5", ["scorer.batch_size", "int"]),
        ("select.rule", "best", ["select.rule='best'", "cpi", "pas_residual"]),
        (
            "select.rule",
            "align60_random40",
            ["must be align70_random50", "set align.keep=0.6 and attribute.keep=0.4 too"],
        ),
        ("select.rule", "align070_random50", ["select.rule=", "must be align70_random50"]),
        ("scorer.weights", "random:x", ["scorer.weights", "random:"]),
        ("attribute.keep", "0.9", ["attribute.keep=0.9", "align.keep=0.7"]),
        ("prepare.stored_embeddings", "", ["prepare.stored_embeddings=''", "clip_retrieval"]),
        ("attribute.pool", "0.1", ["attribute.pool=0.1", "align.keep=0.7"]),
        ("align\nkeep", "0.5", ["'align\\nkeep'", "align"]),
        ("extra_columns", None, ["extra_columns=None", "tuple"]),
        ("extra_columns", ["url", 5.5, []], ["extra_columns=", "tuple"]),
        ("input", {"a": 1}, ["input={'a': 1}", "text"]),
        ("input", "caf\udce9", ["input='caf\\udce9'", "UTF-8"]),
        ("scorer.weights", "random:\u00b2", ["scorer.weights", "random:"]),
        ("scorer.weights", "random:" + "9" * 20, ["scorer.weights", "below 2^64"]),
        ("prepare.max_pixels", "0", ["prepare.max_pixels=0", "178,956,970"]),
        ("prepare.max_pixels", "200000000", ["prepare.max_pixels=200000000", "178,956,970"]),
        ("cluster.price_per_hour", "nan", ["cluster.price_per_hour=nan", "finite"]),
        ("cluster.block_rows", "9" * 20, ["cluster.block_rows", "between 1 and 1000000"]),
    ]:
        with pytest.raises(ValueError) as error:
            override(CurateConfig(), path, value)
        assert type(error.value) is ValueError and len(str(error.value).splitlines()) == 1
        assert all(word in str(error.value) for word in words), error.value


def test_options_that_bound_each_other_move_together_in_any_order():
    for paths in (["align.keep", "attribute.keep"], ["attribute.keep", "align.keep"]):
        values = {"align.keep": 0.3, "attribute.keep": 0.2}
        config = override_all(CurateConfig(), {path: values[path] for path in paths})
        assert (config.align.keep, config.attribute.keep) == (0.3, 0.2)


def test_configs_are_frozen_and_survive_a_round_trip():
    config = CurateConfig(
        input="a",
        align=AlignConfig(0.9),
        attribute=AttributeConfig(keep=0.4, pool=1.0),
        extra_columns=("x",),
    )
    with pytest.raises(AttributeError):
        config.seed = 3
    assert from_dict(CurateConfig(), to_dict(config)) == config
    assert override_all(CurateConfig(), changed_options(config)) == config
    assert changed_options(CurateConfig()) == {}


def test_numbers_in_a_row_and_durations_are_read():
    for path, text, value in [
        ("ratios", "0.1,1,1e-3", (0.1, 1.0, 0.001)),
        ("ratios", "", ()),
        ("ratios", [0.5, "1"], (0.5, 1.0)),
        ("sizes", "1,20", (1, 20)),
        ("sizes", "1, 20 ,", (1, 20)),
        ("wait_s", "90", 90.0),
        ("wait_s", 90, 90.0),
        ("wait_s", "30s", 30.0),
        ("wait_s", "1.5m", 90.0),
        ("wait_s", "2h", 7200.0),
        ("wait_s", "none", None),
    ]:
        found = getattr(override(Odd(), path, text), path)
        assert found == value and repr(found) == repr(value)


def test_what_is_no_number_or_duration_is_said():
    for path, text, said in [
        ("ratios", "0.1,much", "ratios='0.1,much': must be of type tuple of float"),
        ("sizes", "1,2.5", "sizes='1,2.5': must be of type tuple of int"),
        ("wait_s", "10min", "wait_s='10min': must be seconds, as in 90, 30s, 10m or 2h"),
        ("wait_s", "s", "wait_s='s': must be seconds"),
    ]:
        with pytest.raises(ValueError) as error:
            override(Odd(), path, text)
        assert str(error.value).startswith(said)


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


def test_what_a_command_line_must_say_distinguishes_a_chosen_group_from_none():
    for scorer in [None, ScorerConfig(), ScorerConfig(weights="random:1")]:
        for kind in [NegativesConfig, ProbeConfig]:
            config = replace(kind(), scorer=scorer)
            assert override_all(kind(), changed_options(config)) == config
            assert from_dict(kind(), to_dict(config)) == config


def test_every_option_has_a_sentence():
    for kind in CONFIGS:
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


def test_columns_of_rules_are_those_of_the_schema():
    names = {*schema.scores_schema(schema.aligned_schema(2, "float32")).names}
    assert {name for rule in RULES.values() for name in rule.columns} <= names


def test_datacomps_rule_cannot_keep_everything_and_says_so_at_birth():
    for settings in [{"select.rule": "full"}, {"attribute.keep": 1, "align.keep": 1}, {"align.keep": 1}]:
        with pytest.raises(ValueError, match="datacomp_compat"):
            override_all(CurateConfig(), {"select.datacomp_compat": True, **settings})


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


def _list_whole() -> list[tuple[type, str, object]]:
    """Return every option of every command that holds whole numbers."""
    kinds = dict.fromkeys(map(get_config, list_kinds()))
    options = ((kind, option, split_none(option.hint)[0]) for kind in kinds for option in list_options(kind))
    return [(kind, option.path, hint) for kind, option, hint in options if hint in (int, Span)]


def test_whole_numbers_beyond_what_arrays_hold_are_refused():
    for kind, path, hint in _list_whole():
        for value in (
            2**53,
            2**63,
            10**26,
            -(2**63),
            -1,
            "9" * 30,
            *(["1.." + "9" * 5000] if hint == Span else []),
        ):
            with pytest.raises(ValueError, match=r"=.*: must be [^\n]*$") as caught:
                override_all(kind(), {path: value})
            assert type(caught.value) is ValueError
