/* Attention by hand: the forward pass of the toy transformer, the same steps and names as in the Python.

       tokens -> embedding + position -> per layer [x + attention(norm(x)), x + feed_forward(norm(x))] -> norm -> logits

   and inside the attention of each layer, head by head:

       query, key, value   three views of each position, cut into H heads of d_k numbers      linear, split_heads
       scores              how well a query matches each key: query · key / sqrt(d_k)         attend
       weights             softmax of the scores, 0 for every key that must not be seen       masked_softmax
       head_output         the mean of the values by these weights                            attend
       output              all heads side by side, mixed by w_o                               merge_heads, linear

   A sequence is an array with one vector per position, a vector a Float32Array as in PyTorch; sums are made in float64.
   The Python: shared/toy_model.py, phase2_multi_head/multi_head_attention.py, phase1_single_head/self_attention.py. */
"use strict";

const Attention = (() => {
  const NORM_EPSILON = 1e-5; // nn.LayerNorm's: keeps a constant vector from being divided by 0

  function dot(a, b) {
    let sum = 0;
    for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
    return sum;
  }

  const add = (a, b) => a.map((value, i) => value + b[i]);

  /* weight @ x + bias: (in) -> (out). Nearly all the time goes into this sum, so it copies nothing. */
  function affine({ shape: [rows, columns], data }, bias, x) {
    const result = new Float32Array(rows);
    for (let i = 0, start = 0; i < rows; i++, start += columns) {
      let sum = bias ? bias.data[i] : 0;
      for (let j = 0; j < columns; j++) sum += data[start + j] * x[j];
      result[i] = sum;
    }
    return result;
  }

  /* name: of an nn.Linear; those of the single-head model have no bias. */
  const linear = (model, name, x) => affine(model.parameters[`${name}.weight`], model.parameters[`${name}.bias`], x);

  /* Mean 0 and variance 1 over the numbers of one position, then a learned size and shift. */
  function layer_norm(model, name, x) {
    const weight = model.parameters[`${name}.weight`].data;
    const bias = model.parameters[`${name}.bias`].data;
    const mean = x.reduce((sum, value) => sum + value, 0) / x.length;
    const variance = x.reduce((sum, value) => sum + (value - mean) ** 2, 0) / x.length;
    return x.map((value, i) => ((value - mean) / Math.sqrt(variance + NORM_EPSILON)) * weight[i] + bias[i]);
  }

  /* Column 2i holds sin(position / 10000^(2i / d_model)), column 2i + 1 the cosine of the same angle. */
  function sinusoidal_position(position, d_model) {
    return new Float32Array(d_model).map((_, column) => {
      const angle = position * Math.exp((-Math.log(10000) * (column - (column % 2))) / d_model);
      return column % 2 === 0 ? Math.sin(angle) : Math.cos(angle);
    });
  }

  /* Shares that sum to 1. A score of -Infinity gets exactly 0; where all are -Infinity every share is 0, never NaN. */
  function masked_softmax(scores) {
    const largest = scores.reduce((a, b) => Math.max(a, b), -Infinity);
    if (largest === -Infinity) return new Float32Array(scores.length);
    const shares = Array.from(scores, (score) => Math.exp(score - largest)); // exp of at most 0 cannot overflow
    const total = shares.reduce((sum, share) => sum + share, 0);
    return Float32Array.from(shares, (share) => share / total);
  }

  const softmax = (logits, temperature = 1) =>
    masked_softmax(Float64Array.from(logits, (logit) => logit / temperature));

  /* [T] of d_model numbers -> [H][T] of d_k: head h gets the numbers h * d_k to (h + 1) * d_k. */
  function split_heads(sequence, num_heads) {
    const d_k = sequence[0].length / num_heads;
    return Array.from({ length: num_heads }, (_, head) => sequence.map((x) => x.slice(head * d_k, (head + 1) * d_k)));
  }

  /* The inverse of split_heads: [H][T] of d_k numbers -> [T] of d_model. */
  function merge_heads(heads) {
    return heads[0].map((_, i) => Float32Array.from(heads.flatMap((head) => [...head[i]])));
  }

  /* The planted bug: the same shapes by a bare view. A head then gets pieces of neighbouring words, not of each one. */
  function view_as_heads(sequence, num_heads) {
    const [T, d_k] = [sequence.length, sequence[0].length / num_heads];
    const flat = Float32Array.from(sequence.flatMap((x) => [...x]));
    const row = (head, i) => flat.slice((head * T + i) * d_k, (head * T + i + 1) * d_k);
    return Array.from({ length: num_heads }, (_, head) => sequence.map((_, i) => row(head, i)));
  }

  /* The inverse of view_as_heads. */
  function view_as_sequence(heads) {
    const d_model = heads.length * heads[0][0].length;
    const flat = Float32Array.from(heads.flatMap((head) => head.flatMap((row) => [...row])));
    return heads[0].map((_, i) => flat.slice(i * d_model, (i + 1) * d_model));
  }

  /* One query of one head against all keys. may_see(j): whether the query may attend to position j. */
  function attend(query, keys, values, may_see, divisor) {
    const scores = Float32Array.from(keys, (key, j) => (may_see(j) ? dot(query, key) / divisor : -Infinity));
    const weights = masked_softmax(scores);
    const head_output = query.map((_, d) => values.reduce((sum, value, j) => sum + weights[j] * value[d], 0));
    return { scores, weights, head_output };
  }

  /* Multi-head attention of one layer. x: [T] of d_model numbers, already normalised. Its keys and values join those
     in the cache, which holds the positions before x: position `past + i` belongs to x[i]. */
  function multi_head_attention(model, layer, x, cache, levers) {
    const name = `blocks.${layer}.attention`;
    const { causal = model.causal, divisor = model.divisor, removed = [], hidden = [], bug = null } = levers;
    const [split, merge] = bug === "view" ? [view_as_heads, view_as_sequence] : [split_heads, merge_heads];
    const [query, key, value] = ["w_q", "w_k", "w_v"].map((w) =>
      split(x.map((vector) => linear(model, `${name}.${w}`, vector)), model.num_heads));
    const past = cache.length;
    const heads = query.map((queries, head) => {
      cache.layers[layer].key[head].push(...key[head]);
      cache.layers[layer].value[head].push(...value[head]);
      const { key: keys, value: values } = cache.layers[layer];
      return queries.map((q, i) => {
        const allowed = (j) => !(causal && j > past + i) && !hidden.includes(j);
        const may_see = bug === "mask" ? (j) => !allowed(j) : allowed;
        const found = attend(q, keys[head], values[head], may_see, divisor);
        if (removed.includes(`${layer}.${head}`)) found.head_output.fill(0); // it still looks, but nobody hears of it
        return found;
      });
    });
    const [scores, weights, head_output] = ["scores", "weights", "head_output"].map((part) =>
      heads.map((rows) => rows.map((found) => found[part])));
    const output = merge(head_output).map((vector) => linear(model, `${name}.w_o`, vector));
    return { query, key, value, scores, weights, head_output, output };
  }

  /* Works on each position by itself: d_model -> 2 d_model -> d_model, with a ReLU between. */
  function feed_forward(model, layer, x) {
    const inner = linear(model, `blocks.${layer}.feed_forward.0`, x).map((value) => Math.max(value, 0));
    return linear(model, `blocks.${layer}.feed_forward.2`, inner);
  }

  /* What enters the first layer: the word's vector plus that of its position, learned or made of waves. */
  function embed(model, token, position) {
    const row = ({ data }, i) => data.subarray(i * model.d_model, (i + 1) * model.d_model);
    const word = row(model.parameters["embedding.weight"], token);
    const learned = model.parameters.positions;
    return add(word, learned ? row(learned, position) : sinusoidal_position(position, model.d_model));
  }

  /* A number for each word that may be said: by the embedding, read back, or by an output layer of its own. */
  function read_out(model, x) {
    if (model.parameters["to_logits.weight"]) return linear(model, "to_logits", x);
    const normed = layer_norm(model, "output_norm", x);
    return affine(model.parameters["embedding.weight"], model.parameters.output_bias, normed);
  }

  /* The positions after those in the cache, through all layers. Forward and step are this function. */
  function run(model, tokens, levers, cache) {
    if (cache.length + tokens.length > model.max_length) {
      throw new RangeError(`the toy transformer takes at most ${model.max_length} tokens`);
    }
    let x = tokens.map((token, i) => embed(model, token, cache.length + i));
    const layers = [];
    for (let layer = 0; layer < model.num_layers; layer++) {
      const normed = x.map((vector) => layer_norm(model, `blocks.${layer}.attention_norm`, vector));
      const attention = multi_head_attention(model, layer, normed, cache, levers);
      x = x.map((vector, i) => add(vector, attention.output[i]));
      x = x.map((vector) =>
        add(vector, feed_forward(model, layer, layer_norm(model, `blocks.${layer}.feed_forward_norm`, vector))));
      layers.push(attention);
    }
    cache.length += tokens.length;
    return { logits: x.map((vector) => read_out(model, vector)), layers };
  }

  /* No keys and no values yet: for each layer and head an array that grows by one vector per token. */
  function empty_cache(model) {
    const per_head = () => Array.from({ length: model.num_heads }, () => []);
    return {
      length: 0,
      layers: Array.from({ length: model.num_layers }, () => ({ key: per_head(), value: per_head() })),
    };
  }

  /* A whole sentence at once. levers: causal, divisor, removed ("layer.head"), hidden (positions nobody may see),
     bug ("view": heads cut without the transpose; "mask": hidden and seen swapped). */
  const forward = (model, tokens, levers = {}) => run(model, tokens, levers, empty_cache(model));

  /* One more token: only its own query, key and value are computed, the past comes from the cache. Equal to the last
     row of forward on the whole prefix, because under a causal mask the past never changes. */
  function step(model, cache, token, levers = {}) {
    const { logits, layers } = run(model, [token], levers, cache);
    const of_token = ({ query, weights }) => ({ query: query.map(([q]) => q), weights: weights.map(([w]) => w) });
    return { logits: logits[0], layers: layers.map(of_token) };
  }

  /* A model of the page's data, its numbers unpacked. */
  function load(record) {
    const bytes = Uint8Array.from(atob(record.numbers), (character) => character.charCodeAt(0));
    const numbers = new Float32Array(bytes.buffer); // little endian, as every machine with a browser is
    const parameters = Object.fromEntries(Object.entries(record.parameters).map(([name, { shape, start }]) => {
      const size = shape.reduce((a, b) => a * b, 1);
      return [name, { shape, data: numbers.subarray(start, start + size) }];
    }));
    const d_k = record.d_model / record.num_heads;
    return { causal: record.objective === "next word", divisor: Math.sqrt(d_k), ...record, parameters };
  }

  return { load, forward, empty_cache, step, softmax };
})();
