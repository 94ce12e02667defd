"""
# Checkpoints

You can kill a run at any moment and resume it from its last checkpoint. Wherever two runs with the same seed
give the same bits (see `trainer.py`), a resumed run gives them too. A checkpoint contains everything that
training changes: the weights, the optimizers' moments, the state of every random generator, the gradient
scale of float16, the step number and the training time. A checkpoint is one safetensors file. We write the
file under a temporary name and then rename it, so a file with the final name is always complete. If the file
system supports hard links, we keep the previous checkpoint too.
"""

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from labml_bert.checksums import SUMS, check_readable, file_state, parse_json, read_sums, sums_for_saving
from labml_bert.files import (
    check_utf8,
    is_unreadable_folder,
    read_tensors,
    whole_file,
    write_tensors,
)
from labml_bert.stdout import display_path, print_note
from labml_bert.training.device import autocast
from labml_bert.training.distributed import all_gather, rank

CHECKPOINT = "checkpoint.safetensors"
# We keep the previous checkpoint in case the disk damages the newest one.
PREVIOUS = "previous.safetensors"
# After the first step, a checkpoint has these tensors for each parameter. Other optimizers aren't checked.
MOMENTS: dict[type, set[str]] = {
    torch.optim.AdamW: {"step", "exp_avg", "exp_avg_sq"},
    torch.optim.Muon: {"momentum_buffer"},
}
# In float16, a checkpoint has these numbers of the gradient scaler.
SCALER = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")
TOKENIZER = "tokenizer.json"
# This file contains a failed step's batch, and the weights and random states from before the step.
FAILED_STEP = "failed_step.safetensors"

# A run's configuration contains the sha256 of each of these, for example as `corpus_sha256`.
HASHED = {"corpus": "the text", "old_corpus": "the old text", "start": "the model to continue"}


class PendingStep(NamedTuple):
    """The batch of a step whose loss hasn't been checked yet, and the random states from before the step."""

    batch: dict[str, Tensor]
    random: dict[str, Tensor]


def named_weights(model: nn.Module) -> dict[str, Tensor]:
    """Returns the parameters and buffers by name. (A `state_dict` would list tied tensors twice.)"""
    return dict([*model.named_parameters(), *model.named_buffers()])


def load_named_weights(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """
    Copies tensors from `named_weights` into `model`, which must have the same names and shapes.

    Raises `KeyError` if the names differ. Raises `RuntimeError` if a shape differs, or if only one of two
    tensors with the same name is a floating-point tensor.
    """
    weights = named_weights(model)
    if different := weights.keys() ^ tensors.keys():
        raise KeyError(min(different))
    for name, weight in weights.items():
        # `copy_` would broadcast some tensors with a wrong shape, and convert between floats and integers.
        own, other = ((tuple(t.shape), t.is_floating_point()) for t in (weight, tensors[name]))
        if own != other:
            raise RuntimeError(f"{name} is {tuple(tensors[name].shape)}, {tensors[name].dtype}, not {own[0]}")
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(tensors[name])


def random_states(device: torch.device) -> dict[str, Tensor]:
    """The states of the generators for dropout: the CPU's and, if `device` is a GPU, the GPU's."""
    states = {"torch": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    if device.type == "mps":
        states["mps"] = torch.mps.get_rng_state()
    return states


def remember_step(batch: dict[str, Tensor], device: torch.device) -> PendingStep:
    """Returns a step before its forward pass. Copies the batch, because the script may reuse its tensors."""
    return PendingStep({key: value.clone() for key, value in batch.items()}, random_states(device))


def random_name(kind: str, number: int) -> str:
    """A random state's name in a checkpoint: `random.torch` for rank 0, `random.torch.1` for rank 1."""
    return f"random.{kind}.{number}" if number else f"random.{kind}"


def set_device_random_state(device: torch.device, tensors: dict[str, Tensor], number: int) -> None:
    """Restores a GPU's random state, if `device` is a GPU and `tensors` has the state of rank `number`."""
    name = random_name(device.type, number)
    if device.type == "cuda" and name in tensors:
        torch.cuda.set_rng_state(tensors[name], device)
    if device.type == "mps" and name in tensors:
        torch.mps.set_rng_state(tensors[name])


def with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Returns the tensors whose names start with `prefix`, and removes `prefix` from these names."""
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def enumerate_parameters(
    optimizers: Sequence[torch.optim.Optimizer],
) -> Iterator[tuple[int, torch.optim.Optimizer]]:
    """Yields pairs of an optimizer's first parameter, as an index over all optimizers, and the optimizer."""
    first = 0
    for optimizer in optimizers:
        yield first, optimizer
        first += sum(len(group["params"]) for group in optimizer.param_groups)


def as_saved(configuration: dict[str, Any]) -> dict[str, Any]:
    """
    Returns a configuration as a checkpoint will contain it: a tuple is a list, and NaN is the text `NaN`.

    Raises `ValueError` if `experiment` or `corpus` isn't a string, and `TypeError` if a value has no JSON.
    """
    for name in ("experiment", "corpus"):
        if not isinstance(configuration.get(name), str | None):
            raise ValueError(f"{name} in the configuration is {configuration[name]!r}; it must be a string")
    content: dict[str, Any] = json.loads(json.dumps(configuration), parse_constant=str)
    return content


def save_checkpoint(
    run_path: Path,
    model: nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    generator: torch.Generator,
    device: torch.device,
    metadata: dict[str, Any],
) -> None:
    """
    ## Saving

    All processes must call this function. The processes have the same weights, but each one draws its own
    dropout masks. So this function gathers the random states of all processes. Rank zero writes the file,
    with `metadata` as JSON, which needs a `step`, the `seconds` and the `configuration`. To show which run
    the checkpoint belongs to, we add the sha256 of the tokenizer.

    Raises `OSError` if the file can't be written, or `SHA256SUMS` can't be read.
    """
    states = {
        random_name(kind, number): state
        for kind, own in random_states(device).items()
        for number, state in enumerate(all_gather(own))
    }
    if rank() > 0:
        return
    tensors = {f"model.{key}": value for key, value in named_weights(model).items()}
    without_moments: list[int] = []
    for first, optimizer in enumerate_parameters(optimizers):
        content = optimizer.state_dict()
        for index, state in content["state"].items():
            tensors |= {f"optimizer.{first + index}.{key}": value for key, value in state.items()}
        indices = (index for group in content["param_groups"] for index in group["params"])
        without_moments += [first + index for index in indices if index not in content["state"]]
    tensors |= {**states, "random.data": generator.get_state()}
    path, previous = run_path / CHECKPOINT, run_path / PREVIOUS
    if path.is_file():
        # Make `previous` a hard link to the current checkpoint. If we renamed the current one instead, a
        # crash could leave no file of that name. Without hard links, we keep only one checkpoint.
        with contextlib.suppress(OSError), whole_file(previous) as part:
            os.link(path, part)
    # A parameter that never had a gradient has no moments. List it, so that no other moment can be missing.
    sha256 = sums_for_saving(run_path).get(TOKENIZER)
    metadata = {**metadata, "without_moments": without_moments, "tokenizer_sha256": sha256}
    write_tensors(path, tensors, {"about": json.dumps(metadata)})


def restore(
    run_path: Path,
    tensors: dict[str, Tensor],
    metadata: dict[str, Any],
    model: nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    generator: torch.Generator,
    device: torch.device,
) -> None:
    """
    ## Restoring

    Restores the weights, moments and random states from what `load_checkpoint` returned. The checkpoint may
    be from a run with a different number of processes. If a process other than rank zero has no random state
    in the checkpoint, the process keeps its current state.

    Raises `ValueError` if a required tensor is missing, or if one has the wrong shape or type.
    """
    moments = with_prefix(tensors, "optimizer.")
    try:
        load_named_weights(model, with_prefix(tensors, "model."))
        for first, optimizer in enumerate_parameters(optimizers):
            groups = optimizer.state_dict()["param_groups"]
            indices = [index for group in groups for index in group["params"]]
            states = {index: with_prefix(moments, f"{first + index}.") for index in indices}
            needed = MOMENTS.get(type(optimizer), set())
            # There are no moments before the first update. In float16, the first steps may have been skipped.
            may_be_empty = metadata["step"] == 0 or metadata.get("scaler")
            without = {i - first for i in metadata.get("without_moments", [])}
            is_complete = all(
                needed <= state.keys() for i, state in states.items() if state or i not in without
            )
            if not is_complete and (any(states.values()) or not may_be_empty):
                raise KeyError("a moment is missing")
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            for index, state in states.items():
                for key, value in state.items():
                    shape = () if key == "step" else parameters[index].shape
                    if needed and (value.shape != shape or not value.is_floating_point()):
                        raise ValueError(f"{key} doesn't fit its parameter")
                    if value.shape == parameters[index].shape:
                        # The fused AdamW needs the moments in the memory order of the parameter.
                        state[key] = torch.empty_like(parameters[index], dtype=value.dtype).copy_(value)
            optimizer.load_state_dict(
                {"state": {i: state for i, state in states.items() if state}, "param_groups": groups}
            )
        generator.set_state(tensors["random.data"])
        own = random_name("torch", rank())
        if rank() == 0 or own in tensors:
            torch.set_rng_state(tensors[own])
        set_device_random_state(device, tensors, rank())
    except (KeyError, RuntimeError, TypeError, ValueError):
        raise ValueError(
            f"{run_path / CHECKPOINT} is incomplete, or from another model or optimizer; resume it with the "
            "same ones, or start a new run"
        ) from None


def load_checkpoint(run_path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """
    ## Loading

    Returns the checkpoint's metadata and its tensors by name. The metadata includes `step`, `seconds` and
    `configuration`.

    Raises `ValueError` if the checkpoint is missing, unreadable or damaged. If the checkpoint is damaged but
    the previous one is intact, the message says how to resume from the previous one.
    """
    path, previous = run_path / CHECKPOINT, run_path / PREVIOUS
    check_utf8(path)
    if not path.is_file() and os.path.lexists(path):
        raise ValueError(f"{path} is not a file; move it away")
    if not path.is_file() and previous.is_file():
        raise ValueError(f"{path} is missing, but not the one before it: rename {PREVIOUS} to {CHECKPOINT}")
    if not path.is_file():
        raise ValueError(
            f"there is no run at {run_path} (no {CHECKPOINT}); use the folder that a run printed"
        )
    check_readable(path)
    # Raise the error of a damaged `SHA256SUMS` here. Its remedy isn't a new run.
    read_sums(run_path)
    state = file_state(path)
    try:
        return read_checkpoint(path)
    except ValueError as error:
        # The run itself may have replaced its checkpoint meanwhile.
        if file_state(path) != state:
            return load_checkpoint(run_path)
        try:
            step = read_checkpoint(previous)[0]["step"]
        except ValueError:
            raise ValueError(f"{error}; start a new run") from None
        raise ValueError(
            f"{error}; the one before it, of step {step}, is intact: move {CHECKPOINT} away and rename "
            f"{PREVIOUS} to {CHECKPOINT}"
        ) from None


def read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """
    Reads one file for `load_checkpoint`.

    Raises `ValueError` if the file can't be read, is damaged or was saved with a different tokenizer.
    """
    tensors, metadata = read_tensors(path)
    try:
        state = parse_json(metadata["about"])
        state["configuration"].items()
        for name in ("step", "seconds", "threads", "gradient_accumulation_steps"):
            # `isinstance` would accept `True` as an `int`. The limit of 2**53 prevents overflows later.
            kinds = (int, float) if name == "seconds" else (int,)
            value = state[name] if name in ("step", "seconds") else state.get(name, 0)
            if type(value) not in kinds or not 0 <= value < 2**53:
                raise ValueError(f"{name} is {str(value)[:20]}")
        if type(state.get("torch_compile", False)) is not bool:
            raise ValueError("torch_compile is not a truth value")
        for name in ("experiment", "corpus"):
            if not isinstance(state["configuration"].get(name, ""), str | None):
                raise ValueError(f"{name} is not a string")
        if scaler := state.get("scaler"):
            for name in SCALER:
                # PyTorch stores the tracker as a 32-bit number.
                limit = 2**31 if name == "_growth_tracker" else 2**53
                if type(scaler[name]) not in (int, float) or not 0 <= scaler[name] < limit:
                    raise ValueError(f"{name} of the gradient scaler is out of range")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path} is damaged ({error})") from None
    own, listed = state.get("tokenizer_sha256"), read_sums(path.parent).get(TOKENIZER)
    if own and listed and own != listed:
        raise ValueError(
            f"{path} is not from the same run as {TOKENIZER} (if you changed {TOKENIZER}, put it and {SUMS} "
            "back as they were)"
        )
    return state, tensors


def find_run_folders(folders: Iterable[Path], patterns: Iterable[str]) -> list[Path]:
    """
    Returns the runs in `folders` whose paths match one of the `patterns`, the one with the newest checkpoint
    first. This includes runs that have only their previous checkpoint. For these, `load_checkpoint` raises an
    error that says how to restore the checkpoint. Prints a note for each folder that can't be read.
    """
    folders = list(folders)
    note_unreadable(folders)
    names = [pattern + name for pattern in patterns for name in (CHECKPOINT, PREVIOUS)]
    files = newest_first(file for folder in folders for name in names for file in folder.glob(name))
    # List a run only once, even if a link leads to its folder.
    folders_by_path: dict[Path, Path] = {}
    for file in files:
        folders_by_path.setdefault(file.parent.resolve(), file.parent)
    return [*folders_by_path.values()]


def newest_first(files: Iterable[Path]) -> list[Path]:
    """Sorts files by modification time. Leaves out deleted files."""
    times = {file: state[1] for file in files if (state := file_state(file))}
    return sorted(times, key=lambda file: times[file], reverse=True)


def note_unreadable(folders: Iterable[Path]) -> None:
    """Prints a note for each of the `folders`, and each folder up to two levels below, that can't be read."""
    for folder in folders:
        for path in [folder, *folder.glob("*"), *folder.glob("*/*")]:
            if is_unreadable_folder(path):
                print_note(f"{display_path(path)} can't be read, so it's left out; make it readable")


def other_value_error(run_path: Path, option: str, before: object, now: object) -> ValueError:
    """The error if a run is resumed with another value of an option, or with another text or model."""
    name = option.removesuffix("_sha256")
    if name in HASHED and name != option:
        return ValueError(
            f"{HASHED[name]} has changed since {run_path} was started; use it as it was, or start a new run"
        )
    return ValueError(
        f"{run_path} was started with {option.rstrip('_')} = {before}, not {now}; leave that option out to "
        "resume, or start a new run"
    )


def save_failed_step(
    run_path: Path, model: nn.Module, pending: PendingStep, metadata: dict[str, Any]
) -> None:
    """Saves a failed step's batch, and the weights and random states from before the step, for `replay`."""
    tensors = {f"batch.{key}": value for key, value in pending.batch.items()}
    tensors |= {f"model.{key}": value for key, value in named_weights(model).items()}
    tensors |= {random_name(kind, 0): state for kind, state in pending.random.items()}
    write_tensors(run_path / FAILED_STEP, tensors, {"about": json.dumps(metadata)})


def replay(run_path: Path, model: nn.Module) -> tuple[float, dict[str, float]]:
    """
    ## Replaying a failed step

    Loads the weights from before the failed step into `model`, restores the random states, and repeats the
    forward and backward passes on the step's batch. Doesn't update the weights. Returns the loss and each
    parameter's gradient norm. If a norm isn't finite, that gradient exploded or became NaN. `model` can be on
    any device, but must have the class and sizes of the run's model:

        configuration = json.loads(read_tensors(run_path / FAILED_STEP)[1]["about"])["configuration"]
        loss, norms = replay(run_path, BertForMaskedLM(BertConfig(**configuration["model"])))

    If the run had one process and one micro-batch per step, and didn't compile the model, a replay on the
    same device with the same number of threads gives exactly the same loss. The replay takes the whole batch
    in one pass, so if the run had several processes or micro-batches, the dropout masks are different.

    If the forward pass changes buffers, as in BatchNorm, the saved buffers are those of a later step.

    Raises `ValueError` if no step failed, or if the step's file is damaged or belongs to a different model.
    """
    path = run_path / FAILED_STEP
    if not path.is_file():
        raise ValueError(f"no step has failed in {run_path} (no {FAILED_STEP})")
    tensors, metadata = read_tensors(path)
    device = next(model.parameters()).device
    try:
        load_named_weights(model, with_prefix(tensors, "model."))
        precision = json.loads(metadata["about"])["precision"]
        torch.set_rng_state(tensors[random_name("torch", 0)])
    except (KeyError, RuntimeError):
        raise ValueError(
            f"{path} is of another model, or isn't a failed step; use the configuration in the file"
        ) from None
    set_device_random_state(device, tensors, 0)
    batch = {key: value.to(device) for key, value in with_prefix(tensors, "batch.").items()}
    model.train()
    model.zero_grad()
    with autocast(device, precision):
        loss: Tensor = model(**batch).loss
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return loss.item(), {name: gradient.norm().item() for name, gradient in gradients.items()}
