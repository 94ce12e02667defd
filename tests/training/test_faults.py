"""Faults, injected for real: damaged bits, numbers that go wrong, full disks, strange places, a terminal."""

import ast
import fcntl
import importlib.metadata
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
import pytest
import torch
from packaging.requirements import Requirement
from torch import Tensor, nn

from labml_bert import files
from labml_bert.data.pair_dataset import DatasetArguments, build_dataset, open_dataset
from labml_bert.data.tokenizers import word_tokenizer
from labml_bert.files import read_tensors, write_tensors, write_whole
from labml_bert.models import BertForMaskedLM
from labml_bert.run import job as run
from labml_bert.run.terminal import run_ends_well
from labml_bert.training.checkpoint import CHECKPOINT, FAILED_STEP, PREVIOUS, load_checkpoint, replay
from labml_bert.training.optimization import TrainingArguments
from labml_bert.training.tracking import read_metrics
from labml_bert.training.trainer import NonFiniteLossError, Trainer, tracked
from tests.experiments.test_runs import ROOT, command, flipped
from tests.support.runs import small_text
from tests.training.test_trainer import CONFIG, finish, trainer_at

# Damage


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


def test_a_damaged_checkpoint_names_the_one_before_and_it_goes_on_to_the_same_end(tmp_path: Path) -> None:
    finish(tmp_path / "whole")
    path = tmp_path / "run"
    path.mkdir()
    trainer, parts = trainer_at(path)
    inner = parts["next_batch"]

    def next_batch(progress: float) -> dict[str, Tensor]:
        if trainer.step in (10, 20):
            trainer.save()
        if trainer.step == 25:
            raise KeyboardInterrupt
        return inner(progress)

    with tracked(path, {}), pytest.raises(KeyboardInterrupt):
        list(trainer.train(**{**parts, "next_batch": next_batch}))
    assert not (path / "run.pid").exists()
    data = (path / CHECKPOINT).read_bytes()
    (path / CHECKPOINT).write_bytes(flipped(data, len(data) // 2))
    with pytest.raises(ValueError, match=f"sha256.*of step .*, is whole: rename {PREVIOUS} to {CHECKPOINT}"):
        trainer_at(path)[0].resume()
    os.replace(path / PREVIOUS, path / CHECKPOINT)
    trainer, parts = trainer_at(path)
    trainer.resume()
    assert trainer.step <= 20
    with tracked(path, {}):
        list(trainer.train(**parts))
    expected, found = load_checkpoint(tmp_path / "whole")[1], load_checkpoint(path)[1]
    assert all(torch.equal(expected[key], found[key]) for key in expected)
    for name in (CHECKPOINT, PREVIOUS):
        (path / name).write_bytes(b"")
    with pytest.raises(ValueError, match="start a new run"):
        load_checkpoint(path)


def test_a_model_with_a_flipped_bit_is_refused(tmp_path: Path) -> None:
    BertForMaskedLM(CONFIG).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(flipped(data, len(data) - 7))
    with pytest.raises(ValueError, match=r"does not have the sha256.*save it again"):
        BertForMaskedLM.from_pretrained(tmp_path)


def pairs_of(folder: Path) -> dict[str, object]:
    texts = [small_text(30, seed) for seed in range(20)]
    return build_dataset(texts, word_tokenizer(texts), folder, DatasetArguments(max_length=32), 1)


def test_pairs_with_a_flipped_bit_are_made_again(tmp_path: Path) -> None:
    """Also where the end of the file, which says what it is, is whole."""
    pairs_of(tmp_path)
    (part,) = tmp_path.glob("part-*.parquet")
    whole = part.read_bytes()
    for share in (0.05, 0.3, 0.6):
        part.write_bytes(flipped(whole, int(len(whole) * share)))
        pq.read_metadata(part)
        with pytest.raises(ValueError, match="is damaged; build it again"):
            open_dataset(tmp_path)
        pairs_of(tmp_path)
        assert part.read_bytes() == whole
    assert len(open_dataset(tmp_path)) > 0


# Two at once


def test_two_builds_in_one_folder_take_turns(tmp_path: Path) -> None:
    other = files.lock(tmp_path)
    building = threading.Thread(target=pairs_of, args=[tmp_path])
    building.start()
    building.join(0.5)
    assert building.is_alive() and not list(tmp_path.glob("part-*"))
    other.close()
    building.join()
    assert len(open_dataset(tmp_path)) > 0


def test_whoever_holds_a_run_holds_it_alone_and_clears_up(tmp_path: Path) -> None:
    left = tmp_path / f"{CHECKPOINT}.77.part"
    left.write_bytes(b"half")
    with run.held_alone(tmp_path):
        assert not left.exists()
        with pytest.raises(ValueError, match=r"another process is training in .*; wait until it ends"):
            run.held_alone(tmp_path)
    run.held_alone(tmp_path).__exit__(None, None, None)


def test_runs_that_begin_in_the_same_second_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the clock is set back."""
    monkeypatch.setattr(time, "strftime", lambda *_: "20200101-000000")
    made = [run.new_run_path(tmp_path, "x").name for _ in range(3)]
    assert made == ["20200101-000000", "20200101-000000-2", "20200101-000000-3"]


# Numbers that go wrong


def poisoned(path: Path, when: int, poison: object, **options: object) -> tuple[Trainer, list[float], list]:
    """
    A run in which `poison(model)` is called before step `when`, until it stops. Returns the trainer, the
    loss of each step, and the weights that the poison left.
    """
    path.mkdir()
    trainer, parts = trainer_at(path)
    for name, value in options.items():
        setattr(trainer, name, value)
    inner, losses, weights = parts["next_batch"], [], []

    def next_batch(progress: float) -> dict[str, Tensor]:
        if trainer.step + 1 == when:
            with torch.no_grad():
                poison(trainer.model)
            weights.extend(p.detach().clone() for p in trainer.model.parameters())
        return inner(progress)

    def metrics(output, batch) -> dict[str, Tensor]:
        losses.append(output.loss.item())
        return {}

    with tracked(path, {}), pytest.raises(NonFiniteLossError, match=f"at step {when}; .*{CHECKPOINT}"):
        list(trainer.train(next_batch, metrics, parts["evaluate"]))
    return trainer, losses, weights


def explode(model: nn.Module) -> None:
    model.cls.predictions.bias.copy_(torch.linspace(-300, 300, 30))


def nothing_finite(model: nn.Module) -> None:
    model.bert.encoder.layer[1].output.dense.weight.fill_(float("inf"))


def overflow(model: nn.Module) -> None:
    """Each number fits into bfloat16, the product does not."""
    model.bert.embeddings.LayerNorm.weight.fill_(1e25)
    model.bert.encoder.layer[0].attention.self.value.weight.fill_(1e25)


@pytest.mark.parametrize(
    ("poison", "bfloat16"), [(explode, False), (nothing_finite, False), (overflow, False), (overflow, True)]
)
def test_the_step_that_fails_is_named_not_taken_and_done_again(
    poison: object, bfloat16: bool, tmp_path: Path
) -> None:
    trainer, losses, weights = poisoned(tmp_path / "run", 13, poison, bfloat16=bfloat16)
    assert all(torch.equal(a, b) for a, b in zip(weights, trainer.model.parameters(), strict=True))
    about, tensors = load_checkpoint(tmp_path / "run")
    assert about["step"] < 13
    assert all(value.isfinite().all() for value in tensors.values() if value.is_floating_point())
    model = BertForMaskedLM(CONFIG)
    loss, norms = replay(tmp_path / "run", model)
    # To the bit, with dropout on.
    assert loss == losses[12] or (loss != loss and losses[12] != losses[12])
    assert norms.keys() == dict(model.named_parameters()).keys()
    if poison is explode:
        assert loss > 100
        assert replay(tmp_path / "run", model) == (loss, norms)
    else:
        assert any(not norm < float("inf") for norm in norms.values())
    with pytest.raises(ValueError, match="of another model"):
        replay(tmp_path / "run", nn.Linear(2, 2))
    with pytest.raises(ValueError, match="no step has failed"):
        replay(tmp_path, model)


class Root(nn.Module):
    """A loss of 0, whose gradient is infinite."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> object:
        class Output(NamedTuple):
            loss: Tensor

        return Output((self.weight * x).sum().abs().sqrt())


def test_a_finite_loss_with_a_gradient_that_is_not(tmp_path: Path) -> None:
    """Clipping by an infinite norm would make every weight NaN, and then the checkpoint too."""
    generator = torch.Generator()
    arguments = TrainingArguments(steps=9, evaluations=1, checkpoint_seconds=0)
    trainer = Trainer(Root(), arguments, tmp_path, {}, generator, torch.device("cpu"), bfloat16=False)

    def next_batch(progress: float) -> dict[str, Tensor]:
        return {"x": torch.zeros(3) if trainer.step == 5 else torch.ones(3)}

    with tracked(tmp_path, {}), pytest.raises(NonFiniteLossError, match="at step 6"):
        list(trainer.train(next_batch, lambda *_: {}, lambda: {"loss": 0.0}))
    assert trainer.model.weight.isfinite().all()
    assert all(v.isfinite().all() for k, v in load_checkpoint(tmp_path)[1].items() if k.startswith("model"))
    loss, norms = replay(tmp_path, Root())
    assert loss == 0 and not norms["weight"] < float("inf")
    assert json.loads(read_tensors(tmp_path / FAILED_STEP)[1]["about"])["step"] == 6


# A disk that is full


@pytest.fixture()
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of half a megabyte."""
    path = tmp_path / "disk"
    path.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(path)], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"a disk that is full needs the right to mount one: {done.stderr.strip()}")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill_up(disk: Path) -> Path:
    """Leaves nothing."""
    filler = disk / "filler"
    with open(filler, "wb", buffering=0) as file:
        while True:
            try:
                file.write(b"\0" * 4096)
            except OSError:
                return filler


def test_a_full_disk_loses_nothing_that_was_there(small_disk: Path) -> None:
    """At a checkpoint, a record, a model and pairs; and when there is room again, all go on."""
    trainer = finish(small_disk / "run")
    model, record, pairs = small_disk / "model", small_disk / "record.json", small_disk / "pairs"
    trainer.model.save_pretrained(model)
    write_whole(record, "{}")
    pairs_of(pairs)

    def contents() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in small_disk.rglob("*") if path.is_file()}

    # Else its room would do for the next.
    (small_disk / "run" / PREVIOUS).unlink()
    filler = fill_up(small_disk)
    before = contents()
    with torch.no_grad():
        for p in trainer.model.parameters():
            p.zero_()
    trainer.step += 1
    texts = [small_text(30, seed) for seed in range(30, 60)]
    works = [
        trainer.save,
        lambda: trainer.model.save_pretrained(model),
        lambda: write_whole(record, "x" * 10_000),
        lambda: build_dataset(texts, word_tokenizer(texts), pairs, DatasetArguments(max_length=32), 1),
    ]
    for work in works:
        with pytest.raises(OSError, match=r"No space left|os error 28"):
            work()
    after = contents()
    assert {path: data for path, data in after.items() if path.name != PREVIOUS} == {
        path: data for path, data in before.items() if path.name != PREVIOUS
    }
    assert load_checkpoint(small_disk / "run")[0]["step"] == 30
    filler.unlink()
    for work in works:
        work()
    assert load_checkpoint(small_disk / "run")[0]["step"] == 31
    assert len(open_dataset(pairs)) > 0


@pytest.mark.parametrize(("resumable", "words"), [(True, "go on with --resume"), (False, "start anew")])
def test_a_full_disk_promises_only_what_can_be_done(
    resumable: bool, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped, run_ends_well(tmp_path, resumable):
        raise OSError(28, "No space left on device", "log.jsonl")
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert re.fullmatch("error: No space left on device .*\n", error)
    assert words in error and ("--resume" in error) == resumable


def test_a_log_that_cannot_be_written_stops_the_run(tmp_path: Path) -> None:
    """And not one line in a thread that nobody reads, and a night without metrics."""
    trainer, parts = trainer_at(tmp_path)
    log, aside = tmp_path / "log.jsonl", tmp_path / "aside"

    def evaluate() -> dict[str, float]:
        if trainer.step == 18:
            # What is on its way from the thread may still come.
            while not log.is_file() or log.read_text().count("valid") < 2:
                time.sleep(0.01)
            log.rename(aside)
            log.symlink_to("/dev/full")
        return {"loss": 1.0}

    trainer.arguments = TrainingArguments(steps=30, evaluations=5, checkpoint_seconds=0)
    with pytest.raises(OSError, match="No space left"), tracked(tmp_path, {}):
        list(trainer.train(**{**parts, "evaluate": evaluate}))
    aside.rename(log)
    with open(log, "a") as file:
        file.write('{"track": {"loss": [[18')
    trainer, parts = trainer_at(tmp_path)
    trainer.resume()
    assert trainer.step >= 12
    with tracked(tmp_path, {}):
        list(trainer.train(**parts))
    # A line that was cut off spoils no other.
    assert {6, 12, 24, 30} <= {step for step, _ in read_metrics(tmp_path)["valid.loss"]}


# Strange places

STRANGE_CLOCK = """
import time
real, start = time.time, time.time()
time.time = lambda: 2 * start - real() - 3600
"""


def test_no_home_no_git_no_utf8_no_terminal_a_clock_that_runs_backwards(tmp_path: Path) -> None:
    """And a path with blanks and foreign letters, all in one run, which is then resumed."""
    place = tmp_path / "ein größerer Ordner"
    place.mkdir()
    (place / "sitecustomize.py").write_text(STRANGE_CLOCK)
    (place / "tëxt ä.txt").write_text(small_text(200).replace("cat", "kät"), encoding="utf-8")
    environment = {
        "PATH": "/nonexistent",
        "HOME": "/proc/nowhere",
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(place)]),
    }
    words = ["--corpus", "tëxt ä.txt", "--steps", "3", "--record", "récord.json"]

    def start(*arguments: str) -> str:
        done = subprocess.run(
            [*command(), *arguments],
            cwd=place,
            env=environment,
            capture_output=True,
            stdin=subprocess.DEVNULL,
        )
        assert (done.returncode, done.stderr) == (0, b""), done.stderr.decode()
        return done.stdout.decode("ascii")

    out = start(*words)
    assert "t?xt ?.txt" in out and "this model" in out
    record = json.loads((place / "récord.json").read_text(encoding="utf-8"))
    assert record["corpus"]["name"] == "tëxt ä.txt"
    assert record["commit"] is None
    # One report a step at least at the end of each length, though the clock says that no time has passed.
    assert [step for step, _ in record["history"]["loss"]][-1] == 3
    (folder,) = (place / "logs" / "mlm_tiny").iterdir()
    assert not (folder / "run.pid").exists()


HIT = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["HIT_AT"]:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize(
    ("program", "module"),
    [
        ([str(ROOT / "experiments" / "mlm_tiny.py")], "torch"),
        ([str(ROOT / "experiments" / "own_language.py")], "labml_bert.training.trainer"),
        ([str(ROOT / "experiments" / "attention_map.py")], "torch"),
        ([str(ROOT / "experiments" / "finetune_docstrings.py")], "torch"),
        *(
            ([str(ROOT / "experiments" / f"{name}.py")], "torch")
            for name in ("claims", "cost", "live", "speed", "speed_ledger")
        ),
        (["-m", "labml_bert.fill_mask", "[MASK]"], "torch"),
    ],
)
def test_ctrl_c_among_the_imports_is_one_line(program: list[str], module: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(HIT)
    paths = os.pathsep.join([str(ROOT), str(tmp_path)])
    done = subprocess.run(
        [sys.executable, *program],
        cwd=tmp_path,
        env={**os.environ, "HIT_AT": module, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\nstopped before it began\n")
    # A program of somebody else keeps its own answer.
    code = "import signal, labml_bert; assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    if module == "labml_bert.training.trainer":
        subprocess.run([sys.executable, "-c", code], check=True)


def screen(text: str, width: int = 80) -> list[str]:
    """What a terminal shows after `text`, line by line."""
    lines: list[list[str]] = [[]]
    row = column = 0
    for piece in re.findall(r"\x1b\[\??([\d;]*)([A-Za-z])|(.)", text, re.DOTALL):
        number, letter, sign = piece
        if letter == "A":
            row -= int(number or 1)
        elif letter == "K":
            lines[row] = [] if number == "2" else lines[row][:column]
        elif sign == "\r":
            column = 0
        elif sign == "\n":
            row += 1
        elif sign:
            if column == width:
                row, column = row + 1, 0
            while len(lines) <= row:
                lines.append([])
            lines[row] += [" "] * (column + 1 - len(lines[row]))
            lines[row][column] = sign
            column += 1
        while len(lines) <= row:
            lines.append([])
    return ["".join(line).rstrip() for line in lines]


def test_a_terminal_shows_one_bar_and_a_second_run_in_the_folder_is_refused(
    corpus_file: Path, tmp_path: Path
) -> None:
    """Ctrl-C as a terminal sends it, with the `^C` that it writes."""
    words = command("--corpus", corpus_file, "--minutes", 5)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve(words[0], words, {**os.environ, "TERM": "xterm", "COLUMNS": "80"})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    shown = ""
    folder: Path | None = None
    while True:
        try:
            piece = os.read(terminal, 4096).decode(errors="replace")
        except OSError:
            break
        shown += piece
        if folder is None and "k/s" in shown:
            (folder,) = (tmp_path / "logs" / "mlm_tiny").iterdir()
            script = str(ROOT / "experiments" / "mlm_tiny.py")
            second = subprocess.run(
                [sys.executable, script, "--resume", str(folder)],
                capture_output=True,
                text=True,
                cwd=tmp_path,
            )
            assert second.returncode == 2
            assert re.fullmatch("error: another process is training in .*\n", second.stderr)
            os.write(terminal, b"\x03")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    os.close(terminal)
    lines = screen(shown)
    assert "^C" in shown
    assert len([line for line in lines if "k/s" in line]) == 1, "\n".join(lines)
    # The folder's name can be long, and a terminal breaks a line in the middle of a word.
    assert "--resume" in "".join(lines)
    assert folder is not None and load_checkpoint(folder)[0]["step"] > 0
    # The lock went with the process.
    files.lock(folder).close()


@pytest.fixture()
def read_only_disk(tmp_path: Path) -> Iterator[Path]:
    """A run that was stopped, on a disk that cannot be written any more."""
    path = tmp_path / "disk"
    path.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(path)], capture_output=True).returncode:
        pytest.skip("a disk that cannot be written needs the right to mount one")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def test_a_run_folder_that_cannot_be_written(corpus_file: Path, read_only_disk: Path, tmp_path: Path) -> None:
    words = ["--corpus", corpus_file, "--steps", 2, "--runs", read_only_disk]
    subprocess.run(command(*words), cwd=tmp_path, check=True, capture_output=True)
    (folder,) = read_only_disk.glob("*/*/")
    subprocess.run(["mount", "-o", "remount,ro", str(read_only_disk)], check=True)
    script = str(ROOT / "experiments" / "mlm_tiny.py")
    for arguments, line in (
        (command(*words), f"error: cannot write runs to {read_only_disk}: Read-only.*\n"),
        ([sys.executable, script, "--resume", str(folder)], "error: cannot write to .*: Read-only.*\n"),
    ):
        done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 2
        assert re.fullmatch(line, done.stderr)


# The same bits


TWENTY_STEPS = """
import sys, torch
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.training.test_trainer import finish
finish(Path(sys.argv[2]), steps=20)
"""


def test_the_same_seed_gives_the_same_bits_in_another_process(tmp_path: Path) -> None:
    """With dropout on. What is in the hash of a text is drawn anew in each process, so none may matter."""
    for name in ("one", "two"):
        words = [sys.executable, "-c", TWENTY_STEPS, str(Path(__file__).parents[2]), str(tmp_path / name)]
        subprocess.run(words, check=True, env={**os.environ, "PYTHONHASHSEED": str(len(name) * ord(name[0]))})
    (_, one), (_, two) = load_checkpoint(tmp_path / "one"), load_checkpoint(tmp_path / "two")
    assert one.keys() == two.keys()
    assert all(torch.equal(one[key], two[key]) for key in one)


# What is never opened


def test_no_pickle_and_no_archive_is_opened() -> None:
    """Neither by an import nor by a call, in the package, the experiments and the builder of the site."""
    refused = {
        "pickle",
        "cPickle",
        "dill",
        "marshal",
        "shelve",
        "zipfile",
        "tarfile",
        "joblib",
        "cloudpickle",
    }
    calls = {"torch.load", "np.load", "numpy.load", "shutil.unpack_archive", "yaml.load"}
    found = []
    for path in (p for f in ("labml_bert", "experiments", "docs/literate") for p in (ROOT / f).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if refused & {name.split(".")[0] for name in names}:
                found.append((path.name, names))
            if isinstance(node, ast.Call) and ast.unparse(node.func) in calls:
                found.append((path.name, ast.unparse(node.func)))
    assert found == []


def test_every_package_that_is_installed_for_us_is_pinned() -> None:
    """With its dependencies and theirs, as far as they are here; constraints.txt is what CI installs by."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {plain_name(line.split("==")[0]) for line in lines if "==" in line}
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *table["dependencies"],
        *(w for extra in table["optional-dependencies"].values() for w in extra),
    ]
    waiting, seen, here = [plain_name(word) for word in wanted], set(), set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            needs = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            # Of an extra that is not here.
            continue
        here.add(name)
        for need in map(Requirement, needs):
            # What is for another system or an older Python may lie about inside some other package.
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                waiting.append(plain_name(need.name))
    assert len(here) > 20
    assert here - pinned == set()


def plain_name(requirement: str) -> str:
    """`Foo_bar>=1; python_version > "3"` is `foo-bar`."""
    found = re.match(r"[\w.-]+", requirement)
    assert found is not None
    return re.sub(r"[-_.]+", "-", found[0]).lower()
