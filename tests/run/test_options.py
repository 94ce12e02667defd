"""The options of a script that somebody wrote: what is saved with a run is what a resumed run gets back."""

import json
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pytest

from labml_bert.run.options import OPERATIONAL, RunOptions, as_words, parse_options, restore_options
from labml_bert.training.checkpoint import as_saved


@dataclass(frozen=True)
class OwnOptions(RunOptions):
    """One option of each kind."""

    dropout: float = 0
    limit: float | None = 2
    sizes: tuple[int, ...] = (1, 2)
    scales: tuple[float, ...] | None = (1.0,)
    ends: tuple[int, str] = (0, "")
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
        "scales": (-1.0, 2.0),
        "ends": (1, "x"),
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
        ("sizes", (1, "2")),
        ("ends", (1, 2)),
        ("ends", (1,)),
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


@dataclass(frozen=True)
class TypedOptions(OwnOptions):
    """Options for a command line, with defaults that tyro can show."""

    schedule: str = "16:1"
    batch_tokens: int = 64
    shift: float = 0.0
    more: tuple[int, ...] = ()
    is_new: bool | None = None
    title: str = ""
    torch_compile: bool = field(default=True, metadata=OPERATIONAL)


def parse(*words: str) -> TypedOptions:
    return parse_options(TypedOptions, "own", "", ["--steps", "3", *words])


@pytest.mark.parametrize(
    ("name", "value"),
    [("shift", -0.5), ("sizes", (3, 4)), ("more", (5,)), ("title", "-x"), ("title", "a -b")],
)
def test_a_command_in_a_record_can_be_typed(name: str, value: object) -> None:
    assert getattr(parse(*as_words(name, value)), name) == value
    assert parse().more == ()


def test_optional_values_of_other_types() -> None:
    assert parse("--kind", "a").kind == "a"
    assert [parse("--is-new", word).is_new for word in ("True", "False")] == [True, False]


@pytest.mark.parametrize("words", ["--torch-compile --no-torch-compile", "--no-torch-compile"])
def test_the_last_of_several_flags_counts(words: str) -> None:
    assert not parse(*words.split()).torch_compile
    assert parse(*words.split(), "--torch_compile").torch_compile


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_a_saved_infinity_is_restored(value: float) -> None:
    changes: dict[str, Any] = {"dropout": value, "limit": value, "scales": (1.0, value)}
    assert restore(**changes) == replace(OwnOptions(), **changes)
    assert math.isnan(restore(dropout=math.nan).dropout)
