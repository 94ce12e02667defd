// Copying, tooltips, and the keyboard among the line numbers. Every page reads well without it.

const lineNumber = (line) => Number(line.querySelector("[data-n]").dataset.n);

function copy(button) {
  const [first, last] = button.dataset.copy.split("-").map(Number);
  const lines = [...document.querySelectorAll(".code .l")].filter((line) => {
    const n = lineNumber(line);
    return n >= first && n <= last;
  });
  const text = lines.map((line) => line.textContent).join("");
  const label = button.textContent;
  const say = (words) => {
    button.textContent = words;
    setTimeout(() => (button.textContent = label), 1500);
  };
  navigator.clipboard.writeText(text).then(() => say("Copied"), () => say("Not allowed"));
}

// A place inside folded lines is shown when somebody links to it.
function unfold() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const fold = target && target.closest("details");
  if (fold && !fold.open) {
    fold.open = true;
    target.scrollIntoView();
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

// The arrows go from number to number; Tab goes from block to block.
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

// What is too wide for its column scrolls, and then the keyboard must get there too.
function reachable() {
  for (const box of document.querySelectorAll(".katex-display, .wide, .md-typeset__scrollwrap, pre > code")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  }
}

// Material's script, a third of what a page would have to run, is for search and the switch of theme. It
// comes with the first movement. A click on one of its labels that is faster waits for it.
const later = document.getElementById("later");
let clicked;

function wake() {
  if (!later.isConnected) return;
  const script = document.createElement("script");
  script.src = later.dataset.src;
  script.addEventListener("load", () => {
    removeEventListener("click", hold, true);
    if (clicked) clicked.click();
  });
  later.remove();
  document.body.append(script);
}

function hold(event) {
  const label = event.target.closest(".masthead label");
  if (!label) return;
  clicked = label;
  event.preventDefault();
  wake();
}

// So does the key that leads to the search: what is typed next is already in the field.
function lead(event) {
  if (event.key !== "/" || !later.isConnected || event.target.matches("input, textarea")) return;
  document.querySelector("[data-md-component=search-query]").focus();
  event.preventDefault();
}

addEventListener("keydown", lead, true);
for (const kind of ["pointermove", "pointerdown", "keydown", "focusin", "scroll"]) {
  addEventListener(kind, wake, { once: true, passive: true, capture: true });
}
addEventListener("click", hold, true);
// A link from a search result carries words to highlight.
if (/[?&][hq]=/.test(location.search)) wake();

document.body.append(tip);
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (button) copy(button);
  // A link in the contents that stays on this page leaves them open otherwise.
  const contents = event.target.closest("#contents");
  if (contents && event.target.closest("a")) contents.hidePopover();
});
document.addEventListener("pointerover", showTip);
document.addEventListener("focusin", showTip);
document.addEventListener("focusout", hideTip);
document.addEventListener("scroll", hideTip, { passive: true });
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") hideTip();
  walk(event);
});
addEventListener("hashchange", unfold);
addEventListener("load", reachable);
addEventListener("resize", reachable);
// What is folded has no width yet.
addEventListener("toggle", reachable, true);
unfold();
