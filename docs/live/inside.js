// What the page of the model shows besides the predictions: earlier points in training, and the attention weights.

import { choice, make, percent, progress, spoken, visible } from "./live.js";

const WIDTH = 640;
const HEIGHT = 340;
const LEFT = 44;
const BOTTOM = 64;

function draw(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export class Inside {
  constructor(page) {
    this.page = page;
    this.wanted = page.checkpoint;
    this.loaded = new Set([page.checkpoint.file]);
    this.metadata = page.metadata;
    this.layer = 0;
    this.head = 0;
    this.seen = null;
    this.elements = [];
    if (this.metadata.checkpoints.length > 1) this.elements.push(this.moments());
    this.elements.push(this.attention());
  }

  // ## Points in training

  stops(arm = this.wanted.arm) {
    return this.metadata.checkpoints.filter((one) => one.arm === arm);
  }

  moments() {
    // The run of the last checkpoint comes first, because the page starts with it.
    const arms = [...new Set(this.metadata.checkpoints.map(({ arm }) => arm).reverse())];
    this.lines = arms.map((arm) => {
      const { config, curve } = this.metadata.arms[arm];
      return [config.model_type === "bert" ? `BERT, ${arm}` : `${arm} encoder`, curve];
    });
    this.slider = make("input", { type: "range", min: 0, step: 1, id: "moment" });
    this.slider.addEventListener("input", () => this.go(this.stops()[this.slider.value]));
    this.when = make("output", { htmlFor: "moment" });
    this.plot = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": this.story() });
    // A shortcut for the mouse. The slider does the same.
    this.plot.addEventListener("click", (event) => {
      const box = this.plot.getBoundingClientRect();
      this.go(this.nearest(this.at.steps((event.clientX - box.left) * (WIDTH / box.width))));
    });
    this.scale();
    const sample = (n) => {
      const line = draw("path", { class: `line n${n + 1}`, d: "M0,5H36" });
      return draw("svg", { viewBox: "0 0 36 10", "aria-hidden": "true" }, line);
    };
    const options = arms.map((arm, n) => [arm, sample(n), this.lines[n][0]]);
    this.toggle = choice("Model", "arm", options, this.wanted.arm, (arm) => {
      // Runs differ in their numbers of steps. Their moments are the same fractions of the training.
      this.go(this.stops(arm)[this.stops().indexOf(this.wanted)] ?? this.stops(arm).at(-1));
    });
    this.state = make("div", { className: "state" });
    this.failed = make("p", { className: "note", role: "status" });
    this.showMoment();
    return make(
      "section", { className: "moments chart", ariaLabel: "Earlier points in training" },
      make("div", { className: "controls" }, arms.length > 1 ? this.toggle : ""),
      this.plot,
      make("label", { className: "slider", htmlFor: "moment" }, "Steps of training"), this.slider, this.when,
      this.state, this.failed,
    );
  }

  story() {
    const ends = this.lines.map(([name, points]) => {
      return points.length ? `${name}, from ${points[0][1].toFixed(2)} to ${points.at(-1)[1].toFixed(2)} nats` : name;
    });
    return `Held-out loss by steps of training: ${ends.join("; ")}.`;
  }

  // Maps steps and losses to coordinates, and draws the axes and the curves.
  scale() {
    const points = [...this.lines.flatMap(([, curve]) => curve), ...this.metadata.checkpoints.map((one) => [one.steps, one.loss])];
    const most = Math.max(...points.map(([steps]) => steps));
    const low = Math.floor(Math.min(...points.map(([, loss]) => loss)));
    const high = Math.max(low + 1, ...points.map(([, loss]) => loss));
    const x = (steps) => LEFT + (steps / most) * (WIDTH - LEFT - 10);
    const y = (loss) => 10 + ((high - loss) / (high - low)) * (HEIGHT - BOTTOM - 10);
    this.at = { x, y, steps: (offset) => ((offset - LEFT) / (WIDTH - LEFT - 10)) * most };
    for (let loss = low; loss <= high; loss++) {
      this.plot.append(draw("path", { class: "grid", d: `M${LEFT},${y(loss)}H${WIDTH - 10}` }));
      this.plot.append(draw("text", { x: LEFT - 8, y: y(loss) + 5, "text-anchor": "end" }, loss));
    }
    // A label at every 1, 2 or 5 times a power of ten.
    const unit = 10 ** Math.floor(Math.log10(most));
    const apart = Math.ceil(unit * (most < 2 * unit ? 0.5 : most < 5 * unit ? 1 : 2));
    for (let steps = 0; steps <= most; steps += apart) {
      const position = { x: Math.min(x(steps), WIDTH - 40), y: HEIGHT - BOTTOM + 24, "text-anchor": "middle" };
      this.plot.append(draw("text", position, steps.toLocaleString("en")));
    }
    const title = "held-out loss in nats by steps of training";
    this.plot.append(draw("text", { x: (LEFT + WIDTH) / 2, y: HEIGHT - 8, "text-anchor": "middle", class: "level" }, title));
    this.lines.forEach(([, curve], n) => {
      const d = `M${curve.map(([steps, loss]) => `${x(steps).toFixed(1)},${y(loss).toFixed(1)}`).join("L")}`;
      if (curve.length) this.plot.append(draw("path", { class: `line n${n + 1}`, d }));
    });
    this.dots = draw("g", {});
    this.plot.append(this.dots);
  }

  nearest(steps) {
    const far = (one) => Math.abs(one.steps - steps);
    return this.stops().reduce((a, b) => (far(b) < far(a) ? b : a));
  }

  showMoment() {
    const checkpoint = this.wanted;
    const stops = this.stops();
    for (const input of this.toggle.querySelectorAll("input")) input.checked = input.value === checkpoint.arm;
    this.slider.max = stops.length - 1;
    this.slider.value = stops.indexOf(checkpoint);
    // Until its weights have arrived, the predictions are those of another checkpoint.
    this.page.root.classList.toggle("behind", checkpoint !== this.page.checkpoint);
    const { steps, loss } = checkpoint;
    const words = `${steps.toLocaleString("en")} steps, loss ${loss.toFixed(2)}`;
    this.when.textContent = words;
    this.slider.setAttribute("aria-valuetext", words);
    const { x, y } = this.at;
    this.dots.replaceChildren(
      draw("path", { class: "now", d: `M${x(steps)},10V${HEIGHT - BOTTOM}` }),
      ...stops.map((one) => {
        const now = one === checkpoint;
        return draw("circle", { class: now ? "stop now" : "stop", cx: x(one.steps), cy: y(one.loss), r: now ? 8 : 4.5 });
      }),
    );
  }

  // Goes to another checkpoint. Its weights are downloaded first, then those of its neighbors, because a slider
  // rarely moves only once. Until they arrive, the predictions are those of the checkpoint before.
  async go(checkpoint) {
    this.wanted = checkpoint;
    this.settle();
    if (this.working) return;
    this.working = true;
    this.failed.textContent = "";
    let canceled = false;
    const bar = progress("", () => {
      canceled = true;
      this.page.model.call("cancel");
    });
    try {
      for (let next = this.next(); next; next = this.next()) {
        bar.begin(`Downloading the weights after ${next.steps.toLocaleString("en")} steps`);
        // One bar for all files: if its button disappeared between two, it would lose the focus.
        if (!bar.element.isConnected) this.state.append(bar.element);
        await this.page.model.call("fetch", { file: next.file }, bar.tell);
        this.loaded.add(next.file);
        this.settle();
        // Between two downloads, there is nothing to abort.
        if (canceled) throw Object.assign(new Error(), { canceled });
      }
    } catch (error) {
      this.failed.textContent = error.canceled ? "Canceled. Move the slider to try again." : error.message;
      this.wanted = this.page.checkpoint;
      this.settle();
    }
    const focused = bar.element.contains(document.activeElement);
    bar.element.remove();
    if (focused) this.slider.focus();
    this.working = false;
  }

  // What to download next: the wanted checkpoint, then the nearest ones.
  next() {
    const far = (one) => Math.abs(one.steps - this.wanted.steps);
    return this.stops().filter(({ file }) => !this.loaded.has(file)).sort((a, b) => far(a) - far(b))[0];
  }

  // Switches to the wanted checkpoint once its weights have arrived, and updates the display.
  settle() {
    if (this.wanted !== this.page.checkpoint && this.loaded.has(this.wanted.file)) {
      this.page.checkpoint = this.wanted;
      this.page.predict();
    }
    this.showMoment();
  }

  // ## Attention

  attention() {
    const { num_hidden_layers: L, num_attention_heads: H } = this.page.config;
    const layers = Array.from({ length: L }, (_, i) => [i, String(i + 1)]);
    const step = choice("Layer", "layer", layers, 0, (layer) => {
      this.layer = layer;
      this.draw();
    });
    this.maps = Array.from({ length: H }, (_, h) => this.map(h));
    this.reading = make("p", { className: "reading" });
    return make(
      "section", { className: "attention", ariaLabel: "Attention" },
      make("div", { className: "controls" }, step, this.reading),
      make("fieldset", { className: "heads" }, make("legend", { className: "sr" }, "Head"), ...this.maps.map(({ label }) => label)),
    );
  }

  map(h) {
    const input = make("input", { type: "radio", name: "head", value: h, checked: h === 0 });
    input.addEventListener("change", () => {
      this.head = h;
      this.look(this.seen);
      this.page.announce(this.reading.textContent);
    });
    const weights = draw("path", { class: "weights" });
    const row = draw("path", { class: "looks" });
    const column = draw("path", { class: "looks" });
    const svg = draw("svg", { "aria-hidden": "true" }, weights, row, column);
    const cell = (event) => {
      const box = svg.getBoundingClientRect();
      const part = (offset, size) => Math.min(this.size - 1, Math.max(0, Math.floor((offset / size) * this.size)));
      return [part(event.clientY - box.top, box.height), part(event.clientX - box.left, box.width)];
    };
    svg.addEventListener("pointermove", (event) => event.pointerType === "mouse" && this.look(cell(event), h));
    svg.addEventListener("pointerleave", () => this.look(null));
    svg.addEventListener("click", (event) => {
      // The label around the map chooses the head.
      this.page.pin(cell(event)[0]);
    });
    const takes = make("span", { className: "takes" });
    const label = make("label", { className: "head" }, make("span", { className: "name" }, input, `head ${h + 1}`), svg, takes);
    return { label, svg, weights, row, column, takes };
  }

  weight(h, i, j) {
    const { attentions, length } = this.page.answer;
    const from = this.page.frame[0].length;
    return attentions[this.layer][(h * length + i + from) * length + j + from];
  }

  // Draws all maps. The area of a square is the attention weight.
  draw() {
    if (!this.page.answer && this.page.characters.length) return;
    const T = (this.size = this.page.characters.length);
    this.maps.forEach(({ svg, weights }, h) => {
      const squares = [];
      for (let i = 0; i < T; i++) {
        for (let j = 0; j < T; j++) {
          const side = Math.sqrt(this.weight(h, i, j)) * 0.94;
          if (side < 0.1) continue;
          const [x, y, s] = [j + 0.5 - side / 2, i + 0.5 - side / 2, side].map((number) => number.toFixed(2));
          squares.push(`M${x},${y}h${s}v${s}h-${s}z`);
        }
      }
      svg.setAttribute("viewBox", `0 0 ${T || 1} ${T || 1}`);
      weights.setAttribute("d", squares.join(""));
      weights.setAttribute("class", `weights n${(this.layer % 4) + 1}`);
    });
    this.look(this.seen);
  }

  // Chooses the query: the character under the mouse, or else the one that last had the focus. Every map outlines its
  // row, and the squares below the characters show the attention weights of the chosen head.
  look(seen, over = this.head) {
    const { characters, buttons, answer, pinned } = this.page;
    // In a shorter text, the character under the mouse may be gone.
    if (seen?.some((at) => at >= characters.length)) seen = null;
    this.seen = seen;
    const [i, j] = seen ?? [pinned];
    if (!characters.length) {
      for (const { row, column, takes } of this.maps) {
        row.setAttribute("d", "");
        column.setAttribute("d", "");
        takes.replaceChildren();
      }
      this.reading.textContent = "";
    }
    const T = characters.length;
    // Between a keystroke and the new predictions, the maps still belong to the text before.
    if (!answer || T !== this.size || i >= T) return;
    const name = (at) => (this.page.masked.has(at) ? "▁" : visible(characters[at]));
    this.maps.forEach(({ label, row, column, takes }, h) => {
      row.setAttribute("d", `M0,${i}h${T}v1h-${T}z`);
      column.setAttribute("d", j === undefined ? "" : `M${j},0h1v${T}h-1z`);
      const most = [...characters.keys()].sort((a, b) => this.weight(h, i, b) - this.weight(h, i, a)).slice(0, 3);
      const shown = most.filter((at) => this.weight(h, i, at) >= 0.01);
      const list = (named, separator) => shown.map((at) => `${named(at)} ${percent(this.weight(h, i, at))}`).join(separator);
      const said = list((at) => (this.page.masked.has(at) ? "a masked character" : spoken(characters[at])), ", ");
      takes.replaceChildren(
        make("span", { "aria-hidden": true }, list(name, "  ")),
        make("span", { className: "sr" }, said && `attends to ${said}`),
      );
      label.classList.toggle("chosen", h === over);
    });
    this.page.letters.dataset.layer = (this.layer % 4) + 1;
    buttons.forEach((button, at) => {
      button.style.setProperty("--weight", Math.sqrt(this.weight(over, i, at)).toFixed(3));
      button.classList.toggle("looks", at === i);
      button.classList.toggle("taken", at === j);
    });
    const masked = this.page.masked.has(i) ? " (masked)" : "";
    const what = j === undefined
      ? ". The squares below the characters are its attention weights"
      : `: attention weight ${percent(this.weight(over, i, j))} on character ${j + 1}, ${spoken(characters[j])}`;
    this.reading.textContent = `Head ${over + 1} at character ${i + 1}, ${spoken(characters[i])}${masked}${what}.`;
  }
}
