"""
The model in the page: it computes what PyTorch does, nothing is downloaded before the reader asks for it, and
the page copes with whatever a reader may type.
"""

import base64
import functools
import gzip
import hashlib
import http.server
import json
import math
import re
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from labml_bert import export, modern
from labml_bert.bert import BertConfig
from labml_bert.data.tokenizers import character_tokenizer, save_tokenizer
from labml_bert.export import describe_weights, to_float16
from labml_bert.models import BertForMaskedLM
from labml_bert.modern import ModernBertConfig, ModernBertForMaskedLM
from tests.support.serving import Quiet

ROOT = Path(__file__).parents[2]
LIVE = ROOT / "docs" / "live"
CARD = json.loads((LIVE / "model" / "model.json").read_text("utf-8"))
# The checkpoint that a reader meets first.
LAST = CARD["checkpoints"][-1]
LIMIT = CARD["arms"][LAST["arm"]]["config"]["max_position_embeddings"]
# The last checkpoint of each arm, in the page's order: BERT, short to long; BERT; the modern encoder.
ENDS = {one["arm"]: one for one in CARD["checkpoints"]}
ENDS = {arm: ENDS[arm] for arm in reversed(ENDS)}
AXE = ROOT / "docs" / "node_modules" / "axe-core" / "axe.min.js"
Page = Any
Model = BertForMaskedLM | ModernBertForMaskedLM


def new_model(arm: dict[str, Any]) -> Model:
    config = dict(arm["config"])
    if config.pop("model_type") == "bert":
        return BertForMaskedLM(BertConfig(**config)).eval()
    return ModernBertForMaskedLM(ModernBertConfig(**config)).eval()


def in_torch(arm: dict[str, Any], data: bytes) -> Model:
    """The PyTorch model with these weights, in float32."""
    numbers = torch.from_numpy(np.frombuffer(data, "<f2").astype("f4"))
    sizes = [math.prod(tensor["shape"]) for tensor in arm["tensors"]]
    parts = zip(arm["tensors"], numbers.split(sizes), strict=True)
    weights = {tensor["name"]: part.view(tensor["shape"]) for tensor, part in parts}
    model = new_model(arm)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and all("decoder" in name for name in missing)
    return model


def shipped(checkpoint: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """The arm of a checkpoint in `model.json`, and its weights."""
    return CARD["arms"][checkpoint["arm"]], (LIVE / "model" / checkpoint["file"]).read_bytes()


def sentences(arm: dict[str, Any], count: int) -> list[list[int]]:
    """Rows of random ids, the shortest and the longest among them, each with at least one mask."""
    generator = torch.Generator().manual_seed(8)
    vocab_size, mask = arm["config"]["vocab_size"], CARD["mask_id"]
    rows = []
    for number in range(count):
        length = [1, 2, LIMIT][number] if number < 3 else int(torch.randint(3, 64, (), generator=generator))
        ids = torch.randint(vocab_size, (length,), generator=generator)
        ids[torch.rand(length, generator=generator) < 0.15] = mask
        ids[int(torch.randint(length, (), generator=generator))] = mask
        rows.append(ids.tolist())
    return rows


IN_THE_PAGE = """async ([arm, mask_id, weights, all]) => {
  const { BertForMaskedLM, fill_mask } = await import("/docs/live/bert.js");
  const { ModernBertForMaskedLM } = await import("/docs/live/modern.js");
  const bytes = Uint8Array.from(atob(weights), (one) => one.charCodeAt(0));
  const kind = arm.config.model_type === "bert" ? BertForMaskedLM : ModernBertForMaskedLM;
  const model = kind.from_pretrained(arm, bytes.buffer);
  const packed = (numbers) => {
    let text = "";
    for (const byte of new Uint8Array(numbers.buffer)) text += String.fromCharCode(byte);
    return btoa(text);
  };
  return all.map((input_ids) => {
    const { positions, probabilities, attentions, hidden_states } = fill_mask(model, input_ids, mask_id);
    return { positions, probabilities: packed(probabilities), attentions: attentions.map(packed),
             hidden: packed(hidden_states.at(-1)) };
  });
}"""


def unpacked(text: str) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(base64.b64decode(text), "<f4").copy())


def encode(model: Model, input_ids: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The attention weights of each layer, and the last hidden states."""
    if isinstance(model, BertForMaskedLM):
        encoded = model.bert(input_ids, output_attentions=True)
        return encoded.attentions, encoded.last_hidden_state[0]
    attentions = []

    def attend(q: Any, k: Any, v: Any, attention_mask: Any, dropout_prob: float) -> torch.Tensor:
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
        if attention_mask is not None:
            scores = scores.masked_fill(~attention_mask, -math.inf)
        attentions.append(scores.softmax(-1))
        return attentions[-1] @ v

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(modern, "attend", attend)
        return attentions, model.model(input_ids)[0]


@torch.no_grad()
def compare(
    page: Page,
    arm: dict[str, Any],
    data: bytes,
    model: Model,
    count: int,
    hidden_within: float = 1e-3,
) -> None:
    """Runs the same sentences through the page's model and the one in PyTorch, and compares the results."""
    every, mask = sentences(arm, count), CARD["mask_id"]
    answers = page.evaluate(IN_THE_PAGE, [arm, mask, base64.b64encode(data).decode(), every])
    for ids, answer in zip(every, answers, strict=True):
        input_ids = torch.tensor([ids])
        assert answer["positions"] == [t for t, i in enumerate(ids) if i == mask]
        reference = model(input_ids).logits[0, answer["positions"]].softmax(-1)
        assert torch.allclose(
            unpacked(answer["probabilities"]).view_as(reference), reference, rtol=0, atol=1e-3
        )
        attentions, hidden = encode(model, input_ids)
        for attention, weights in zip(answer["attentions"], attentions, strict=True):
            assert torch.allclose(unpacked(attention).view_as(weights[0]), weights[0], rtol=0, atol=1e-3)
        assert torch.allclose(unpacked(answer["hidden"]).view_as(hidden), hidden, rtol=0, atol=hidden_within)


@pytest.mark.parametrize("arm", ENDS)
def test_the_page_and_torch_agree(server: str, page: Page, arm: str) -> None:
    """Both models have the weights that the site ships."""
    page.goto(server + "live/")
    described, data = shipped(ENDS[arm])
    compare(page, described, data, in_torch(described, data), 100)


@pytest.mark.parametrize(
    "sizes",
    [
        # Two of three layers are local.
        {"num_hidden_layers": 4, "num_attention_heads": 3, "global_attn_every_n_layers": 3},
        # An odd window, and no theta or epsilon has its default value.
        {
            "num_hidden_layers": 3,
            "num_attention_heads": 1,
            "global_attn_every_n_layers": 2,
            "local_attention": 5,
            "global_rope_theta": 500.0,
            "local_rope_theta": 20.0,
            "norm_eps": 0.1,
        },
        # Heads of two dimensions: each is a single pair for RoPE.
        {"num_hidden_layers": 1, "num_attention_heads": 12, "global_attn_every_n_layers": 1},
    ],
)
def test_any_modern_encoder_agrees_with_torch(server: str, page: Page, sizes: dict[str, Any]) -> None:
    page.goto(server + "live/")
    torch.manual_seed(8)
    rest = {"local_attention": 16, "max_position_embeddings": LIMIT, "pad_token_id": 0}
    config = ModernBertConfig(vocab_size=40, hidden_size=24, intermediate_size=20, **(rest | sizes))
    model = ModernBertForMaskedLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            # Change the norms and the bias too, so that none of them is 1 or 0.
            parameter.add_(0.3 * torch.randn_like(parameter))
    described = describe_weights(model)
    data = b"".join(tensor.numpy().tobytes() for tensor in to_float16(model).values())
    compare(page, described, data, in_torch(described, data), 100)


def test_rounding_to_float16_stays_within_the_bound(server: str, page: Page) -> None:
    """The page has the rounded weights, and PyTorch those before rounding."""
    page.goto(server + "live/")
    torch.manual_seed(8)
    described = CARD["arms"][LAST["arm"]]
    model = new_model(described)
    with torch.no_grad():
        for parameter in model.parameters():
            # Larger weights than at the start of training give sharper attention and answers.
            parameter.add_(0.1 * torch.randn_like(parameter))
    state = model.state_dict()
    names = [tensor["name"] for tensor in described["tensors"]]
    data = b"".join(state[name].half().numpy().tobytes() for name in names)
    rounded = in_torch(described, data).state_dict()
    assert any(not torch.equal(rounded[name], state[name]) for name in names)
    compare(page, described, data, model, 30, hidden_within=1e-2)


def test_float16_by_hand_is_float16(server: str, page: Page) -> None:
    """All bit patterns are converted, without the `Float16Array` that new browsers have."""
    page.goto(server + "live/")
    every = np.arange(2**16, dtype="<u2")
    texts = page.evaluate(
        """async () => {
          const { from_float16 } = await import("/docs/live/bert.js");
          delete globalThis.Float16Array;
          return [...from_float16(Uint16Array.from({ length: 2 ** 16 }, (_, i) => i).buffer)].map(String);
        }"""
    )
    reference = every.view("<f2").astype("f8")
    assert np.array_equal(np.array([float(one.replace("Infinity", "inf")) for one in texts]), reference, True)


def test_erf(server: str, page: Page) -> None:
    page.goto(server + "live/")
    points = [i / 100 for i in range(-600, 601)]
    code = "async (all) => { const { erf } = await import('/docs/live/bert.js'); return all.map(erf) }"
    values = page.evaluate(code, points)
    assert max(abs(a - math.erf(x)) for a, x in zip(values, points, strict=True)) < 1.6e-7


def serve_script(text: str, route: Any) -> None:
    route.fulfill(body=text, content_type="text/javascript")


def test_every_shape_in_the_scripts_is_true(server: str, page: Page) -> None:
    """Each line `const x = …; // (T, D)` gets a check of the size, and then the models run."""
    page.goto(server + "live/")
    line = re.compile(r"^( +const (\w+) = .*;) // \(([A-Z](?:, [A-Z])*)\)$", re.M)
    total = 0
    for name in ("bert.js", "modern.js"):
        text = (LIVE / name).read_text("utf-8")
        marked, count = line.subn(
            lambda m: f"{m[1]} check({m[2]}.length, {m[3].replace(', ', ' * ')}, '{m[0]}');", text
        )
        assert count == text.count("; // (") > 3
        total += count
        page.route(f"**/live/{name}", functools.partial(serve_script, marked))
    check = "(a, b, line) => { if (a !== b) throw new Error(line); globalThis.seen++; }"
    page.evaluate(f"() => {{ globalThis.seen = 0; globalThis.check = {check}; }}")
    sizes = {"D": "hidden_size", "H": "num_attention_heads", "I": "intermediate_size", "V": "vocab_size"}
    for end in (LAST, ENDS["modern"]):
        arm, data = shipped(end)
        for ids in sentences(arm, 5):
            # Letters that a function doesn't define itself have the sizes of the model and the sentence.
            letters = {letter: arm["config"][size] for letter, size in sizes.items()}
            letters |= {"T": len(ids), "M": ids.count(CARD["mask_id"])}
            page.evaluate("letters => { Object.assign(globalThis, letters) }", letters)
            page.evaluate(IN_THE_PAGE, [arm, CARD["mask_id"], base64.b64encode(data).decode(), [ids]])
    assert page.evaluate("globalThis.seen") >= 5 * total


@pytest.mark.parametrize("change", [lambda data: data[:-2], lambda data: data + b"\0\0"])
def test_weights_of_another_model_are_refused(
    server: str, page: Page, change: Callable[[bytes], bytes]
) -> None:
    page.goto(server + "live/")
    arm, data = shipped(LAST)
    data = change(data)
    with pytest.raises(Exception, match=f"{len(data)} bytes, but model.json describes"):
        page.evaluate(IN_THE_PAGE, [arm, CARD["mask_id"], base64.b64encode(data).decode(), []])


# What is downloaded, and when


def test_the_files_are_what_the_card_says() -> None:
    for one in CARD["checkpoints"]:
        data = (LIVE / "model" / one["file"]).read_bytes()
        assert len(data) == one["bytes"] and hashlib.sha256(data).hexdigest() == one["sha256"]
    kept = {path.name for path in (LIVE / "model").iterdir()}
    assert kept == {"model.json", *(one["file"] for one in CARD["checkpoints"])}
    assert sum((LIVE / "model" / name).stat().st_size for name in kept) < 4_500_000


def until(page: Page, script: str, argument: Any = None) -> None:
    """Waits until a script returns true. The page's policy refuses Playwright's own `wait_for_function`."""
    for _ in range(400):
        if page.evaluate(script, argument):
            return
        page.wait_for_timeout(25)
    raise AssertionError(f"never true: {script}")


def started(page: Page, address: str) -> list[str]:
    """Opens the page and starts the model. Returns the list of requested addresses, which keeps growing."""
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(address, wait_until="networkidle")
    # `page.click` scrolls first. If that brings the model into view, the model starts without the click.
    page.dispatch_event(".live .start", "click")
    page.wait_for_selector(".live.running .guesses")
    return requests


def test_a_first_answer_needs_a_megabyte(site: Path, server: str, page: Page) -> None:
    requests = started(page, server + "live/")
    files = {url.removeprefix(server).partition("?")[0] for url in requests if "/docs/live/" in url}
    weights = [name for name in files if name.endswith(".bin")]
    assert weights == [f"docs/live/model/{LAST['file']}"]
    scripts = {f"docs/live/{name}.js" for name in ("bert", "card", "modern", "worker")}
    assert scripts | {"docs/live/model/model.json"} < files
    # The megabyte includes the page around the model.
    every = {url.removeprefix(server).partition("?")[0] for url in requests}
    paths = [site / name / "index.html" if (site / name).is_dir() else site / name for name in every]
    assert site / "live" / "index.html" in paths and all(path.is_file() for path in paths)
    assert sum(len(gzip.compress(path.read_bytes())) for path in paths) <= 1_000_000


@pytest.mark.parametrize("address", ["", "live/"])
def test_nothing_of_the_model_comes_unasked(server: str, page: Page, address: str) -> None:
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.set_viewport_size({"width": 1440, "height": 1600})
    page.goto(server + address, wait_until="networkidle")
    page.mouse.wheel(0, 100)
    page.wait_for_timeout(300)
    mine = {url.removeprefix(server) for url in requests if "/docs/live/" in url}
    assert mine == {"docs/live/start.js", "docs/live/live.css"}


def test_who_scrolls_to_it_has_asked(server: str, page: Page) -> None:
    page.set_viewport_size({"width": 600, "height": 700})
    page.goto(server + "#the-code", wait_until="networkidle")
    assert page.evaluate("document.querySelector('.live').getBoundingClientRect().bottom < 0")
    page.evaluate("document.querySelector('.live').scrollIntoView()")
    page.wait_for_selector(".live.running .guesses")
    assert page.evaluate("document.activeElement === document.body"), "the focus is the reader's"


def test_other_pages_load_nothing_of_it(site: Path) -> None:
    with_it = set()
    for path in site.glob("**/*.html"):
        # The target of a link isn't loaded.
        if re.search(r"<(?!a\b|link rel=\"(?:prev|next)\")[^>]*docs/live/", path.read_text("utf-8")):
            with_it.add(path.relative_to(site).as_posix())
    assert with_it == {"index.html", "live/index.html"}
    for path in site.glob("assets/**/*.*"):
        assert b"docs/live" not in path.read_bytes(), path


def test_without_a_script_there_is_a_picture(server: str, browser: Any) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    for address in ("", "live/"):
        page.goto(server + address)
        assert page.is_visible(".live .guesses") and not page.is_visible(".live .start")
    assert page.is_visible(".live noscript")
    for title in (
        "Attention weights",
        "Cosines between position",
        "Nearest neighbors",
        "Rank of the correct",
    ):
        assert page.get_by_role("img", name=title).is_visible(), title
    context.close()


# Failed downloads


def fails(page: Page, server: str) -> str:
    page.goto(server + "live/", wait_until="networkidle")
    page.click(".live .start")
    until(page, "document.querySelector('.live .said').textContent !== ''")
    assert page.is_visible(".live .start") and page.is_enabled(".live .start")
    assert not page.query_selector(".arriving")
    return str(page.inner_text(".live .said"))


def test_no_connection(server: str, page: Page) -> None:
    page.route("**/*.bin*", lambda route: route.abort())
    assert "no connection" in fails(page, server)
    # With a connection, the same button works.
    page.unroute("**/*.bin*")
    page.click(".live .start")
    page.wait_for_selector(".live.running .guesses")


def test_a_page_in_the_place_of_the_model(server: str, page: Page) -> None:
    page.route("**/model/model.json", lambda route: route.fulfill(body="<html>Log in first</html>"))
    assert "isn't what the site sent" in fails(page, server)


@pytest.mark.parametrize("what", ["model.json", "*.bin*"])
def test_a_file_that_is_not_there(server: str, page: Page, what: str) -> None:
    page.route(f"**/model/{what}", lambda route: route.fulfill(status=404, body="gone"))
    assert "404" in fails(page, server)


@pytest.mark.parametrize(
    ("name", "words"),
    [("live", "couldn't be loaded"), ("inside", "couldn't be loaded"), ("worker", "couldn't be loaded")],
)
def test_a_script_that_is_not_there(server: str, page: Page, name: str, words: str) -> None:
    page.route(f"**/live/{name}.js", lambda route: route.abort())
    assert words in fails(page, server)


def test_damaged_weights(server: str, page: Page) -> None:
    data = bytearray((LIVE / "model" / LAST["file"]).read_bytes())
    data[1000] ^= 1
    page.route("**/*.bin*", lambda route: route.fulfill(body=bytes(data)))
    assert "checksum" in fails(page, server)


def test_a_browser_without_workers(server: str, page: Page) -> None:
    page.add_init_script("delete globalThis.Worker")
    assert "no web workers" in fails(page, server)


def test_cancel(server: str, page: Page) -> None:
    held = []
    page.route("**/*.bin*", lambda route: held.append(route))
    page.goto(server + "live/", wait_until="networkidle")
    page.focus(".live .start")
    page.keyboard.press("Enter")
    page.wait_for_selector(".live progress")
    assert page.evaluate("document.activeElement.textContent") == "Cancel"
    page.wait_for_timeout(200)
    page.keyboard.press("Enter")
    page.wait_for_selector(".live >> text=Canceled")
    assert page.evaluate("document.activeElement.classList.contains('start')")
    page.unroute("**/*.bin*")
    page.keyboard.press("Enter")
    page.wait_for_selector(".live.running .guesses")


class HalfWay(Quiet):
    """Sends half of the weights and waits for `goes_on`, then sends the rest or breaks the connection."""

    goes_on = threading.Event()
    breaks = False

    def copyfile(self, source: Any, outputfile: Any) -> None:
        if not self.path.partition("?")[0].endswith(".bin"):
            super().copyfile(source, outputfile)
            return
        data = source.read()
        outputfile.write(data[: len(data) // 2])
        outputfile.flush()
        assert self.goes_on.wait(20)
        if not self.breaks:
            outputfile.write(data[len(data) // 2 :])


@pytest.mark.parametrize("breaks", [False, True])
def test_the_bar_shows_what_has_arrived(
    site: Path, page: Page, breaks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    HalfWay.goes_on.clear()
    monkeypatch.setattr(HalfWay, "breaks", breaks)
    handler = functools.partial(HalfWay, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        page.goto(f"http://127.0.0.1:{served.server_port}/live/", wait_until="networkidle")
        page.click(".live .start")
        until(page, "Math.abs(document.querySelector('.live progress')?.value - 0.5) < 0.01")
        assert f"of {LAST['bytes'] / 1e6:.2f} MB" in page.inner_text(".live .words")
        HalfWay.goes_on.set()
        if breaks:
            page.wait_for_selector(".live >> text=stopped after")
            assert page.is_enabled(".live .start")
        else:
            page.wait_for_selector(".live.running .guesses")
        served.shutdown()


# Typing, keys and the slider


def field(page: Page, text: str) -> None:
    """Sets the text as if it were pasted, which isn't limited to characters on keys."""
    page.focus(".live textarea")
    page.evaluate(
        "text => { const field = document.querySelector('.live textarea'); field.value = text;"
        "field.dispatchEvent(new InputEvent('input', { inputType: 'insertFromPaste' })) }",
        text,
    )


PASTED: dict[str, tuple[str, int, str | None]] = {
    "long": ("x" * 100_000, LIMIT, "Only the first"),
    "HTML": ("<img src=x onerror=alert(1)><script>alert(2)</script><b>hi</b>", 62, None),
    "empty": ("", 0, "There is no text"),
    "one": ("a", 1, ""),
    "accents": ("Ünïcödé", 7, "The vocabulary has no Ü"),
    "faces": ("a\U0001f469\u200d\U0001f469\u200d\U0001f467b", 7, "[UNK]"),
    "right to left": ("سلام עולם", 9, "[UNK]"),
    "half a pair": ("a\ud800b\udc00", 4, "[UNK]"),
    "control": ("a\x00\x1b\u202eb", 5, "[UNK]"),
    "marks": ("z" + "\u0301" * 300, LIMIT, "Only the first"),
    "lines": ("a\r\nb", 3, ""),
    "names": ("[MASK] __proto__ constructor", 28, None),
}


def test_whatever_is_pasted(server: str, page: Page) -> None:
    wrong: list[str] = []
    page.on("dialog", lambda dialog: (wrong.append(dialog.message), dialog.dismiss()))
    page.on("console", lambda m: wrong.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    started(page, server + "live/")
    for name, (text, count, note) in PASTED.items():
        # Playwright can't send a lone surrogate as text, so send code units.
        page.evaluate(
            "units => { const field = document.querySelector('.live textarea');"
            "field.value = units.map(unit => String.fromCharCode(unit)).join('');"
            "field.dispatchEvent(new InputEvent('input', { inputType: 'insertFromPaste' })) }",
            np.frombuffer(text.encode("utf-16-le", "surrogatepass"), "<u2").tolist(),
        )
        assert page.locator(".letter").count() == count, name
        note_text = page.inner_text(".live .note")
        # Which characters are in the vocabulary depends on the training text.
        assert note is None or (note in note_text and bool(note_text) == bool(note)), (name, note_text)
        if count:
            page.locator(".letter").first.click()
            page.wait_for_selector(".letter[aria-pressed=true]:not(:empty)")
            page.wait_for_selector(".live .answers .guesses")
            page.locator(".letter").first.click()
    assert not page.query_selector(".live img, .live script, .live b:not(.guesses b)")
    assert not wrong


def test_what_is_masked_stays_masked_while_typing(server: str, page: Page) -> None:
    started(page, server + "live/")
    field(page, "a list of words")
    for at in (3, 10):
        page.locator(".letter").nth(at).click()
    page.focus(".live textarea")
    page.keyboard.press("Home")
    page.keyboard.type("not ")
    masked = page.eval_on_selector_all("[aria-pressed=true]", "all => all.map(one => +one.dataset.at)")
    assert masked == [7, 14]
    page.keyboard.press("Control+a")
    page.keyboard.type("new")
    assert page.locator("[aria-pressed=true]").count() == 0
    until(page, "document.querySelector('.live .summary').textContent.includes('Nothing is masked')")


def test_what_is_masked_stays_masked_if_the_text_is_full(server: str, page: Page) -> None:
    """The end of the text then moves out of the model's reach. Emoji take two units of a string."""
    started(page, server + "live/")
    field(page, ("ab😀c" * LIMIT)[:LIMIT])
    for at in (3, 100, LIMIT - 1):
        page.locator(".letter").nth(at).click()
    page.focus(".live textarea")
    page.keyboard.press("Control+Home")
    for key, expected in (("😁", [4, 101]), ("x", [5, 102]), ("Backspace", [4, 101]), ("Delete", [3, 100])):
        if len(key) == 1:
            page.keyboard.insert_text(key)
        else:
            page.keyboard.press(key)
        masked = page.eval_on_selector_all("[aria-pressed=true]", "all => all.map(one => +one.dataset.at)")
        assert masked == expected, key


def test_hebrew_and_arabic_run_from_right_to_left(server: str, page: Page) -> None:
    started(page, server + "live/")
    for text, sign in (("abc", 1), ("1 שלום abc", -1), ("السلام", -1), ("abc שלום", 1)):
        field(page, text)
        first, last = (page.locator(".letter").nth(i).bounding_box() for i in (0, -1))
        assert first and last and (last["x"] - first["x"]) * sign > 0, text
        page.locator(".letter").nth(1).focus()
        page.keyboard.press("ArrowRight")
        assert page.evaluate("+document.activeElement.dataset.at") == 1 + sign


def test_a_click_can_mask_a_word(server: str, page: Page) -> None:
    started(page, server + "live/")
    field(page, "it's a list.")
    page.click(".live label:has-text('a word')")
    page.locator(".letter").nth(8).click()
    masked = page.eval_on_selector_all("[aria-pressed=true]", "all => all.map(one => +one.dataset.at)")
    assert masked == [7, 8, 9, 10]
    until(page, "document.querySelectorAll('.live .answers .guesses').length === 4")
    page.locator(".letter").nth(9).click()
    assert page.locator("[aria-pressed=true]").count() == 0


@pytest.mark.parametrize("arm", [LAST["arm"], "modern"])
def test_the_answers_are_those_of_torch(server: str, page: Page, arm: str) -> None:
    """Tests the whole path from the click to the table of answers."""
    started(page, server + "live/")
    page.check(f".moments input[value='{arm}']")
    until(page, "!document.querySelector('.live .arriving, .live.behind')")
    assert page.inner_text(".live output") == last_words(arm)
    text, positions = "Return a cöpy of the list, Привет.", [3, 21]
    field(page, text)
    page.click(".live button:has-text('Unmask all')")
    for at in positions:
        page.locator(".letter").nth(at).click()
    until(page, "document.querySelectorAll('.letter[aria-pressed=true]:not(:empty)').length === 2")
    answers_on_page = page.eval_on_selector_all(
        ".answers table",
        "all => all.map(table => [...table.querySelectorAll('tbody tr:not(.late)')].map("
        "row => [row.querySelector('th .sr').textContent, row.lastChild.textContent]))",
    )
    model = in_torch(*shipped(ENDS[arm]))
    tokens = CARD["tokens"]
    ids = [tokens.index(one) if one in tokens else CARD["unk_id"] for one in text]
    assert CARD["unk_id"] in ids
    for at in positions:
        ids[at] = CARD["mask_id"]
    with torch.no_grad():
        chances = model(torch.tensor([ids])).logits[0, positions].softmax(-1)
    chances[:, [i for i, token in enumerate(tokens) if re.fullmatch(r"\[\w+\]", token)]] = 0
    best = chances.topk(5)
    spoken = {" ": "space", "\n": "line break", ".": "period", ",": "comma", "-": "hyphen"}
    spoken |= {token: f"capital {token}" for token in tokens if len(token) == 1 and token.isupper()}
    for answers, indices, reference in zip(
        answers_on_page, best.indices.tolist(), best.values.tolist(), strict=True
    ):
        assert [token for token, _ in answers] == [spoken.get(tokens[i], tokens[i]) for i in indices]
        for (_, percent), chance in zip(answers, reference, strict=True):
            assert abs(float(percent.rstrip("%")) / 100 - chance) < 0.006


def focused(page: Page, script: str) -> Any:
    return page.evaluate(f"(() => {{ const at = document.activeElement; return {script} }})()")


def test_the_keyboard_can_do_all_of_it(server: str, page: Page) -> None:
    page.goto(server + "live/", wait_until="networkidle")
    press = page.keyboard.press
    while not focused(page, "at.matches('.start')"):
        press("Tab")
    press("Enter")
    page.wait_for_selector(".live.running .guesses")
    # The focus is on the masked character, and the arrow keys move it to the others.
    here = focused(page, "+at.dataset.at")
    assert focused(page, "at.getAttribute('aria-pressed')") == "true"
    press("ArrowRight")
    assert focused(page, "+at.dataset.at") == here + 1
    press("Space")
    assert focused(page, "at.getAttribute('aria-pressed')") == "true"
    until(page, "document.querySelectorAll('.answers .guesses').length === 2")
    until(
        page,
        "at => document.querySelector('.live .told [role=status]').textContent.includes(`Character ${at}`)",
        here + 2,
    )
    press("Home")
    assert focused(page, "at.dataset.at") == "0"
    assert "at character 1," in page.inner_text(".reading")
    assert page.evaluate("document.querySelector('.letter.looks') === document.activeElement")
    stops: list[str] = []
    while len(stops) < 12:
        press("Tab")
        stops.append(focused(page, "at.name || at.id || at.textContent || at.tagName"))
        if stops[-1] == "head":
            break
        if stops[-1] == "moment":
            before = page.inner_text(".live output")
            press("ArrowLeft")
            assert page.inner_text(".live output") != before == last_words()
            until(page, "!document.querySelector('.live .arriving')")
            assert focused(page, "at.getAttribute('aria-valuetext')") == page.inner_text(".live output")
            until(page, "document.querySelector('.live .answers').textContent")
        if stops[-1] == "arm":
            press("ArrowRight")
            assert focused(page, "at.value") == list(ENDS)[1]
            press("ArrowRight")
            assert focused(page, "at.value") == "modern"
            until(page, "!document.querySelector('.live .arriving')")
            press("ArrowRight")
            assert focused(page, "at.value") == LAST["arm"]
        if stops[-1] == "layer":
            squares = page.get_attribute(".weights", "d")
            press("ArrowRight")
            assert page.get_attribute(".weights", "d") != squares
    assert stops == [
        "masks",
        "Mask 15%",
        "Unmask all",
        "sentence",
        "TEXTAREA",
        "arm",
        "moment",
        "layer",
        "head",
    ]
    press("ArrowRight")
    assert "Head 2" in page.inner_text(".reading")
    assert page.evaluate("document.querySelectorAll('.head')[1].classList.contains('chosen')")
    # In a list, a letter picks the first entry that begins with it, even a hidden one.
    text = page.input_value("textarea")
    page.focus("[name=sentence]")
    press("y")
    assert page.input_value("[name=sentence]") != "your own" and page.input_value("textarea") == text


def last_words(arm: str = LAST["arm"]) -> str:
    return f"{ENDS[arm]['steps']:,} steps, loss {ENDS[arm]['loss']:.2f}"


def test_the_moment_is_that_of_the_slider(server: str, page: Page) -> None:
    """Another moment has the answers of its own weights. If a file doesn't arrive, the old answers stay."""
    started(page, server + "live/")
    answers = page.inner_text(".answers")
    page.route("**/*.bin*", lambda route: route.abort())
    page.focus("#moment")
    page.keyboard.press("Home")
    page.wait_for_selector(".moments .note:not(:empty)")
    assert page.inner_text(".live output") == last_words() and page.inner_text(".answers") == answers
    page.unroute("**/*.bin*")
    page.keyboard.press("Home")
    until(page, "was => document.querySelector('.answers').innerText !== was", answers)
    first = next(one for one in CARD["checkpoints"] if one["arm"] == LAST["arm"])
    assert page.inner_text(".live output").startswith(f"{first['steps']:,} steps")
    until(page, "!document.querySelector('.live .arriving')")
    page.keyboard.press("End")
    until(page, "was => document.querySelector('.answers').innerText === was", answers)


def test_the_maps_and_the_text_point_at_each_other(server: str, page: Page) -> None:
    started(page, server + "live/")
    field(page, "abcdefgh")
    until(page, "document.querySelector('.head svg').getAttribute('viewBox') === '0 0 8 8'")
    page.locator(".letter").nth(2).hover()
    rows = page.eval_on_selector_all(
        ".head path.looks:nth-child(2)", "all => all.map(one => one.getAttribute('d'))"
    )
    assert set(rows) == {"M0,2h8v1h-8z"}
    field_of_view = page.locator(".head svg").nth(1)
    box = field_of_view.bounding_box()
    field_of_view.hover(position={"x": box["width"] * 5.5 / 8, "y": box["height"] * 1.5 / 8})
    assert page.evaluate("document.querySelector('.letter.looks').dataset.at") == "1"
    assert page.evaluate("document.querySelector('.letter.taken').dataset.at") == "5"
    assert "Head 2 at character 2, b: " in page.inner_text(".reading")
    assert "on character 6, f" in page.inner_text(".reading")


@pytest.mark.parametrize("width", [1366, 390])
def test_who_points_at_a_map_sees_the_letter(server: str, page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 768})
    started(page, server + "live/")
    page.locator(".head svg").last.scroll_into_view_if_needed()
    page.locator(".head svg").last.hover(position={"x": 40, "y": 40})
    box = page.locator(".letter.looks").bounding_box()
    below = page.locator(".md-header").bounding_box()
    assert box["y"] >= below["y"] + below["height"] - 1 and box["y"] + box["height"] < 768
    hit = "([x, y]) => document.elementFromPoint(x, y).matches('.letter.looks')"
    assert page.evaluate(hit, [box["x"] + box["width"] / 2, box["y"] + box["height"] / 2])


def look_from_the_third_letter_at_the_fifth(server: str, page: Page) -> None:
    started(page, server + "live/")
    field(page, "abcdefgh")
    until(page, "document.querySelector('.head svg').getAttribute('viewBox') === '0 0 8 8'")
    page.locator(".letter").nth(2).focus()
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("Shift+ArrowRight")


def test_shift_and_the_arrows_go_along_a_line_of_the_map(server: str, page: Page) -> None:
    look_from_the_third_letter_at_the_fifth(server, page)
    assert focused(page, "at.dataset.at") == "2"
    assert page.evaluate("document.querySelector('.letter.taken').dataset.at") == "4"
    words = page.inner_text(".reading")
    assert words.startswith("Head 1 at character 3, c: ") and words.endswith("on character 5, e.")
    until(page, "words => document.querySelector('.told [role=status]').textContent === words", words)
    page.keyboard.press("ArrowRight")
    assert focused(page, "at.dataset.at") == "3" and not page.query_selector(".letter.taken")


def test_a_shorter_text_has_no_character_that_is_gone(server: str, page: Page) -> None:
    look_from_the_third_letter_at_the_fifth(server, page)
    field(page, "abc")
    until(page, "document.querySelector('.head svg').getAttribute('viewBox') === '0 0 3 3'")
    until(
        page,
        "document.querySelector('.reading').textContent.startsWith('Head 1 at character 3, c. The squares')",
    )


def test_the_markers_show_steps_and_loss(server: str, page: Page) -> None:
    """A marker needn't be on the curve, because the curve may be for part of the held-out text."""
    started(page, server + "live/")
    line = page.locator(".moments > svg > path.line").first.get_attribute("d")
    name = page.locator(".moments input[type=radio]").first.get_attribute("value")
    assert line and name
    corners = [[*map(float, pair)] for pair in re.findall(r"([\d.]+),([\d.]+)", line)]
    (x1, y1), (x2, y2) = corners[0], corners[-1]
    (steps1, loss1), (steps2, loss2) = CARD["arms"][name]["curve"][0], CARD["arms"][name]["curve"][-1]
    for arm in CARD["arms"]:
        page.check(f".moments input[value='{arm}']")
        stops = page.eval_on_selector_all(
            ".moments circle", "all => all.map(one => [+one.getAttribute('cx'), +one.getAttribute('cy')])"
        )
        assert len(stops) == len(CARD["checkpoints"]) / len(CARD["arms"])
        checkpoints = [one for one in CARD["checkpoints"] if one["arm"] == arm]
        for (x, y), one in zip(stops, sorted(checkpoints, key=lambda one: one["steps"]), strict=True):
            assert abs(x1 + (x2 - x1) * (one["steps"] - steps1) / (steps2 - steps1) - x) < 0.2
            assert abs(y1 + (y2 - y1) * (one["loss"] - loss1) / (loss2 - loss1) - y) < 0.2


@torch.no_grad()
def test_at_first_the_answer_is_the_same_everywhere() -> None:
    """At the left end of the slider, at least 80% of BERT's answers agree. At the right end, they differ."""
    script = (LIVE / "live.js").read_text("utf-8")
    samples = re.findall(r'^  "(.*)",$', script[script.index("SAMPLES") : script.index("const SHOWN")], re.M)
    assert len(samples) == 5
    best: dict[str, list[frozenset[int]]] = {}
    for one in CARD["checkpoints"]:
        model = in_torch(*shipped(one))
        for sample in samples:
            ids, masking = list[int](), False
            for letter in sample:
                if letter in "[]":
                    masking = letter == "["
                else:
                    ids.append(CARD["mask_id"] if masking else CARD["tokens"].index(letter))
            logits = model(torch.tensor([ids])).logits[0]
            positions = [at for at, i in enumerate(ids) if i == CARD["mask_id"]]
            answers = best.setdefault(one["file"], [])
            answers += [frozenset(logits[at].topk(3).indices.tolist()) for at in positions]
    berts = [arm for arm in ENDS if arm != "modern"]
    firsts = {next(c["file"] for c in CARD["checkpoints"] if c["arm"] == arm) for arm in berts}
    for name in firsts:
        commonest = Counter(best[name]).most_common(1)[0][1]
        assert commonest >= 0.8 * len(best[name]), name
    assert len(set(best[LAST["file"]])) > 3


def test_a_text_that_is_too_long_can_be_undone(server: str, page: Page) -> None:
    started(page, server + "live/")
    page.focus(".live textarea")
    page.keyboard.press("Control+a")
    page.keyboard.type("My own sentence.")
    page.keyboard.press("Control+a")
    page.keyboard.insert_text("x" * 10_000)
    assert page.locator(".letter").count() == LIMIT
    page.keyboard.press("Control+z")
    assert page.input_value(".live textarea") == "My own sentence."
    assert page.locator(".letter").count() == 16 and page.inner_text(".live .note") == ""


def test_the_sentences_are_cut_for_a_model_with_few_positions(
    server: str, page: Page, tmp_path: Path
) -> None:
    tokenizer = character_tokenizer(["the model reads only this"])
    size = tokenizer.get_vocab_size()
    model = BertForMaskedLM(BertConfig(size, 16, 1, 2, 24, max_position_embeddings=16))
    model.save_pretrained(tmp_path)
    save_tokenizer(tokenizer, tmp_path)
    export.main([str(tmp_path), "--to", "web"])

    def answer(route: Any) -> None:
        name = route.request.url.partition("?")[0].rpartition("/")[2]
        route.fulfill(body=(tmp_path / "web" / name).read_bytes())

    page.route("**/docs/live/model/*", answer)
    page.goto(server + "live/", wait_until="networkidle")
    page.dispatch_event(".live .start", "click")
    page.wait_for_selector(".live.running .letter")
    assert page.locator(".letter").count() == 16
    assert "Only the first 16 characters count" in page.inner_text(".live .note")
    page.locator(".letter").first.click()
    page.wait_for_selector(".live .guesses")
    assert "of 1." in page.inner_text(".live")


def test_a_resting_mouse_is_no_reader(server: str, page: Page) -> None:
    """After each prediction, the characters are drawn again below the mouse."""
    started(page, server + "live/")
    page.locator(".letter").nth(7).hover()
    assert "at character 8," in page.inner_text(".reading")
    page.locator(".letter").nth(2).focus()
    assert "at character 3," in page.inner_text(".reading")
    page.keyboard.press("Space")
    page.wait_for_selector(".letter:nth-child(3)[aria-pressed=true]")
    page.wait_for_timeout(500)
    assert "at character 3," in page.inner_text(".reading")


def test_cancel_between_two_downloads(server: str, page: Page) -> None:
    requests = started(page, server + "live/")
    before = sum(".bin" in url for url in requests)
    page.evaluate(
        """new MutationObserver(() => {
          const words = document.querySelector(".arriving .words")?.textContent ?? "";
          const [, done, total] = words.match(/([\\d.]+) of ([\\d.]+) MB/) ?? [];
          if (done && done === total) document.querySelector(".arriving button").click();
        }).observe(document.querySelector(".moments"), { subtree: true, childList: true })"""
    )
    page.focus("#moment")
    page.keyboard.press("Home")
    page.wait_for_selector(".moments >> text=Canceled")
    page.wait_for_timeout(300)
    assert sum(".bin" in url for url in requests) == before + 1


def test_a_full_text_takes_letters_at_the_caret(server: str, page: Page) -> None:
    started(page, server + "live/")
    field(page, "a" * LIMIT)
    page.focus(".live textarea")
    page.keyboard.press("Control+Home")
    page.keyboard.type("XYZ")
    assert page.input_value(".live textarea") == "XYZ" + "a" * LIMIT
    assert page.locator(".letter").count() == LIMIT
    assert "Only the first" in page.inner_text(".live .note")
    assert page.evaluate("document.querySelector('.live select').selectedOptions[0].text") == "your own"


@pytest.mark.parametrize("canceled", [True, False])
def test_the_focus_outlives_the_button_that_had_it(server: str, page: Page, canceled: bool) -> None:
    held: list[Any] = []
    started(page, server + "live/")
    page.route("**/*.bin*", lambda route: held.append(route))
    page.focus("#moment")
    page.keyboard.press("Home")
    page.focus(".moments .arriving button")
    if canceled:
        page.keyboard.press("Enter")
        page.wait_for_selector(".live >> text=Canceled")
    else:
        others = sum(one["arm"] == LAST["arm"] for one in CARD["checkpoints"]) - 1
        for _ in range(others):
            # The files arrive one after another, under a single button.
            while not held:
                page.wait_for_timeout(25)
            assert focused(page, "at.textContent") == "Cancel"
            held.pop().continue_()
        until(page, "!document.querySelector('.live .arriving')")
    assert focused(page, "at.id") == "moment"


def test_notes_are_there_before_they_say_something(server: str, page: Page) -> None:
    started(page, server + "live/")
    notes = page.locator(".live [role=status]").all()
    assert len(notes) >= 3
    for note in notes:
        assert note.evaluate("one => one.checkVisibility()")


def test_punctuation_is_said_by_name(server: str, page: Page) -> None:
    started(page, server + "live/")
    field(page, "(_A\u202e\u05d0b")
    labels = page.eval_on_selector_all(".letter", "all => all.map(one => one.getAttribute('aria-label'))")
    assert labels[:3] == ["1, opening parenthesis", "2, underscore", "3, capital A"]
    assert "U+202E" in labels[3] and "\u202e" not in labels[3]
    page.locator(".letter").nth(3).focus()
    until(page, "document.querySelector('.reading').textContent.includes('U+202E')")
    text = page.evaluate("document.querySelector('.live').textContent")
    assert not re.search("[\u202a-\u202e]", text)


def test_what_is_printed(server: str, page: Page) -> None:
    started(page, server + "live/")
    page.emulate_media(media="print")
    for kept in (".letters", ".guesses", ".moments > svg", ".head svg"):
        assert page.locator(f".live {kept}").first.is_visible(), kept
    for gone in ("textarea", "select", "button:not(.letter)", "input"):
        assert not any(one.is_visible() for one in page.locator(f".live {gone}").all()), gone


def test_no_motion_for_who_wants_none(server: str, page: Page) -> None:
    started(page, server + "live/")
    time = "getComputedStyle(document.querySelector('.guesses i')).transitionDuration"
    assert page.evaluate(time) != "0s"
    page.emulate_media(reduced_motion="reduce")
    assert page.evaluate(time) == "0s"


# Layout depends on the width and colors on the scheme, so two of the four combinations cover both.
@pytest.mark.parametrize(
    ("address", "width", "scheme"),
    [
        ("", 1440, "light"),
        ("live/", 390, "dark"),
        pytest.param("", 390, "dark", marks=pytest.mark.long),
        pytest.param("live/", 1440, "light", marks=pytest.mark.long),
    ],
)
def test_no_fault_for_axe(server: str, browser: Any, address: str, width: int, scheme: str) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    started(page, server + address)
    page.click(".live button:has-text('Mask 15%')")
    field(page, "é" + "list " * 100)
    page.click(".live label:has-text('a word')")
    for at in range(3, 40, 5):
        page.locator(".letter").nth(at).click()
    page.wait_for_selector(".answers[tabindex='0']")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.evaluate("reachable()")
    page.evaluate(AXE.read_text("utf-8"))
    violations = page.evaluate(
        "axe.run({ resultTypes: ['violations'], rules: { 'target-size': { enabled: true } } })"
        ".then(result => result.violations)"
    )
    context.close()
    assert not [
        f"{one['id']}: {one['nodes'][0]['html'][:200]}: {one['nodes'][0]['failureSummary']}"
        for one in violations
    ]
