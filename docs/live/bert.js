// # The same model in JavaScript
//
// Can you run a BERT in the page that explains it? This file is the forward pass of `bert.py` and `mlm.py` in
// JavaScript, without a library. The [live page](../../live.md) runs it.
//
// Classes, functions and parameters have the same names as in Python and come in the same order, so you can read
// the two side by side. Each section names its counterpart. What only training needs is left out: dropout, the
// initial weights, the loss. So is what a single sentence doesn't need: the batch dimension, padding and its mask.
// Only *What PyTorch provides*, *Weights from a file* and *Half precision* have no counterpart.
//
// There are no tensors. A matrix is a `Float32Array` with one row after another. The letters in the comments are
// sizes, as in Python: `T` tokens, `D` hidden size, `H` attention heads, `I` intermediate size, `V` vocabulary,
// `M` masked positions. A test runs a hundred sentences through both and compares every probability and every
// attention weight.

// ## What PyTorch provides
//
// Four things are one line in Python and have to be written out here.
//
// A dense layer computes $xW^\top + b$, and takes nearly all of the time. So its loop is the one that is written
// for speed: four rows of `x` go through it together, and each weight is read once for four multiplications. `O`
// is the number of its outputs. The sums are in double precision, like every number in JavaScript.
//
// A layer without a bias adds zeros. Its number of outputs has to be given.
export class Linear {
  constructor({ weight, bias }, out_features) {
    this.weight = weight;
    this.bias = bias ?? new Float32Array(out_features);
  }

  forward(x) {
    const { weight, bias } = this;
    const O = bias.length;
    const inputs = weight.length / O;
    const T = x.length / inputs;
    const y = new Float32Array(T * O); // (T, O)
    for (let t = 0; t < T; t += 4) {
      // If the last group reaches past the end, it repeats the last row.
      const [a, b, c, d] = [t, t + 1, t + 2, t + 3].map((row) => Math.min(row, T - 1));
      const [ia, ib, ic, id] = [a * inputs, b * inputs, c * inputs, d * inputs];
      for (let o = 0; o < O; o++) {
        let ya = bias[o];
        let yb = ya;
        let yc = ya;
        let yd = ya;
        for (let i = 0, io = o * inputs; i < inputs; i++, io++) {
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

// Normalizes each row to mean 0 and variance 1, then applies the learned scale and shift. As in PyTorch, the
// variance is the sum of squares divided by the number of entries, not by one less.
export class LayerNorm {
  constructor({ weight, bias }, eps) {
    this.weight = weight;
    this.bias = bias ?? new Float32Array(weight.length);
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

// JavaScript has no error function. A polynomial in $1 / (1 + p\,|x|)$ times $e^{-x^2}$ is within
// $1.5 \cdot 10^{-7}$ of it, about the distance between two float32 numbers near 1.
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

// Softmax over rows of a given width, in place. Subtracting the largest entry first doesn't change the result and
// keeps the exponentials from overflowing.
export function softmax(x, width) {
  for (let start = 0; start < x.length; start += width) {
    const row = x.subarray(start, start + width);
    const largest = row.reduce((a, b) => Math.max(a, b));
    let sum = 0;
    for (let i = 0; i < width; i++) sum += row[i] = Math.exp(row[i] - largest);
    for (let i = 0; i < width; i++) row[i] /= sum;
  }
  return x;
}

// ## Embeddings
//
// Counterpart: `bert.BertEmbeddings`. There is one sentence, so every token has type 0.
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
        const position = this.position_embeddings[t * D + i];
        x[t * D + i] = this.word_embeddings[id * D + i] + position + this.token_type_embeddings[i];
      }
    });
    return this.LayerNorm.forward(x);
  }
}

// ## Self-attention
//
// Counterpart: `bert.BertSelfAttention`. A head is a group of neighboring columns of the projections, so splitting
// into heads moves no data: head `h` begins at column `h * d`.
export class BertSelfAttention {
  constructor(state, config) {
    this.num_attention_heads = config.num_attention_heads;
    this.query = new Linear(state.query);
    this.key = new Linear(state.key);
    this.value = new Linear(state.value);
  }

  // Takes `(T, D)`. Returns the context vectors, `(T, D)`, and the attention weights, `(H, T, T)`.
  forward(hidden_states) {
    const q = this.query.forward(hidden_states); // (T, D)
    const k = this.key.forward(hidden_states); // (T, D)
    const v = this.value.forward(hidden_states); // (T, D)
    return attend(q, k, v, hidden_states.length / this.query.bias.length, this.num_attention_heads);
  }
}

// From queries, keys and values to the context vectors and the attention weights. A token attends to the tokens up to
// `reach` positions away. In BERT, that is all of them.
export function attend(q, k, v, T, H, reach = Infinity) {
  const D = q.length / T;
  const d = D / H;
  const weights = new Float32Array(H * T * T).fill(-Infinity); // (H, T, T)
  for (let h = 0; h < H; h++) {
    for (let i = 0; i < T; i++) {
      for (let j = Math.max(0, i - reach); j < T && j <= i + reach; j++) {
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

// ## Dense, add, norm
//
// Counterpart: `bert.BertOutput`.
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
// Counterpart: `attention` in `bert.BertLayer`, which has these two parts.
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
// Counterpart: `bert.BertIntermediate`.
export class BertIntermediate {
  constructor(state) {
    this.dense = new Linear(state.dense);
  }

  // From `(T, D)` to `(T, I)`.
  forward(hidden_states) {
    return gelu(this.dense.forward(hidden_states));
  }
}

// ## One block
//
// Counterpart: `bert.BertLayer`.
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
// Counterpart: `bert.BertEncoder`. The input of every block is kept, for pictures of what the model does.
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
// Counterpart: `bert.BertModel`, without the pooler.
export class BertModel {
  constructor(state, config) {
    this.embeddings = new BertEmbeddings(state.embeddings, config);
    this.encoder = new BertEncoder(state.encoder, config);
  }

  forward(input_ids) {
    return this.encoder.forward(this.embeddings.forward(input_ids));
  }
}

// ## From the encoder's space to that of the embeddings
//
// Counterpart: `mlm.BertPredictionHeadTransform`. From here on, the counterparts are in `mlm.py`.
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
// Counterpart: `mlm.BertLMPredictionHead`. The logits come from a dense layer whose weight is the embedding table
// itself. Here you can see weight tying: the page downloads no other matrix of that size.
export class BertLMPredictionHead {
  constructor(state, config) {
    this.transform = new BertPredictionHeadTransform(state.transform, config);
    this.bias = state.bias;
  }

  // From `(M, D)` and the embeddings, `(V, D)`, to the logits, `(M, V)`.
  forward(hidden_states, embedding) {
    const decoder = new Linear({ weight: embedding, bias: this.bias });
    return decoder.forward(this.transform.forward(hidden_states));
  }
}

// ## Encoder and head
//
// Counterpart: `models.BertForMaskedLM`. `state` is a tree that follows the names of the parameters, such as
// `bert.encoder.layer.0.attention.self.query.weight`. Each class above takes its own branch.
export class BertForMaskedLM {
  constructor(state, config) {
    this.bert = new BertModel(state.bert, config);
    this.cls = new BertLMPredictionHead(state.cls.predictions, config);
    this.config = config;
  }

  // Computes the logits at `positions` only, `(M, V)`, since nobody needs the others.
  forward(input_ids, positions) {
    const { hidden_size: D } = this.config;
    const { hidden_states, attentions } = this.bert.forward(input_ids);
    const selected = select_positions(hidden_states.at(-1), positions, D); // (M, D)
    const logits = this.cls.forward(selected, this.bert.embeddings.word_embeddings); // (M, V)
    return { logits, hidden_states, attentions };
  }

  static from_pretrained(metadata, buffer) {
    return new BertForMaskedLM(load_state(metadata, buffer), metadata.config);
  }
}

// Returns the rows of `x` at `positions`, each of length `D`.
export function select_positions(x, positions, D) {
  const selected = new Float32Array(positions.length * D);
  positions.forEach((t, m) => selected.set(x.subarray(t * D, (t + 1) * D), m * D));
  return selected;
}

// ## Weights from a file
//
// The file is one number after another, two bytes each. `metadata` is the entry of the model in `model.json`: the
// sizes, and the names and shapes of the tensors in the order of the file. Throws if the two don't belong together.
export function load_state(metadata, buffer) {
  const size = ({ shape }) => shape.reduce((a, b) => a * b, 1);
  const expected = metadata.tensors.reduce((sum, tensor) => sum + size(tensor), 0);
  if (metadata.dtype !== "float16" || buffer.byteLength !== 2 * expected) {
    throw new Error(`the file has ${buffer.byteLength} bytes, but model.json describes ${2 * expected}`);
  }
  const numbers = from_float16(buffer);
  const state = {};
  let start = 0;
  for (const tensor of metadata.tensors) {
    const path = tensor.name.split(".");
    const leaf = path.pop();
    const branch = path.reduce((tree, part) => (tree[part] ??= {}), state);
    branch[leaf] = numbers.subarray(start, start + size(tensor));
    start += size(tensor);
  }
  return state;
}

// ## Half precision
//
// A float16 has one bit for the sign, five for the exponent $e$ and ten for the fraction $f$. New browsers have
// this type. For the others we compute the number: $(1 + f / 1024) \cdot 2^{e - 15}$, or $f / 1024 \cdot 2^{-14}$
// if $e$ is 0. Rounding changes a weight by at most one part in 2048, or by at most $2^{-25}$ if it is below
// $2^{-14}$.
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
// Counterpart: `fill_mask.fill_mask`. Returns the probabilities at each `[MASK]`, in order: `(M, V)`, over the
// whole vocabulary.
export function fill_mask(model, input_ids, mask_token_id) {
  const positions = [...input_ids.keys()].filter((t) => input_ids[t] === mask_token_id);
  const { logits, hidden_states, attentions } = model.forward(input_ids, positions);
  return { positions, probabilities: softmax(logits, model.config.vocab_size), hidden_states, attentions };
}
