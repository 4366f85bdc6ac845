"""What the pages say of a folder's files is what the code goes by."""

import re

import pytest

from daemon.models import generation, unread
from tests.house.source import ROOT

MODELS = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
API = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
KINDS = {
    "norms": "norm_type",
    "activations": "activation",
    "biases": "lm_head_bias",
    "experts": "num_experts",
    "positions": "rope_base",
    "attention": "attention_type",
    "scales": "logit_scale",
    "caps": "final_logit_softcapping",
    "windows": "sliding_window",
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_fields_that_the_page_names_is_looked_for(kind: str) -> None:
    (said,) = re.findall(r"speaks of how a model computes\s*\(([^)]*)\)", MODELS)
    assert kind in said
    assert unread._COMPUTES.search(KINDS[kind]) and not unread._HARMLESS.fullmatch(KINDS[kind])


def test_the_page_names_each_field_of_generation_that_is_read() -> None:
    section = API.partition("## Default sampling")[2].partition("\n## ")[0]
    for name in generation._File.__struct_fields__:
        assert f"`{name}`" in section, name
    for name in ("num_beams", "no_repeat_ngram_size", "begin_suppress_tokens", "max_length"):
        assert f"`{name}`" in section and name not in generation._File.__struct_fields__
