r"""
# A model for other programs

How do you run a model outside Python? A saved model consists of numbers and a list of tokens, and any program
that implements the model's computations can run it. You can export a model in two formats:

    python -m labml_bert.export logs/mlm_tiny/20261121-120000 --to web
    python -m labml_bert.export logs/mlm_tiny/20261121-120000 --to onnx

The first is for a web page that implements the model itself: one file has the weights as float16, which takes
half the bytes of float32, and a JSON file describes the weights. The second is [ONNX](https://onnx.ai/), a
graph of operations together with the weights, here in float32. Many programs can run such graphs. With
`--encoder`, the graph has no head and returns the vectors of the tokens. Their mean is [a vector for the
text](embed.md).

Letters for sizes: `B` sequences in the batch, `T` tokens in a sequence, `V` vocabulary, `D` hidden size.
"""

if __name__ == "__main__":
    from labml_bert.run import preflight  # noqa: F401

import contextlib
import errno
import hashlib
import importlib
import io
import json
import logging
import os
import re
import shlex
import stat
import sys
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from labml_bert.bert import BertModel
from labml_bert.checksums import reading, seal
from labml_bert.data.tokenizers import adds_cls_sep
from labml_bert.files import append, check_own, check_utf8, lock_output, make_folder, whole_file, write_whole
from labml_bert.fill_mask import load_model
from labml_bert.models import BertForMaskedLM
from labml_bert.modern import ModernBertForMaskedLM
from labml_bert.run.terminal import exit_on_bad_input
from labml_bert.stdout import OneLineParser, console, display_path
from labml_bert.training.checkpoint import CHECKPOINT, load_checkpoint
from labml_bert.training.tracking import read_metrics

# The version of the web format. Our page accepts only this version.
FORMAT = 3
# Each graph contains this name of the program that wrote it.
PRODUCER = "labml_bert.export"
# The graph and torch add numbers in different orders. Their outputs may differ by at most this much.
TOLERANCE = 1e-4


def to_float16(model: nn.Module) -> dict[str, Tensor]:
    r"""
    ## Half the bytes

    Returns the parameters as float16, tied ones only once. Float16 has 11 bits of precision, so rounding
    changes a weight by at most $2^{-11}$ of its value. But the range is small: the largest number is 65,504,
    and below $6 \cdot 10^{-5}$, the precision drops.

    Raises `ValueError` if a weight is too large.
    """
    tensors = {name: parameter.detach().cpu().half() for name, parameter in model.named_parameters()}
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise ValueError(
                f"{name} has a weight beyond 65504, where float16 ends; train with a lower learning rate, or "
                "export --to onnx, which keeps float32"
            )
    return tensors


def write_weights(path: Path, model: nn.Module) -> dict[str, Any]:
    """
    Writes all parameters as float16, one after another: little-endian, row by row, without a header. Waits
    until they are on the disk. Returns the size of the file in bytes and its sha256.

    Raises `ValueError` if a weight is too large for float16.
    """
    data = b"".join(tensor.numpy().astype("<f2").tobytes() for tensor in to_float16(model).values())
    with open(path, "wb") as file:
        append(file, data)
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def describe_weights(model: BertForMaskedLM | ModernBertForMaskedLM) -> dict[str, Any]:
    """
    Returns what a page needs to read a file from `write_weights`: the configuration with the type of the
    model, the type of the numbers, and the names and shapes of the tensors in the order of the file.
    """
    kind = "modernbert" if isinstance(model, ModernBertForMaskedLM) else "bert"
    return {
        "config": {"model_type": kind, **asdict(model.config)},
        "dtype": "float16",
        "tensors": [
            {"name": name, "shape": list(parameter.shape)} for name, parameter in model.named_parameters()
        ],
    }


def write_web(
    folder: Path, tokenizer: Tokenizer, arms: dict[str, dict[str, Any]], checkpoints: list[dict[str, Any]]
) -> None:
    """
    ## The description of the weights

    Writes `model.json`: the tokens in order of their ids, the models and the checkpoints. The checkpoints may
    be from several runs, which we call arms. All arms share the tokens. `arms` maps the name of each arm to
    the result of `describe_weights`, plus the learning `curve`, a list of `[steps, held-out loss]`. Each
    entry of `checkpoints` is a result of `write_weights`, plus `file`, `arm`, `seconds`, `steps` and `loss`.
    """
    # If the tokenizer adds no [CLS] and [SEP], the model was trained without them.
    has_cls_sep = adds_cls_sep(tokenizer)
    vocab_size = next(iter(arms.values()))["config"]["vocab_size"]
    metadata = {
        "format": FORMAT,
        "tokens": [tokenizer.id_to_token(i) for i in range(vocab_size)],
        "mask_id": tokenizer.token_to_id("[MASK]"),
        "unk_id": tokenizer.token_to_id("[UNK]"),
        "cls_id": tokenizer.token_to_id("[CLS]") if has_cls_sep else None,
        "sep_id": tokenizer.token_to_id("[SEP]") if has_cls_sep else None,
        "arms": arms,
        "checkpoints": checkpoints,
    }
    write_whole(folder / "model.json", seal(json.dumps(metadata, ensure_ascii=False, separators=(",", ":"))))


def read_history(run_path: Path) -> tuple[dict[str, Any], list[list[float]]]:
    """
    Describes the last checkpoint of a run, and returns the run's learning curve, both in the form that
    `write_web` needs. For a folder in the format of `transformers`, only the name is known.
    """
    if not (run_path / CHECKPOINT).is_file():
        return {"arm": run_path.resolve().name, "seconds": None, "steps": None, "loss": None}, []
    metadata = load_checkpoint(run_path)[0]
    points = read_metrics(run_path, metadata["step"]).get("valid.loss", [])
    curve = [[step, round(loss, 4)] for step, loss in points]
    checkpoint = {
        "arm": metadata["configuration"].get("experiment", run_path.resolve().name),
        "seconds": round(metadata["seconds"], 1),
        "steps": metadata["step"],
        "loss": curve[-1][1] if curve else None,
    }
    return checkpoint, curve


@torch.no_grad()
def rounding_error(model: BertForMaskedLM) -> float:
    """The largest change of a probability when weights are rounded to float16, on 8 rows of random tokens."""
    length = min(64, model.config.max_position_embeddings)
    generator = torch.Generator().manual_seed(0)
    input_ids = torch.randint(model.config.vocab_size, (8, length), generator=generator)  # (B, T)
    before = model(input_ids).logits.softmax(-1)  # (B, T, V)
    rounded_model = BertForMaskedLM(model.config).eval()
    rounded_model.load_state_dict(to_float16(model))
    after = rounded_model(input_ids).logits.softmax(-1)  # (B, T, V)
    return (before - after).abs().max().item()


class Graph(nn.Module):
    """
    ## ONNX

    A graph takes tensors and returns a tensor, and none of the inputs is optional. The inputs have the same
    names as the arguments of a BERT in `transformers`.
    """

    output = "logits"
    model: BertForMaskedLM | BertModel

    def __init__(self, model: BertForMaskedLM):
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """All three inputs are integers, `(B, T)`. Returns the logits, `(B, T, V)`."""
        inputs = {"attention_mask": attention_mask, "token_type_ids": token_type_ids}
        return self.model(input_ids, **inputs).logits  # (B, T, V)


class EncoderGraph(Graph):
    """The graph of the encoder, without the masked LM head."""

    output = "last_hidden_state"

    def __init__(self, model: BertForMaskedLM):
        super().__init__(model)
        # Drop the head, so that the graph has only the weights of the encoder.
        self.model = model.bert

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """All three inputs are integers, `(B, T)`. Returns the vectors of the tokens, `(B, T, D)`."""
        inputs = {"attention_mask": attention_mask, "token_type_ids": token_type_ids}
        return self.model(input_ids, **inputs).last_hidden_state  # (B, T, D)


NAMES = ("input_ids", "attention_mask", "token_type_ids")


def check_onnx_is_here() -> None:
    """Raises `ValueError` if `onnx` or `onnxscript` isn't installed."""
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if missing:
        raise ValueError(
            f"--to onnx needs the package {missing[0]}; install it with: {shlex.quote(sys.executable)} "
            "-m pip install onnx onnxscript onnxruntime"
        )


def example_inputs(model: BertForMaskedLM | BertModel, B: int, T: int, seed: int = 0) -> tuple[Tensor, ...]:
    """Returns random ids, a mask and token types. Every row but the first can end with padding."""
    generator = torch.Generator().manual_seed(seed)
    input_ids = torch.randint(model.config.vocab_size, (B, T), generator=generator)  # (B, T)
    ends = torch.randint(1, T + 1, (B, 1), generator=generator)  # (B, 1)
    ends[0] = T
    attention_mask = (torch.arange(T) < ends).long()  # (B, T)
    types = min(1, model.config.type_vocab_size - 1)
    token_type_ids = (torch.arange(T) >= ends // 2).long() * types  # (B, T)
    return input_ids, attention_mask, token_type_ids


def make_graph(model: BertForMaskedLM, encoder_only: bool) -> Graph:
    """Returns the graph of only the encoder, or of the whole model."""
    return EncoderGraph(model) if encoder_only else Graph(model)


def write_onnx(path: Path, model: BertForMaskedLM, encoder_only: bool = False) -> float | None:
    """
    Switches the model to eval mode, and writes the graph to one file. The graph takes any number of rows, of
    any length up to the number of positions. If `onnxruntime` is installed, runs the graph on random tokens,
    and returns the largest difference between its outputs and those of torch. Otherwise, returns `None`.

    Raises `ValueError` if a package is missing, if the model isn't in float32 or has fewer than 3 positions,
    or if an output differs by more than `TOLERANCE`.
    """
    check_onnx_is_here()
    if any(p.dtype != torch.float32 for p in model.parameters()):
        raise ValueError("the model's weights aren't float32; call model.float() before the export")
    # If a size in the example is 1, the exporter assumes that this size is always 1.
    longest = model.config.max_position_embeddings
    if longest < 3:
        raise ValueError(f"the model has {longest} positions; a graph for any length needs 3 or more")
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=longest)}
    with whole_file(path) as part:
        with silence_exporter():
            # This import makes a temporary folder. The exporter would hide why that failed.
            importlib.import_module("torch._dynamo")
            program = torch.onnx.export(
                make_graph(model, encoder_only).eval(),
                example_inputs(model, 2, min(8, longest - 1)),
                input_names=NAMES,
                output_names=[make_graph(model, encoder_only).output],
                dynamic_shapes=dict.fromkeys(NAMES, sizes),
                dynamo=True,
            )
        assert program is not None
        proto = program.model_proto
        proto.producer_name = PRODUCER
        for node in proto.graph.node:
            # Remove the metadata of the operations, such as stack traces. It's most of a very small file.
            del node.metadata_props[:]
        part.write_bytes(proto.SerializeToString(deterministic=True))
        if find_spec("onnxruntime") is None:
            return None
        shapes = [(B, T) for T in sorted({1, 2, longest // 2, longest}) for B in (1, 5)]
        # Python's `max` would skip NaN.
        differences = torch.tensor([*output_differences(part, make_graph(model, encoder_only), shapes)])
        error = differences.max().item()
        if not error <= TOLERANCE:
            raise ValueError(
                f"onnxruntime and torch differ by {error:.2g} in an output, more than {TOLERANCE:g}; the "
                "graph was not saved, try other versions of onnxscript and onnxruntime"
            )
    return error


@contextlib.contextmanager
def silence_exporter() -> Iterator[None]:
    """Suppresses what the exporter prints, its log messages below errors, and all warnings."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


@torch.no_grad()
def output_differences(path: Path, graph: Graph, shapes: list[tuple[int, int]]) -> Iterator[float]:
    """
    Yields the largest difference between the outputs of `onnxruntime` and those of torch, for random tokens
    of each shape `(B, T)`. Padding doesn't count, because nobody reads its outputs.
    """
    # Without this setting, onnxruntime saves an id of this machine for its telemetry.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    except Exception as error:  # The errors of onnxruntime have no other common class.
        raise ValueError(
            f"onnxruntime {onnxruntime.__version__} can't read the graph ({error}); install a newer one"
        ) from None
    for B, T in shapes:
        inputs = example_inputs(graph.model, B, T, seed=T)
        arrays = {name: tensor.numpy() for name, tensor in zip(NAMES, inputs, strict=True)}
        (output,) = session.run([graph.output], arrays)
        difference = (torch.from_numpy(output) - graph(*inputs)).abs()
        yield difference[inputs[1].bool()].max().item()


def prepare_folder(folder: Path, *names: str) -> Path:
    """
    Creates the folder if it doesn't exist, and returns it.

    Raises `ValueError` if the folder can't be created or written to, if its name isn't UTF-8, or if one of
    `names`, the files to write, is a folder.
    """
    check_utf8(folder)
    try:
        make_folder(folder)
        reason = "" if os.access(folder, os.W_OK | os.X_OK) else os.strerror(errno.EACCES)
    except FileExistsError:
        reason = "it is not a folder"
    except OSError as error:
        reason = str(error.strerror)
    if reason:
        raise ValueError(f"cannot write to {folder}: {reason}; choose another folder with --output")
    for name in names:
        if (folder / name).is_dir():
            raise ValueError(f"{folder / name} is a folder; move it, or choose another with --output")
    return folder


def check_is_export(path: Path, start: bytes, *others: str) -> None:
    """
    An export may replace an earlier export, which has a file `path` that begins with the pattern `start`.

    Raises `ValueError` if there is none, but `path` or one of `others` in the same folder exists.
    """
    beginning = b""
    if path.is_file():
        with open(path, "rb") as file:
            beginning = file.read(100)
    if re.match(start, beginning, re.DOTALL):
        return
    if any((path.parent / name).exists() for name in (path.name, *others)):
        raise ValueError(
            f"{path.parent} has files of another program, of an earlier version or of an export that was "
            "killed; choose another folder with --output"
        )


def check_is_web_export(folder: Path, *names: str) -> None:
    """
    Checks that a web export to `folder` replaces only an earlier one: `model.json`, and weights with these
    `names`. Raises `ValueError` if the folder has other weights, or if `check_is_export` refuses its files.
    """
    check_is_export(folder / "model.json", rb'\{"format":\d+,"tokens":\[', *names)
    if others := {path.name for path in folder.glob("*.bin")} - {*names}:
        raise ValueError(
            f"{folder} has the weights {min(others)} of another export; choose another folder with --output"
        )


def check_same_tokenizer_file(path: Path, text: str) -> None:
    """
    Raises `ValueError` if there is a `tokenizer.json` at `path` with another text. If we replaced it, an
    export that is killed between its two files would leave a graph with the tokenizer of another model.
    """
    if path.is_file() and path.read_bytes() != text.encode():
        raise ValueError(f"{path} is of another model; choose another folder with --output")


def main(argv: list[str] | None = None) -> None:
    """Reads the command line, writes the files, and describes the file of the weights or of the graph."""
    parser = OneLineParser(
        prog="python -m labml_bert.export", description="Export a model for a web page or for other programs."
    )
    parser.add_argument("run", type=Path, help="folder of a run or a model")
    parser.add_argument("--to", choices=["web", "onnx"], required=True, help="the format")
    parser.add_argument("--encoder", action="store_true", help="onnx only: token vectors, not logits")
    parser.add_argument(
        "--output", type=Path, help="folder to write to (default: web or onnx in the run's folder)"
    )
    options = parser.parse_args(argv)
    folder = options.output or options.run / options.to
    with exit_on_bad_input():
        if options.output is None:
            check_own(folder, stat.S_ISDIR)
        with reading(options.run, CHECKPOINT) as path:
            model, tokenizer = load_model(path)
            if options.to == "web":
                checkpoint, curve = read_history(path)
        if not isinstance(model, BertForMaskedLM):
            raise ValueError(f"{options.run} has a modern model; use a run of a BERT")
        if options.encoder and options.to == "web":
            raise ValueError("--encoder needs --to onnx; a web page needs the head")
        if options.to == "web":
            to_float16(model)
            path = prepare_folder(folder, "weights.bin", "model.json") / "weights.bin"
            arms = {checkpoint["arm"]: {**describe_weights(model), "curve": curve}}
            with lock_output(folder):
                check_is_web_export(folder, path.name)
                # The new weights are on the disk, under a temporary name, before `model.json` is replaced.
                with whole_file(path) as part:
                    checkpoint |= {"file": path.name, **write_weights(part, model)}
                    write_web(folder, tokenizer, arms, [checkpoint])
                data = path.read_bytes()
            rows = {"rounding": f"changes a probability by about {rounding_error(model):.1g}, on random text"}
            if not all(re.fullmatch(r"(?s:.?)|\[\w+\]", t, re.A) for t in tokenizer.get_vocab()):
                rows["page"] = "the site's page can't run this model, because it needs characters as tokens"
        else:
            check_onnx_is_here()
            path = prepare_folder(folder, "model.onnx", "tokenizer.json") / "model.onnx"
            with lock_output(folder):
                check_is_export(path, b".*" + PRODUCER.encode(), "tokenizer.json")
                text = tokenizer.to_str(pretty=True)
                check_same_tokenizer_file(folder / "tokenizer.json", text + "\n")
                difference = write_onnx(path, model, options.encoder)
                write_whole(folder / "tokenizer.json", text)
                data = path.read_bytes()
            rows = {"check": "none, because onnxruntime is not installed"}
            if difference is not None:
                rows = {"check": f"outputs differ from torch's by about {difference:.1g}"}
    digest = hashlib.sha256(data).hexdigest()
    rows = {"file": display_path(path), "bytes": f"{len(data):,}", "sha256": digest, **rows}
    console.print()
    for name, value in rows.items():
        console.print(f"  {name:<10}  {value}")
    console.print()


if __name__ == "__main__":
    main()
