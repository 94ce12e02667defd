// The sentence, its hidden letters, and the answers at each of them. What the page of the model has beyond this
// stands in `inside.js`. Text of the reader is put into the page as text and never as markup.

// Letters between brackets are hidden.
const SAMPLES = [
  "Return a copy of the [l]ist.",
  "If the key is not fo[u]nd, raise an e[rr]or.",
  "This method [is] called when the object is c[re]ated.",
  "To be, or n[o]t to be, that is the que[s]tion.",
  "def __init__(self, na[m]e):",
];
const SHOWN = 5;
const SPOKEN = {
  " ": "blank", "\n": "line end", "\t": "tab", ".": "full stop", ",": "comma", ";": "semicolon", ":": "colon",
  "!": "exclamation mark", "?": "question mark", "'": "apostrophe", '"': "quotation mark", "`": "backtick",
  "-": "hyphen", _: "underscore", "(": "opening bracket", ")": "closing bracket", "[": "opening square bracket",
  "]": "closing square bracket", "{": "opening brace", "}": "closing brace", "<": "less than", ">": "greater than",
  "=": "equals", "+": "plus", "*": "asterisk", "/": "slash", "\\": "backslash", "|": "vertical bar", "#": "hash",
  "@": "at sign", "&": "ampersand", "%": "percent sign", $: "dollar sign", "^": "caret", "~": "tilde",
};

// A character in words, where it cannot be seen or is likely to be passed over. What would turn the writing of
// the line around is kept to itself.
export function spoken(character) {
  if (SPOKEN[character]) return SPOKEN[character];
  if (/[\p{C}\p{Z}\p{M}]/u.test(character)) return `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
  if (/\p{Lu}/u.test(character)) return `capital ${character}`;
  return /[\u0590-\u08ff\ufb1d-\ufefc]/.test(character) ? `\u2068${character}\u2069` : character;
}

export const percent = (share) => `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)}%`;

// A character as it can be seen, if it can be.
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

// A row of choices of which one holds: radio buttons, so that the arrow keys go through them.
export function choice(legend, name, options, chosen, change) {
  const labels = options.map(([value, ...words]) => {
    const input = make("input", { type: "radio", name, value, checked: value === chosen });
    input.addEventListener("change", () => change(value));
    return make("label", {}, input, make("span", {}, ...words));
  });
  return make("fieldset", { className: "choice" }, make("legend", {}, legend), ...labels);
}

// The worker, as a function that returns a promise. It ends when the page does.
class Model {
  constructor() {
    this.waiting = new Map();
    this.worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
    this.worker.onmessage = ({ data: { number, answer, error, cancelled, done, total } }) => {
      const { resolve, reject, tell } = this.waiting.get(number);
      if (done !== undefined) return tell?.(done, total);
      this.waiting.delete(number);
      if (error === undefined) resolve(answer);
      else reject(Object.assign(new Error(error), { cancelled }));
    };
    this.worker.onerror = (event) => {
      event.preventDefault();
      for (const { reject } of this.waiting.values()) reject(new Error("The script of the model did not run here."));
      this.waiting.clear();
    };
    this.count = 0;
  }

  call(task, more, tell) {
    return new Promise((resolve, reject) => {
      this.waiting.set(++this.count, { resolve, reject, tell });
      this.worker.postMessage({ number: this.count, task, ...more });
    });
  }
}

// How much has arrived, with a button that ends it.
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

// Called by `start.js`. `asked` says that the reader pressed the button, and so where the focus belongs.
export async function open(place, asked) {
  const button = place.querySelector(".start");
  const said = place.querySelector(".said");
  let model;
  let arriving;
  try {
    if (!globalThis.Worker) throw new Error("This browser has no workers, and the model needs one.");
    if (!globalThis.ReadableStream) throw new Error("This browser cannot read a file as it arrives.");
    model = new Model();
    arriving = progress("Fetching the model", () => model.call("cancel"));
    said.textContent = "";
    button.hidden = true;
    button.after(arriving.element);
    if (asked) arriving.stop.focus();
    const card = await model.call("card");
    const last = card.checkpoints.at(-1);
    await model.call("fetch", { file: last.file }, arriving.tell);
    const page = new Live(place, model, card, last);
    if (place.dataset.kind === "page") {
      const { Inside } = await import("./inside.js").catch(() => {
        throw new Error("A script of this page did not arrive. Reload the page to try again.");
      });
      page.inside = new Inside(page);
    }
    page.mount();
    if (asked) page.letters.querySelector("[tabindex='0']")?.focus({ preventScroll: true });
  } catch (error) {
    model?.worker.terminate();
    const focused = arriving?.element.contains(document.activeElement);
    arriving?.element.remove();
    button.hidden = button.disabled = false;
    if (focused) button.focus();
    said.textContent = error.cancelled ? "Cancelled; nothing was kept." : error.message;
  }
}

export class Live {
  constructor(place, model, card, checkpoint) {
    Object.assign(this, { place, model, card, checkpoint });
    this.ids = new Map(card.tokens.map((token, id) => [token, id]));
    // What stands in brackets is no answer.
    this.special = new Set([...card.tokens.keys()].filter((id) => /^\[\w+\]$/.test(card.tokens[id])));
    this.frame = card.cls_id === null ? [[], []] : [[card.cls_id], [card.sep_id]];
    this.limit = card.config.max_position_embeddings - this.frame.flat().length;
    this.hidden = new Set();
    this.characters = [];
    this.words = false;
    this.pinned = 0;
    this.build();
  }

  build() {
    this.letters = make("div", {
      className: "letters", role: "group",
      "aria-label": "The letters of the sentence. A pressed letter is hidden from the model.",
    });
    this.letters.addEventListener("click", (event) => this.press(event.target.closest("button")));
    this.letters.addEventListener("keydown", (event) => this.walk(event));
    this.letters.addEventListener("focusin", (event) => this.pin(Number(event.target.dataset.at)));
    this.letters.addEventListener("pointerover", (event) => {
      const at = event.target.closest("button")?.dataset.at;
      if (event.pointerType === "mouse") this.inside?.look(at === undefined ? null : [Number(at)]);
    });
    this.letters.addEventListener("pointerleave", () => this.inside?.look(null));
    this.field = make("textarea", { rows: 2, spellcheck: false, autocomplete: "off", autocapitalize: "off" });
    this.field.addEventListener("input", (event) => event.isComposing || this.type(this.field.value));
    this.field.addEventListener("compositionend", () => this.type(this.field.value));
    this.pick = make("select", { name: "sentence" }, ...SAMPLES.map((sample) => make("option", {}, sample.replaceAll(/[[\]]/g, ""))));
    // What the list says while there is a text of the reader's own.
    this.pick.append(make("option", { hidden: true }, "your own"));
    this.pick.addEventListener("change", () => this.sample(SAMPLES[this.pick.selectedIndex]));
    const clear = make("button", { type: "button" }, "Show all");
    clear.addEventListener("click", () => this.hide([]));
    const some = make("button", { type: "button" }, "Hide some");
    some.addEventListener("click", () => {
      // As in the paper: each letter draws a number, and 15% are chosen. Of a short text one is, at least.
      const all = [...this.characters.keys()];
      const drawn = all.filter(() => Math.random() < 0.15);
      this.hide(drawn.length ? drawn : all.splice(Math.floor(Math.random() * all.length), 1));
    });
    this.note = make("p", { className: "note", role: "status" });
    this.answers = make("div", { className: "answers", role: "group", "aria-label": "Answers" });
    this.summary = make("p", { className: "summary" });
    this.heard = make("p", { className: "sr", role: "status" });
    this.controls = make(
      "div", { className: "controls" },
      choice("Click hides", "hides", [["letter", "a letter"], ["word", "a word"]], "letter", (value) => {
        this.words = value === "word";
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
    this.place.classList.add("running");
    const told = make("div", { className: "told" }, this.summary, this.answers, this.heard);
    this.place.replaceChildren(
      ...(this.inside
        ? [this.letters, this.controls, this.text, this.note, told, ...this.inside.elements]
        : [this.letters, told, this.controls, this.text, this.note, ...this.place.querySelectorAll(".more")]),
    );
    this.sample(SAMPLES[0]);
    addEventListener("resize", () => this.stay());
  }

  sample(sample) {
    this.hidden.clear();
    const plain = [];
    let hiding = false;
    for (const character of sample) {
      if (character === "[" || character === "]") hiding = character === "[";
      else if (plain.push(character) && hiding) this.hidden.add(plain.length - 1);
    }
    this.field.value = plain.join("");
    this.characters = plain;
    this.pinned = Math.min(...this.hidden);
    this.lay();
  }

  // The text of the field. What is hidden stays hidden in front of an edit and behind it.
  type(text) {
    const before = this.characters;
    const now = [];
    let cut = false;
    for (const character of text) {
      if (now.length === this.limit) {
        cut = true;
        break;
      }
      now.push(character);
    }
    if (cut) {
      const caret = this.field.selectionStart;
      this.field.value = now.join("");
      this.field.setSelectionRange(caret, caret);
    }
    this.pick.selectedIndex = SAMPLES.length;
    let same = 0;
    while (same < Math.min(before.length, now.length) && before[same] === now[same]) same++;
    let tail = 0;
    const shorter = Math.min(before.length, now.length) - same;
    while (tail < shorter && before.at(-1 - tail) === now.at(-1 - tail)) tail++;
    const moved = now.length - before.length;
    const kept = [...this.hidden].filter((at) => at < same || at >= before.length - tail);
    this.hidden = new Set(kept.map((at) => (at < same ? at : at + moved)));
    this.characters = now;
    this.pinned = Math.min(this.pinned, Math.max(0, now.length - 1));
    this.lay(cut);
  }

  // The letters anew, one button each. A line breaks between words.
  lay(cut = false) {
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
    this.stay();
    const notes = [];
    if (cut) notes.push(`Cut to the first ${this.limit} characters: the model has no more positions.`);
    if (!this.characters.length) notes.push("There is no text. Type a letter or pick a sentence.");
    if (unknown.size) {
      const some = [...unknown].slice(0, 6).map(visible).join(" ");
      const others = unknown.size > 6 ? ` and ${unknown.size - 6} more` : "";
      notes.push(`The model has never seen ${some}${others}. It reads [UNK] there.`);
    }
    this.note.textContent = notes.join(" ");
    this.answer = null;
    this.mark();
    this.ask();
  }

  // The sentence stays in view beside its maps, if it leaves room for them.
  stay() {
    this.letters.classList.toggle("stays", this.letters.offsetHeight < innerHeight / 4);
  }

  press(button) {
    if (!button) return;
    const at = Number(button.dataset.at);
    this.pinned = at;
    let places = [at];
    if (this.words) {
      const ends = (step) => {
        let end = at;
        while (this.inWord(end + step) && this.inWord(at)) end += step;
        return end;
      };
      places = Array.from({ length: ends(1) - ends(-1) + 1 }, (_, i) => ends(-1) + i);
    }
    const hide = !this.hidden.has(at);
    const others = [...this.hidden].filter((place) => !places.includes(place));
    this.hide(hide ? [...others, ...places] : others);
  }

  inWord(at) {
    return /[\p{L}\p{M}\p{N}'’]/u.test(this.characters[at] ?? "");
  }

  hide(places) {
    this.hidden = new Set(places);
    this.mark();
    this.ask();
  }

  // The arrows go from letter to letter and from line to line; Tab goes past all of them.
  walk(event) {
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
    const to = {
      ArrowLeft: () => this.buttons[at - 1],
      ArrowRight: () => this.buttons[at + 1],
      ArrowUp: () => line(-1),
      ArrowDown: () => line(1),
      Home: () => this.buttons[0],
      End: () => this.buttons.at(-1),
    }[event.key];
    if (!to || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    // With Shift the letter that looks stays, and the one that it looks at moves.
    if (event.shiftKey && this.inside) {
      const next = (this.inside.seen?.[1] ?? at) + { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!this.buttons[next]) return;
      this.inside.look([at, next]);
      this.say(this.inside.reading.textContent);
      return;
    }
    to()?.focus();
  }

  pin(at) {
    this.pinned = at;
    this.buttons.forEach((button, i) => (button.tabIndex = i === at ? 0 : -1));
    this.inside?.look(null);
  }

  // What each letter shows and says of itself.
  mark() {
    this.buttons.forEach((button, at) => {
      const hidden = this.hidden.has(at);
      const best = hidden && this.best(at, 1)[0];
      const character = this.characters[at];
      button.textContent = hidden ? (best ? visible(best.token) : "") : visible(character);
      button.classList.toggle("blank", character === " " && !hidden);
      button.setAttribute("aria-pressed", hidden);
      const known = this.ids.has(character) ? "" : ", unknown to the model";
      button.setAttribute("aria-label", `${at + 1}, ${spoken(character)}${known}`);
      button.tabIndex = at === this.pinned ? 0 : -1;
    });
  }

  // Only the newest question matters: while one is answered, later ones wait as one.
  async ask() {
    if (!this.characters.length) {
      this.inside?.draw();
      return this.tell();
    }
    this.again = this.busy;
    if (this.busy) return;
    this.busy = true;
    const asked = this.characters;
    const { mask_id, unk_id } = this.card;
    const text = asked.map((character, at) => (this.hidden.has(at) ? mask_id : this.ids.get(character) ?? unk_id));
    const input_ids = [...this.frame[0], ...text, ...this.frame[1]];
    try {
      const answer = await this.model.call("ask", { file: this.checkpoint.file, input_ids });
      if (!this.again && asked === this.characters) this.answer = { ...answer, length: input_ids.length };
    } catch (error) {
      this.note.textContent = error.message;
    }
    this.busy = false;
    if (this.again) return this.ask();
    this.mark();
    this.tell();
    this.inside?.draw();
  }

  // The tokens at a place, the most probable first, with their rank.
  best(at, count) {
    const p = this.answer?.places.indexOf(at + this.frame[0].length) ?? -1;
    if (p < 0) return [];
    this.answer.ranked ??= [];
    this.answer.ranked[p] ??= this.ranked(p);
    return this.answer.ranked[p].slice(0, count);
  }

  ranked(p) {
    const V = this.card.config.vocab_size;
    const row = this.answer.probabilities.subarray(p * V, (p + 1) * V);
    const order = [...row.keys()].filter((id) => !this.special.has(id)).sort((a, b) => row[b] - row[a]);
    return order.map((id, i) => ({ token: this.card.tokens[id], share: row[id], rank: i + 1 }));
  }

  // A table for each hidden letter. The letter that was there is marked wherever it ranks.
  tell() {
    const places = [...this.hidden].sort((a, b) => a - b);
    this.answers.replaceChildren(...places.map((at) => this.table(at)));
    // Where it scrolls, the keyboard must get there.
    this.answers.tabIndex = this.answers.scrollHeight > this.answers.clientHeight ? 0 : -1;
    const right = places.filter((at) => this.best(at, 1)[0]?.token === this.characters[at]).length;
    const time = this.answer ? ` Answered in ${Math.max(1, Math.round(this.answer.milliseconds))} ms, here in the page.` : "";
    this.summary.textContent = !this.characters.length
      ? ""
      : places.length
        ? `${right} of ${places.length} hidden ${places.length === 1 ? "letter" : "letters"} guessed right (✓).${time}`
        : "Nothing is hidden. Click a letter to hide it from the model.";
    const said = places.slice(0, 3).map((at) => {
      const guesses = this.best(at, 3).map(({ token, share }) => `${spoken(token)} ${percent(share)}`);
      return `Letter ${at + 1}, ${spoken(this.characters[at])}: ${guesses.join(", ")}.`;
    });
    this.say(`${this.summary.textContent} ${said.join(" ")}`);
  }

  // To a screen reader, once the hands are still.
  say(words) {
    clearTimeout(this.later);
    this.later = setTimeout(() => (this.heard.textContent = words), 500);
  }

  table(at) {
    const all = this.best(at, Infinity);
    const truth = this.characters[at];
    const rows = all.slice(0, SHOWN);
    const later = all.find(({ token }) => token === truth);
    if (later && later.rank > SHOWN) rows.push(later);
    // The hole in its surroundings, so that one knows which it is.
    const around = (from, to) => this.characters.slice(Math.max(0, from), to).map((character, i) => {
      return this.hidden.has(Math.max(0, from) + i) ? "▁" : visible(character);
    }).join("");
    const caption = make(
      "caption", {}, make("span", { className: "sr" }, `Letter ${at + 1}: `),
      around(at - 4, at), make("mark", {}, "▁"), around(at + 1, at + 5),
    );
    const body = rows.map(({ token, share, rank }) => {
      const bar = make("i");
      bar.style.width = percent(share);
      const sign = make("th", { scope: "row" }, make("span", { "aria-hidden": true }, visible(token)));
      sign.append(make("span", { className: "sr" }, spoken(token)));
      if (token === truth) sign.append(make("b", { title: "the hidden letter", "aria-hidden": true }, "✓"), make("span", { className: "sr" }, " the hidden letter"));
      const row = make("tr", {}, sign, make("td", {}, bar), make("td", {}, percent(share)));
      if (rank > SHOWN) row.className = "late";
      return row;
    });
    return make("table", { className: "guesses" }, caption, make("tbody", {}, ...body));
  }
}
