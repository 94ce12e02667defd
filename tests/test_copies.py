"""The stand-alone files are short, and each runs and trains on its own in an empty folder."""

import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = Path(__file__).parent.parent / "labml_bert"

# The copy may import the standard library, torch and what torch needs, but nothing else of ours and no other
# dependency of the project.
RUN_ISOLATED = """
import runpy, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"labml_bert", "labml", "transformers", "tokenizers", "safetensors", "rich"}:
            raise ImportError(f"{name} is not here")
sys.meta_path.insert(0, Refuse())
for path in sys.argv[1:]:
    runpy.run_path(path, run_name="__main__")
"""

TRAIN_A_STEP = {
    "bert.py": """
import torch
from bert import BertConfig, BertModel
torch.manual_seed(0)
model = BertModel(BertConfig(vocab_size=30, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                             intermediate_size=32, max_position_embeddings=8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
ids = torch.randint(30, (4, 8))
losses = []
for _ in range(2):
    loss = (model(ids).pooler_output - 0.5).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[1] < losses[0], losses
""",
    "mlm.py": """
import torch
from mlm import MaskedLM, TokenMasker
torch.manual_seed(0)
embedding = torch.nn.Embedding(30, 16)
model = MaskedLM(torch.nn.Sequential(embedding, torch.nn.Linear(16, 16)), embedding)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batch = TokenMasker(30, 0, [0])(torch.randint(1, 30, (8, 20)))
losses = []
for _ in range(2):
    loss = model(*batch).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[1] < losses[0], losses
""",
    "modern.py": """
import torch
from modern import ModernBertConfig, ModernBertForMaskedLM
torch.manual_seed(0)
model = ModernBertForMaskedLM(ModernBertConfig(30, 16, 2, 2, 24, pad_token_id=0))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
ids = torch.randint(1, 30, (4, 8))
losses = []
for _ in range(2):
    loss = model(ids, labels=ids).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[1] < losses[0], losses
""",
    "nsp.py": """
import random, torch
from nsp import BertOnlyNSPHead, PairMaker, collate, next_sentence_loss
torch.manual_seed(0)
batch = collate(list(PairMaker([[[5, 6], [7]], [[8], [9, 5]]], 1, 2, 12)(random.Random(0))))
embedding, head = torch.nn.Embedding(10, 8), BertOnlyNSPHead(8)
optimizer = torch.optim.SGD([*embedding.parameters(), *head.parameters()], lr=0.1)
losses = []
for _ in range(2):
    loss = next_sentence_loss(head(embedding(batch["input_ids"]).mean(1)), batch["next_sentence_label"])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[1] < losses[0], losses
""",
}


@pytest.mark.processes
@pytest.mark.parametrize(
    "file", [pytest.param(n, marks=pytest.mark.long) if n == "modern.py" else n for n in TRAIN_A_STEP]
)
def test_a_copy_works_on_its_own(file: str, tmp_path: Path) -> None:
    shutil.copy(SOURCES / file, tmp_path)
    (tmp_path / "step.py").write_text(TRAIN_A_STEP[file])
    # With -P and -E, neither this folder nor the environment adds modules; the copy's own folder is added by
    # hand.
    add_own_folder = f"import sys; sys.path.insert(0, {str(tmp_path)!r})"
    process = subprocess.run(
        [sys.executable, "-E", "-P", "-c", f"{add_own_folder}\n{RUN_ISOLATED}", file, "step.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    losses = [float(x) for x in re.findall(r"loss (\d+\.\d+)", process.stdout)]
    assert losses[-1] < losses[0] / 2, process.stdout


@pytest.mark.parametrize("file", TRAIN_A_STEP)
def test_it_imports_only_torch_and_the_standard_library(file: str) -> None:
    tree = ast.parse((SOURCES / file).read_text())
    modules = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    modules |= {n.module or "." for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert {m.split(".")[0] for m in modules} <= {*sys.stdlib_module_names, "torch"}


@pytest.mark.parametrize(
    ("file", "most"), [("bert.py", 430), ("mlm.py", 330), ("nsp.py", 220), ("modern.py", 450)]
)
def test_it_is_short_and_has_few_checks(file: str, most: int) -> None:
    """At most one line in 20 checks its input; all other checks are in `checks.py`."""
    source = (SOURCES / file).read_text()
    count = len(source.splitlines())
    assert count <= most
    checks = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Assert)
        or (isinstance(node, ast.If) and any(isinstance(statement, ast.Raise) for statement in node.body))
    ]
    lines = sum((node.end_lineno or 0) - node.lineno + 1 for node in checks)
    assert 0 < lines <= count / 20


# Each text quotes a speedup in that file. It's listed with its trick and its shape in the record.
SPEEDUPS = {
    "bert.py": [
        ("dropout from 16 bits", "dropout by 16 bits", "characters"),
        ("one matmul for query, key and value", "one matmul for query, key and value", "characters"),
        ("attention written out", "attention in two matmuls", "characters"),
        ("the last layer only at the positions", "last layer only where a label is", "characters"),
        ("one cast for all layers", "one cast after the embeddings", "characters"),
    ],
    "mlm.py": [
        ("would take", "logits only where a label is, and the last layer too", "words"),
        ("and", "logits only where a label is, and the last layer too", "characters"),
    ],
}


@pytest.mark.parametrize("file", SPEEDUPS)
def test_the_quoted_speedups_are_those_of_the_record(file: str) -> None:
    record = json.loads((SOURCES.parent / "docs" / "runs" / "speed_ablation.json").read_text())
    speedups = {
        (row["name"], table["shape"]["name"]): row["worth"]
        for table in record["ablation"]
        for row in table["rows"]
    }
    text = " ".join((SOURCES / file).read_text().split())
    for words, trick, shape in SPEEDUPS[file]:
        assert re.search(rf"{words}[^|.]*?\|? ?{speedups[trick, shape]:.2f}\b", text), (words, trick, shape)
