"""
Every command and every experiment of the project, with the smallest sizes, in a folder of their own. Each
runs in a fork of this process, which has already loaded PyTorch, so a run takes a fraction of a second.
"""

import errno
import hashlib
import importlib
import inspect
import json
import os
import re
import runpy
import shutil
import signal
import sys
import traceback
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
import torch

from labml_bert.checksums import SUMS, parse_sealed
from labml_bert.classify import SAVING
from labml_bert.data import text_files, token_files
from labml_bert.data.pair_shards import DAMAGE
from labml_bert.files import PART, read_tensors
from labml_bert.run import record
from labml_bert.training.checkpoint import PREVIOUS
from tests.support.runs import script, small_text
from tests.support.syscalls import OnCall, trace

# Seconds. A command that takes longer is considered stuck.
LIMIT = 120
SIZES = "--hidden-size=16 --num-attention-heads=2 --num-hidden-layers=1 --batch-tokens=128"
RUN = f"{SIZES} --schedule=8,16 --max-position-embeddings=16 --steps=2 --checkpoint-seconds=0"
RUN += " --corpus=text.txt --precision=float32"
PAIRS = (
    RUN.replace("text.txt", "texts").replace("8,16 --max-position-embeddings=16", "16") + " --vocab-size=100"
)
LONGER = RUN.replace("8,16 --max-position-embeddings=16", "8,32 --max-position-embeddings=32")
SUBWORDS = RUN + " --vocab-size=100"
# The folders of the runs that other commands start from.
TINY, BERT = "models/tiny", "models/bert"


class Command(NamedTuple):
    """A command line."""

    words: str
    """The path of an experiment or the name of a module, and its arguments."""
    repeats: bool = True
    """Whether to run it once before the trials, so that there is an earlier result to lose."""
    codes: tuple[int, ...] = (0, 2)
    """The exit codes that it may have."""


COMMANDS: dict[str, Command] = {
    "mlm_tiny": Command(f"mlm_tiny {RUN}"),
    "mlm_tiny, record": Command(f"mlm_tiny {RUN} --record=record.json"),
    "mlm_words": Command(f"mlm_words {SUBWORDS}"),
    "mlm_modern": Command(f"mlm_modern {RUN} --intermediate-size=16"),
    "bert_tiny": Command(f"bert_tiny {PAIRS}"),
    "bert_tiny, static masking": Command(f"bert_tiny {PAIRS} --masking=static"),
    "own_language": Command(f"own_language {SUBWORDS}"),
    "own_language, tokens": Command(f"own_language {SUBWORDS} --corpus=tokens"),
    "continue_pretraining": Command(
        f"continue_pretraining --from={BERT}/model --corpus=text.txt --old-corpus=texts --steps=2 "
        "--schedule=8 --batch-tokens=128 --checkpoint-seconds=0 --precision=float32"
    ),
    "resume": Command("mlm_tiny --resume=models/stopped --checkpoint-seconds=0"),
    "prepare": Command("labml_bert.prepare text.txt --output=new_tokens --vocab-size=100", repeats=False),
    "prepare, again": Command("labml_bert.prepare text.txt --output=new_tokens --vocab-size=100"),
    "fill_mask": Command("labml_bert.fill_mask --run=models/tiny the[MASK]cat"),
    "embed": Command("labml_bert.embed --run=models/tiny/model one two"),
    "score": Command("labml_bert.score --run=models/tiny one two"),
    "export, web": Command("labml_bert.export models/tiny --to=web --output=web"),
    "export, onnx": Command("labml_bert.export models/tiny --to=onnx --output=onnx"),
    "runs": Command("labml_bert.runs models/tiny --html=curves.html"),
    "classify train": Command(
        "labml_bert.classify train labels.csv --from=models/bert --output=classifier "
        "--epochs=1 --learning-rate=1e-3",
        repeats=False,
    ),
    "classify predict": Command("labml_bert.classify predict models/classifier one two"),
    "course start": Command("labml_bert.course start my_bert", repeats=False),
    "course check": Command("labml_bert.course check --folder=course", codes=(0, 1, 2)),
    "course hint": Command("labml_bert.course hint --folder=course"),
    "course solve": Command("labml_bert.course solve --folder=course"),
    "attention_map": Command("attention_map --run=models/tiny the[MASK]cat --record=record.json"),
    "acceptability": Command("acceptability --run=models/bert --sentences=2 --record=record.json"),
    "live": Command(f"live {LONGER} --output=web --record=record.json"),
    "speed": Command(
        "speed --shapes=characters --dropout=0 --rounds=1 --batch-size=2 --length=8 --record=record.json"
    ),
    "speed_ablation": Command(
        "speed_ablation --shapes=short --rounds=1 --repeats=1 --corpus=texts --record=record.json"
    ),
    "cost": Command("cost --letters=V --rounds=1 --batches=2 --megabytes=0.1 --record=record.json"),
    "finetune_docstrings": Command(
        "finetune_docstrings --model=models/bert/model --labels=20 --pairs=20 --seeds=1 --steps=1 "
        "--record=record.json"
    ),
    "finetune_parameters": Command(
        "finetune_parameters --model=models/bert/model --labels=60 --seeds=1 --steps=1 --record=record.json"
    ),
    "retrieval": Command("retrieval --run=models/tiny --seeds=1 --steps=1 --record=record.json"),
    "compare_continued": Command(
        "compare_continued --corpus=new.txt --old-corpus=text.txt --seeds=1 --steps=1 --pretraining-steps=1 "
        "--record=record.json"
    ),
}


class Outcome(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    errors: str


def run_as_program(words: list[str], folder: Path, output: Path) -> None:
    """In a fork: runs a command line in `folder` as a shell would, and ends the process."""
    signal.alarm(LIMIT)
    os.chdir(folder)
    for number, name in enumerate(("out", "errors"), 1):
        descriptor = os.open(output / name, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        os.dup2(descriptor, number)
        os.close(descriptor)
    code: object = 0
    try:
        if words[0].startswith("labml_bert."):
            sys.argv = words
            sys.modules.pop(words[0], None)
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        else:
            sys.argv = [script(words[0]), *words[1:]]
            runpy.run_path(script(words[0]), run_name="__main__")
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


class Workshop:
    """
    The folder in which all commands run, always under the same name: configurations contain absolute paths.
    """

    def __init__(self, base: Path, names: Iterable[str]):
        """Prepares what the commands with these names need."""
        self.folder, self.output = base / "case", base / "output"
        self.folder.mkdir()
        self.output.mkdir()
        os.environ |= {"XDG_CACHE_HOME": str(self.folder / "cache"), "HOME": str(self.folder / "home")}
        os.environ |= {"TMPDIR": str(self.folder / "tmp"), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        words = " ".join(COMMANDS[name].words for name in names)
        load_libraries(words)
        self.template = base / "template"
        self.prepare(words)

    def run(self, words: str, on_call: OnCall = lambda call: None) -> Outcome:
        """Runs a command line."""
        parts = words.split()
        status = trace(lambda: run_as_program(parts, self.folder, self.output), self.folder, on_call)
        out, errors = (
            (self.output / name).read_text("utf-8", errors="replace") for name in ("out", "errors")
        )
        return Outcome(os.waitstatus_to_exitcode(status), out, errors)

    def succeed(self, words: str) -> Outcome:
        """Runs a command line that has to succeed."""
        outcome = self.run(words)
        assert outcome.code == 0, (words, outcome)
        return outcome

    def prepare(self, words: str) -> None:
        """Creates the files that the command lines `words` read."""
        for name in ("home", "tmp", "texts", "models", "cache"):
            (self.folder / name).mkdir()
        (self.folder / "text.txt").write_text(small_text(200))
        (self.folder / "new.txt").write_text(small_text(200).replace("cat", "seashore"))
        for i in range(30):
            (self.folder / "texts" / f"{i}.txt").write_text(small_text(8, seed=i))
        rows = "".join(f"the {'ab'[i % 2]} text {i},{'ab'[i % 2]}\n" for i in range(30))
        (self.folder / "labels.csv").write_text("text,label\n" + rows)
        for name, training in (("tiny", f"mlm_tiny {RUN}"), ("bert", f"bert_tiny {PAIRS}")):
            if f"models/{name}" in words or (name == "bert" and "models/classifier" in words):
                self.succeed(training)
                (run,) = self.folder.glob("logs/*/*/")
                run.rename(self.folder / "models" / name)
                shutil.rmtree(self.folder / "logs")
        if "models/stopped" in words:
            self.stop_early()
        if "=tokens" in words:
            self.succeed("labml_bert.prepare text.txt --output=tokens --vocab-size=100")
        if "models/classifier" in words:
            self.succeed(COMMANDS["classify train"].words.replace("=classifier", "=models/classifier"))
        if "=course" in words:
            self.succeed("labml_bert.course start course")
        shutil.copytree(self.folder, self.template, symlinks=True)

    def stop_early(self) -> None:
        """Makes a run that was stopped in the middle, under `models/stopped`."""
        writes = 0

        def stop(call: object) -> int | None:
            nonlocal writes
            is_checkpoint = "checkpoint.safetensors" in str(call) and "rename" in str(call)
            writes += is_checkpoint
            return errno.EIO if is_checkpoint and writes > 2 else None

        assert self.run(f"mlm_tiny {RUN}", stop).code == 2
        (run,) = self.folder.glob("logs/*/*/")
        run.rename(self.folder / "models" / "stopped")
        shutil.rmtree(self.folder / "logs")

    def reset(self, template: Path | None = None) -> None:
        """Makes the folder equal to a template."""
        shutil.rmtree(self.folder)
        shutil.copytree(template or self.template, self.folder, symlinks=True)


def load_libraries(words: str) -> None:
    """Loads what the command lines `words` take long to load."""
    torch.set_num_threads(1)
    # Small sizes, so that a text of a few kilobytes has several blocks.
    text_files.CHUNK_SIZE, token_files.BLOCK_SIZE = 1_000, 3_000
    warnings.simplefilter("ignore")
    before = signal.getsignal(signal.SIGINT)
    modules = ["labml_bert.export", "labml_bert.run.launch", "labml_bert.course.__main__"]
    modules += ["torch._dynamo", "labml.lab", "tyro"]
    modules += ["datasets"] if re.search("bert_tiny|models/bert|texts|live", words) else []
    modules += ["onnx", "onnxscript"] if "onnx" in words else []
    for module in modules:
        importlib.import_module(module)
    # labml calls `inspect.stack`, which looks up the files of all modules and caches them.
    inspect.stack()
    # Starting git takes long, and git reads no file in the folder.
    record.git = lambda *words: None
    signal.signal(signal.SIGINT, before)


# The contents of a folder


def read_folder(folder: Path) -> dict[str, bytes]:
    """The contents of all files by their relative paths. The newest run of an experiment is called `RUN`."""
    # Several runs can begin in one second, as in `live`: the second one is called `20261121-120000-2`.
    runs = sorted(folder.glob("logs/*/2*/"), key=lambda path: [int(part) for part in path.name.split("-")])
    names: dict[str, str] = {}
    for path in runs:
        newest = [other for other in runs if other.parent == path.parent][-1]
        relative = path.relative_to(folder).as_posix()
        names[relative] = f"{path.parent.relative_to(folder)}/{'RUN' if path == newest else path.name}"
    contents = {}
    for path in folder.rglob("*"):
        if path.is_file() and path.name != ".lock" and path.suffix != ".lock":
            name = path.relative_to(folder).as_posix()
            prefix = "/".join(name.split("/")[:3])
            contents[names.get(prefix, prefix) + name[len(prefix) :]] = path.read_bytes()
    return contents


def is_temporary(name: str) -> bool:
    """Whether a file has a temporary name, or is in the folder for temporary files."""
    is_named_so = name.endswith((PART, f"/{SAVING}")) or ".incomplete" in name
    return is_named_so or re.search(r"^tmp/|(^|/)\.tmp", name) is not None


# Files that grow. Readers skip what a failed write leaves at the end of such a file.
GROWING = ("metrics.jsonl", "blocks.jsonl", "train.bin", "valid.bin")


def is_whole(name: str, data: bytes, reference: bytes | None, scratch: Path) -> bool:
    """Whether a file is complete, judged by its kind. A file of any other kind must equal the reference."""
    path, suffix = Path(name), Path(name).suffix
    if data == reference or path.name in GROWING:
        return True
    if path.name == SUMS:
        # The files of a folder are written one by one, and this list of checksums grows with them.
        return all(re.fullmatch(rb"[0-9a-f]{64}  .+\n", line) for line in data.splitlines(keepends=True))
    file = scratch / f"file{suffix}"
    file.unlink(missing_ok=True)
    file.write_bytes(data)
    if suffix == ".safetensors":
        try:
            return bool(read_tensors(file)[0])
        except ValueError:
            return False
    if suffix == ".parquet":
        try:
            return pq.ParquetFile(file, page_checksum_verification=True).read().num_rows > 0
        except DAMAGE:
            return False
    if suffix in (".json", ".jsonl"):
        try:
            return all(json.loads(line) for line in ([data] if suffix == ".json" else data.splitlines()))
        except ValueError:
            return False
    # HTML pages and model cards contain times, and the card of a resumed run more options, so check the end.
    if reference is None or suffix not in (".html", ".md"):
        return False
    last_heading = reference.rpartition(b"\n## ")[2].partition(b"\n")[0] if suffix == ".md" else b""
    return last_heading in data and data.endswith(reference[-2:])


def same_result(name: str, data: bytes, reference: bytes, scratch: Path) -> bool:
    """Whether two files have the same result, apart from times."""
    if data == reference:
        return True
    if name.endswith(PREVIOUS):
        # A run continues if it can't keep the checkpoint before the last one.
        return is_whole(name, data, reference, scratch)
    if name.endswith(".safetensors"):
        tensors, expected = (parse_tensors(content, scratch)[0] for content in (data, reference))
        return tensors.keys() == expected.keys() and all(
            torch.equal(value, expected[key]) for key, value in tensors.items()
        )
    if name.endswith(".json"):
        return without_times(parse_sealed(data.decode())) == without_times(parse_sealed(reference.decode()))
    return is_whole(name, data, reference, scratch)


def parse_tensors(data: bytes, scratch: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Returns what `read_tensors` returns for a file with the content `data`."""
    file = scratch / "tensors.safetensors"
    file.write_bytes(data)
    return read_tensors(file)


MEASURED = "crc32|second|time|date|memory|speed|ratio|flops|history|bandwidth|run"
# In the records of `speed`, `speed_ablation` and `cost`.
MEASURED += "|^(peaks|drawing|worth|least|most|anonymous|file)$"


def without_times(value: object) -> object:
    """JSON without the values that depend on the time or on a path."""
    if isinstance(value, dict):
        return {key: without_times(item) for key, item in value.items() if not re.search(MEASURED, key)}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def digest(folder: Path, words: str, scratch: Path) -> str:
    """A hash of what a command line depends on: the names and contents of all files, apart from times."""
    runs = sorted({path.name for path in folder.glob("logs/*/2*")}, reverse=True)

    def number_runs(text: str) -> str:
        for number, run in enumerate(runs):
            text = text.replace(run, f"run {number}")
        return text

    files = {number_runs(name): data for name, data in read_folder(folder).items()}
    summary = hashlib.sha256(number_runs(words).encode())
    for name in sorted(files):
        summary.update(repr((name, without_measurements(name, files, scratch))).encode())
    return summary.hexdigest()


def without_measurements(name: str, files: dict[str, bytes], scratch: Path) -> object:
    """The content of one of the files of a folder, apart from times. Damaged files are kept as they are."""
    path, data = Path(name), files[name]
    try:
        if path.name == SUMS:
            # The checksum of a file that contains times differs in each run, so compare it with the file.
            sums = [line.split("  ") for line in data.decode().splitlines()]
            contents = [files.get(str(path.parent / file), b"") for _, file in sums]
            hashes = [hashlib.sha256(content).hexdigest() for content in contents]
            return [(file, sha256 == right) for (sha256, file), right in zip(sums, hashes, strict=True)]
        if path.suffix == ".json":
            # The checksum in a record depends on the times in it.
            return without_times(parse_sealed(data.decode()))
        if path.suffix == ".jsonl":
            return [without_times(json.loads(line)) for line in data.splitlines()]
        if path.suffix == ".safetensors":
            tensors, metadata = parse_tensors(data, scratch)
            facts = without_times(json.loads(metadata.get("about", "{}")))
            return facts, {key: value.numpy().tobytes() for key, value in tensors.items()}
    except ValueError:
        return data
    return re.sub(rb"\d", b"", data) if path.suffix == ".md" else data
