"""
How long the model on the live page takes: `python -m tests.tools.time_live SITE`, with SITE the built site.

For several lengths, and for a processor at full speed and slowed down four times, it prints the median time
of the forward pass and of everything from a click to the displayed answers. Chromium slows down the page's
thread but not the worker's, so the forward pass is timed on the page's thread as well. The sum of both times
is an upper bound for a slow machine.
"""

import functools
import http.server
import statistics
import sys
import threading
from typing import Any

from playwright.sync_api import sync_playwright

from tests.support.serving import CHROMIUM, FLAGS, Quiet

PASS = """async ([length, times]) => {
  const { BertForMaskedLM, fill_mask } = await import("/docs/live/bert.js");
  const card = await (await fetch("/docs/live/model/model.json")).json();
  const weights = await (await fetch(`/docs/live/model/${card.checkpoints.at(-1).file}`)).arrayBuffer();
  const model = BertForMaskedLM.from_pretrained(card.arms[card.checkpoints.at(-1).arm], weights);
  const ids = Array.from({ length }, (_, i) => (i % 7 ? 20 + (i % 50) : card.mask_id));
  return Array.from({ length: times }, () => {
    const began = performance.now();
    fill_mask(model, ids, card.mask_id);
    return performance.now() - began;
  });
}"""

CLICK = """async (at) => {
  const began = performance.now();
  const letter = document.querySelectorAll(".letter")[at];
  letter.click();
  const hidden = letter.getAttribute("aria-pressed") === "true";
  const tables = document.querySelectorAll(".answers .guesses").length + (hidden ? 1 : -1);
  while (document.querySelectorAll(".answers .guesses").length !== tables) {
    await new Promise((done) => setTimeout(done));
  }
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  return performance.now() - began;
}"""


def measure(page: Any, client: Any, slowdown: int, length: int) -> tuple[float, float, float]:
    """The first pass, the median pass, and the median from click to displayed answers, in milliseconds."""
    client.send("Emulation.setCPUThrottlingRate", {"rate": slowdown})
    first_ms, *passes = page.evaluate(PASS, [length, 9])
    text = ("Return the number of items in the list, or raise an error. " * 3)[:length]
    page.evaluate(
        "text => { const field = document.querySelector('.live textarea'); field.value = text;"
        "field.dispatchEvent(new InputEvent('input')) }",
        text,
    )
    page.wait_for_timeout(500)
    clicks = [page.evaluate(CLICK, at) for at in range(1, 10)]
    return first_ms, statistics.median(passes), statistics.median(clicks)


def main() -> None:
    """Serves the site and prints the times."""
    handler = functools.partial(Quiet, directory=sys.argv[1])
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as http_server,
        sync_playwright() as playwright,
    ):
        threading.Thread(target=http_server.serve_forever, daemon=True).start()
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{http_server.server_port}/live/")
        page.click(".live .start")
        page.wait_for_selector(".live.running .guesses")
        client = page.context.new_cdp_session(page)
        for slowdown in (1, 4):
            for length in (32, 64, 128):
                first_ms, pass_ms, click_ms = measure(page, client, slowdown, length)
                print(
                    f"{length:3} letters, slowed {slowdown} times: first pass {first_ms:.0f} ms, "
                    f"pass {pass_ms:.0f} ms, click to answers {click_ms:.0f} ms, "
                    f"at most {pass_ms + click_ms:.0f} ms"
                )
        browser.close()
        http_server.shutdown()


if __name__ == "__main__":
    main()
