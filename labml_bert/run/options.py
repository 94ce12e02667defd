"""
# The options of a run

The options of an experiment are a dataclass. Each field is a command-line option, and the field's value is
the option's default. The docstring below the field explains the value, and is also the `--help` text.
[tyro](https://github.com/brentyi/tyro) reads the fields and the docstrings. So each value and its explanation
are written only once, in the script that uses the value.

Your own script adds `schedule` and `batch_tokens`, and can add other fields to `RunOptions`: numbers, texts,
flags, `Literal` choices, tuples of these, or optional numbers and texts. A field of another type, such as a
path, must be marked as `OPERATIONAL`, and then it isn't saved with the run. Don't call a field `experiment`
or `model`: the checkpoint uses these names itself."""

import contextlib
import errno
import io
import math
import os
import re
import sys
import types
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

import tyro

from labml_bert.bert import BertConfig
from labml_bert.checks import (
    LARGEST_SIZE,
    LARGEST_VALUES,
    check_config,
    check_longest,
    check_modern_config,
)
from labml_bert.data.corpora import NAMES, cache_folder
from labml_bert.data.curriculum import parse_schedule
from labml_bert.data.text_files import check_not_among
from labml_bert.modern import ModernBertConfig
from labml_bert.stdout import as_operand, print_error, print_note
from labml_bert.training.checkpoint import load_checkpoint, other_value_error
from labml_bert.training.device import Precision
from labml_bert.training.distributed import only_rank_zero_prints, rank, world_size
from labml_bert.training.optimization import OptimizerName, TrainingArguments

# This marks an option that doesn't change the result, apart from rounding and dropout masks. You may change
# such an option when you resume a run.
OPERATIONAL: Any = {"operational": True}


@dataclass(frozen=True)
class RunOptions:
    """
    ## The options of every run

    An experiment adds its own fields. A field with the same name as a field of `TrainingArguments` or
    `BertConfig` sets that field. All fields change the result, except for those marked as operational. The
    fields that change the result are saved with the run. You can resume it only with the same values."""

    corpus: str = "python-docs"
    """Text to train on: python-docs, python-source, tiny-shakespeare, wikitext-2, wikitext-103,
    a UTF-8 file, or a folder of such files."""
    minutes: float | None = 3.0
    """How long to train, in minutes."""
    steps: int | None = None
    """Train for this many steps instead of a number of minutes. On the CPU of one machine, the same seed then
    usually gives exactly the same weights."""
    seed: int = 0
    """Seed of all random numbers."""
    optimizer: OptimizerName = "adamw"
    """adamw, or muon, which trains the matrices of the blocks with Muon and the rest with AdamW."""
    precision: Precision = "auto"
    """Precision of the matmuls. auto is bfloat16 if the hardware has fast instructions for it, otherwise
    float16 on a CUDA GPU with tensor cores, and float32 everywhere else."""
    device: str = field(default="auto", metadata=OPERATIONAL)
    """cpu, cuda, mps (Apple's GPU), or auto, which is the GPU if there is one."""
    threads: str = field(default="default", metadata=OPERATIONAL)
    """Number of CPU threads. auto times a few steps with several numbers and uses the fastest. default is
    PyTorch's: one per core. A resumed run keeps its number, unless you set a different one."""
    runs: Path = field(default=Path("logs"), metadata=OPERATIONAL)
    """Folder in which each run creates its own folder."""
    checkpoint_seconds: float = field(default=30.0, metadata=OPERATIONAL)
    """Seconds between checkpoints: about as much training as a killed run can lose."""
    gradient_accumulation_steps: int = field(default=1, metadata=OPERATIONAL)
    """Micro-batches per process and step. More of them need less memory and give the same result, apart from
    rounding and dropout masks."""
    torch_compile: bool = field(default=False, metadata=OPERATIONAL)
    """Compile the model with torch.compile. On an H200, compiling made a step of BERT base 1.2 to 1.4 times
    as fast. A resumed run is compiled if it was before; --no-torch-compile changes that."""
    resume: Path | None = field(default=None, metadata=OPERATIONAL)
    """Resume the run in this folder."""
    record: Path | None = field(default=None, metadata=OPERATIONAL)
    """Write the result to this file, as JSON."""

    def configuration(self) -> dict[str, Any]:
        """The values that change the result, by name."""
        values = asdict(self)
        return {f.name: values[f.name] for f in fields(self) if not f.metadata.get("operational")}

    def training_arguments(self, **others: Any) -> TrainingArguments:
        """The training arguments. Raises `ValueError` if a value is out of range."""
        names = {f.name for f in fields(TrainingArguments)}
        return TrainingArguments(**{k: v for k, v in vars(self).items() if k in names}, **others)

    def model_config(self, **sizes: int) -> BertConfig:
        """
        The model's configuration, from `sizes` and the options that are named as in `BertConfig`. Attention
        weights have the same dropout probability as hidden states.

        Raises `ValueError` if no model can have these sizes.
        """
        names = {f.name for f in fields(BertConfig)}
        values = {k: v for k, v in vars(self).items() if k in names} | sizes
        values["attention_probs_dropout_prob"] = values["hidden_dropout_prob"]
        config = BertConfig(**values)
        check_config(config)
        return config

    def modern_config(self, **values: Any) -> ModernBertConfig:
        """
        A modern model's configuration, from `values` and the options that are named as in `ModernBertConfig`.
        By default, the padding token has id 0.

        Raises `ValueError` if no model can have these sizes.
        """
        names = {f.name for f in fields(ModernBertConfig)}
        named = {k: v for k, v in vars(self).items() if k in names}
        config = ModernBertConfig(**named | {"pad_token_id": 0} | values)
        check_modern_config(config)
        return config


def check_micro_batches(options: RunOptions, batch_tokens: int) -> None:
    """Raises `ValueError` if a step at the longest length has too few rows for its micro-batches."""
    schedule: str = options.schedule  # type: ignore[attr-defined]
    longest, count = parse_schedule(schedule)[-1].length, options.gradient_accumulation_steps
    rows, parts = batch_tokens // longest, world_size() * count
    if rows < parts:
        processes = f" ({world_size()} processes times {count})" if world_size() > 1 else ""
        raise ValueError(
            f"a step has {rows} sequences of length {longest}, too few for {parts} micro-batches{processes}; "
            "use a larger batch or fewer micro-batches"
        )


OptionsType = TypeVar("OptionsType", bound=RunOptions)
Values = TypeVar("Values")


def parse_options(
    options_type: type[OptionsType], experiment: str, description: str, argv: Sequence[str] | None = None
) -> OptionsType:
    """
    ## From the command line

    Options that aren't on the command line come from the run that you resume, or otherwise from the defaults.

    Raises `ValueError` if the run to resume is damaged or belongs to another experiment, or if a value is out
    of range. If the command line is invalid, prints one line and exits with code 2.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    options = parse(options_type, options_type(), description, without_default_flags(argv, options_type()))
    if options.resume is not None:
        state = load_checkpoint(options.resume)[0]
        saved = restore_options(options_type(), state["configuration"], experiment, options.resume)
        # These two options change the rounding, so a resumed run keeps their values. Checkpoints of older
        # versions don't contain them.
        kept = {name: state.get(name) for name in ("gradient_accumulation_steps", "torch_compile")}
        saved = replace(saved, **{name: value for name, value in kept.items() if value is not None})
        options = parse(options_type, saved, "", without_default_flags(argv, saved))
        # `Trainer.resume` doesn't restore more threads than this machine has cores.
        count, cores = state.get("threads", 0), os.cpu_count() or 1
        if count > cores and not options.threads.isdecimal() and rank() == 0:
            print_note(
                f"the run had {count} threads, and this machine has {cores} cores; for exactly the weights"
                f" of an uninterrupted run, add --threads {count}"
            )
    flags = {word.partition("=")[0] for word in argv}
    if {"--steps", "--minutes"} <= flags:
        usage_error("use --steps or --minutes, not both")
    if "--steps" in flags:
        options = replace(options, minutes=None)
    if "--minutes" in flags:
        options = replace(options, steps=None)
    if "--corpus" in flags:
        options = replace(options, corpus=absolute_path(options.corpus))
    check_options(options)
    if options.resume is not None:
        # `Trainer.resume` checks all values, but only after the text has been read.
        for name, value in options.configuration().items():
            before = state["configuration"].get(name)
            if isinstance(before, int | float) and isinstance(value, int | float) and before != value:
                raise other_value_error(options.resume, name, before, value)
    return options


def check_options(options: RunOptions) -> None:
    """
    Checks options that don't depend on the text. Reading the text can take many seconds, so it's better to
    find a mistake in the options first.

    Raises `ValueError` if a value is out of range, if the sizes don't fit together, or if a run couldn't save
    its files.
    """
    check_outputs(options, ("record",) if options.resume else ("record", "runs"))
    if options.resume is None:
        check_writable(options.runs)
    # Some scripts choose a budget or the size of the vocabulary later.
    has_budget = options.steps is not None or options.minutes is not None
    (options if has_budget else replace(options, steps=1)).training_arguments()
    # The options of a BERT and those of a modern model have the same names for the sizes.
    values = {f.name: getattr(options, f.name, None) for f in fields(BertConfig)}
    sizes = {name: value for name, value in values.items() if value is not None}
    # If only one of these two is set, the script chooses the other one later, so that they fit together.
    heads = sizes.setdefault("num_attention_heads", 1)
    sizes.setdefault("hidden_size", max(1, heads))
    check_config(BertConfig(**sizes))
    # A schedule that isn't set, or a script without these options, is checked later.
    if schedule := getattr(options, "schedule", None):
        longest = parse_schedule(schedule)[-1].length
        check_longest(longest, options.batch_tokens, sizes.get("max_position_embeddings"))  # type: ignore[attr-defined]
        check_micro_batches(options, options.batch_tokens)  # type: ignore[attr-defined]


def check_writable(runs: Path) -> None:
    """
    Raises `ValueError` if a run can't create a folder in `runs`. If `runs` doesn't exist, checks the nearest
    folder above it.
    """
    folder = runs
    while not os.path.exists(folder) and folder != folder.parent:
        folder = folder.parent
    if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        cause = errno.EACCES if folder.is_dir() else errno.ENOTDIR
        if hasattr(os, "statvfs") and os.statvfs(folder).f_flag & os.ST_RDONLY:
            cause = errno.EROFS
        raise ValueError(
            f"cannot write runs to {runs}: {os.strerror(cause)}; choose another folder with --runs"
        )


def absolute_path(name: str) -> str:
    """
    Returns the absolute path of a file or folder, so that a run can be resumed from a different working
    directory. If `name` is one of `NAMES`, or if no such path exists, returns `name` unchanged.
    """
    # `abspath` would remove `link/..`, but the system goes to the folder above the target of the link.
    return str(Path.cwd() / name) if name not in NAMES and os.path.exists(name) else name


def check_outputs(options: Any, names: Sequence[str] = ("record", "runs")) -> None:
    """
    Raises `ValueError` if the folder for downloads or one of the outputs called `names` would be among the
    texts of `options`.
    """
    texts = {options.corpus, getattr(options, "old_corpus", "")} - {*NAMES, ""}
    outputs = {f"--{name}": getattr(options, name) for name in names}
    with contextlib.suppress(ValueError):  # Without a home folder, nothing is downloaded.
        outputs["XDG_CACHE_HOME"] = cache_folder()
    for text, (name, path) in product(sorted(texts), outputs.items()):
        if path:
            check_not_among(Path(text), path, name)


def restore_options(
    defaults: OptionsType, values: dict[str, Any], experiment: str, run_path: Path
) -> OptionsType:
    """
    Returns `defaults` with the values of a saved run.

    Raises `ValueError` if the run belongs to another experiment, or if a value has the wrong type.
    """
    if values.get("experiment") != experiment:
        raise ValueError(f"{run_path} is a run of {values.get('experiment')}, not of {experiment}")
    kinds = get_type_hints(type(defaults))
    names = defaults.configuration().keys() & values.keys()
    restored = {}
    for name in names:
        try:
            restored[name] = from_json(values[name], kinds[name])
        except ValueError:
            raise ValueError(
                f"{run_path} has {name} = {values[name]!r}, which is not valid; start a new run"
            ) from None
    return replace(defaults, **restored)


def from_json(value: Any, kind: Any) -> Any:
    """
    Returns a value from a checkpoint as one of the type `kind`, such as `float | None`, or raises
    `ValueError`.
    """
    origin, kinds = get_origin(kind), get_args(kind)
    if origin is Literal and value in kinds:
        return value
    if origin in (Union, types.UnionType):
        for one in kinds:
            with contextlib.suppress(ValueError):
                return from_json(value, one)
    if origin in (tuple, list) and isinstance(value, list):
        kinds = kinds[:1] * len(value) if origin is list or kinds[1:] == (...,) else kinds
        return origin(from_json(item, one) for item, one in zip(value, kinds, strict=True))
    if kind is float and value in ("Infinity", "-Infinity", "NaN"):  # JSON has no such numbers.
        return float(value)
    # In Python, `True` is also an `int`. A `float` may be written as an `int`.
    expected = (int, float) if kind is float else kind
    if origin is None and isinstance(value, expected) and isinstance(value, bool) == (kind is bool):
        return value
    raise ValueError(f"{value!r} is no {kind}")


def without_default_flags(argv: list[str], defaults: RunOptions) -> list[str]:
    """
    Returns `argv` without the flags that are already the default, because tyro rejects them. The last of
    several flags counts.
    """
    words = argv
    for name, value in vars(defaults).items():
        if isinstance(value, bool):
            flags = [as_words(name, one)[0] for one in (value, not value)]
            typed = [word.replace("_", "-") for word in words if word.replace("_", "-") in flags]
            words = [word for word in words if word.replace("_", "-") not in flags]
            words += [flag for flag in typed[-1:] if flag != flags[0]]
    return words


def parse(options_type: type[Values], defaults: Values, description: str, argv: list[str]) -> Values:
    """
    Parses a command line. An error prints one line instead of tyro's box of several lines. A number that is
    far too large is an error too, so the rest of the program doesn't have to consider overflows.
    """
    for i, word in enumerate(argv):
        if not word:
            usage_error(f"the value after {argv[i - 1]} is empty" if i else "the first argument is empty")
        if re.fullmatch("--[^=]+=", word):
            usage_error(f"{word} has no value; write one after the =, or leave the option out")
    box = io.StringIO()
    try:
        with optional_values, only_rank_zero_prints(), contextlib.redirect_stderr(box):
            options = tyro.cli(
                options_type,
                default=defaults,
                description=description,
                args=argv,
                config=(tyro.conf.FlagCreatePairsOff,),
            )
    except BrokenPipeError:
        # With `--help | head`, the reader closes the pipe before the end of the help.
        raise SystemExit(0) from None
    except SystemExit as end:
        if end.code == 0:
            raise
        lines = [line.strip("│ ") for line in box.getvalue().splitlines()[1:]]
        # A horizontal rule ends the message. In an ASCII terminal, a rule also starts the message.
        rules = [i for i, line in enumerate(lines) if line and not line.strip("─-")]
        first = 1 if rules[:1] == [0] else 0
        last = next((i for i in rules if i >= first), len(lines))
        message = " ".join(filter(None, lines[first:last]))
        usage_error(
            re.sub(r"invalid literal for int\(\) with base 10: (.*)", r"\1 is not an integer", message)
        )
    for name, value in vars(options).items():
        if value == () != getattr(defaults, name):
            usage_error(f"--{name.replace('_', '-')} has no value; write one, or leave the option out")
        limit = LARGEST_VALUES.get(name, LARGEST_SIZE)
        if isinstance(value, int | float) and limit < value < math.inf:
            usage_error(f"{name} is {value}; it must be at most {limit:,}")
    return options


def resume_options(options: RunOptions) -> list[str]:
    """
    Returns the options that you repeat when you resume a run, as command-line arguments. These are the
    options that don't change the result, if they differ from their defaults.
    """
    words = []
    for option in fields(options):
        value = getattr(options, option.name)
        is_saved = not option.metadata.get("operational") or option.name in ("runs", "resume")
        if not is_saved and value not in (None, option.default):
            words += as_words(option.name, value)
    return words


def as_words(name: str, value: Any) -> list[str]:
    """Returns an option and its value as command-line arguments. A flag has no value."""
    # `from_` ends in an underscore because `from` is a keyword of Python.
    flag = f"--{name.rstrip('_').replace('_', '-')}"
    if isinstance(value, bool):
        return [flag if value else flag.replace("--", "--no-", 1)]
    if isinstance(value, tuple):
        return [flag, *map(str, value)]
    if isinstance(value, str) and value.startswith("-"):
        return [f"{flag}={value}"]
    return [flag, as_operand(str(value)) if isinstance(value, Path) else str(value)]


def usage_error(message: str) -> NoReturn:
    """Ends the program. All processes parse the same command line, so only rank zero prints the error."""
    if rank() == 0:
        print_error(f"{message}; see --help")
    raise SystemExit(2)


optional_values = tyro.constructors.ConstructorRegistry()


@optional_values.primitive_rule
def read_optional(info: Any) -> tyro.constructors.PrimitiveConstructorSpec[Any] | None:
    """Parses `int | None` as an optional `int`. tyro would also accept the word `None`."""
    kinds = [kind for kind in get_args(info.type) if kind is not types.NoneType]
    is_optional = get_origin(info.type) in (Union, types.UnionType) and len(kinds) == 1
    if not is_optional or kinds[0] not in (int, float, str, Path):
        return None

    def read(words: list[str]) -> Any:
        try:
            return kinds[0](words[0])
        except ValueError:
            raise ValueError(f"{words[0]!r} is not a valid {kinds[0].__name__}") from None

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar=kinds[0].__name__.upper(),
        instance_from_str=read,
        is_instance=lambda value: value is None or isinstance(value, kinds[0]),
        str_from_instance=lambda value: ["none" if value is None else str(value)],
    )
