"""Damaged files are refused."""

from pathlib import Path

import pytest
import torch

from labml_bert.files import read_tensors, write_tensors
from tests.support.damage import flipped


def test_no_flipped_bit_and_no_cut_gets_through(tmp_path: Path) -> None:
    """Of a small file every byte, its header too; a flip that changes nothing that is read may pass."""
    tensors = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor([1, 2]), "c": torch.tensor(0.5)}
    path = tmp_path / "x.safetensors"
    write_tensors(path, tensors, {"about": "{}"})
    whole = path.read_bytes()
    harmless = 0
    for at in range(len(whole)):
        path.write_bytes(flipped(whole, at))
        try:
            found, metadata = read_tensors(path)
        except ValueError as error:
            assert "damaged" in str(error)
            continue
        harmless += 1
        assert metadata["about"] == "{}" and found.keys() == tensors.keys()
        assert all(torch.equal(found[key], tensors[key]) for key in tensors)
    assert harmless < 10
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match="damaged"):
            read_tensors(path)
