"""Small handmade traces."""

from pathlib import Path

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:15:46.6805900,374,44\r\n"
    "2023-11-16 18:15:47.6805901,3000,1100\r\n"
    "2023-11-16 18:15:48.6805900,10,0\r\n"
    "2023-11-16 18:15:50.6805900,879,55"
)
LENGTHS = (
    "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n"
    "3742,284,4026,0.07\n18,243,261,13.5\n11,306,317,27.8\n26,279,305,10.7\n2000,48,2048,0.02\n"
)
MOONCAKE = (
    '{"timestamp": 0, "input_length": 1100, "output_length": 6, "hash_ids": [7, 8, 9]}\n'
    '{"timestamp": 250, "input_length": 1024, "output_length": 4, "hash_ids": [7, 8]}\n\n'
    '{"timestamp": 3000, "input_length": 90000, "output_length": 4, "hash_ids": [7]}\n'
    '{"timestamp": 1500, "input_length": 30, "output_length": 2, "hash_ids": [5]}\n'
)


def written(folder: Path, text: str, name: str = "trace") -> Path:
    """A file of the text, its line ends as they are."""
    path = folder / name
    path.write_bytes(text.encode())
    return path
