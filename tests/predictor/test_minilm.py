"""The plain encoder computes what transformers' BERT does."""

from pathlib import Path

import torch
from transformers import BertConfig, BertModel

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
    ids = torch.randint(0, 90, (3, 11))
    mask = torch.ones(ids.shape, dtype=torch.bool)
    mask[1, 4:] = mask[2, 10:] = False
    with torch.inference_mode():
        expected = reference(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        found = Bert(tmp_path)(ids, mask)
    assert torch.allclose(found[mask], expected[mask], atol=1e-5)
