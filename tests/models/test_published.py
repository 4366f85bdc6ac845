"""Configurations of published models: what docs/models.md says of each is what llmd does."""

from pathlib import Path
from typing import Any

import pytest

from daemon.models.containers import text_fields
from tests.house.source import ROOT
from tests.models.published import BEGIN, configs, decided, table
from tests.zoo.judge import EQUAL, outcome
from tests.zoo.variant import Variant


def test_the_table_is_what_llmd_says() -> None:
    page = (ROOT / "docs" / "models.md").read_text("utf-8")
    said = BEGIN + page.partition(BEGIN)[2].partition("-->")[0] + "-->"
    assert said == table(), "python -m tests.models.published docs/models.md writes it"


def test_a_container_without_a_tie_of_its_own_is_refused_with_a_sentence(tmp_path: Path) -> None:
    _, reasons = decided(configs()["step3p7"], tmp_path)
    assert reasons == ["transformers has no causal language model of this type"]


def test_proportional_positions_read_their_share_of_a_head(tmp_path: Path) -> None:
    _, reasons = decided(configs()["gemma4-26b-a4b"], tmp_path)
    assert not any("partial_rotary_factor" in reason for reason in reasons)


@pytest.mark.soak
@pytest.mark.parametrize("name", configs())
def test_a_tiny_model_of_a_served_one_equals_transformers(name: str, tmp_path: Path) -> None:
    _, reasons = decided(configs()[name], tmp_path)
    found = None if reasons else outcome(tiny(name))
    assert found is None or found.what == EQUAL, found


def tiny(name: str) -> Variant:
    """The same model with few small layers, one of each end."""
    config = text_fields(configs()[name])
    args: dict[str, Any] = {}
    if kinds := config.get("layer_types"):
        args["layer_types"] = [kinds[0], kinds[-1]]
    if config.get("num_local_experts") == 0:
        args["num_local_experts"] = 0
    if "sliding_window" in config and config["sliding_window"] is None:
        args["sliding_window"] = None
    if (rope := config.get("rope_scaling", {})).get("type") == "longrope":
        args["rope_scaling"] = rope | {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    return Variant(config["model_type"], "published", args=args)
