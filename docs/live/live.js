// The sentence, its masked characters, and the predictions for each of them. What else the page of the model shows is
// in `inside.js`. Text of the reader enters the page as text, never as markup.

// Characters between brackets are masked.
const SAMPLES = [
  "Return a copy of the [l]ist.",
  "If the key is not fo[u]nd, raise an e[rr]or.",
  "This method [is] called when the object is c[re]ated.",
  "To be, or n[o]t to be, that is the que[s]tion.",
  "def __init__(self, na[m]e):",
];
const SHOWN = 5;
const SPOKEN = {
  " ": "space", "\n": "line break", "\t": "tab", ".": "period", ",": "comma", ";": "semicolon", ":": "colon",
  "!": "exclamation mark", "?": "question mark", "'": "apostrophe", '"': "quotation mark", "`": "backtick",
  "-": "hyphen", _: "underscore", "(": "opening parenthesis", ")": "closing parenthesis", "[": "opening bracket",
  "]": "closing bracket", "{": "opening brace", "}": "closing brace", "<": "less than", ">": "greater than",
  "=": "equals", "+": "plus", "*": "asterisk", "/": "slash", "\\": "backslash", "|": "vertical bar", "#": "hash",
  "@": "at sign", "&": "ampersand", "%": "percent sign", $: "dollar sign", "^": "caret", "~": "tilde",
};

// The name of a character that is invisible or easily skipped by a screen reader. A character of a right-to-left
// script is isolated, so that it doesn't turn the rest of the line around.
export function spoken(character) {
  if (SPOKEN[character]) return SPOKEN[character];
  if (/[\p{C}\p{Z}\p{M}]/u.test(character)) return `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
  if (/\p{Lu}/u.test(character)) return `capital ${character}`;
  return /[\u0590-\u08ff\ufb1d-\ufefc]/.test(character) ? `\u2068${character}\u2069` : character;
}

export const percent = (fraction) => `${(100 * fraction).toFixed(fraction < 0.0995 ? 1 : 0)}%`;

// A visible stand-in for a character, if it has no shape of its own.
export function visible(character) {
  if (character === " ") return "·";
  if (character === "\n") return "↵";
  if (/\p{M}/u.test(character)) return `◌${character}`;
  return /[\p{C}\p{Z}]/u.test(character) ? "▯" : character;
}

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

// A row of options of which one is chosen: radio buttons, so the arrow keys go through them.
export function choice(legend, name, options, chosen, change) {
  const labels = options.map(([value, ...words]) => {
    const input = make("input", { type: "radio", name, value, checked: value === chosen });
    input.addEventListener("change", () => change(value));
    return make("label", {}, input, make("span", {}, ...words));
  });
  return make("fieldset", { className: "choice" }, make("legend", {}, legend), ...labels);
}

// The worker behind a method that returns a promise. It lives as long as the page.
class Model {
  constructor() {
    this.waiting = new Map();
    this.worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
    this.worker.onmessage = ({ data: { number, result, error, canceled, done, total } }) => {
      const { resolve, reject, onProgress } = this.waiting.get(number);
      if (done !== undefined) return onProgress?.(done, total);
      this.waiting.delete(number);
      if (error === undefined) resolve(result);
      else reject(Object.assign(new Error(error), { canceled }));
    };
    this.worker.onerror = (event) => {
      event.preventDefault();
      for (const { reject } of this.waiting.values()) reject(new Error("The model's script couldn't be loaded, or doesn't run in this browser. Try again."));
      this.waiting.clear();
    };
    this.count = 0;
  }

  call(task, more, onProgress) {
    return new Promise((resolve, reject) => {
      this.waiting.set(++this.count, { resolve, reject, onProgress });
      this.worker.postMessage({ number: this.count, task, ...more });
    });
  }
}

// How much of a download has arrived, with a button that cancels it.
export function progress(what, cancel) {
  const bar = make("progress", { max: 1 });
  const words = make("span", { className: "words" });
  const stop = make("button", { type: "button" }, "Cancel");
  stop.addEventListener("click", cancel);
  const megabytes = (bytes) => (bytes / 1e6).toFixed(2);
  const shown = {
    stop,
    element: make("div", { className: "arriving" }, bar, words, stop),
    begin(next) {
      what = next;
      bar.value = 0;
      bar.ariaLabel = words.textContent = what;
    },
    tell(done, total) {
      bar.value = done / total;
      words.textContent = `${what}: ${megabytes(done)} of ${megabytes(total)} MB`;
    },
  };
  shown.begin(what);
  return shown;
}

// Called by `start.js`. If the reader `pressed` the button, the focus follows to what replaces it.
export async function open(root, pressed) {
  const button = root.querySelector(".start");
  const status = root.querySelector(".said");
  let model;
  let arriving;
  try {
    if (!globalThis.Worker) throw new Error("This browser has no web workers, and the model needs one.");
    if (!globalThis.ReadableStream) throw new Error("This browser can't read a download as it arrives, and the page needs that.");
    model = new Model();
    let canceled = false;
    arriving = progress("Downloading the model", () => {
      canceled = true;
      model.call("cancel");
    });
    // Between two downloads, there is nothing to abort.
    const throwIfCanceled = () => {
      if (canceled) throw Object.assign(new Error(), { canceled });
    };
    status.textContent = "";
    button.hidden = true;
    button.after(arriving.element);
    if (pressed) arriving.stop.focus();
    const metadata = await model.call("metadata");
    throwIfCanceled();
    const last = metadata.checkpoints.at(-1);
    await model.call("fetch", { file: last.file }, arriving.tell);
    throwIfCanceled();
    const page = new Live(root, model, metadata, last);
    if (root.dataset.kind === "page") {
      const { Inside } = await import("./inside.js").catch(() => {
        throw new Error("A script of this page couldn't be loaded. Reload the page to try again.");
      });
      page.inside = new Inside(page);
    }
    page.mount();
    if (pressed) page.letters.querySelector("[tabindex='0']")?.focus({ preventScroll: true });
  } catch (error) {
    model?.worker.terminate();
    const focused = arriving?.element.contains(document.activeElement);
    arriving?.element.remove();
    button.hidden = button.disabled = false;
    if (focused) button.focus();
    status.textContent = error.canceled ? "Canceled. Nothing was kept." : error.message;
  }
}

export class Live {
  constructor(root, model, metadata, checkpoint) {
    Object.assign(this, { root, model, metadata, checkpoint });
    this.ids = new Map(metadata.tokens.map((token, id) => [token, id]));
    // Special tokens have names in brackets and are never shown as a prediction.
    this.special = new Set([...metadata.tokens.keys()].filter((id) => /^\[\w+\]$/.test(metadata.tokens[id])));
    this.frame = metadata.cls_id === null ? [[], []] : [[metadata.cls_id], [metadata.sep_id]];
    // All arms have the same tokens and the same numbers of positions, layers and heads.
    this.config = metadata.arms[checkpoint.arm].config;
    this.limit = this.config.max_position_embeddings - this.frame.flat().length;
    this.masked = new Set();
    this.characters = [];
    this.wholeWords = false;
    this.pinned = 0;
    this.build();
  }

  build() {
    this.letters = make("div", {
      className: "letters", role: "group",
      "aria-label": "The characters of the sentence. A pressed character is masked.",
    });
    this.letters.addEventListener("click", (event) => this.press(event.target.closest("button")));
    this.letters.addEventListener("keydown", (event) => this.moveFocus(event));
    this.letters.addEventListener("focusin", (event) => this.pin(Number(event.target.dataset.at)));
    // A resting mouse is over another character whenever the characters move, but only a reader moves the mouse.
    this.letters.addEventListener("pointermove", (event) => {
      const at = event.target.closest("button")?.dataset.at;
      const seen = at === undefined ? null : [Number(at)];
      if (event.pointerType === "mouse" && String(seen) !== String(this.inside?.seen)) this.inside?.look(seen);
    });
    this.letters.addEventListener("pointerleave", () => this.inside?.look(null));
    this.field = make("textarea", { rows: 2, dir: "auto", spellcheck: false, autocomplete: "off", autocapitalize: "off" });
    this.field.addEventListener("input", (event) => event.isComposing || this.type(this.field.value));
    this.field.addEventListener("compositionend", () => this.type(this.field.value));
    this.pick = make("select", { name: "sentence" }, ...SAMPLES.map((sample) => make("option", {}, sample.replaceAll(/[[\]]/g, ""))));
    // Selected while the text is the reader's own.
    this.pick.append(make("option", { hidden: true, disabled: true }, "your own"));
    this.pick.addEventListener("change", () => this.sample(SAMPLES[this.pick.selectedIndex]));
    const clear = make("button", { type: "button" }, "Unmask all");
    clear.addEventListener("click", () => this.setMasked([]));
    const some = make("button", { type: "button" }, "Mask 15%");
    some.addEventListener("click", () => {
      // As in pretraining, each character is chosen with a probability of 15%. At least one is masked.
      const all = [...this.characters.keys()];
      const drawn = all.filter(() => Math.random() < 0.15);
      this.setMasked(drawn.length ? drawn : all.splice(Math.floor(Math.random() * all.length), 1));
    });
    this.note = make("p", { className: "note", role: "status" });
    this.answers = make("div", { className: "answers", role: "group", "aria-label": "Predictions" });
    this.summary = make("p", { className: "summary" });
    this.announcement = make("p", { className: "sr", role: "status" });
    this.controls = make(
      "div", { className: "controls" },
      choice("A click masks", "masks", [["character", "a character"], ["word", "a word"]], "character", (value) => {
        this.wholeWords = value === "word";
      }),
      make("div", { className: "buttons" }, some, clear),
    );
    this.text = make(
      "div", { className: "texts" },
      make("label", {}, make("span", {}, "Pick a sentence"), this.pick),
      make("label", {}, make("span", {}, "or type your own"), this.field),
    );
  }

  mount() {
    this.root.classList.add("running");
    const predictions = make("div", { className: "told" }, this.summary, this.answers, this.announcement);
    this.root.replaceChildren(
      ...(this.inside
        ? [this.letters, this.controls, this.text, this.note, predictions, ...this.inside.elements]
        : [this.letters, predictions, this.controls, this.text, this.note, ...this.root.querySelectorAll(".more")]),
    );
    this.sample(SAMPLES[0]);
    addEventListener("resize", () => this.updateSticky());
  }

  sample(sample) {
    this.masked.clear();
    const plain = [];
    let masking = false;
    for (const character of sample) {
      if (character === "[" || character === "]") masking = character === "[";
      else if (plain.push(character) && masking) this.masked.add(plain.length - 1);
    }
    this.field.value = this.typed = plain.join("");
    this.characters = plain.slice(0, this.limit);
    this.masked = new Set([...this.masked].filter((at) => at < this.limit));
    this.pinned = Math.min(...this.masked, this.limit - 1);
    this.layOut(plain.length > this.limit);
  }

  // Takes the text of the field. Masked characters before and after an edit stay masked. The field keeps what is cut:
  // changing its text from here would clear what the reader can undo.
  type(text) {
    const old = this.typed;
    const shorter = Math.min(old.length, text.length);
    let same = 0;
    while (same < shorter && old[same] === text[same]) same++;
    // Don't compare half a character: some take two units of a string.
    if (/[\ud800-\udbff]/.test(old[same - 1] ?? "")) same--;
    let tail = 0;
    while (tail < shorter - same && old.at(-1 - tail) === text.at(-1 - tail)) tail++;
    if (tail && /[\udc00-\udfff]/.test(old.at(-tail))) tail--;
    const count = (part) => [...part].length;
    const start = count(old.slice(0, Math.min(same, 2 * this.limit)));
    const end = start + count(old.slice(same, old.length - tail));
    const moved = start + count(text.slice(same, text.length - tail)) - end;
    const now = [];
    let cut = false;
    for (const character of text) {
      if (now.length === this.limit) {
        cut = true;
        break;
      }
      now.push(character);
    }
    this.pick.selectedIndex = SAMPLES.length;
    const kept = [...this.masked].filter((at) => at < start || at >= end);
    const positions = kept.map((at) => (at < start ? at : at + moved));
    this.masked = new Set(positions.filter((at) => at < now.length));
    this.characters = now;
    this.typed = text;
    this.pinned = Math.min(this.pinned, Math.max(0, now.length - 1));
    this.layOut(cut);
  }

  // Draws one button for each character. Lines break between words.
  layOut(cut = false) {
    const unknown = new Set(this.characters.filter((character) => !this.ids.has(character)));
    const words = [];
    this.buttons = this.characters.map((character, at) => {
      const button = make("button", { type: "button", className: "letter", tabIndex: -1, "data-at": at });
      button.classList.toggle("unknown", unknown.has(character));
      if (!words.length || /\s/.test(this.characters[at - 1])) words.push(make("span", { className: "word" }));
      words.at(-1).append(button);
      return button;
    });
    this.letters.replaceChildren(...words);
    // Hebrew, Arabic and their neighbors. The first letter of the text decides.
    const first = this.characters.find((character) => /\p{L}/u.test(character)) ?? "";
    this.letters.dir = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]/.test(first) ? "rtl" : "ltr";
    this.updateSticky();
    const notes = [];
    if (cut) notes.push(`Only the first ${this.limit} characters count: the model has no more positions.`);
    if (!this.characters.length) notes.push("There is no text. Type something or pick a sentence.");
    if (unknown.size) {
      const name = (character) => (visible(character) === "▯" ? spoken(character) : visible(character));
      const some = [...unknown].slice(0, 6).map(name).join(" ");
      const others = unknown.size > 6 ? ` and ${unknown.size - 6} more` : "";
      notes.push(`The vocabulary has no ${some}${others}. The model reads [UNK] instead.`);
    }
    this.note.textContent = notes.join(" ");
    this.answer = null;
    this.mark();
    this.predict();
  }

  // Keeps the sentence in view beside its maps, if that leaves enough room for them.
  updateSticky() {
    this.letters.classList.toggle("stays", this.letters.offsetHeight < innerHeight / 4);
  }

  press(button) {
    if (!button) return;
    const at = Number(button.dataset.at);
    this.pinned = at;
    let positions = [at];
    if (this.wholeWords) {
      const ends = (step) => {
        let end = at;
        while (this.inWord(end + step) && this.inWord(at)) end += step;
        return end;
      };
      positions = Array.from({ length: ends(1) - ends(-1) + 1 }, (_, i) => ends(-1) + i);
    }
    const isMasked = this.masked.has(at);
    const others = [...this.masked].filter((position) => !positions.includes(position));
    this.setMasked(isMasked ? others : [...others, ...positions]);
  }

  inWord(at) {
    return /[\p{L}\p{M}\p{N}'’]/u.test(this.characters[at] ?? "");
  }

  setMasked(positions) {
    this.masked = new Set(positions);
    this.mark();
    this.predict();
  }

  // The arrow keys move the focus by a character or a line. Tab skips the whole sentence.
  moveFocus(event) {
    const at = this.buttons.indexOf(event.target);
    const middle = (button) => {
      const box = button.getBoundingClientRect();
      return [box.left + box.width / 2, box.top];
    };
    const line = (step) => {
      const [x, y] = middle(event.target);
      const beyond = this.buttons.filter((one) => step * (middle(one)[1] - y) > 1);
      const next = Math.min(...beyond.map((one) => step * middle(one)[1]));
      const there = beyond.filter((one) => step * middle(one)[1] - next < 1);
      return there.sort((a, b) => Math.abs(middle(a)[0] - x) - Math.abs(middle(b)[0] - x))[0];
    };
    const right = this.letters.dir === "rtl" ? -1 : 1;
    const to = {
      ArrowLeft: () => this.buttons[at - right],
      ArrowRight: () => this.buttons[at + right],
      ArrowUp: () => line(-1),
      ArrowDown: () => line(1),
      Home: () => this.buttons[0],
      End: () => this.buttons.at(-1),
    }[event.key];
    if (!to || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    // With Shift the query stays and the key moves.
    if (event.shiftKey && this.inside) {
      const next = (this.inside.seen?.[1] ?? at) + { ArrowLeft: -right, ArrowRight: right }[event.key];
      if (!this.buttons[next]) return;
      this.inside.look([at, next]);
      this.announce(this.inside.reading.textContent);
      return;
    }
    to()?.focus();
  }

  pin(at) {
    this.pinned = at;
    this.buttons.forEach((button, i) => (button.tabIndex = i === at ? 0 : -1));
    this.inside?.look(null);
  }

  // Updates the text and the label of each button.
  mark() {
    this.buttons.forEach((button, at) => {
      const masked = this.masked.has(at);
      const best = masked && this.best(at, 1)[0];
      const character = this.characters[at];
      button.textContent = masked ? (best ? visible(best.token) : "") : visible(character);
      button.classList.toggle("blank", character === " " && !masked);
      button.setAttribute("aria-pressed", masked);
      const known = this.ids.has(character) ? "" : ", not in the vocabulary";
      button.setAttribute("aria-label", `${at + 1}, ${spoken(character)}${known}`);
      button.tabIndex = at === this.pinned ? 0 : -1;
    });
  }

  // Only the newest text matters. While the model is busy, at most one further request waits.
  async predict() {
    if (!this.characters.length) {
      this.inside?.draw();
      return this.showPredictions();
    }
    this.again = this.busy;
    if (this.busy) return;
    this.busy = true;
    const characters = this.characters;
    const { mask_id, unk_id } = this.metadata;
    const text = characters.map((character, at) => (this.masked.has(at) ? mask_id : this.ids.get(character) ?? unk_id));
    const input_ids = [...this.frame[0], ...text, ...this.frame[1]];
    try {
      const answer = await this.model.call("predict", { file: this.checkpoint.file, input_ids });
      if (!this.again && characters === this.characters) this.answer = { ...answer, length: input_ids.length };
    } catch (error) {
      this.note.textContent = error.message;
    }
    this.busy = false;
    if (this.again) return this.predict();
    this.mark();
    this.showPredictions();
    this.inside?.draw();
  }

  // The tokens for a masked position, the most probable first, with their rank.
  best(at, count) {
    const p = this.answer?.positions.indexOf(at + this.frame[0].length) ?? -1;
    if (p < 0) return [];
    this.answer.ranked ??= [];
    this.answer.ranked[p] ??= this.ranked(p);
    return this.answer.ranked[p].slice(0, count);
  }

  ranked(p) {
    const V = this.config.vocab_size;
    const row = this.answer.probabilities.subarray(p * V, (p + 1) * V);
    const order = [...row.keys()].filter((id) => !this.special.has(id)).sort((a, b) => row[b] - row[a]);
    return order.map((id, i) => ({ token: this.metadata.tokens[id], probability: row[id], rank: i + 1 }));
  }

  // A table for each masked character. The character that was there is marked, whatever its rank.
  showPredictions() {
    const positions = [...this.masked].sort((a, b) => a - b);
    this.answers.replaceChildren(...positions.map((at) => this.table(at)));
    // If it scrolls, it must be reachable by keyboard.
    this.answers.tabIndex = this.answers.scrollHeight > this.answers.clientHeight ? 0 : -1;
    const right = positions.filter((at) => this.best(at, 1)[0]?.token === this.characters[at]).length;
    const time = this.answer ? ` It took ${Math.max(1, Math.round(this.answer.milliseconds))} ms, in your browser.` : "";
    this.summary.textContent = !this.characters.length
      ? ""
      : positions.length
        ? `Predicted correctly (✓): ${right} of ${positions.length}.${time}`
        : "Nothing is masked. Click a character to mask it.";
    const sentences = positions.slice(0, 3).map((at) => {
      const guesses = this.best(at, 3).map(({ token, probability }) => `${spoken(token)} ${percent(probability)}`);
      return `Character ${at + 1}, ${spoken(this.characters[at])}: ${guesses.join(", ")}.`;
    });
    this.announce(`${this.summary.textContent} ${sentences.join(" ")}`);
  }

  // Tells a screen reader, half a second after the last change.
  announce(words) {
    clearTimeout(this.later);
    this.later = setTimeout(() => (this.announcement.textContent = words), 500);
  }

  table(at) {
    const all = this.best(at, Infinity);
    const truth = this.characters[at];
    const rows = all.slice(0, SHOWN);
    const later = all.find(({ token }) => token === truth);
    if (later && later.rank > SHOWN) rows.push(later);
    // The caption shows the masked character in its context.
    const around = (from, to) => this.characters.slice(Math.max(0, from), to).map((character, i) => {
      return this.masked.has(Math.max(0, from) + i) ? "▁" : visible(character);
    }).join("");
    const caption = make(
      "caption", {}, make("span", { className: "sr" }, `Character ${at + 1}: `),
      around(at - 4, at), make("mark", {}, "▁"), around(at + 1, at + 5),
    );
    const body = rows.map(({ token, probability, rank }) => {
      const bar = make("i");
      bar.style.width = percent(probability);
      const name = make("th", { scope: "row" }, make("span", { "aria-hidden": true }, visible(token)));
      name.append(make("span", { className: "sr" }, spoken(token)));
      if (token === truth) name.append(make("b", { title: "the masked character", "aria-hidden": true }, "✓"), make("span", { className: "sr" }, ", the masked character"));
      const row = make("tr", {}, name, make("td", {}, bar), make("td", {}, percent(probability)));
      if (rank > SHOWN) row.className = "late";
      return row;
    });
    return make("table", { className: "guesses" }, caption, make("tbody", {}, ...body));
  }
}
