"""Whatever has happened to `model.json`, the page reads it or says in one line why it can't."""

import base64
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from labml_bert.checksums import seal
from tests.support.mutations import damaged_bytes, damaged_json
from tests.support.runs import ROOT

CARD = (ROOT / "docs" / "live" / "model" / "model.json").read_bytes()

READ_CARDS = """
import { createInterface } from "node:readline";
import { readFileSync } from "node:fs";
const script = readFileSync(process.argv[1]).toString("base64");
const { read_card } = await import("data:text/javascript;base64," + script);
for await (const line of createInterface({ input: process.stdin })) {
  let answer;
  try {
    answer = { card: await read_card(new TextDecoder().decode(Buffer.from(line, "base64"))) };
  } catch (error) {
    answer = { error: error.message, kind: error.constructor.name };
  }
  console.log(JSON.stringify(answer));
}
"""
Reader = Callable[[bytes | str], dict[str, Any]]


@pytest.fixture(scope="module")
def read_card() -> Iterator[Reader]:
    node = shutil.which("node", path=Path(sys.executable).parent) or shutil.which("node")
    if node is None:
        pytest.skip("node, which runs the script, is not installed")
    words = [node, "--input-type=module", "--eval", READ_CARDS, str(ROOT / "docs" / "live" / "card.js")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def read(text: bytes | str) -> dict[str, Any]:
            assert process.stdin is not None and process.stdout is not None
            data = text if isinstance(text, bytes) else text.encode()
            process.stdin.write(base64.b64encode(data).decode() + "\n")
            process.stdin.flush()
            answer: dict[str, Any] = json.loads(process.stdout.readline())
            return answer

        yield read
        assert process.stdin is not None
        process.stdin.close()


@pytest.mark.processes
def test_the_card_of_the_site_is_read(read_card: Reader) -> None:
    assert read_card(CARD) == {"card": json.loads(CARD)}


def card_with(**changes: object) -> dict[str, Any]:
    card = json.loads(CARD)
    config = card["arms"]["modern"]["config"]
    for name, value in changes.items():
        (card if name in card else config)[name] = value
    return card


@pytest.mark.processes
def test_the_export_of_a_model_without_a_run_is_read(read_card: Reader) -> None:
    """Nobody knows how long it was trained, and the page asks only if there are several checkpoints."""
    card = card_with()
    del card["sha256"]
    undated = card["checkpoints"][-1] | {"seconds": None, "steps": None, "loss": None}
    card["checkpoints"] = [undated]
    text = seal(json.dumps(card))
    assert read_card(text) == {"card": json.loads(text)}
    card["checkpoints"] = [card_with()["checkpoints"][0], undated]
    assert "its checkpoints don't fit" in read_card(json.dumps(card))["error"]


@pytest.mark.processes
def test_a_curve_may_begin_at_step_0(read_card: Reader) -> None:
    """`continue_pretraining.py` measures the model before it trains it."""
    card = card_with()
    del card["sha256"]
    curve = card["arms"]["modern"]["curve"]
    card["arms"]["modern"]["curve"] = [[0, 3.87], *curve]
    text = seal(json.dumps(card))
    assert read_card(text) == {"card": json.loads(text)}
    for point in ([-1, 3.87], [0.5, 3.87], [0, -1], [0], 0):
        card["arms"]["modern"]["curve"] = [point, *curve]
        assert "its curve isn't a list of points" in read_card(json.dumps(card))["error"]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("old", "new"),
    [(b'"x"', b'"X2"'), (b'"y"', b'"\xc3\xbf"'), (b'"loss":1', b'"loss":3'), (b'"sha256"', b'"sha257"')],
)
def test_a_card_with_another_character_is_refused(old: bytes, new: bytes, read_card: Reader) -> None:
    """Without its checksum, the page would show other tokens or another loss."""
    assert CARD.count(old) > 0
    head, _, tail = CARD.rpartition(old)
    assert "error" in read_card(head + new + tail)
    assert "its checksum differs" in read_card(CARD.replace(b'"y"', b'"\xc3\xbf"'))["error"]


def card_without(name: str) -> dict[str, Any]:
    """A card without one value of the configuration."""
    card = card_with()
    del card["arms"]["modern"]["config"][name]
    return card


def card_with_tensors(change: Callable[[list[dict[str, Any]]], object]) -> dict[str, Any]:
    card = card_with()
    change(card["arms"]["modern"]["tensors"])
    return card


def card_with_checkpoint(**changes: object) -> dict[str, Any]:
    card = card_with()
    card["checkpoints"][0].update(changes)
    return card


@pytest.mark.processes
@pytest.mark.parametrize(
    ("card", "reason"),
    [
        (card_with(format=2), "its format is 2, and this page reads format 3"),
        (card_with(hidden_activation="relu"), "its hidden_activation is relu"),
        (card_with(num_attention_heads=0), "its num_attention_heads is 0"),
        (card_with(num_attention_heads=3), "isn't divisible"),
        (card_with(model_type="gpt"), "its model_type is gpt"),
        (card_with(model_type="constructor"), "its model_type is constructor"),
        (card_with(vocab_size=116), "116 tokens instead of 115"),
        (card_with(model_type=["modernbert"]), "its model_type is modernbert"),
        (card_with(mask_id=115), "no id of [MASK]"),
        (card_with(mask_id=50), "no id of [MASK]"),
        (card_with(mask_id=json.loads(CARD)["unk_id"]), "no id of [MASK]"),
        (card_with(cls_id=json.loads(CARD)["mask_id"]), "its id of [CLS] or [SEP] is no id"),
        (card_with(checkpoints=[]), "checkpoints don't fit"),
        (card_without("norm_eps"), "its norm_eps is undefined"),
        (card_with(global_rope_theta=-1), "its global_rope_theta is -1"),
        (card_with(num_attention_heads=16), "its heads have an odd width"),
        (card_with(num_hidden_layers=1), "has tensors that the model doesn't"),
        (card_with(num_hidden_layers=3), "its model.layers.2.attn_norm.weight isn't 80"),
        (card_with(num_hidden_layers=10**9), "too few tensors for 1000000000 layers"),
        (card_with(hidden_size=40), "its model.embeddings.tok_embeddings.weight isn't 115 by 40"),
        (card_with_tensors(list.pop), "its decoder.bias isn't 115"),
        (
            card_with_tensors(lambda tensors: tensors[0].update(name="x")),
            "tok_embeddings.weight isn't 115 by",
        ),
        (card_with_tensors(lambda tensors: tensors.append(tensors[0])), "has tensors that the model doesn't"),
        (card_with(max_position_embeddings=64), "its arms have different max_position_embeddings"),
        (card_with(tokens=["a", *json.loads(CARD)["tokens"][1:-1], "a"]), "it has a token twice"),
        (card_with_checkpoint(steps=0), "its checkpoints don't fit"),
        (card_with_checkpoint(loss=1e9), "its checkpoints don't fit"),
        (card_with_checkpoint(file=["modern-1.bin"]), "its checkpoints don't fit"),
        (card_with_checkpoint(sha256=["0" * 64]), "its checkpoints don't fit"),
        (card_with_checkpoint(file="modern-2.bin"), "two of its checkpoints share a file"),
        ([], "it isn't an object"),
    ],
)
def test_another_card_is_refused(card: object, reason: str, read_card: Reader) -> None:
    assert reason in read_card(json.dumps(card))["error"]


@pytest.mark.processes
def test_a_card_nested_too_deeply_is_refused(read_card: Reader) -> None:
    # JavaScript reads such a list, but can't turn it into text.
    error = read_card('{"format": ' + "[" * 100_000 + "]" * 100_000 + "}")["error"]
    assert "its values can't be read" in error and len(error) < 200


@pytest.mark.processes
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(text=damaged_json(json.loads(CARD)) | damaged_bytes(CARD))
def test_a_damaged_card_gets_one_line(text: bytes | str, read_card: Reader) -> None:
    answer = read_card(text)
    if "error" in answer:
        assert answer["kind"] == "Error" and re.match("model.json isn't what", answer["error"])
    else:
        assert answer["card"] == json.loads(CARD)
