// ## What model.json says
//
// Reads the description of the models, and throws one readable line unless it's exactly what the page can use. The
// arithmetic of `bert.js` would answer with nonsense for another activation or for sizes that don't fit.

const FORMAT = 3;
const CONFIGS = {
  bert: ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "max_position_embeddings",
    "type_vocab_size"],
  modernbert: ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "max_position_embeddings",
    "global_attn_every_n_layers", "local_attention"],
};
// Numbers above zero.
const NUMBERS = { bert: ["layer_norm_eps"], modernbert: ["norm_eps", "global_rope_theta", "local_rope_theta"] };
const is_count = (value) => Number.isInteger(value) && value > 0 && value < 2 ** 31;
const is_object = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
// The page draws a grid line for every nat, so a huge loss would freeze it.
const is_loss = (value) => Number.isFinite(value) && value >= 0 && value < 100;
// A point of a learning curve. The curve of a model that was trained before begins at step 0.
const is_point = (value) =>
  Array.isArray(value) && value.length === 2 && (value[0] === 0 || is_count(value[0])) && is_loss(value[1]);
// The page shows the same layers, heads and positions for every arm.
const SHARED = ["num_hidden_layers", "num_attention_heads", "max_position_embeddings"];

// The names and shapes of the parameters that a config asks for. The decoder has no matrix of its own.
function shapes_of({ model_type, vocab_size: V, hidden_size: D, intermediate_size: I, ...config }) {
  const linear = (name, outputs, inputs) => [[`${name}.weight`, [outputs, inputs]], [`${name}.bias`, [outputs]]];
  const norm = (name) => [[`${name}.weight`, [D]], [`${name}.bias`, [D]]];
  const layers = Array.from({ length: config.num_hidden_layers }, (_, i) => i);
  if (model_type === "bert") {
    const of_layer = (layer) => [
      ...["query", "key", "value"].flatMap((name) => linear(`${layer}.attention.self.${name}`, D, D)),
      ...linear(`${layer}.attention.output.dense`, D, D), ...norm(`${layer}.attention.output.LayerNorm`),
      ...linear(`${layer}.intermediate.dense`, I, D),
      ...linear(`${layer}.output.dense`, D, I), ...norm(`${layer}.output.LayerNorm`),
    ];
    return [
      ["bert.embeddings.word_embeddings.weight", [V, D]],
      ["bert.embeddings.position_embeddings.weight", [config.max_position_embeddings, D]],
      ["bert.embeddings.token_type_embeddings.weight", [config.type_vocab_size, D]],
      ...norm("bert.embeddings.LayerNorm"),
      ...layers.flatMap((i) => of_layer(`bert.encoder.layer.${i}`)),
      ...linear("cls.predictions.transform.dense", D, D), ...norm("cls.predictions.transform.LayerNorm"),
      ["cls.predictions.bias", [V]],
    ];
  }
  const of_layer = (layer, i) => [
    ...(i ? [[`${layer}.attn_norm.weight`, [D]]] : []),
    [`${layer}.attn.Wqkv.weight`, [3 * D, D]], [`${layer}.attn.Wo.weight`, [D, D]],
    [`${layer}.mlp_norm.weight`, [D]], [`${layer}.mlp.Wi.weight`, [2 * I, D]], [`${layer}.mlp.Wo.weight`, [D, I]],
  ];
  return [
    ["model.embeddings.tok_embeddings.weight", [V, D]], ["model.embeddings.norm.weight", [D]],
    ...layers.flatMap((i) => of_layer(`model.layers.${i}`, i)),
    ["model.final_norm.weight", [D]], ["head.dense.weight", [D, D]], ["head.norm.weight", [D]], ["decoder.bias", [V]],
  ];
}

// What is wrong with an arm, or nothing.
function fault_of_arm(arm, tokens) {
  if (!is_object(arm) || !is_object(arm.config)) return "it has no config";
  const { config, dtype, tensors, curve } = arm;
  if (typeof config.model_type !== "string" || !Object.hasOwn(CONFIGS, config.model_type)) return `its model_type is ${config.model_type}`;
  const wrong = CONFIGS[config.model_type].find((name) => !is_count(config[name])) ??
    NUMBERS[config.model_type].find((name) => !(Number.isFinite(config[name]) && config[name] > 0));
  if (wrong) return `its ${wrong} is ${config[wrong]}`;
  if (config.hidden_size % config.num_attention_heads) return "its hidden size isn't divisible by its heads";
  const is_odd = (config.hidden_size / config.num_attention_heads) % 2;
  if (is_odd && config.model_type === "modernbert") return "its heads have an odd width, so RoPE can't pair their numbers";
  for (const name of ["hidden_act", "hidden_activation"]) {
    if ((config[name] ?? "gelu") !== "gelu") return `its ${name} is ${config[name]}`;
  }
  if (config.vocab_size !== tokens.length) return `it has ${config.vocab_size} tokens instead of ${tokens.length}`;
  if (dtype !== "float16") return `its dtype is ${dtype}`;
  if (!Array.isArray(curve) || !curve.every(is_point)) return "its curve isn't a list of points";
  const is_tensor = (one) => typeof one?.name === "string" && Array.isArray(one.shape) && one.shape.length < 3 && one.shape.every(is_count);
  if (!Array.isArray(tensors) || !tensors.every(is_tensor)) return "its tensors aren't names and shapes";
  const found = new Map(tensors.map(({ name, shape }) => [name, String(shape)]));
  // Before the shapes of a billion layers are listed.
  if (config.num_hidden_layers > tensors.length) return `it has too few tensors for ${config.num_hidden_layers} layers`;
  const shapes = shapes_of(config);
  const other = shapes.find(([name, shape]) => found.get(name) !== String(shape));
  if (other) return `its ${other[0]} isn't ${other[1].join(" by ")}`;
  return found.size === shapes.length && tensors.length === shapes.length ? null : "it has tensors that the model doesn't";
}

function fault(card) {
  if (!is_object(card)) return "it isn't an object";
  if (card.format !== FORMAT) return `its format is ${card.format}, and this page reads format ${FORMAT}`;
  const { tokens, arms, checkpoints } = card;
  if (!Array.isArray(tokens) || !tokens.every((token) => typeof token === "string")) return "its tokens aren't a list of texts";
  // The page looks up one character at a time.
  if (tokens.some((token) => [...token].length !== 1 && !/^\[\w+\]$/.test(token))) return "its tokens aren't characters";
  if (new Set(tokens).size < tokens.length) return "it has a token twice";
  const is_token = (id, name) => Number.isInteger(id) && tokens[id] === name;
  if (!is_token(card.mask_id, "[MASK]") || !is_token(card.unk_id, "[UNK]")) return "it has no id of [MASK] or [UNK]";
  const has_frame = is_token(card.cls_id, "[CLS]") && is_token(card.sep_id, "[SEP]");
  if (!has_frame && (card.cls_id !== null || card.sep_id !== null)) return "its id of [CLS] or [SEP] is no id";
  if (!is_object(arms)) return "it has no arms";
  for (const [name, arm] of Object.entries(arms)) {
    const reason = fault_of_arm(arm, tokens);
    if (reason) return `${name}: ${reason}`;
  }
  const values_of = (name) => new Set(Object.values(arms).map(({ config }) => config[name]));
  const other = SHARED.find((name) => values_of(name).size > 1);
  if (other) return `its arms have different ${other}`;
  // The page shows the moments of training only if there are several. One of a model without a run isn't known.
  const has_moment = (one) => Number.isFinite(one.seconds) && is_count(one.steps) && is_loss(one.loss);
  const is_checkpoint = (one) =>
    is_object(one) && Object.hasOwn(arms, one.arm) && (has_moment(one) || (checkpoints.length === 1 && one.loss === null)) &&
    [one.file, one.sha256].every((value) => typeof value === "string") &&
    /^[\w-]+\.bin$/.test(one.file) && is_count(one.bytes) && /^[0-9a-f]{64}$/.test(one.sha256);
  if (!Array.isArray(checkpoints) || !checkpoints.length || !checkpoints.every(is_checkpoint)) return "its checkpoints don't fit";
  if (new Set(checkpoints.map(({ file }) => file)).size < checkpoints.length) return "two of its checkpoints share a file";
  return null;
}

export async function checksum(bytes) {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

export async function read_card(text) {
  let card;
  try {
    card = JSON.parse(text);
  } catch {
    // A network that wants a login answers with a page of its own.
    throw new Error("model.json isn't what the site sent. If your network wants a login, log in and try again.");
  }
  let reason;
  try {
    reason = fault(card);
  } catch {
    // JavaScript can't turn a list that is nested very deeply into text.
    reason = "its values can't be read";
  }
  // The last entry is the sha256 of the text before it. `crypto.subtle` exists only on pages that came over https.
  const content = new TextEncoder().encode(text.slice(0, text.lastIndexOf(',"sha256":')));
  if (!reason && crypto.subtle && (await checksum(content)) !== card.sha256) reason = "its checksum differs";
  if (reason) throw new Error(`model.json isn't what this page needs: ${reason}. Reload the page, or export your own model again.`);
  return card;
}
