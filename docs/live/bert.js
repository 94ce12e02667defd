// # The same model in JavaScript
//
// Can a model be so small that a reader runs it while reading about it? This file is the forward pass of
// `bert.py` and `mlm.py` in JavaScript, with no library under it. The [live page](../../live.md) runs it.
//
// Classes, functions and parameters have the names of the Python and come in its order, so the two can be held
// side by side. Each section links to its twin. What only training needs is left out: dropout, the first
// weights, the loss. So is what one sentence at a time does not need: the batch, and with it padding and its
// mask. Only what stands under *What PyTorch gives* and *Half precision* has no twin.
//
// There are no tensors. A matrix is a `Float32Array` with one row after another, and the letters in the comments
// are sizes as in the Python: `T` tokens, `D` hidden size, `H` heads, `I` intermediate size, `V` vocabulary,
// `P` places whose answer is wanted. A test runs a hundred sentences through both and compares each
// probability and each attention weight.

// ## What PyTorch gives
//
// Four things that a line of Python takes for granted have to be written out here.
//
// A dense layer, $xW^\top + b$. It is nearly all of the work, so its loop is the one that was written for speed.
// Four rows of `x` go through it together, so that each weight is fetched once for four products. The sums are
// in double precision, as all numbers of the language are.
export class Linear {
  constructor({ weight, bias }) {
    this.weight = weight;
    this.bias = bias;
  }

  forward(x) {
    const { weight, bias } = this;
    const O = bias.length;
    const I = weight.length / O;
    const T = x.length / I;
    const y = new Float32Array(T * O); // (T, O)
    for (let t = 0; t < T; t += 4) {
      // The last group may reach past the end. It then does the last row again.
      const [a, b, c, d] = [t, t + 1, t + 2, t + 3].map((row) => Math.min(row, T - 1));
      const [ia, ib, ic, id] = [a * I, b * I, c * I, d * I];
      for (let o = 0; o < O; o++) {
        let ya = bias[o];
        let yb = ya;
        let yc = ya;
        let yd = ya;
        for (let i = 0, io = o * I; i < I; i++, io++) {
          const w = weight[io];
          ya += x[ia + i] * w;
          yb += x[ib + i] * w;
          yc += x[ic + i] * w;
          yd += x[id + i] * w;
        }
        y[a * O + o] = ya;
        y[b * O + o] = yb;
        y[c * O + o] = yc;
        y[d * O + o] = yd;
      }
    }
    return y;
  }
}

// Each row to mean 0 and variance 1, then scaled and shifted by what was learned. The variance is divided by the
// number of entries, not by one less.
export class LayerNorm {
  constructor({ weight, bias }, eps) {
    this.weight = weight;
    this.bias = bias;
    this.eps = eps;
  }

  forward(x) {
    const D = this.weight.length;
    const T = x.length / D;
    const y = new Float32Array(T * D); // (T, D)
    for (let t = 0; t < T; t++) {
      let mean = 0;
      for (let i = 0; i < D; i++) mean += x[t * D + i] / D;
      let variance = 0;
      for (let i = 0; i < D; i++) variance += (x[t * D + i] - mean) ** 2 / D;
      const scale = 1 / Math.sqrt(variance + this.eps);
      for (let i = 0; i < D; i++) y[t * D + i] = (x[t * D + i] - mean) * scale * this.weight[i] + this.bias[i];
    }
    return y;
  }
}

// JavaScript has no error function. A polynomial in $1 / (1 + p\,|x|)$ times $e^{-x^2}$ comes within
// $1.5 \cdot 10^{-7}$ of it, about the step between two float32 numbers near 1.
//
// Source: [Abramowitz and Stegun](https://personal.math.ubc.ca/~cbm/aands/page_299.htm), formula 7.1.26.
export function erf(x) {
  const t = 1 / (1 + 0.3275911 * Math.abs(x));
  const sum = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
  return Math.sign(x) * (1 - sum * Math.exp(-x * x));
}

// The exact GELU, in place.
export function gelu(x) {
  for (let i = 0; i < x.length; i++) x[i] = x[i] * 0.5 * (1 + erf(x[i] * Math.SQRT1_2));
  return x;
}

// Numbers that add up to one, in place, over rows of a given width. The largest entry is taken off first: that
// changes nothing in the result, and no exponential overflows.
export function softmax(x, width) {
  for (let start = 0; start < x.length; start += width) {
    const row = x.subarray(start, start + width);
    const most = row.reduce((a, b) => Math.max(a, b));
    let sum = 0;
    for (let i = 0; i < width; i++) sum += row[i] = Math.exp(row[i] - most);
    for (let i = 0; i < width; i++) row[i] /= sum;
  }
  return x;
}

// ## Embeddings
//
// Beside `bert.BertEmbeddings`. There is one sentence, so every token is of type 0.
export class BertEmbeddings {
  constructor(state, config) {
    this.word_embeddings = state.word_embeddings.weight;
    this.position_embeddings = state.position_embeddings.weight;
    this.token_type_embeddings = state.token_type_embeddings.weight;
    this.LayerNorm = new LayerNorm(state.LayerNorm, config.layer_norm_eps);
    this.config = config;
  }

  forward(input_ids) {
    const { hidden_size: D, max_position_embeddings: limit, vocab_size: V } = this.config;
    const T = input_ids.length;
    if (limit < T) throw new Error(`${T} tokens but max_position_embeddings is ${limit}; cut the text`);
    const x = new Float32Array(T * D); // (T, D)
    input_ids.forEach((id, t) => {
      if (!(id >= 0 && id < V)) throw new Error(`the id ${id} is outside the vocabulary of ${V}`);
      for (let i = 0; i < D; i++) {
        const place = this.position_embeddings[t * D + i] + this.token_type_embeddings[i];
        x[t * D + i] = this.word_embeddings[id * D + i] + place;
      }
    });
    return this.LayerNorm.forward(x);
  }
}

// ## Self-attention
//
// Beside `bert.BertSelfAttention`. Heads are neighboring columns of the projections, so nothing is moved to
// cut them: head `h` begins at column `h * d`.
export class BertSelfAttention {
  constructor(state, config) {
    this.num_attention_heads = config.num_attention_heads;
    this.query = new Linear(state.query);
    this.key = new Linear(state.key);
    this.value = new Linear(state.value);
  }

  // Takes `(T, D)`. Returns the new vectors, `(T, D)`, and the attention weights, `(H, T, T)`.
  forward(hidden_states) {
    const D = this.query.bias.length;
    const H = this.num_attention_heads;
    const T = hidden_states.length / D;
    const d = D / H;
    const q = this.query.forward(hidden_states); // (T, D)
    const k = this.key.forward(hidden_states); // (T, D)
    const v = this.value.forward(hidden_states); // (T, D)
    const weights = new Float32Array(H * T * T); // (H, T, T)
    for (let h = 0; h < H; h++) {
      for (let i = 0; i < T; i++) {
        for (let j = 0; j < T; j++) {
          let score = 0;
          for (let c = h * d; c < (h + 1) * d; c++) score += q[i * D + c] * k[j * D + c];
          weights[(h * T + i) * T + j] = score / Math.sqrt(d);
        }
      }
    }
    softmax(weights, T);
    const context = new Float32Array(T * D); // (T, D)
    for (let h = 0; h < H; h++) {
      for (let i = 0; i < T; i++) {
        for (let j = 0; j < T; j++) {
          const weight = weights[(h * T + i) * T + j];
          for (let c = h * d; c < (h + 1) * d; c++) context[i * D + c] += weight * v[j * D + c];
        }
      }
    }
    return [context, weights];
  }
}

// ## Dense, add, norm
//
// Beside `bert.BertOutput`.
export class BertOutput {
  constructor(state, config) {
    this.dense = new Linear(state.dense);
    this.LayerNorm = new LayerNorm(state.LayerNorm, config.layer_norm_eps);
  }

  forward(hidden_states, residual) {
    const x = this.dense.forward(hidden_states); // (T, D)
    for (let i = 0; i < x.length; i++) x[i] += residual[i];
    return this.LayerNorm.forward(x);
  }
}

// ## Attention with its residual
//
// Beside `bert.BertLayer`, where these two are the parts of `attention`.
export class BertAttention {
  constructor(state, config) {
    this.self = new BertSelfAttention(state.self, config);
    this.output = new BertOutput(state.output, config);
  }

  forward(hidden_states) {
    const [context, weights] = this.self.forward(hidden_states);
    return [this.output.forward(context, hidden_states), weights];
  }
}

// ## The feed-forward network
//
// Beside `bert.BertIntermediate`.
export class BertIntermediate {
  constructor(state) {
    this.dense = new Linear(state.dense);
  }

  // `(T, D)` to `(T, I)`.
  forward(hidden_states) {
    return gelu(this.dense.forward(hidden_states));
  }
}

// ## One block
//
// Beside `bert.BertLayer`.
export class BertLayer {
  constructor(state, config) {
    this.attention = new BertAttention(state.attention, config);
    this.intermediate = new BertIntermediate(state.intermediate);
    this.output = new BertOutput(state.output, config);
  }

  forward(hidden_states) {
    const [a, weights] = this.attention.forward(hidden_states);
    return [this.output.forward(this.intermediate.forward(a), a), weights];
  }
}

// ## The stack
//
// Beside `bert.BertEncoder`. What goes into each block is kept, since a picture of a model is a picture of
// these.
export class BertEncoder {
  constructor(state, config) {
    this.layer = Array.from({ length: config.num_hidden_layers }, (_, i) => new BertLayer(state.layer[i], config));
  }

  forward(hidden_states) {
    const all_hidden_states = [hidden_states];
    const attentions = [];
    for (const layer of this.layer) {
      const [x, weights] = layer.forward(all_hidden_states.at(-1));
      all_hidden_states.push(x);
      attentions.push(weights);
    }
    return { hidden_states: all_hidden_states, attentions };
  }
}

// ## The whole encoder
//
// Beside `bert.BertModel`, without the pooler.
export class BertModel {
  constructor(state, config) {
    this.embeddings = new BertEmbeddings(state.embeddings, config);
    this.encoder = new BertEncoder(state.encoder, config);
  }

  forward(input_ids) {
    return this.encoder.forward(this.embeddings.forward(input_ids));
  }
}

// ## From the encoder's space to the embeddings'
//
// Beside `mlm.BertPredictionHeadTransform`. Here ends `bert.py` and begins `mlm.py`.
export class BertPredictionHeadTransform {
  constructor(state, config) {
    this.dense = new Linear(state.dense);
    this.LayerNorm = new LayerNorm(state.LayerNorm, config.layer_norm_eps);
  }

  forward(hidden_states) {
    return this.LayerNorm.forward(gelu(this.dense.forward(hidden_states)));
  }
}

// ## The head
//
// Beside `mlm.BertLMPredictionHead`. The product with the token embeddings is a dense layer whose weight is the
// table itself, so weight tying is visible: no other matrix of that size was sent to this page.
export class BertLMPredictionHead {
  constructor(state, config) {
    this.transform = new BertPredictionHeadTransform(state.transform, config);
    this.bias = state.bias;
  }

  // `(P, D)` and `(V, D)` to the logits, `(P, V)`.
  forward(hidden_states, embedding) {
    const decoder = new Linear({ weight: embedding, bias: this.bias });
    return decoder.forward(this.transform.forward(hidden_states));
  }
}

// ## Encoder and head
//
// Beside `models.BertForMaskedLM`. `state` is a tree by the names of the parameters,
// `bert.encoder.layer.0.attention.self.query.weight`, and each class above takes its own branch.
export class BertForMaskedLM {
  constructor(state, config) {
    this.bert = new BertModel(state.bert, config);
    this.cls = new BertLMPredictionHead(state.cls.predictions, config);
    this.config = config;
  }

  // The logits are those at `places`, `(P, V)`, since nobody asks for the others.
  forward(input_ids, places) {
    const { hidden_size: D } = this.config;
    const { hidden_states, attentions } = this.bert.forward(input_ids);
    const last = hidden_states.at(-1); // (T, D)
    const chosen = new Float32Array(places.length * D); // (P, D)
    places.forEach((place, p) => chosen.set(last.subarray(place * D, (place + 1) * D), p * D));
    const logits = this.cls.forward(chosen, this.bert.embeddings.word_embeddings); // (P, V)
    return { logits, hidden_states, attentions };
  }

  // ### Weights from a file
  //
  // The file is one number after another, two bytes each. `card` is `model.json`: the sizes, and the
  // names and shapes of the tensors in the order in which they lie. Throws where the two do not belong together.
  static from_pretrained(card, buffer) {
    const wanted = card.tensors.reduce((sum, { shape }) => sum + shape.reduce((a, b) => a * b, 1), 0);
    if (card.dtype !== "float16" || buffer.byteLength !== 2 * wanted) {
      throw new Error(`the file has ${buffer.byteLength} bytes and model.json wants ${2 * wanted}`);
    }
    const numbers = from_float16(buffer);
    const state = {};
    let at = 0;
    for (const { name, shape } of card.tensors) {
      const path = name.split(".");
      const leaf = path.pop();
      const branch = path.reduce((tree, part) => (tree[part] ??= {}), state);
      const size = shape.reduce((a, b) => a * b, 1);
      branch[leaf] = numbers.subarray(at, at + size);
      at += size;
    }
    return new BertForMaskedLM(state, card.config);
  }
}

// ## Half precision
//
// Two bytes hold a sign, five bits of an exponent and ten bits of a fraction. New browsers know this type. For
// the others the number is put together by hand: $(1 + f / 1024) \cdot 2^{e - 15}$, or $f / 1024 \cdot 2^{-14}$
// where $e$ is 0. Rounding changes a weight by at most one part in 2048, and one below $2^{-14}$ by at most
// $2^{-25}$.
export function from_float16(buffer) {
  if (globalThis.Float16Array) return Float32Array.from(new Float16Array(buffer));
  return Float32Array.from(new Uint16Array(buffer), (bits) => {
    const sign = bits >> 15 ? -1 : 1;
    const exponent = (bits >> 10) & 31;
    const fraction = (bits & 1023) / 1024;
    if (exponent === 31) return fraction ? NaN : sign * Infinity;
    return sign * (exponent ? (1 + fraction) * 2 ** (exponent - 15) : fraction * 2 ** -14);
  });
}

// ## Fill the masks
//
// Beside `fill_mask.fill_mask`. The probabilities at each `[MASK]`, in order: `(P, V)`, over the whole
// vocabulary.
export function fill_mask(model, input_ids, mask_token_id) {
  const places = [...input_ids.keys()].filter((place) => input_ids[place] === mask_token_id);
  const { logits, hidden_states, attentions } = model.forward(input_ids, places);
  return { places, probabilities: softmax(logits, model.config.vocab_size), hidden_states, attentions };
}
