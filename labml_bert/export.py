r"""
# A model for other programs

How does a model leave Python? What it is made of are numbers and a list of tokens, and any program that can
multiply can run it. Two ways out:

    python -m labml_bert.export logs/mlm_tiny/20261121-120000 --to web
    python -m labml_bert.export logs/mlm_tiny/20261121-120000 --to onnx

The first is for a page: the weights as bare float16, half as many bytes to send, and a JSON file that says
how they lie. The page has to bring the arithmetic. The second is [ONNX](https://onnx.ai/), a graph of
operations with the weights in it, for the many programs that run such graphs. It keeps float32.

Letters for sizes: `B` sequences in the batch, `T` tokens in a sequence, `V` vocabulary.
"""

if __name__ == "__main__":
    from labml_bert.run import script  # noqa: F401

import contextlib
import hashlib
import io
import json
import logging
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from labml_bert.files import whole_file, write_whole
from labml_bert.fill_mask import load_model
from labml_bert.models import BertForMaskedLM
from labml_bert.run.terminal import OneLineParser, bad_input_ends_here
from labml_bert.stdout import console, shown
from labml_bert.training.checkpoint import CHECKPOINT, load_checkpoint
from labml_bert.training.tracking import read_metrics

# Of the layout below; a page refuses another one.
FORMAT = 1
SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
    "layer_norm_eps",
)
# The graph and torch add the same numbers in another order.
TOLERANCE = 1e-4


def rounded(model: nn.Module) -> dict[str, Tensor]:
    r"""
    ## Half the bytes

    The parameters as float16, a tied one once. It has 11 bits of precision, so a weight moves by $2^{-11}$ of
    itself at most. What it lacks is range: it ends at 65,504, and below $6 \cdot 10^{-5}$ it gets coarser.

    Raises `ValueError` where a weight is too large.
    """
    found = {name: parameter.detach().cpu().half() for name, parameter in model.named_parameters()}
    for name, tensor in found.items():
        if not tensor.isfinite().all():
            raise ValueError(
                f"{name} has a weight beyond 65504, where float16 ends; train with a lower learning rate, or "
                "export --to onnx, which keeps float32"
            )
    return found


def write_weights(path: Path, model: nn.Module) -> dict[str, Any]:
    """
    The float16 numbers of all parameters one after another, little-endian, row by row, with nothing between
    or before them. Returns what the reader has to know: the name of the file, its bytes and their sha256.

    Raises `ValueError` where a weight is too large for float16.
    """
    data = b"".join(tensor.numpy().astype("<f2").tobytes() for tensor in rounded(model).values())
    with whole_file(path) as part:
        part.write_bytes(data)
    return {"file": path.name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def write_web(
    folder: Path,
    model: BertForMaskedLM,
    tokenizer: Tokenizer,
    checkpoints: list[dict[str, Any]],
    curves: dict[str, list[list[float]]],
) -> None:
    """
    ## What the page reads first

    `model.json`: the sizes, the tokens by id, the names and shapes of the tensors in the order in which they
    lie in a file of weights, and the files. `checkpoints` are moments of one or several runs of this model:
    what `write_weights` returned, with `arm`, `seconds`, `steps` and `loss`. `curves` has for each arm pairs
    of seconds and held-out loss.
    """
    config = {name: getattr(model.config, name) for name in SIZES}
    # Only a model that was trained between them expects them.
    has_cls_sep = tokenizer.num_special_tokens_to_add(is_pair=False) > 0
    about = {
        "format": FORMAT,
        "config": {**config, "hidden_act": "gelu"},
        "tokens": [tokenizer.id_to_token(i) for i in range(model.config.vocab_size)],
        "mask_id": tokenizer.token_to_id("[MASK]"),
        "unk_id": tokenizer.token_to_id("[UNK]"),
        "cls_id": tokenizer.token_to_id("[CLS]") if has_cls_sep else None,
        "sep_id": tokenizer.token_to_id("[SEP]") if has_cls_sep else None,
        "dtype": "float16",
        "tensors": [
            {"name": name, "shape": list(parameter.shape)} for name, parameter in model.named_parameters()
        ],
        "checkpoints": checkpoints,
        "curves": curves,
    }
    write_whole(folder / "model.json", json.dumps(about, ensure_ascii=False, separators=(",", ":")))


def history(run_path: Path) -> tuple[dict[str, Any], dict[str, list[list[float]]]]:
    """
    The moment of a run's last checkpoint, and its curve. Of a folder in the format of `transformers` only the
    name is known.
    """
    if not (run_path / CHECKPOINT).is_file():
        return {"arm": run_path.resolve().name, "seconds": None, "steps": None, "loss": None}, {}
    about = load_checkpoint(run_path)[0]
    arm = about["configuration"].get("experiment", run_path.resolve().name)
    metrics = read_metrics(run_path)
    seconds = dict(metrics.get("seconds", []))
    curve = [[round(seconds[step], 1), round(loss, 4)] for step, loss in metrics.get("valid.loss", [])]
    moment = {
        "arm": arm,
        "seconds": round(about["seconds"], 1),
        "steps": about["step"],
        "loss": curve[-1][1] if curve else None,
    }
    return moment, {arm: curve}


@torch.no_grad()
def rounding_error(model: BertForMaskedLM) -> float:
    """The largest change of any probability in a few rows of random tokens, when the weights are rounded."""
    length = min(64, model.config.max_position_embeddings)
    generator = torch.Generator().manual_seed(0)
    input_ids = torch.randint(model.config.vocab_size, (8, length), generator=generator)  # (B, T)
    before = model(input_ids).logits.softmax(-1)  # (B, T, V)
    halved = BertForMaskedLM(model.config).eval()
    halved.load_state_dict(rounded(model))
    after = halved(input_ids).logits.softmax(-1)  # (B, T, V)
    return (before - after).abs().max().item()


class Graph(nn.Module):
    """
    ## ONNX

    A graph has tensors for inputs, all of them given, and tensors for outputs. These have the names under
    which `transformers` exports the same model.
    """

    def __init__(self, model: BertForMaskedLM):
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """All three are integers `(B, T)`. Returns the logits `(B, T, V)`."""
        inputs = {"attention_mask": attention_mask, "token_type_ids": token_type_ids}
        return self.model(input_ids, **inputs).logits  # (B, T, V)


NAMES = ("input_ids", "attention_mask", "token_type_ids")


def check_onnx_is_here() -> None:
    """Raises `ValueError` where a package is missing that the export needs."""
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if missing:
        raise ValueError(
            f"--to onnx needs the package {missing[0]}; install it with: "
            "pip install onnx onnxscript onnxruntime"
        )


def example_inputs(model: BertForMaskedLM, B: int, T: int, seed: int = 0) -> tuple[Tensor, ...]:
    """Random tokens in two sentences, with padding at the end of every row but the first."""
    generator = torch.Generator().manual_seed(seed)
    input_ids = torch.randint(model.config.vocab_size, (B, T), generator=generator)  # (B, T)
    ends = torch.randint(1, T + 1, (B, 1), generator=generator)  # (B, 1)
    ends[0] = T
    attention_mask = (torch.arange(T) < ends).long()  # (B, T)
    types = min(1, model.config.type_vocab_size - 1)
    token_type_ids = (torch.arange(T) >= ends // 2).long() * types  # (B, T)
    return input_ids, attention_mask, token_type_ids


def write_onnx(path: Path, model: BertForMaskedLM) -> float | None:
    """
    The graph in one file, for every number of rows and every length up to the model's positions. Before it
    gets its name, `onnxruntime` runs it, if that is installed. Returns the largest difference between its
    logits and those of torch, or `None`.

    Raises `ValueError` where a package is missing, or the two disagree by more than `TOLERANCE`.
    """
    check_onnx_is_here()
    # A size that is 1 in the example would be taken for one that is always 1.
    longest = model.config.max_position_embeddings
    if longest < 3:
        raise ValueError(f"the model has {longest} positions; a graph for any length needs 3 or more")
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=longest)}
    with whole_file(path) as part:
        with quiet():
            program = torch.onnx.export(
                Graph(model).eval(),
                example_inputs(model, 2, min(8, longest - 1)),
                input_names=NAMES,
                output_names=["logits"],
                dynamic_shapes=dict.fromkeys(NAMES, sizes),
                dynamo=True,
            )
        assert program is not None
        proto = program.model_proto
        for node in proto.graph.node:
            # Where in whose files each operation comes from: a third of a small file.
            del node.metadata_props[:]
        part.write_bytes(proto.SerializeToString(deterministic=True))
        if find_spec("onnxruntime") is None:
            return None
        shapes = [(B, T) for T in sorted({1, 2, longest // 2, longest}) for B in (1, 5)]
        error = max(disagreement(part, model, shapes))
        if not error <= TOLERANCE:
            raise ValueError(
                f"onnxruntime and torch differ by {error:.2g} in a logit, more than {TOLERANCE:g}; the graph "
                "is not kept: use other versions of onnxscript and onnxruntime"
            )
    return error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """The exporter tells the progress of its own work, and warns of its own plans."""
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
def disagreement(path: Path, model: BertForMaskedLM, shapes: list[tuple[int, int]]) -> Iterator[float]:
    """
    The largest difference of a logit between `onnxruntime` and torch, for random tokens of each shape
    `(B, T)`. What comes out at padding is left out, as nobody reads it.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for B, T in shapes:
        inputs = example_inputs(model, B, T, seed=T)
        fed = {name: tensor.numpy() for name, tensor in zip(NAMES, inputs, strict=True)}
        (found,) = session.run(["logits"], fed)
        difference = (torch.from_numpy(found) - Graph(model)(*inputs)).abs()
        yield difference[inputs[1].bool()].max().item()


def made(folder: Path, *names: str) -> Path:
    """
    The folder, which is made if need be. Raises `ValueError` where it cannot be, or where one of the files
    that are to come is a folder.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"cannot write to {folder}: {error.strerror}; choose another folder with --output"
        ) from None
    for name in names:
        if (folder / name).is_dir():
            raise ValueError(f"{folder / name} is a folder; move it away, or choose another with --output")
    return folder


def main(argv: list[str] | None = None) -> None:
    """Reads the command line, writes the files, and prints what they are."""
    parser = OneLineParser(
        prog="python -m labml_bert.export", description="Write a model for a page or for other programs."
    )
    parser.add_argument("run", type=Path, help="folder of a run or a model")
    parser.add_argument("--to", choices=["web", "onnx"], required=True, help="for whom")
    parser.add_argument(
        "--output", type=Path, help="folder to write to (default: web or onnx in that of the run)"
    )
    options = parser.parse_args(argv)
    folder = options.output or options.run / options.to
    with bad_input_ends_here():
        model, tokenizer = load_model(options.run)
        if options.to == "web":
            rounded(model)
            moment, curves = history(options.run)
            weights = write_weights(made(folder, "weights.bin", "model.json") / "weights.bin", model)
            write_web(folder, model, tokenizer, [{**moment, **weights}], curves)
            error = f"{rounding_error(model):.1g}"
            rows = {"rounding": f"moves a probability by {error} at most, on random text"}
            path = folder / "weights.bin"
        else:
            check_onnx_is_here()
            path = made(folder, "model.onnx", "tokenizer.json") / "model.onnx"
            difference = write_onnx(path, model)
            write_whole(folder / "tokenizer.json", tokenizer.to_str(pretty=True))
            rows = {"check": "none, as onnxruntime is not installed"}
            if difference is not None:
                rows = {"check": f"logits differ from torch's by {difference:.1g} at most"}
        data = path.read_bytes()
    rows = {
        "file": shown(path),
        "bytes": f"{len(data):,}",
        "sha256": hashlib.sha256(data).hexdigest(),
        **rows,
    }
    console.print()
    for name, value in rows.items():
        console.print(f"  {name:<10}  {value}")
    console.print()


if __name__ == "__main__":
    main()
