"""The options of a script that somebody wrote: what is saved with a run is what a resumed run gets back."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pytest

from labml_bert.run.options import RunOptions, as_words, restore_options
from labml_bert.training.checkpoint import as_saved


@dataclass(frozen=True)
class OwnOptions(RunOptions):
    """One option of each kind."""

    dropout: float = 0
    limit: float | None = 2
    sizes: tuple[int, ...] = (1, 2)
    names: list[str] = field(default_factory=list)
    kind: Literal["a", "b"] | None = None
    fancy: bool = True


def restore(**changes: Any) -> OwnOptions:
    options = OwnOptions()
    saved = as_saved({"experiment": "own", **options.configuration(), **changes})
    return restore_options(options, json.loads(json.dumps(saved)), "own", Path("run"))


def test_a_resumed_run_gets_its_options_back() -> None:
    assert restore() == OwnOptions()
    changes: dict[str, Any] = {
        "dropout": 0.5,
        "limit": None,
        "sizes": (3,),
        "names": ["x"],
        "kind": "b",
        "fancy": False,
    }
    assert restore(**changes) == replace(OwnOptions(), **changes)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dropout", "0"),
        ("dropout", True),
        ("limit", "x"),
        ("sizes", 3),
        ("kind", "c"),
        ("fancy", 1),
        ("seed", 0.5),
    ],
)
def test_a_value_of_another_type_is_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"run has {name} = .* which is not valid; start a new run"):
        restore(**{name: value})


def test_a_flag_has_no_value() -> None:
    assert as_words("torch_compile", True) == ["--torch-compile"]
    assert as_words("torch_compile", False) == ["--no-torch-compile"]
    assert as_words("from_", "a b") == ["--from", "a b"]
