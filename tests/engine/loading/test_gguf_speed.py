"""What makes GGUF conversion fast gives what gguf and transformers give, bit by bit."""

from pathlib import Path

import gguf
import numpy as np
from transformers.modeling_gguf_pytorch_utils import _gguf_parse_value, read_field

from daemon.engine.loading.gguf_speed import _parse_value_of, _reader_of


def test_a_files_fields_and_tensors_are_read_as_gguf_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "made.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("")
    writer.add_block_count(3)
    writer.add_rope_freq_base(1e4)
    writer.add_token_list(["a", "", "Ġb", "日本"] * 10)
    writer.add_token_types([1, 2, 3, 4] * 10)
    writer.add_add_bos_token(True)
    writer.add_tensor("one", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.add_tensor("half", np.arange(6, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found, wanted = _reader_of(gguf.GGUFReader)(path), gguf.GGUFReader(path)
    parse = _parse_value_of(_gguf_parse_value)
    assert list(found.fields) == list(wanted.fields)
    for name, field in wanted.fields.items():
        one = found.fields[name]
        assert one.contents() == field.contents() and one.types == field.types
        parsed = [parse(one.parts[index], one.types) for index in one.data]
        assert parsed == read_field(wanted, name)
    for one, tensor in zip(found.tensors, wanted.tensors, strict=True):
        assert (one.name, one.tensor_type) == (tensor.name, tensor.tensor_type)
        assert one.data.dtype == tensor.data.dtype and np.array_equal(one.data, tensor.data)
