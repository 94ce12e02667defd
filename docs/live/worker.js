// The model runs in a thread of its own, so the page never waits for it. Each message has a number, and so has each
// reply to it: progress, a result, or the reason why there is none.

import { BertForMaskedLM, fill_mask } from "./bert.js";
import { checksum, read_card } from "./card.js";
import { ModernBertForMaskedLM } from "./modern.js";

const FOLDER = new URL("model/", import.meta.url);
const CLASSES = { bert: BertForMaskedLM, modernbert: ModernBertForMaskedLM };
const models = new Map();
let metadata;
let fetching = new AbortController();

// Downloads a file and reports the number of bytes as they arrive.
async function download(name, address, total, onProgress) {
  let response;
  try {
    response = await fetch(address, { signal: fetching.signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error(`Couldn't download ${name}: no connection. Try again.`);
  }
  if (!response.ok) throw new Error(`Couldn't download ${name}: the server answered ${response.status}. Try again later.`);
  const parts = [];
  let done = 0;
  try {
    const reader = response.body.getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      parts.push(part.value);
      done += part.value.length;
      onProgress(done, total);
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error(`The download of ${name} stopped after ${done} bytes. Try again.`);
  }
  return new Blob(parts).arrayBuffer();
}

const tasks = {
  async metadata() {
    if (!metadata) {
      const text = new TextDecoder().decode(await download("model.json", new URL("model.json", FOLDER), 0, () => {}));
      metadata = await read_card(text);
    }
    return metadata;
  },

  async fetch({ file }, onProgress) {
    if (models.has(file)) return;
    const { arm, bytes: total, sha256 } = metadata.checkpoints.find((one) => one.file === file);
    const address = new URL(file, FOLDER);
    // The cache may hold the weights of another version under the same name.
    address.search = sha256.slice(0, 8);
    const buffer = await download(file, address, total, onProgress);
    // `crypto.subtle` exists only on pages that came over https.
    if (buffer.byteLength !== total || (crypto.subtle && (await checksum(buffer)) !== sha256)) {
      throw new Error(`${file} is damaged: its checksum differs. Reload the page and try again.`);
    }
    const described = metadata.arms[arm];
    const model = CLASSES[described.config.model_type].from_pretrained(described, buffer);
    // The first pass is several times slower than the next, until the engine has compiled the code. So do it now.
    fill_mask(model, Array(Math.min(32, model.config.max_position_embeddings)).fill(metadata.mask_id), metadata.mask_id);
    models.set(file, model);
  },

  async predict({ file, input_ids }) {
    const start = performance.now();
    const { positions, probabilities, attentions } = fill_mask(models.get(file), input_ids, metadata.mask_id);
    return { positions, probabilities, attentions, milliseconds: performance.now() - start };
  },

  async cancel() {
    fetching.abort();
    fetching = new AbortController();
  },
};

onmessage = async ({ data: { number, task, ...rest } }) => {
  try {
    const result = await tasks[task](rest, (done, total) => postMessage({ number, done, total }));
    postMessage({ number, result });
  } catch (error) {
    postMessage({ number, error: error.message, canceled: error.name === "AbortError" });
  }
};
