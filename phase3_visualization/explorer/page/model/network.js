/* The transformer of this page, put together from pieces.js: the toy transformer of shared/toy_model.py, and the small
   models of two_places.py and reverse_and_copy.py in phase 1.

       tokens -> embedding + position -> per layer [x + attention(norm(x)), x + feed_forward(norm(x))] -> norm -> logits

   The matrix that reads words in also reads them out. */
"use strict";

const Network = (() => {
  const { zeros, transposed, multiply } = Matmul;
  const { row, plus, linear, layer_norm } = Pieces;

  /* A model of the page's data. record.parameters: name -> shape, as in PyTorch's state_dict; without numbers all
     are 0. */
  function load(record) {
    const parameters = {};
    for (const [name, shape] of Object.entries(record.parameters)) {
      const [rows, cols] = shape.length > 1 ? shape : [1, ...shape];
      parameters[name] = zeros(rows, cols);
    }
    const positions = parameters.positions ?? position_vectors(record.max_length, record.d_model);
    const model = { divisor: Math.sqrt(record.d_model / record.num_heads), ...record, parameters, positions };
    if (record.numbers) set_numbers(model, Packed.numbers(record, record.parameters));
    return model;
  }

  /* All numbers of a model, parameter after parameter. */
  function set_numbers({ parameters }, numbers) {
    let start = 0;
    for (const { data } of Object.values(parameters)) {
      data.set(numbers.subarray(start, start + data.length));
      start += data.length;
    }
  }

  /* The vectors of the positions 0 to length - 1, (length, d_model). Column 2i holds sin(position / 10000^(2i / d_model)),
     column 2i + 1 the cosine of the same angle. */
  function position_vectors(length, d_model) {
    const positions = zeros(length, d_model);
    for (let i = 0; i < positions.data.length; i++) {
      const [position, column] = [Math.floor(i / d_model), i % d_model];
      const angle = position * Math.exp((-Math.log(10000) * (column - (column % 2))) / d_model);
      positions.data[i] = column % 2 === 0 ? Math.sin(angle) : Math.cos(angle);
    }
    return positions;
  }

  function embed({ parameters, d_model, positions }, tokens) {
    const x = zeros(tokens.length, d_model);
    tokens.forEach((token, t) => {
      const [word, position, to] = [row(parameters["embedding.weight"], token), row(positions, t), row(x, t)];
      for (let j = 0; j < d_model; j++) to[j] = word[j] + position[j];
    });
    return x;
  }

  /* What levers do to the attention of one layer. A bug: "view", heads cut without the transpose; "mask", hidden and
     seen swapped. */
  function pulled(model, layer, { causal = model.causal, divisor = model.divisor, removed = [], bug = null }) {
    const is_future = (query, key) => key > query;
    const is_past = (query, key) => key <= query;
    const out = removed.map((name) => name.split(".").map(Number)).filter(([of]) => of === layer);
    return {
      divisor,
      is_hidden: bug === "mask" ? is_past : causal ? is_future : null,
      out: out.map(([, head]) => head),
      cut: bug === "view" ? Pieces.by_view : Pieces.of_head,
    };
  }

  function block_forward({ parameters, num_heads }, layer, x, levers) {
    const name = `blocks.${layer}`;
    const norm = layer_norm(parameters, `${name}.attention_norm`, x);
    const [query, key, value] = ["q", "k", "v"].map((w) => linear(parameters, `${name}.attention.w_${w}`, norm));
    const { heads, weights } = Pieces.attend(num_heads, { query, key, value }, levers);
    const middle = plus(x, linear(parameters, `${name}.attention.w_o`, heads));
    const second_norm = layer_norm(parameters, `${name}.feed_forward_norm`, middle);
    const inner = Pieces.relu(linear(parameters, `${name}.feed_forward.0`, second_norm));
    const output = plus(middle, linear(parameters, `${name}.feed_forward.2`, inner));
    return { query, key, value, weights, middle, output };
  }

  /* A number for each word that may be said, row by row: by the embedding, read back, or by an output layer. */
  function read_out({ parameters }, x) {
    if (parameters["to_logits.weight"]) return linear(parameters, "to_logits", x);
    const norm = layer_norm(parameters, "output_norm", x);
    const logits = multiply(norm, transposed(parameters["embedding.weight"]));
    const bias = parameters.output_bias.data;
    for (let i = 0; i < logits.data.length; i++) logits.data[i] += bias[i % logits.cols];
    return logits;
  }

  const rows = (x) => Array.from({ length: x.rows }, (_, i) => row(x, i));

  /* One sentence -> all of a forward pass that is shown, row by row. levers: {causal, divisor, removed: ["layer.head"],
     bug}, each as the model was trained if it is not given. With `through` also what would be said of nothing but the
     word and its place, and after each part of each layer: after. */
  function run(model, tokens, levers = {}, through = false) {
    if (tokens.length > model.max_length) {
      throw new RangeError(`the toy transformer takes at most ${model.max_length} tokens`);
    }
    const streams = [embed(model, tokens)];
    const layers = [];
    for (let layer = 0; layer < model.num_layers; layer++) {
      const block = block_forward(model, layer, streams.at(-1), pulled(model, layer, levers));
      streams.push(block.middle, block.output);
      layers.push(block);
    }
    const after = streams.slice(through ? 0 : -1).map((stream) => rows(read_out(model, stream)));
    const shown = layers.map(({ query, key, value, weights }) =>
      ({ query: rows(query), key: rows(key), value: rows(value), weights: weights.map(rows) }));
    return { logits: after.at(-1), after, layers: shown };
  }

  /* Shares that sum to 1. */
  function softmax(logits) {
    const shares = logits.slice();
    return Pieces.softmax({ rows: 1, cols: shares.length, data: shares }, 1).data;
  }

  return { load, set_numbers, run, softmax };
})();
