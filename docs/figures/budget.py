r"""
# What pretraining costs, on paper

FLOPs, hours and dollars of BERT's pretraining, and how much text a recorded run has read. The sizes are
those of [the paper](https://arxiv.org/abs/1810.04805), appendix A.2.
"""

from types import SimpleNamespace
from typing import Any, NamedTuple

from docs.figures.records import Record
from docs.figures.speed import best_row
from docs.literate.chart import Bar, bar_chart
from docs.literate.prose import cell


class Stage(NamedTuple):
    """A part of the original pretraining with one sequence length."""

    steps: int
    length: int
    predictions: int
    """Masked tokens per sequence: about 15% of the length. The paper doesn't give these two numbers."""


STAGES = (Stage(900_000, 128, 20), Stage(100_000, 512, 76))
SEQUENCES = 256
"""Sequences per step."""
MEASURED = ("BERT base, batch 128", "BERT base, 512")
"""For each stage, the shape in `speed.py` with the same length. Both have batches of 16,384 tokens."""


class GPU(NamedTuple):
    """A GPU's peak for dense bfloat16 matmuls that accumulate in float32, and where its maker says so."""

    flops_per_second: float
    source: str


GPUS = {
    "H100 SXM": GPU(989e12, "https://www.nvidia.com/en-us/data-center/h100/"),
    "A100": GPU(312e12, "https://www.nvidia.com/en-us/data-center/a100/"),
    "RTX 4090": GPU(
        165e12, "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf"
    ),
}


def flops(
    length: int,
    predictions: int,
    vocab_size: int = 30522,
    hidden_size: int = 768,
    num_hidden_layers: int = 12,
    intermediate_size: int | None = None,
) -> SimpleNamespace:
    """
    FLOPs of the matrix multiplications in a training step for one sequence, by part. A test compares them
    with `timing.count_forward_flops`. A backward pass has twice as many FLOPs as a forward pass.
    """
    T, D, wide = length, hidden_size, intermediate_size or 4 * hidden_size
    layers = 3 * num_hidden_layers * T * 2 * (4 * D * D + 2 * D * wide)
    attention = 3 * num_hidden_layers * T * 2 * 2 * T * D
    head = 3 * predictions * 2 * D * (D + vocab_size)
    return SimpleNamespace(layers=layers, attention=attention, head=head, total=layers + attention + head)


def original() -> SimpleNamespace:
    """Tokens and FLOPs of BERT base's whole pretraining, and the FLOPs that the rule of thumb gives."""
    tokens = sum(stage.steps * SEQUENCES * stage.length for stage in STAGES)
    layers = flops(1, 0).layers  # per token, which uses each weight of a layer once
    return SimpleNamespace(
        steps=sum(stage.steps for stage in STAGES),
        tokens=tokens,
        billion_tokens=tokens / 1e9,
        fraction_of_full_length=tokens / (1_000_000 * SEQUENCES * 512),
        tokens_per_step=[SEQUENCES * stage.length for stage in STAGES],
        warmup_tokens=10_000 * SEQUENCES * STAGES[0].length,
        exaflops=sum(s.steps * SEQUENCES * flops(s.length, s.predictions).total for s in STAGES) / 1e18,
        rule_of_thumb=tokens * layers / 1e18,
    )


def flops_table() -> str:
    """GFLOPs of a training step for one sequence, by part and length, as a Markdown table."""
    parts = {"layers": "layers", "attention": "attention scores and values", "head": "MLM head"}
    counts = [flops(stage.length, stage.predictions) for stage in STAGES]
    heads = " | ".join(f"length {stage.length}" for stage in STAGES)
    table = f"| GFLOPs per sequence | {heads} |\n|---|---:|---:|\n"
    for part, name in {**parts, "total": "**total**"}.items():
        cells = " | ".join(f"{getattr(count, part) / 1e9:,.0f}" for count in counts)
        table += f"| {name} | {cells} |\n"
    return table


def gpu_hours(gpu: str, mfu: float) -> float:
    """Hours on one GPU that reaches the fraction `mfu` of its peak."""
    return original().exaflops * 1e18 / (GPUS[gpu].flops_per_second * mfu) / 3600


def training_cost(gpu: str) -> str:
    """Hours and dollars of the original pretraining on a GPU, at several MFUs, as a Markdown table."""
    table = "| MFU | hours on one GPU | hours on eight | at $2 per GPU-hour | at $4 |\n"
    table += "|---:|---:|---:|---:|---:|\n"
    for mfu in (0.2, 0.35, 0.5):
        hours = gpu_hours(gpu, mfu)
        table += f"| {mfu:.0%} | {hours:.0f} | {hours / 8:.1f} | ${2 * hours:.0f} | ${4 * hours:.0f} |\n"
    return table


def gpu_table() -> str:
    """The peak of each GPU, with its source, and the hours of pretraining on it, as a Markdown table."""
    table = "| GPU | peak, TFLOP/s in dense bfloat16 | hours at 20% MFU | at 35% | at 50% |\n"
    table += "|---|---:|---:|---:|---:|\n"
    for name, gpu in GPUS.items():
        hours = " | ".join(f"{gpu_hours(name, mfu):.0f}" for mfu in (0.2, 0.35, 0.5))
        table += f"| [{name}]({gpu.source}) | {gpu.flops_per_second / 1e12:.0f} | {hours} |\n"
    return table


def gpu_chart() -> str:
    """Hours on one GPU of each kind at 35% MFU, with 20% and 50% as the ends."""
    bars = [
        Bar(name, hours, f"{hours:.0f} hours", least=gpu_hours(name, 0.5), most=gpu_hours(name, 0.2))
        for name in GPUS
        for hours in [gpu_hours(name, 0.35)]
    ]
    title = "How long pretraining BERT base takes on one GPU"
    caption = (
        f"{title}: hours for the original {original().exaflops:.1f} exaFLOPs at 35% MFU. The thin line goes "
        "from 50% MFU to 20%. Computed from the GPU's peak, not measured."
    )
    return bar_chart(bars, title, caption)


def measured_hours(record: Record, arm: str) -> float:
    """Hours for all tokens of the original pretraining, at the speeds that a record has for both lengths."""
    return sum(
        stage.steps * SEQUENCES * stage.length / best_row(record, shape, arm)["tokens_per_second"] / 3600
        for stage, shape in zip(STAGES, MEASURED, strict=True)
    )


def measured_mfu(record: Record, arm: str) -> float:
    """The MFU at which the original pretraining takes the `measured_hours`."""
    return gpu_hours("H100 SXM", 1) / measured_hours(record, arm)


def measured_table(record: Record) -> str:
    """
    A Markdown table with the tokens per second at both lengths of the original pretraining, and its hours.
    Leaves out eager attention, which isn't the default of `transformers`.
    """
    heads = " | ".join(f"tokens/s at length {stage.length}" for stage in STAGES)
    table = f"| code and precision | {heads} | hours in all |\n|---|---:|---:|---:|\n"
    arms = [row["arm"] for entry in record.data["speed"] for row in entry["rows"]]
    arms = [arm for arm in arms if "eager" not in arm]
    for arm in sorted(dict.fromkeys(arms), key=lambda arm: measured_hours(record, arm)):
        speeds = [best_row(record, shape, arm)["tokens_per_second"] for shape in MEASURED]
        cells = " | ".join(f"{speed:,.0f}" for speed in speeds)
        table += f"| {cell(arm)} | {cells} | {measured_hours(record, arm):.0f} |\n"
    return table


def days(tokens_per_second: float) -> float:
    """Days to train on as many tokens as the original did."""
    return original().tokens / tokens_per_second / 86_400


def run_budget(record: Record) -> SimpleNamespace:
    """How much text a run has read: tokens in all, in its warm-up, and passes over characters."""
    data: dict[str, Any] = record.data
    configuration, steps = data["configuration"], data["result"]["steps"]
    per_step = configuration["batch_tokens"]
    lengths = [int(stage.split(":")[0]) for stage in configuration["schedule"].split(",")]
    return SimpleNamespace(
        tokens=steps * per_step,
        warmup_tokens=round(configuration["warmup_ratio"] * steps) * per_step,
        passes=steps * per_step / data["corpus"]["train_characters"],
        sequences=[per_step // length for length in lengths],
    )
