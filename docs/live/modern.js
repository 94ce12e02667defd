// # A modern encoder in JavaScript
//
// What does the forward pass look like after the changes of `modern.py`? This file has the same classes, functions
// and parameters as that one, in the same order. What both models need comes from `bert.js`: dense layers,
// LayerNorm, attention weights. The letters for sizes are the same too.
//
// As in `bert.js`, there is one sentence without padding. Its positions are 0, 1, 2, …

import { attend, gelu, LayerNorm, Linear, load_state, select_positions } from "./bert.js";

// Splits each of `T` rows into parts of equal width, like `chunk` in PyTorch.
function chunk(x, chunks, T) {
  const width = x.length / T / chunks;
  return Array.from({ length: chunks }, (_, part) => {
    const y = new Float32Array(T * width);
    for (let t = 0, start = part * width; t < T; t++, start += chunks * width) {
      y.set(x.subarray(start, start + width), t * width);
    }
    return y;
  });
}

// ## Embeddings
//
// Counterpart: `modern.ModernBertEmbeddings`. There is only the table of tokens.
export class ModernBertEmbeddings {
  constructor(state, config) {
    this.tok_embeddings = state.tok_embeddings.weight;
    this.norm = new LayerNorm(state.norm, config.norm_eps);
    this.config = config;
  }

  forward(input_ids) {
    return this.norm.forward(select_positions(this.tok_embeddings, input_ids, this.config.hidden_size));
  }
}

// ## Rotary position embeddings (RoPE)
//
// Counterpart: `modern.rotary_angles`. Returns the cosines and the sines (the first half negated), `(T, d)` each, where
// `d` is the width of a head. Both halves of a row are about the same pairs.
export function rotary_angles(T, head_dim, theta) {
  const cos = new Float32Array(T * head_dim);
  const sin = new Float32Array(T * head_dim);
  for (let t = 0; t < T; t++) {
    for (let i = 0; i < head_dim; i++) {
      const pair = i % (head_dim / 2);
      const angle = t * theta ** ((-2 * pair) / head_dim);
      cos[t * head_dim + i] = Math.cos(angle);
      sin[t * head_dim + i] = i === pair ? -Math.sin(angle) : Math.sin(angle);
    }
  }
  return [cos, sin];
}

// Counterpart: `modern.rotate`. Rotates all heads of the queries or keys in `x`, `(T, D)`. In each head, element `i` is
// paired with element `i + d / 2`.
export function rotate(x, [cos, sin], head_dim) {
  const H = x.length / cos.length;
  return x.map((value, n) => {
    const i = n % head_dim;
    const angle = Math.floor(n / head_dim / H) * head_dim + i;
    const partner = n - i + ((i + head_dim / 2) % head_dim);
    return value * cos[angle] + x[partner] * sin[angle];
  });
}

// ## Attention
//
// Counterpart: `modern.ModernBertAttention`. The first third of the outputs of `Wqkv` are queries, then come keys, then
// values.
export class ModernBertAttention {
  constructor(state, config) {
    this.num_attention_heads = config.num_attention_heads;
    this.Wqkv = new Linear(state.Wqkv, 3 * config.hidden_size);
    this.Wo = new Linear(state.Wo, config.hidden_size);
  }

  // `rotary` is from `rotary_angles`. A token attends to the tokens up to `reach` positions away. Returns `(T, D)` and
  // the attention weights, `(H, T, T)`.
  forward(x, rotary, reach) {
    const D = this.Wo.bias.length;
    const H = this.num_attention_heads;
    const T = x.length / D;
    const [q, k, v] = chunk(this.Wqkv.forward(x), 3, T);
    const [context, weights] = attend(rotate(q, rotary, D / H), rotate(k, rotary, D / H), v, T, H, reach);
    return [this.Wo.forward(context), weights];
  }
}

// ## The gated feed-forward network (GeGLU)
//
// Counterpart: `modern.ModernBertMLP`.
export class ModernBertMLP {
  constructor(state, config) {
    this.Wi = new Linear(state.Wi, 2 * config.intermediate_size);
    this.Wo = new Linear(state.Wo, config.hidden_size);
  }

  // From `(T, D)` to `(T, D)`, through `(T, I)`.
  forward(x) {
    const T = x.length / this.Wo.bias.length;
    const [value, gate] = chunk(this.Wi.forward(x), 2, T);
    return this.Wo.forward(gelu(value).map((one, i) => one * gate[i]));
  }
}

// ## One block, pre-norm
//
// Counterpart: `modern.ModernBertEncoderLayer`. The first block has no LayerNorm before its attention.
export class ModernBertEncoderLayer {
  constructor(state, config) {
    this.attn_norm = state.attn_norm && new LayerNorm(state.attn_norm, config.norm_eps);
    this.attn = new ModernBertAttention(state.attn, config);
    this.mlp_norm = new LayerNorm(state.mlp_norm, config.norm_eps);
    this.mlp = new ModernBertMLP(state.mlp, config);
  }

  forward(x, rotary, reach) {
    const [context, weights] = this.attn.forward(this.attn_norm?.forward(x) ?? x, rotary, reach);
    const a = x.map((value, i) => value + context[i]); // (T, D)
    const y = this.mlp.forward(this.mlp_norm.forward(a)); // (T, D)
    return [a.map((value, i) => value + y[i]), weights];
  }
}

// ## The whole encoder
//
// Counterpart: `modern.ModernBertModel`. The input of every block is kept, and the output of the final LayerNorm.
export class ModernBertModel {
  constructor(state, config) {
    this.config = config;
    this.embeddings = new ModernBertEmbeddings(state.embeddings, config);
    const layers = Array.from({ length: config.num_hidden_layers }, (_, i) => state.layers[i]);
    this.layers = layers.map((layer) => new ModernBertEncoderLayer(layer, config));
    this.final_norm = new LayerNorm(state.final_norm, config.norm_eps);
  }

  forward(input_ids) {
    const { config } = this;
    const head_dim = config.hidden_size / config.num_attention_heads;
    const angles = (theta) => rotary_angles(input_ids.length, head_dim, theta);
    const global = [angles(config.global_rope_theta), Infinity];
    const local = [angles(config.local_rope_theta), Math.floor(config.local_attention / 2)];
    const hidden_states = [];
    const attentions = [];
    let x = this.embeddings.forward(input_ids);
    this.layers.forEach((layer, i) => {
      hidden_states.push(x);
      const [y, weights] = layer.forward(x, ...(i % config.global_attn_every_n_layers ? local : global));
      attentions.push(weights);
      x = y;
    });
    return { hidden_states: [...hidden_states, this.final_norm.forward(x)], attentions };
  }
}

// ## The masked LM head
//
// Counterpart: `modern.ModernBertPredictionHead`.
export class ModernBertPredictionHead {
  constructor(state, config) {
    this.dense = new Linear(state.dense, config.hidden_size);
    this.norm = new LayerNorm(state.norm, config.norm_eps);
  }

  forward(x) {
    return this.norm.forward(gelu(this.dense.forward(x)));
  }
}

// ## Encoder and masked LM head
//
// Counterpart: `modern.ModernBertForMaskedLM`. The weight of the decoder is the embedding table.
export class ModernBertForMaskedLM {
  constructor(state, config) {
    this.config = config;
    this.model = new ModernBertModel(state.model, config);
    this.head = new ModernBertPredictionHead(state.head, config);
    this.decoder = new Linear({ weight: this.model.embeddings.tok_embeddings, bias: state.decoder.bias });
  }

  // Computes the logits at `positions` only, `(M, V)`.
  forward(input_ids, positions) {
    const { hidden_states, attentions } = this.model.forward(input_ids);
    const selected = select_positions(hidden_states.at(-1), positions, this.config.hidden_size); // (M, D)
    const logits = this.decoder.forward(this.head.forward(selected)); // (M, V)
    return { logits, hidden_states, attentions };
  }

  static from_pretrained(metadata, buffer) {
    return new ModernBertForMaskedLM(load_state(metadata, buffer), metadata.config);
  }
}
