// Copy buttons, tooltips, keyboard navigation between lines, and search. Every page reads well without this script.

const lineNumber = (line) => Number(line.querySelector("[data-n]").dataset.n);

// The code of a sample, or the lines of the page's source file that the button names.
function codeOf(button) {
  if (!button.dataset.copy) return button.parentElement.querySelector("code").textContent;
  const ranges = button.dataset.copy.split(",").map((range) => range.split("-").map(Number));
  const lines = [...document.querySelectorAll(".code .l")].filter((line) => {
    const n = lineNumber(line);
    return ranges.some(([first, last]) => n >= first && n <= last);
  });
  return lines.map((line) => line.textContent).join("");
}

async function copy(button) {
  const label = (button.dataset.text ??= button.textContent);
  try {
    // Over plain HTTP there is no clipboard.
    await navigator.clipboard.writeText(codeOf(button));
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed";
  }
  setTimeout(() => (button.textContent = label), 1500);
}

for (const sample of document.querySelectorAll("#content .highlight:not(.output)")) {
  const button = document.createElement("button");
  Object.assign(button, { type: "button", className: "copy", textContent: "Copy", ariaLabel: "Copy this code" });
  button.dataset.copy = "";
  sample.prepend(button);
}

// Opens folded lines if the address points into them.
function unfold() {
  let id;
  try {
    id = decodeURIComponent(location.hash.slice(1));
  } catch {
    return; // The address has a "%" that encodes nothing, so it's not one of our links.
  }
  const target = document.getElementById(id);
  const fold = target && target.closest("details");
  if (fold) {
    fold.open = true;
    target.scrollIntoView();
    // On the way there, the browser lays out what it has skipped so far, and the target moves.
    requestAnimationFrame(() => target.scrollIntoView());
  }
}

const tip = document.createElement("div");
tip.id = "tip";
tip.role = "tooltip";
tip.hidden = true;

function showTip(event) {
  const at = event.target.closest && event.target.closest("[data-tip]");
  if (!at) return hideTip();
  tip.textContent = at.dataset.tip;
  tip.hidden = false;
  at.setAttribute("aria-describedby", "tip");
  const box = at.getBoundingClientRect();
  const left = Math.min(box.left, innerWidth - tip.offsetWidth - 12);
  const above = box.top - tip.offsetHeight - 6;
  tip.style.left = `${Math.max(12, left)}px`;
  tip.style.top = `${above > 60 ? above : box.bottom + 6}px`;
}

function hideTip() {
  if (tip.hidden) return;
  tip.hidden = true;
  document.querySelectorAll("[aria-describedby=tip]").forEach((at) => at.removeAttribute("aria-describedby"));
}

// The arrow keys move between line numbers; Tab moves between blocks.
function walk(event) {
  const at = document.activeElement;
  if (!["ArrowUp", "ArrowDown"].includes(event.key) || !at.matches(".l > a[data-n]")) return;
  const next = document.getElementById(`L${Number(at.dataset.n) + (event.key === "ArrowUp" ? -1 : 1)}`);
  if (next) {
    const fold = next.closest("details");
    if (fold) fold.open = true;
    next.focus();
  }
  event.preventDefault();
}

// Elements that are too wide for their column scroll sideways, so they must be reachable by keyboard. Measuring an
// element off-screen makes the browser lay it out, so pause after every few of them, and leave out what is folded:
// opening it calls this function again.
async function reachable(part = document) {
  const boxes = part.querySelectorAll(".katex-display, .wide, .md-typeset__scrollwrap, pre > code");
  for (const [i, box] of boxes.entries()) {
    if (i % 4 === 0) await new Promise((resume) => setTimeout(resume));
    if (box.checkVisibility() && box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  }
}

// Switches between light and dark. The inline script in the page's head reads the stored choice.
const root = document.documentElement;

document.getElementById("scheme").addEventListener("click", () => {
  const now = root.dataset.scheme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  root.dataset.scheme = now === "dark" ? "light" : "dark";
  try {
    localStorage["labml_bert.scheme"] = root.dataset.scheme;
  } catch {
    // The browser stores nothing, so the next page starts with its own scheme.
  }
});

// Marks the search terms on the page of a result. Material can do this too, but it waits for an event that is over
// by the time its script is loaded.
function highlight() {
  const words = new URLSearchParams(location.search).get("h")?.match(/[\p{L}\p{N}_]+/gu);
  if (!words || !CSS.highlights) return;
  const pattern = new RegExp(`(?<![\\p{L}\\p{N}_])(?:${words.join("|")})`, "giu");
  const texts = document.createTreeWalker(document.getElementById("content"), NodeFilter.SHOW_TEXT);
  const found = new Highlight();
  while (texts.nextNode()) {
    for (const { index, 0: word } of texts.currentNode.data.matchAll(pattern)) {
      const range = new Range();
      range.setStart(texts.currentNode, index);
      range.setEnd(texts.currentNode, index + word.length);
      found.add(range);
    }
  }
  CSS.highlights.set("found", found);
}

// Material's script is used only for search, and it loads the search index. Both are loaded when a reader moves to
// the search field, so other readers never download them.
const later = document.getElementById("later");
const search = document.querySelector(".md-search");
const query = search.querySelector("[data-md-component=search-query]");
const toggle = document.getElementById("__search"); // The results are shown while this checkbox is checked.

function wake() {
  if (!later.isConnected) return;
  const script = document.createElement("script");
  script.src = later.dataset.src;
  script.onerror = () => {
    script.remove();
    document.body.append(later);
    search.querySelector(".md-search-result__meta").textContent = "Search couldn't be loaded. Type to try again.";
    toggle.checked = document.activeElement === query;
  };
  later.remove();
  document.body.append(script);
}

// The key / also moves to the search field, before Material's script can handle it.
function lead(event) {
  if (event.key !== "/" || !later.isConnected || event.target.matches("input, textarea")) return;
  query.focus();
  event.preventDefault();
}

addEventListener("keydown", lead, true);
for (const kind of ["pointerenter", "focusin", "input"]) {
  search.addEventListener(kind, wake, { passive: true, capture: true });
}
// Material waits for a key, but a text can also be pasted with the mouse, dropped or dictated.
query.addEventListener("input", () => query.dispatchEvent(new KeyboardEvent("keyup")));
if (/[?&]q=/.test(location.search)) wake();
toggle.addEventListener("change", (event) => {
  wake();
  if (event.target.checked) query.focus();
});

// Material ends each word of a query with a wildcard, so the "a" in "what is a token" would match every word that
// begins with an a. The index contains no stop words, so leave them out of the query, unless nothing else is left.
// Leave out the signs of the query language too: the minus sign in "ignore_index -100" would exclude pages with 100.
// The index splits "BERT's" and "doesn't" into two words each, and the second one would match too much.
const STOP_WORDS = new Set(
  ("a about after all am an and any are as at be between by can could difference do does each else for from get " +
    "happens has have how i i'm if in into is it its like many mean means much my need not of on one or should " +
    "so than that the their them then there they this to use used using versus vs was we what when where which " +
    "who why will with without work works would you your").split(" "),
);
const QUERY = 2; // Material's number for messages with a query
const postMessage = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (message, ...others) {
  if (message?.type === QUERY) {
    const all = message.data.replace(/[‘’]/g, "'").replace(/[‐-―]/g, "-").split(/[\s:~^\\“”„«»‹›]+/).map((word) => word.replace(/^-+|'s$/gi, "")).filter(Boolean);
    const words = all.filter((word) => !STOP_WORDS.has(word.toLowerCase()) && !/n't$/i.test(word));
    message = { ...message, data: words.map((word) => `${word}^10 ${word}`).join(" ") || all.join(" ") };
  }
  return postMessage.call(this, message, ...others);
};

// Search lists each page above its matching sections. If the page itself doesn't match, link to the best section.
new MutationObserver(() => {
  for (const item of search.querySelectorAll(".md-search-result__item")) {
    const [page, section] = item.querySelectorAll("a");
    if (section && page.firstElementChild.dataset.mdScore === "0.00") page.href = section.href;
  }
}).observe(search.querySelector(".md-search-result__list"), { childList: true });

// Escape returns the focus to where it was before the search.
let before;

search.addEventListener("focusin", (event) => {
  if (!search.contains(event.relatedTarget)) before = event.relatedTarget;
});
search.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  setTimeout(() => {
    toggle.checked = false;
    before?.focus();
  });
});

// The bar and the outline name the current section: the last one whose heading has reached the top of the window, or
// the last of all at the end of the page.
const headings = [...document.querySelectorAll("#content > :is(h2, h3)[id]")];
const section = document.getElementById("section");

function follow() {
  const isAtEnd = scrollY > 0 && innerHeight + scrollY > root.scrollHeight - 4;
  const current = isAtEnd
    ? headings.at(-1)
    : headings.findLast((heading) => heading.getBoundingClientRect().top < 120);
  const parts = [...(current?.childNodes ?? [])].filter((node) => node.className !== "headerlink");
  const name = parts.map((node) => node.textContent).join("");
  if (!section || section.textContent === name) return;
  section.textContent = name;
  // The outline has no subsections.
  const parent = headings.slice(0, headings.indexOf(current) + 1).findLast((heading) => heading.matches("h2"));
  for (const link of document.querySelectorAll(".outline a, #sections a")) {
    const heading = link.closest(".outline") ? parent : current;
    if (link.hash === `#${heading?.id}`) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
}

document.body.append(tip);
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (button) copy(button);
  // A link to a section of the same page wouldn't close the panel.
  const panel = event.target.closest(".panel");
  if (panel && event.target.closest("a")) panel.hidePopover();
});
document.addEventListener("pointerover", showTip);
document.addEventListener("focusin", showTip);
document.addEventListener("focusout", hideTip);
document.addEventListener("scroll", () => (hideTip(), follow()), { passive: true });
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") hideTip();
  walk(event);
  // If you press a letter, a comma or a period, Material's script would open the search or another page.
  if (event.key.length === 1 && event.key !== "/" && !search.contains(event.target)) event.stopPropagation();
});
addEventListener("hashchange", unfold);
addEventListener("load", () => reachable());
addEventListener("resize", () => reachable());
// Folded elements have no width until they are opened.
addEventListener("toggle", (event) => reachable(event.target), true);
unfold();
highlight();
