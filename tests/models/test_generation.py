"""Default sampling as a folder's generation_config.json gives it."""

import json
from pathlib import Path

import pytest
from transformers import GenerationConfig

from daemon.models.generation import DefaultSampling, default_sampling, without_effect
from daemon.models.shape import ModelError


def folder_saying(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "generation_config.json").write_text(text)
    return folder


SAID = {
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.95,
    "min_p": 0.05,
    "repetition_penalty": 1.05,
    "max_new_tokens": 2048,
}


def test_what_the_models_folder_says_is_the_default(tmp_path: Path) -> None:
    folder = folder_saying(tmp_path, json.dumps(SAID | {"do_sample": False, "eos_token_id": 2}))
    found = default_sampling("auto", folder)
    assert found == DefaultSampling(
        temperature=0.6,
        top_k=20,
        top_p=0.95,
        min_p=0.05,
        repetition_penalty=1.05,
        max_tokens=2048,
    )
    assert "temperature 0.6" in str(found) and "max_tokens 2048" in str(found)


def test_nothing_said_is_neutral(tmp_path: Path) -> None:
    assert default_sampling("auto", tmp_path) == DefaultSampling()
    folder_saying(tmp_path, '{"temperature": null, "top_k": -1, "eos_token_id": [1, 2]}')
    found = default_sampling("auto", tmp_path)
    assert found == DefaultSampling() and str(found) == "neutral"


def test_llmd_is_neutral_whatever_the_folder_says(tmp_path: Path) -> None:
    assert default_sampling("llmd", folder_saying(tmp_path, "not JSON")) == DefaultSampling()


def test_another_folder_may_say_it(tmp_path: Path) -> None:
    model = folder_saying(tmp_path / "model", '{"temperature": 0.1}')
    other = folder_saying(tmp_path / "other", '{"top_p": 0.5}')
    assert default_sampling(str(other), model) == DefaultSampling(top_p=0.5)
    with pytest.raises(ModelError, match=r"none/generation_config\.json is missing"):
        default_sampling(str(tmp_path / "none"), model)


def test_a_file_without_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").symlink_to("/dev/zero")
    with pytest.raises(ModelError, match="more than"):
        default_sampling("auto", tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "Input data was truncated"),
        ("[]", "it must be a JSON object"),
        ('{"top_p": 0}', "top_p must be a number above 0 and at most 1, and is 0"),
        ('{"temperature": -1}', "temperature must be a number from 0 to 2, and is -1"),
        ('{"temperature": "warm"}', 'temperature must be a number from 0 to 2, and is "warm"'),
        ('{"top_k": 1.5}', "top_k must be a whole number from -1 to 2147483647, and is 1.5"),
        ('{"max_new_tokens": 0}', "max_new_tokens must be a whole number from 1 to 2147483647, "),
        ('{"stop_strings": [7]}', "stop_strings[0] must be a string, and is 7"),
        ('{"suppress_tokens": [-1]}', "suppress_tokens[0] must be a whole number from 0 to "),
        ('{"bad_words_ids": [7]}', "bad_words_ids[0] must be a list, and is 7"),
    ],
)
def test_what_no_request_could_say_is_refused(text: str, words: str, tmp_path: Path) -> None:
    folder = folder_saying(tmp_path, text)
    with pytest.raises(ModelError) as raised:
        default_sampling("auto", folder)
    assert f"generation_config.json cannot be used: {words}" in str(raised.value)
    assert "; --generation-config llmd does without it" in str(raised.value)
    assert "`" not in str(raised.value)


def test_ends_and_tokens_that_are_not_drawn_are_read(tmp_path: Path) -> None:
    said = {"stop_strings": ["</answer>", ""], "suppress_tokens": [5, 7], "min_new_tokens": 3}
    folder = folder_saying(tmp_path, json.dumps(said | {"bad_words_ids": [[9], [5], [1, 2]]}))
    found = default_sampling("auto", folder)
    assert found == DefaultSampling(stop=("</answer>",), suppressed=(5, 7, 9), min_tokens=3)
    assert str(found).startswith("min_tokens 3, stop '</answer>', suppressed 5 7 9 (by ")
    folder_saying(tmp_path, '{"stop_strings": "one"}')
    assert default_sampling("auto", tmp_path).stop == ("one",)
    assert default_sampling("llmd", folder) == DefaultSampling()


UNKNOWN: dict[str, object] = {
    "begin_suppress_tokens": [220],
    "bad_words_ids": [[1, 2]],
    "no_repeat_ngram_size": 3,
    "encoder_no_repeat_ngram_size": 3,
    "num_beams": 4,
    "num_beam_groups": 2,
    "num_return_sequences": 2,
    "diversity_penalty": 0.5,
    "forced_bos_token_id": 0,
    "forced_eos_token_id": 2,
    "exponential_decay_length_penalty": [10, 1.5],
    "sequence_bias": [[[1], -1.0]],
    "typical_p": 0.9,
    "epsilon_cutoff": 0.001,
    "eta_cutoff": 0.001,
    "top_h": 0.5,
    "penalty_alpha": 0.6,
    "guidance_scale": 1.5,
    "encoder_repetition_penalty": 1.2,
    "watermarking_config": {"bias": 2.0},
    "dola_layers": "high",
    "constraints": ["x"],
    "force_words_ids": [[5]],
    "max_length": 4096,
    "min_length": 5,
    "max_time": 1.5,
    "token_healing": True,
    "a_field_of_tomorrow": 1,
}


def test_what_has_no_effect_is_named(tmp_path: Path) -> None:
    folder = folder_saying(tmp_path, json.dumps(SAID | UNKNOWN | {"eos_token_id": 2}))
    assert without_effect("auto", folder) == [f"{name} {one}" for name, one in UNKNOWN.items()]
    assert without_effect("llmd", folder) == []


def test_every_field_of_transformers_is_used_or_named_or_says_nothing(tmp_path: Path) -> None:
    """A version of transformers that knows another way to draw fails here."""
    harmless = {
        *("cache_config", "cache_implementation", "compile_config", "disable_compile"),
        *("continuous_batching_config", "max_cache_len", "use_cache", "prefill_chunk_size"),
        *("is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule"),
        *("assistant_confidence_threshold", "assistant_early_exit", "assistant_lookbehind"),
        *("target_lookbehind", "assistant_ensemble_weight", "prompt_lookup_num_tokens"),
        *("max_matching_ngram_size", "speculation_type", "use_mtp", "low_memory"),
        *("output_attentions", "output_hidden_states", "output_logits", "output_scores"),
        *("return_dict_in_generate", "renormalize_logits", "remove_invalid_values"),
        *("early_stopping", "length_penalty", "do_sample", "_from_model_config"),
        *("bos_token_id", "pad_token_id", "decoder_start_token_id", "eos_token_id"),
        "transformers_version",
    }
    used = {*SAID, "min_new_tokens", "stop_strings", "suppress_tokens"}
    fields = set(GenerationConfig().to_dict())
    assert fields - harmless - used == set(UNKNOWN) - {"a_field_of_tomorrow"}
    folder_saying(tmp_path, json.dumps(dict.fromkeys(harmless, 3)))
    assert without_effect("auto", tmp_path) == []


def test_neutral_values_say_nothing(tmp_path: Path) -> None:
    ones = ("num_beams", "num_beam_groups", "typical_p", "guidance_scale")
    said = dict.fromkeys(ones, 1) | {"no_repeat_ngram_size": 0, "begin_suppress_tokens": None}
    folder_saying(tmp_path, json.dumps(said | {"bad_words_ids": None, "token_healing": False}))
    assert without_effect("auto", tmp_path) == []
