// The model on a thread of its own, so that the page never waits for it. Each message has a number, and so has
// what comes back for it: progress, an answer, or a word of why there is none.

import { BertForMaskedLM, fill_mask } from "./bert.js";

const FOLDER = new URL("model/", import.meta.url);
const models = new Map();
let card;
let fetching = new AbortController();

// The body of a file as it arrives, so that the progress is that of the bytes.
async function bytes(name, address, total, tell) {
  let response;
  try {
    response = await fetch(address, { signal: fetching.signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error(`${name} did not arrive: no connection. Try again.`);
  }
  if (!response.ok) throw new Error(`${name} did not arrive: the server answered ${response.status}. Try again later.`);
  const parts = [];
  let done = 0;
  try {
    const reader = response.body.getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      parts.push(part.value);
      done += part.value.length;
      tell(done, total);
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error(`${name} broke off after ${done} bytes. Try again.`);
  }
  return new Blob(parts).arrayBuffer();
}

async function checksum(buffer) {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", buffer));
  return [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

const tasks = {
  async card() {
    if (!card) {
      const text = new TextDecoder().decode(await bytes("model.json", new URL("model.json", FOLDER), 0, () => {}));
      try {
        card = JSON.parse(text);
      } catch {
        // A network that asks for a password first answers with a page of its own.
        throw new Error("model.json is not what was sent. Look whether this network wants something, and try again.");
      }
    }
    return card;
  },

  async fetch({ file }, tell) {
    if (models.has(file)) return;
    const { bytes: total, sha256 } = card.checkpoints.find((one) => one.file === file);
    const address = new URL(file, FOLDER);
    // Weights of another version may lie in the cache under the same name.
    address.search = sha256.slice(0, 8);
    const buffer = await bytes(file, address, total, tell);
    // Only pages that came over https have this.
    if (buffer.byteLength !== total || (crypto.subtle && (await checksum(buffer)) !== sha256)) {
      throw new Error(`${file} is not what was sent: its checksum differs. Reload the page and try again.`);
    }
    const model = BertForMaskedLM.from_pretrained(card, buffer);
    // The first pass of a fresh engine is several times slower than the next. The reader need not wait for it.
    fill_mask(model, Array(32).fill(card.mask_id), card.mask_id);
    models.set(file, model);
  },

  async ask({ file, input_ids }) {
    const began = performance.now();
    const { places, probabilities, attentions } = fill_mask(models.get(file), input_ids, card.mask_id);
    return { places, probabilities, attentions, milliseconds: performance.now() - began };
  },

  async cancel() {
    fetching.abort();
    fetching = new AbortController();
  },
};

onmessage = async ({ data: { number, task, ...rest } }) => {
  try {
    const answer = await tasks[task](rest, (done, total) => postMessage({ number, done, total }));
    postMessage({ number, answer });
  } catch (error) {
    postMessage({ number, error: error.message, cancelled: error.name === "AbortError" });
  }
};
