"""The plain encoder computes what transformers' BERT does, in 8 bits nearly so."""

from pathlib import Path

import torch
from transformers import BertConfig, BertModel

from daemon.predictor.linear import Float32Linear, Int8Linear
from daemon.predictor.minilm import Bert


def test_states_are_those_of_transformers(tmp_path: Path) -> None:
    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=90,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=40,
        max_position_embeddings=16,
        initializer_range=0.3,
    )
    reference = BertModel(config, add_pooling_layer=False).float().eval()
    reference.save_pretrained(tmp_path)
    lengths = [11, 4, 10]
    ids = torch.randint(0, 90, (3, 11))
    mask = torch.arange(11) < torch.tensor(lengths)[:, None]
    with torch.inference_mode():
        expected = reference(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        found = Bert(tmp_path)(ids[mask], lengths)
        rounded = Bert(tmp_path, Int8Linear)(ids[mask], lengths)
    assert torch.allclose(found, expected[mask], atol=1e-5)
    cosines = torch.nn.functional.cosine_similarity(rounded, expected[mask])
    assert 0.99 < float(cosines.min()) < 0.999999, "8 bits round, and that is all"


def test_a_token_has_its_own_scale_so_that_company_changes_nothing() -> None:
    """A loud token beside a quiet one: by a common scale the quiet one would be zeros."""
    torch.manual_seed(1)
    weight, bias = torch.randn(24, 16), torch.randn(24)
    rows = torch.randn(3, 16) * torch.tensor([[1.0], [1000.0], [0.0]])
    linear = Int8Linear(weight, bias)
    found = linear(rows)
    alone = torch.cat([linear(row[None]) for row in rows])
    assert torch.equal(found, alone)
    exact = Float32Linear(weight, bias)(rows)
    errors = (found - exact).norm(dim=1) / (exact - bias).norm(dim=1).clamp(min=1e-9)
    assert float(errors[:2].max()) < 0.02
    assert torch.equal(found[2], bias), "a token of zeros"
