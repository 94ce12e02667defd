"""
Training on this machine's fastest device: the same numbers as on the CPU, and a run that resumes. On a
machine with a GPU, `make gpu` runs these tests on it; elsewhere they compare the CPU with itself.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from labml_bert.mlm import TokenMasker
from labml_bert.models import BertForMaskedLM
from labml_bert.modern import ModernBertConfig, ModernBertForMaskedLM
from labml_bert.training.checkpoint import (
    load_checkpoint,
    random_name,
    random_states,
    set_device_random_state,
)
from labml_bert.training.device import Precision, choose_device, choose_precision
from labml_bert.training.optimization import TrainingArguments
from labml_bert.training.trainer import Trainer
from tests.support.trainers import CONFIG, train, train_on

pytestmark = pytest.mark.device
DEVICE = choose_device()
MODERN = ModernBertConfig(30, 16, 2, 2, 24, pad_token_id=0)


def new_model(kind: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return BertForMaskedLM(CONFIG) if kind == "bert" else ModernBertForMaskedLM(MODERN)


def draw(generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Sequences that count upward, so a model can learn them."""
    ids = 5 + (torch.randint(25, (8, 1), generator=generator) + torch.arange(16)) % 25
    return TokenMasker(30, 4, range(5), generator=generator)(ids)._asdict()


def losses_of(
    kind: str, device: torch.device, precision: Precision, steps: int = 20, path: Path | None = None
) -> list[float]:
    """The losses of a short run without dropout."""
    model = new_model(kind)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    generator = torch.Generator().manual_seed(0)
    arguments = TrainingArguments(steps=steps, learning_rate=1e-2)
    trainer = Trainer(model, arguments, generator, device, precision, path)
    losses = []
    for step in trainer.steps():
        train_on(step, draw(generator))
        losses.append(step.loss.item())
    return losses


@pytest.mark.parametrize("kind", ["bert", "modern"])
def test_losses_and_gradients_agree_with_the_cpu(kind: str) -> None:
    batch = draw(torch.Generator().manual_seed(1))
    results = []
    for device in (torch.device("cpu"), DEVICE):
        model = new_model(kind).to(device).eval()
        loss = model(**{key: value.to(device) for key, value in batch.items()}).loss
        loss.backward()
        results.append((loss.item(), {name: p.grad.cpu() for name, p in model.named_parameters()}))
    (cpu_loss, cpu_gradients), (loss, gradients) = results
    assert loss == pytest.approx(cpu_loss, abs=1e-4)
    for name, gradient in gradients.items():
        assert torch.allclose(gradient, cpu_gradients[name], atol=1e-4), name


@pytest.mark.parametrize("kind", ["bert", "modern"])
def test_a_run_has_the_losses_of_the_cpu_in_each_precision(kind: str) -> None:
    expected = losses_of(kind, torch.device("cpu"), "float32")
    for precision, tolerance in (("float32", 1e-2), ("auto", 0.2)):
        losses = losses_of(kind, DEVICE, precision)
        assert losses == pytest.approx(expected, abs=tolerance), precision


def test_a_run_resumes_on_the_device(tmp_path: Path) -> None:
    """The run uses dropout. On a GPU, sums may be in another order, so the last bits may differ."""
    trainers = []
    for stop in (None, 5):
        path = tmp_path / str(stop)
        path.mkdir()
        model, generator = new_model("bert"), torch.Generator().manual_seed(0)
        arguments = TrainingArguments(steps=10, learning_rate=1e-3)
        trainer = Trainer(model, arguments, generator, DEVICE, "float32", path)
        if stop:
            for step in trainer.steps():
                train_on(step, draw(generator))
                if step.number == stop:
                    break
            trainer.save()
            torch.manual_seed(99)
            trainer = Trainer(new_model("bert"), arguments, generator, DEVICE, "float32", path)
            trainer.resume()
            assert trainer.step == stop
        train(trainer, lambda generator=generator: draw(generator))
        trainers.append(trainer)
    whole, resumed = (load_checkpoint(trainer.run_path)[1] for trainer in trainers)
    for key, value in whole.items():
        assert torch.allclose(value.float(), resumed[key].float(), atol=1e-4), key


def test_a_step_that_overflows_float16_is_skipped_and_halves_the_scale(tmp_path: Path) -> None:
    """This works on the CPU too, and the scale is saved with the run."""
    model, generator = new_model("bert"), torch.Generator().manual_seed(0)
    steps = 40
    arguments = TrainingArguments(steps=steps, learning_rate=1e-2, warmup_ratio=0)
    trainer = Trainer(model, arguments, generator, DEVICE, "float16", tmp_path)
    trainer.scaler = torch.amp.GradScaler(DEVICE.type, init_scale=2.0**40)
    norms, scales, has_changed = [], [], []
    trainer.on_report = lambda report: None
    for step in trainer.steps():
        before = [p.detach().clone() for p in model.parameters()]
        train_on(step, draw(generator))
        scales.append(trainer.scaler.get_scale())
        norms.append(step.metrics["gradient_norm"].item())
        has_changed.append(
            any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        )
        if step.number == 1:
            # So far, all steps were skipped, so there are no moments.
            trainer.save()
            Trainer(new_model("bert"), arguments, generator, DEVICE, "float16", tmp_path).resume()
    skipped = has_changed.index(True)
    assert skipped > 0 and has_changed == [False] * skipped + [True] * (steps - skipped)
    assert scales == [2.0 ** (40 - min(i + 1, skipped)) for i in range(steps)]
    assert norms[:skipped] == [0] * skipped and min(norms[skipped:]) > 0
    resumed = Trainer(new_model("bert"), arguments, generator, DEVICE, "float16", tmp_path)
    resumed.resume()
    assert resumed.scaler.get_scale() == scales[-1] < 2.0**40


def test_float16_learns_as_float32_does() -> None:
    """The scaler keeps gradients that would be too small for float16."""
    expected = losses_of("bert", torch.device("cpu"), "float32")
    assert losses_of("bert", DEVICE, "float16") == pytest.approx(expected, abs=0.2)


@pytest.mark.parametrize(
    ("bfloat16", "capability", "precision"),
    [(True, (8, 0), "bfloat16"), (False, (7, 5), "float16"), (False, (6, 0), "float32")],
)
def test_a_gpu_without_bfloat16_gets_float16_if_it_has_tensor_cores(
    bfloat16: bool, capability: tuple[int, int], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A T4 has capability 7.5, and a P100 has 6.0."""
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: bfloat16)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert choose_precision(torch.device("cuda")) == precision
    assert choose_precision(torch.device("cuda"), "float32") == "float32"
    assert choose_precision(torch.device("mps")) == "float32"


@pytest.mark.parametrize("precision", ["fp32", "float64", None])
def test_an_unknown_precision_is_refused(precision: Any) -> None:
    with pytest.raises(ValueError, match="it must be one of auto, bfloat16, float16, float32"):
        choose_precision(torch.device("cpu"), precision)


def test_auto_takes_the_gpu_of_nvidia_or_apple(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "zeros", lambda *_, device: torch.ones(1))
    for cuda, mps, name in ((True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda cuda=cuda: cuda)
        monkeypatch.setattr(torch.mps, "is_available", lambda mps=mps: mps)
        assert choose_device() == torch.device(name)


def test_the_random_state_of_apples_gpu_is_saved_and_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    state, restored = torch.arange(3, dtype=torch.uint8), []
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda: state)
    monkeypatch.setattr(torch.mps, "set_rng_state", restored.append)
    states = random_states(torch.device("mps"))
    tensors = {random_name(kind, 0): value for kind, value in states.items()}
    set_device_random_state(torch.device("mps"), tensors, 0)
    set_device_random_state(torch.device("mps"), tensors, 1)
    set_device_random_state(torch.device("cpu"), tensors, 0)
    assert len(restored) == 1 and torch.equal(restored[0], state)
