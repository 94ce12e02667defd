"""Several processes under `torchrun`, and micro-batches: the same numbers and files as a single process."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest
import torch

from labml_bert.bert import BertConfig
from labml_bert.data.corpora import load_corpus
from labml_bert.data.curriculum import length_at, parse_schedule
from labml_bert.data.masked_text import MaskedText
from labml_bert.data.paired_text import PairedText
from labml_bert.data.tokenizers import character_tokenizer, wordpiece_tokenizer
from labml_bert.mlm import masked_accuracy
from labml_bert.models import BertForMaskedLM, BertForPreTraining
from labml_bert.run.options import RunOptions, parse
from labml_bert.training import distributed
from labml_bert.training.checkpoint import CHECKPOINT, load_checkpoint
from labml_bert.training.device import choose_device
from labml_bert.training.distributed import rank, rank_zero_first, split_into_micro_batches, world_size
from labml_bert.training.optimization import OptimizerName, TrainingArguments
from labml_bert.training.tracking import read_metrics
from labml_bert.training.trainer import Step, Trainer
from tests.support.runs import small_text

ROOT = Path(__file__).parents[2]
STEPS = 50
# Batches have 65 rows, then 21. Neither number can be divided evenly by two processes or two micro-batches.
SIZES = {
    "hidden_size": 32,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "initializer_range": 0.04,
}
SCHEDULE, BATCH_TOKENS = "8,24", 520
SMALL = [
    "--hidden-size=32",
    "--num-attention-heads=2",
    "--num-hidden-layers=2",
    "--batch-tokens=512",
    "--schedule=8,32",
    "--max-position-embeddings=32",
]


def train(
    kind: str,
    corpus: Path,
    path: Path,
    gradient_accumulation_steps: int = 1,
    dropout: float = 0.0,
    optimizer: OptimizerName = "adamw",
    stop: int | None = None,
) -> dict[int, dict[str, float]]:
    """
    Trains a small model in float32, or resumes if `path` has a checkpoint. Returns the metrics of each step.
    After step `stop`, the last process gets a SIGTERM.
    """
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    stages = parse_schedule(SCHEDULE)
    with rank_zero_first():
        text: MaskedText | PairedText
        documents = load_corpus(str(corpus))
        if kind == "tokens":
            tokenizer = character_tokenizer(documents.train)
            text = MaskedText(documents, tokenizer, 24, BATCH_TOKENS, 128, 0.3, generator)
        else:
            tokenizer = wordpiece_tokenizer(documents.train, 120)
            lengths = [stage.length for stage in stages]
            text = PairedText(documents, tokenizer, lengths, BATCH_TOKENS, "dynamic", generator)
    config = BertConfig(
        text.vocab_size,
        max_position_embeddings=128 if kind == "tokens" else 24,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        **SIZES,
    )
    model = BertForMaskedLM(config) if kind == "tokens" else BertForPreTraining(config)
    # Evaluate after each step, so that each step is reported.
    arguments = TrainingArguments(
        steps=STEPS,
        optimizer=optimizer,
        learning_rate=3e-3 if kind == "tokens" else 2e-3,
        warmup_ratio=0.05,
        weight_decay=0.05 if kind == "tokens" else 0.01,
        adam_beta2=0.98,
        evaluations=STEPS,
        gradient_accumulation_steps=gradient_accumulation_steps,
    )
    trainer = Trainer(model, arguments, generator, torch.device("cpu"), "float32", path)
    if (path / CHECKPOINT).is_file():
        trainer.resume()
    metrics_by_step: dict[int, dict[str, float]] = {}

    def record_metrics(step: int, metrics: dict[str, float]) -> None:
        metrics_by_step[step] = metrics
        if step == stop and rank() == world_size() - 1:
            os.kill(os.getpid(), signal.SIGTERM)

    report = trainer.report

    def report_on_all_ranks(step: Step) -> None:
        # Only rank zero gets a report, but here the metrics on both processes are compared.
        sums, count = trainer.metric_sums, trainer.metric_steps
        totals = distributed.all_reduce_sum([value.item() for value in sums.values()])
        record_metrics(step.number, {key: total / count for key, total in zip(sums, totals, strict=True)})
        report(step)

    with mock.patch.object(trainer, "report", report_on_all_ranks):
        try:
            for step in trainer.steps():
                for part in step.micro_batches(text.batch(length_at(stages, step.progress))):
                    with step.autocast():
                        output = trainer.parallel(**part)
                    logits = output.logits if kind == "tokens" else output.prediction_logits
                    count = part["num_items_in_batch"]
                    metrics = {"accuracy": masked_accuracy(logits, output.labels, count)}
                    if kind == "pairs":
                        metrics["masked_lm_loss"] = output.masked_lm_loss
                        metrics["next_sentence_loss"] = output.next_sentence_loss
                    step.backward(output.loss, **metrics)
                step.update()
        except KeyboardInterrupt:
            assert trainer.step == stop
    return metrics_by_step


# One launch of two processes does all of these runs. The name of a run is also that of its folder.
SCENARIOS = {
    "tokens": {"kind": "tokens"},
    "pairs": {"kind": "pairs"},
    "tokens-accumulation": {"kind": "tokens", "gradient_accumulation_steps": 2},
    "pairs-accumulation": {"kind": "pairs", "gradient_accumulation_steps": 2},
    "two-then-one": {"kind": "pairs", "stop": 20},
    "one-then-two": {"kind": "pairs"},
    "tokens-muon": {"kind": "tokens", "optimizer": "muon"},
    "dropout": {"kind": "tokens", "dropout": 0.1},
    "dropout-resumed": {"kind": "tokens", "dropout": 0.1, "stop": 31},
}
TWO_PROCESSES = """
import json, sys
from pathlib import Path
import torch
sys.path.insert(0, sys.argv[1])
from tests.training.test_distributed import SCENARIOS, train
from labml_bert.training import distributed
folder = Path(sys.argv[2])
distributed.init_process_group(torch.device("cpu"))
metrics = {}
for name, arguments in SCENARIOS.items():
    # The second process gets a folder of its own, where a test can see whether it writes anything.
    own = folder / "second" if distributed.rank() and name != "one-then-two" else folder
    metrics[name] = train(corpus=folder / "text", path=own / name, **arguments)
metrics["dropout-resumed"] |= train("tokens", folder / "text", folder / "dropout-resumed", dropout=0.1)
distributed.destroy_process_group()
(folder / f"losses-{distributed.rank()}.json").write_text(json.dumps(metrics))
"""


def torchrun(*words: object, cwd: Path) -> subprocess.Popen[str]:
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    return subprocess.Popen(
        [sys.executable, *launch, *map(str, words)],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "XDG_CACHE_HOME": str(cwd / "cache"), "OMP_NUM_THREADS": "1"},
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty documents, and a run that a single process stopped after 20 steps."""
    path = tmp_path_factory.mktemp("distributed")
    (path / "text").mkdir()
    for i in range(30):
        (path / "text" / f"{i:02}.txt").write_text(small_text(40, seed=i))
    for name in SCENARIOS:
        (path / name).mkdir()
    with mock.patch.dict(os.environ, {"XDG_CACHE_HOME": str(path / "cache")}):
        train("pairs", path / "text", path / "one-then-two", stop=20)
    return path


@pytest.fixture(scope="module")
def two_processes(folder: Path) -> dict[str, dict[int, dict[str, float]]]:
    """The metrics of each step in each scenario, with two processes."""
    (folder / "worker.py").write_text(TWO_PROCESSES)
    process = torchrun("worker.py", ROOT, folder, cwd=folder)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    first, second = ((folder / f"losses-{number}.json").read_text() for number in (0, 1))
    assert first == second, "both processes report the metrics of the whole batch"
    return {
        name: {int(step): step_metrics for step, step_metrics in metrics_by_step.items()}
        for name, metrics_by_step in json.loads(first).items()
    }


@pytest.fixture(scope="module")
def single_process(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[int, dict[str, float]]]:
    """The same metrics with a single process."""
    with mock.patch.dict(os.environ, {"XDG_CACHE_HOME": str(folder / "cache")}):
        return {
            kind: train(kind, folder / "text", tmp_path_factory.mktemp(kind)) for kind in ("tokens", "pairs")
        }


def check_same(a: dict[int, dict[str, float]], b: dict[int, dict[str, float]], steps: range) -> None:
    """Compares every metric of every step."""
    assert {*steps} <= a.keys()
    assert {*steps} <= b.keys()
    for step in steps:
        assert a[step] == pytest.approx(b[step], abs=1e-5), step


ALL = range(1, STEPS + 1)


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.parametrize("kind", ["tokens", "pairs"])
def test_two_processes_have_the_losses_of_one(kind: str, single_process: dict, two_processes: dict) -> None:
    check_same(two_processes[kind], single_process[kind], ALL)
    assert single_process[kind][STEPS]["loss"] < single_process[kind][1]["loss"] - 0.3, (
        "the models are learning"
    )


@pytest.mark.long
@pytest.mark.processes
def test_two_processes_with_muon_nearly_have_the_losses_of_one(
    two_processes: dict, folder: Path, tmp_path: Path
) -> None:
    """Muon computes in bfloat16, so another order of a sum can change the third digit of an update."""
    with mock.patch.dict(os.environ, {"XDG_CACHE_HOME": str(folder / "cache")}):
        one = train("tokens", folder / "text", tmp_path, optimizer="muon")
    two = two_processes["tokens-muon"]
    for step in ALL:
        assert two[step]["loss"] == pytest.approx(one[step]["loss"], abs=0.02), step
    assert one[STEPS]["loss"] < one[1]["loss"] - 0.3, "the model is learning"


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.parametrize("kind", ["tokens", "pairs"])
def test_gradient_accumulation_does_not_change_the_losses(
    kind: str, single_process: dict, two_processes: dict, folder: Path, tmp_path: Path
) -> None:
    check_same(two_processes[f"{kind}-accumulation"], single_process[kind], ALL)
    with mock.patch.dict(os.environ, {"XDG_CACHE_HOME": str(folder / "cache")}):
        check_same(
            train(kind, folder / "text", tmp_path, gradient_accumulation_steps=3), single_process[kind], ALL
        )


@pytest.mark.long
@pytest.mark.processes
def test_a_run_of_two_processes_resumed_by_one(
    single_process: dict, two_processes: dict, folder: Path
) -> None:
    """The second process got the signal, and the first stopped after the same step."""
    path = folder / "two-then-one"
    assert load_checkpoint(path)[0]["step"] == 20
    with mock.patch.dict(os.environ, {"XDG_CACHE_HOME": str(folder / "cache")}):
        metrics_after = train("pairs", folder / "text", path)
    check_same(two_processes["two-then-one"] | metrics_after, single_process["pairs"], ALL)


@pytest.mark.long
@pytest.mark.processes
def test_a_run_of_one_process_resumed_by_two(single_process: dict, two_processes: dict) -> None:
    assert min(two_processes["one-then-two"]) == 21
    check_same(two_processes["one-then-two"], single_process["pairs"], range(21, STEPS + 1))


@pytest.mark.long
@pytest.mark.processes
def test_each_process_has_its_own_dropout_even_after_a_resume(two_processes: dict, folder: Path) -> None:
    """Two processes that stopped and resumed give the same bits as without a stop."""
    assert two_processes["dropout-resumed"] == two_processes["dropout"]
    uninterrupted, resumed = (load_checkpoint(folder / name)[1] for name in ("dropout", "dropout-resumed"))
    assert uninterrupted.keys() == resumed.keys()
    assert all(torch.equal(uninterrupted[key], resumed[key]) for key in uninterrupted)
    assert not torch.equal(uninterrupted["random.torch"], uninterrupted["random.torch.1"])


@pytest.mark.long
@pytest.mark.processes
def test_only_rank_zero_writes_files(two_processes: dict, folder: Path) -> None:
    assert not (folder / "second").exists()
    names = {key for key in load_checkpoint(folder / "pairs")[1] if key.startswith("model.")}
    assert "model.bert.embeddings.word_embeddings.weight" in names, "the names contain no wrapper"


def test_the_rank_is_that_of_the_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some launchers set none of the variables of `torchrun`."""
    assert rank() == 0
    monkeypatch.setattr(distributed.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed.dist, "get_rank", lambda: 1)
    monkeypatch.setattr(distributed.dist, "get_world_size", lambda: 2)
    (part,) = split_into_micro_batches({"input_ids": torch.arange(4)}, 1)
    assert rank() == 1 and part["input_ids"].tolist() == [2, 3]


def test_without_a_process_group_each_process_has_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("TORCHELASTIC_RUN_ID", "none"), ("RANK", "1")):
        monkeypatch.setenv(name, value)
    (part,) = split_into_micro_batches({"input_ids": torch.arange(4)}, 1)
    assert rank() == 1 and part["input_ids"].tolist() == [0, 1, 2, 3]


def test_micro_batches_add_up_to_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loss and gradients agree, even though one micro-batch has no masked tokens and the others differ."""
    torch.manual_seed(0)
    model = BertForPreTraining(BertConfig(40, 16, 2, 2, 32, max_position_embeddings=8)).eval()
    ids = torch.randint(1, 40, (7, 8))
    labels = ids.masked_fill(torch.rand(7, 8) < 0.6, -100)
    labels[:2] = -100
    batch = {"input_ids": ids, "labels": labels, "next_sentence_label": torch.arange(7) % 2}
    full_loss = model(**batch).loss
    full_loss.backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    batch |= {"num_items_in_batch": (labels != -100).sum(), "num_pairs_in_batch": torch.tensor(7)}
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    micro_batches = []
    for number in (0, 1):
        monkeypatch.setattr(distributed, "rank", lambda number=number: number)
        micro_batches += split_into_micro_batches(batch, 2)
    assert [len(micro_batch["input_ids"]) for micro_batch in micro_batches] == [2, 2, 2, 1]
    losses = [model(**micro_batch).loss for micro_batch in micro_batches]
    sum(losses).backward()
    assert sum(losses).item() == pytest.approx(full_loss.item(), abs=1e-6)
    for p, gradient in zip(model.parameters(), expected, strict=True):
        assert torch.allclose(p.grad, gradient, atol=1e-6)


@pytest.mark.processes
@pytest.mark.long
def test_bad_input_is_reported_once(folder: Path, tmp_path: Path) -> None:
    script = ROOT / "experiments" / "mlm_tiny.py"
    arguments = ["--corpus", folder / "text", *SMALL, "--gradient-accumulation-steps", 9]
    process = torchrun(script, *arguments, cwd=tmp_path)
    out, errors = process.communicate(timeout=120)
    assert process.returncode != 0
    assert out == ""
    error_lines = [line for line in errors.splitlines() if line.startswith("error:")]
    assert error_lines == [
        "error: a step has 16 sequences of length 32, too few for 18 micro-batches (2 processes times 9); "
        "use a larger batch or fewer micro-batches"
    ]
    assert str(script) + '", line' not in errors, "no traceback of ours"
    assert not (tmp_path / "logs").exists()


def test_only_rank_zero_reports_a_misspelled_option(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")
    for number, reports_error in (("0", True), ("1", False)):
        monkeypatch.setenv("RANK", number)
        with pytest.raises(SystemExit) as exit_info:
            parse(RunOptions, RunOptions(), "", ["--gradient-accumulation-steps=x"])
        assert exit_info.value.code == 2
        assert ("is not an integer" in capsys.readouterr().err) == reports_error


ONE_FAILS = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch
from tests.support.trainers import new_trainer, train
from labml_bert.training import distributed
from labml_bert.run.terminal import exit_cleanly
distributed.init_process_group(torch.device("cpu"))
trainer, draw = new_trainer(Path.cwd(), steps=10**6)
def next_batch():
    if trainer.step == 5 and distributed.rank() == 1:
        raise RuntimeError("cannot allocate memory")
    batch = draw()
    return {**batch, "num_items_in_batch": (batch["labels"] != -100).sum()}
with exit_cleanly(Path.cwd, lambda: True):
    train(trainer, next_batch)
"""


@pytest.mark.long
@pytest.mark.processes
def test_when_one_process_fails_all_of_them_end(tmp_path: Path) -> None:
    """No process waits forever, and only the cause is reported, not its consequences."""
    (tmp_path / "worker.py").write_text(ONE_FAILS)
    process = torchrun("worker.py", ROOT, cwd=tmp_path)
    _, errors = process.communicate(timeout=120)
    assert process.returncode != 0
    error_lines = [line for line in errors.splitlines() if line.startswith("error:")]
    assert error_lines == ["error: out of memory; use a smaller model, batch or text"]
    assert 'worker.py", line' not in errors


def wait_for_step(runs: Path, min_step: int, process: subprocess.Popen[str]) -> None:
    """Waits until a checkpoint has at least that many steps."""
    while True:
        assert process.poll() is None, process.communicate()
        checkpoints = list(runs.glob(f"*/*/{CHECKPOINT}"))
        if checkpoints and load_checkpoint(checkpoints[0].parent)[0]["step"] >= min_step:
            return
        time.sleep(0.1)


@pytest.mark.long
@pytest.mark.processes
def test_ctrl_c_stops_both_processes_and_one_can_resume(folder: Path, tmp_path: Path) -> None:
    """There is only one header, one message and one folder."""
    script = ROOT / "experiments" / "mlm_tiny.py"
    arguments = ["--corpus", folder / "text", *SMALL, "--minutes", 5, "--checkpoint-seconds", 0]
    process = torchrun(script, *arguments, "--gradient-accumulation-steps", 2, cwd=tmp_path)
    wait_for_step(tmp_path / "logs", 1, process)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert str(script) + '", line' not in errors, "no traceback of ours"
    for words in ("a masked language model on", "2 × cpu", "stopped and saved", "two-neighbor n-gram"):
        assert out.count(words) == 1, words
    (run,) = (tmp_path / "logs" / "mlm_tiny").iterdir()
    command = shlex.split(out.splitlines()[-1])
    launch = ["-m", "torch.distributed.run", "--nproc_per_node", "2"]
    resume = [str(script), "--resume", str(run.relative_to(tmp_path))]
    resume += ["--checkpoint-seconds", "0.0", "--gradient-accumulation-steps", "2"]
    assert command[1:] == [*launch, *resume]
    step_before = load_checkpoint(run)[0]["step"]
    assert step_before > 0
    resumed_process = subprocess.Popen(
        [sys.executable, *resume],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for_step(tmp_path / "logs", step_before + 1, resumed_process)
    resumed_process.send_signal(signal.SIGINT)
    out, errors = resumed_process.communicate(timeout=60)
    assert resumed_process.returncode == 130, errors
    steps = [step for step, _ in read_metrics(run)["loss"]]
    assert step_before in steps
    assert steps[-1] == load_checkpoint(run)[0]["step"] > step_before


TINY = ROOT / "experiments" / "mlm_tiny.py"


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not children.exists():
        pytest.skip("only Linux lists the children of a process in a file")
    return [int(number) for number in children.read_text().split()]


@pytest.mark.long
@pytest.mark.processes
def test_if_the_launcher_is_killed_the_workers_save_and_end(folder: Path, tmp_path: Path) -> None:
    process = torchrun(TINY, *SMALL, "--minutes", 5, "--corpus", folder / "text", cwd=tmp_path)
    wait_for_step(tmp_path / "logs", 0, process)
    process.kill()
    # The output ends when the last worker has ended.
    process.communicate(timeout=120)
    (run_path,) = (tmp_path / "logs").glob("*/*")
    assert load_checkpoint(run_path)[0]["step"] > 0


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.parametrize("worker", [0, 1])
@pytest.mark.parametrize("is_told_first", [False, True])
def test_if_a_worker_is_killed_one_line_says_how_to_resume(
    worker: int, is_told_first: bool, folder: Path, tmp_path: Path
) -> None:
    """This also holds if `torchrun` asks the other worker to stop before that worker sees the loss."""
    process = torchrun(TINY, *SMALL, "--minutes", 5, "--corpus", folder / "text", cwd=tmp_path)
    wait_for_step(tmp_path / "logs", 0, process)
    workers = workers_of(process)
    if is_told_first:
        # SIGTERM waits until the worker runs again.
        os.kill(workers[1 - worker], signal.SIGSTOP)
    os.kill(workers[worker], signal.SIGKILL)
    if is_told_first:
        time.sleep(3)
        os.kill(workers[1 - worker], signal.SIGCONT)
    _, errors = process.communicate(timeout=120)
    lines = [line for line in errors.splitlines() if line.startswith("error:")]
    assert len(lines) == 1 and "was killed; resume with --resume logs/" in lines[0], errors
    assert f'{TINY}", line' not in errors, "no traceback of ours"


# The other process runs again only after `torchrun` has sent it SIGTERM.
RANK_ZERO_IS_KILLED = """
import os, signal, subprocess, sys, time
sys.path.insert(0, sys.argv[1])
import torch
from labml_bert.training import distributed
from labml_bert.run.terminal import exit_cleanly
distributed.init_process_group(torch.device("cpu"))
with exit_cleanly(lambda: None, lambda: True), distributed.rank_zero_first():
    time.sleep(1)  # The other process is waiting by now.
    other = int(distributed.launcher_store().get("process id 1"))
    os.kill(other, signal.SIGSTOP)
    subprocess.Popen(["sh", "-c", f"sleep 3; kill -CONT {other}"])
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.long
@pytest.mark.processes
def test_if_a_worker_is_killed_before_the_first_checkpoint_one_line_says_so(tmp_path: Path) -> None:
    """The system may kill rank zero if the text is larger than the memory."""
    (tmp_path / "worker.py").write_text(RANK_ZERO_IS_KILLED)
    _, errors = torchrun("worker.py", ROOT, cwd=tmp_path).communicate(timeout=120)
    lines = [line for line in errors.splitlines() if line.startswith("error:")]
    assert lines == ["error: another process of this run was killed; run the same command again"]
    assert 'worker.py", line' not in errors


A_WORKER_STOPS = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import torch
from labml_bert.training import distributed
from labml_bert.run.terminal import exit_cleanly
assert distributed.SECONDS_WITHOUT_HEARTBEAT <= 3600
distributed.SECONDS_WITHOUT_HEARTBEAT = 3
distributed.init_process_group(torch.device("cpu"))
with exit_cleanly(lambda: None, lambda: True):
    if distributed.rank() == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGSTOP)
    distributed.destroy_process_group()
"""

STOPS_EARLY = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import torch
from labml_bert.training import distributed
distributed.SECONDS_WITHOUT_HEARTBEAT = 3
if distributed.rank() == int(sys.argv[2]):
    if sys.argv[3] == "after it stored its id":
        distributed.watch_neighbor()
    os.kill(os.getpid(), signal.SIGSTOP)
distributed.init_process_group(torch.device("cpu"))
"""


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.parametrize("worker", [0, 1])
def test_the_others_do_not_wait_for_a_stopped_worker(worker: int, tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(A_WORKER_STOPS)
    _, errors = torchrun("worker.py", ROOT, worker, cwd=tmp_path).communicate(timeout=120)
    lines = [line for line in errors.splitlines() if line.startswith("error:")]
    assert lines == ["error: another process of this run was killed; run the same command again"]


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.parametrize("moment", ["after it stored its id", "before"])
def test_a_worker_that_stops_before_it_connects_ends_the_run(moment: str, tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(STOPS_EARLY)
    process = torchrun("worker.py", ROOT, 1, moment, cwd=tmp_path)
    # `torchrun` gives a stopped process 30 seconds to end.
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert ("error: another process doesn't start" in errors) == (moment == "before")


WAITS_FOR_ANOTHER = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import torch
from labml_bert.training import distributed
distributed.SECONDS_TO_SAVE = 1
signal.signal(signal.SIGTERM, signal.SIG_IGN)
distributed.init_process_group(torch.device("cpu"))
# One write: both workers share a pipe, and an unbuffered print writes its end of line by itself.
os.write(1, b"ready\\n")
if distributed.rank() == 0:
    signal.pause()
distributed.destroy_process_group()
"""


@pytest.mark.long
@pytest.mark.processes
def test_a_worker_that_waits_for_another_ends_some_time_after_the_launcher(tmp_path: Path) -> None:
    """Rank one waits in a barrier that rank zero never reaches, so it can't save."""
    (tmp_path / "worker.py").write_text(WAITS_FOR_ANOTHER)
    process = torchrun("worker.py", ROOT, cwd=tmp_path)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
    process.kill()
    # The output ends when the last worker has ended.
    process.communicate(timeout=60)


@pytest.mark.long
@pytest.mark.processes
def test_a_complete_run_of_two_processes(folder: Path, tmp_path: Path) -> None:
    script = ROOT / "experiments" / "mlm_tiny.py"
    arguments = ["--corpus", folder / "text", *SMALL, "--steps", 20, "--record", "record.json"]
    process = torchrun(script, *arguments, cwd=tmp_path)
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert errors == ""
    assert out.count("this model") == 1
    assert len(list((tmp_path / "logs" / "mlm_tiny").iterdir())) == 1
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["result"]["steps"] == 20
    assert record["hardware"]["processes"] == 2
    assert [step for step, _ in record["history"]["valid.loss"]] == [*range(1, 21)]


def test_each_process_has_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert distributed.local_gpu("cuda") == "cuda"
    assert distributed.local_gpu("cuda:1") == "cuda:1"
    for key, value in {"TORCHELASTIC_RUN_ID": "test", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(key, value)
    assert distributed.local_gpu("cuda") == "cuda:1"
    with pytest.raises(ValueError, match="cuda:0 is one GPU for 2 processes"):
        choose_device("cuda:0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    with pytest.raises(ValueError, match="3 processes and 2 GPUs"):
        choose_device("cuda")
    assert choose_device("cpu") == torch.device("cpu")


def test_without_a_launcher_nobody_counts_the_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell that a launcher started may still have its variables."""
    monkeypatch.setattr(distributed, "SECONDS_TO_CONNECT", 1)
    variables = {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert distributed.is_first_to_fail()
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    with pytest.raises(ValueError, match="cannot reach torchrun; start it again, or unset"):
        distributed.init_process_group(torch.device("cpu"))


def test_gpu_gradients_use_nccl_and_cpu_tensors_use_gloo() -> None:
    assert distributed.backend_for(torch.device("cuda:1")) == "cpu:gloo,cuda:nccl"
    assert distributed.backend_for(torch.device("cpu")) == "gloo"
