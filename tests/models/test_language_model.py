"""Likelihoods of texts against one text at a time; chats as tokens."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from raycomp.config import UserError
from raycomp.models.language_model import MAX_TOKENS, LanguageModel, _log_softmax_at, render_chats
from tests.negatives.llm import write_tiny_model, write_tiny_tokenizer

TEXTS = ["A dog runs on the grass.", "", "cat", "A cat " * 40, "a dog", "\u00e9t\u00e9 \u4e2d", "A dog runs."]


def compute_likelihoods(texts, folder, precision="fp32"):
    model = LanguageModel(folder, "controls.language_model", torch.device("cpu"), precision)
    return model.compute_likelihoods(texts)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> str:
    """A Llama of two layers with random weights; its tokenizer has no mark of beginning."""
    return write_tiny_model(tmp_path_factory.mktemp("llama"))


def likelihood(folder: str, text: str) -> float:
    """Return what plain transformers says, token by token."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer.encode(text, add_special_tokens=False)
    if tokenizer.bos_token_id is not None:
        ids = [tokenizer.bos_token_id, *ids]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    total = 0.0
    with torch.no_grad():
        for end in range(1, len(ids)):
            logits = model(torch.tensor([ids[:end]])).logits[0, -1]
            total += float(logits.double().log_softmax(0)[ids[end]])
    return total


def rewrite(folder: Path, source: str, **changes: torch.Tensor) -> None:
    for path in Path(source).iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    weights = {**load_file(folder / "model.safetensors"), **changes}
    save_file({name: value for name, value in weights.items() if len(value)}, folder / "model.safetensors")


def test_weights_that_lack_or_are_no_numbers_are_named(tiny, tmp_path):
    name, norm = "model.layers.1.mlp.up_proj.weight", "model.norm.weight"
    for changes, said in [
        ({name: torch.empty(0)}, f"another model.*{name}"),
        ({name: torch.full((256, 128), torch.nan)}, f"{name} must be finite"),
        ({norm: torch.full((128,), 3e38)}, "gives scores of NaN or infinity; name ano"),
    ]:
        rewrite(tmp_path, tiny, **changes)
        with pytest.raises(ValueError, match=rf"^controls\.language_model=.*{said}"):
            compute_likelihoods(TEXTS, str(tmp_path))


def test_a_folder_that_holds_no_model_is_one_line_and_runs_no_code(tiny, tmp_path):
    model, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    own = {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}}
    damages = {
        "nothing": lambda: [path.unlink() for path in tmp_path.iterdir()],
        "truncated": lambda: model.write_bytes(model.read_bytes()[:5000]),
        "pickled": lambda: (torch.save(load_file(model), tmp_path / "pytorch_model.bin"), model.unlink()),
        "code": lambda: config.write_text(json.dumps(json.loads(config.read_text()) | own)),
    }
    for name, damage in damages.items():
        rewrite(tmp_path, tiny)
        (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'owned')!r}, 'w')\n")
        damage()
        with pytest.raises(
            ValueError, match=r"^controls\.language_model=.*no causal language model"
        ) as error:
            compute_likelihoods(TEXTS, str(tmp_path))
        assert "\n" not in str(error.value) and not (tmp_path / "owned").exists(), name
        (tmp_path / "pytorch_model.bin").unlink(missing_ok=True)
    with pytest.raises(ValueError, match=r"^controls\.language_model='gpt2': must be a folder"):
        compute_likelihoods(TEXTS, "gpt2")


def test_the_sum_over_many_words_is_that_of_doubles():
    logits_MV, word_M = torch.randn(20, 49_152) * 4, torch.randint(0, 49_152, (20,))
    want_M = logits_MV.double().log_softmax(1).gather(1, word_M[:, None]).squeeze(1)
    assert (_log_softmax_at(logits_MV, word_M) - want_M).abs().max() < 3e-6


CHATS = [
    json.dumps([{"role": "system", "content": "Edit."}, {"role": "user", "content": text}])
    for text in ("A dog", "caf\u00e9 \u732b <|end|> \U0001f415", "")
]


def test_tokens_are_those_of_the_rendered_text(tmp_path):
    tokenizer = write_tiny_tokenizer(tmp_path)
    found = render_chats(CHATS, str(tmp_path))
    for chat, tokens in zip(CHATS, found, strict=True):
        said = "".join(f"<|{one['role']}|>{one['content']}<|end|>" for one in json.loads(chat))
        assert tokenizer.decode(tokens) == f"{said}<|assistant|>"
        assert tokens == tokenizer.apply_chat_template(
            json.loads(chat), add_generation_prompt=True, return_dict=False
        )
    assert render_chats([], str(tmp_path)) == []


def test_what_takes_no_chat_is_reported(tmp_path):
    with pytest.raises(UserError, match=r"llm.model=.*: no tokenizer can be loaded"):
        render_chats(CHATS, str(tmp_path / "none"))
    for number, (template, said) in enumerate(
        [
            (None, "does not take the prompts"),
            ("{{ raise_exception('System role not supported') }}", "System role not supported"),
        ]
    ):
        folder = tmp_path / str(number)
        tokenizer = write_tiny_tokenizer(folder)
        (folder / "chat_template.jinja").unlink(missing_ok=True)
        tokenizer.chat_template = template
        tokenizer.save_pretrained(folder)
        with pytest.raises(UserError, match=f"llm.model=.*{said}") as error:
            render_chats(CHATS, str(folder))
        assert "\n" not in str(error.value), template


def test_batches_say_what_one_text_at_a_time_does(tiny, tmp_path):
    from transformers import AutoTokenizer

    rewrite(tmp_path, tiny)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.bos_token = "<|user|>"
    tokenizer.save_pretrained(tmp_path)
    for folder in (tiny, str(tmp_path)):
        found = compute_likelihoods(TEXTS, folder)
        np.testing.assert_allclose(found, [likelihood(folder, text) for text in TEXTS], atol=1e-4, rtol=0)
        assert found.dtype == np.float64 and found[1] == 0 and (found[[0, 3, 4, 5, 6]] < 0).all()
    # Every letter of a language of another script is some tokens.
    long = "\u4e2d" * MAX_TOKENS
    one, same = compute_likelihoods([long, long + "a dog"], tiny)
    assert one == pytest.approx(same, abs=1e-2)
