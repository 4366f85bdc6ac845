"""Versions in the names of the cache's folders: what is written otherwise is another folder."""

from daemon.models.embedded import CONVERTER_VERSION
from daemon.models.gguf_index import GgufIndex, IndexedTensor
from daemon.models.quantised_folder import QUANTISER_VERSION


def test_another_index_has_another_version() -> None:
    """An older llmd may still serve from its own folders. Where this fails, raise both versions,
    then write the fields here.
    """
    fields = [*GgufIndex.__struct_fields__, *IndexedTensor.__struct_fields__]
    assert fields == [
        *("size_bytes", "computed", "tensors", "file", "unused", "further_bytes"),
        *("name", "format", "shape", "start", "rows", "columns", "part"),
    ]
    assert (CONVERTER_VERSION, QUANTISER_VERSION) == (13, 5)
