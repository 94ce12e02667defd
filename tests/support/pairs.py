"""A small dataset of sentence pairs."""

from pathlib import Path

from labml_bert.data.pair_dataset import build_dataset
from labml_bert.data.pair_shards import DatasetArguments
from labml_bert.data.tokenizers import word_tokenizer
from tests.support.runs import small_text


def build_small_dataset(folder: Path, dupe_factor: int = 1) -> dict[str, object]:
    texts = [small_text(30, seed) for seed in range(20)]
    return build_dataset(
        texts, word_tokenizer(texts), folder, DatasetArguments(max_length=32, dupe_factor=dupe_factor), 1
    )
