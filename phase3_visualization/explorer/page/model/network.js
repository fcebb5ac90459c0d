/* The transformer of this page, forward and backward, put together from pieces.js: the toy transformer of
   shared/toy_model.py, and the small models of shared/tasks.py.

       tokens -> embedding + position -> per layer [x + attention(norm(x)), x + feed_forward(norm(x))] -> norm -> logits

   The backward pass goes the same way from its end. Where x went two ways, into a sub-layer and past it, its gradient
   is the sum of the two. The matrix that reads words in also reads them out; its gradient is the sum of both uses.
   A batch: {tokens, sentences: [{start, length}], chosen: rows to predict, targets: their words}. */
"use strict";

const Network = (() => {
  const { transposed } = Matmul;
  const { row, plus } = Pieces;
  const ROOM = 5e5; // numbers: all that a forward pass of one sentence computes

  /* A model of these sizes, all numbers 0. sizes.parameters: name -> {shape}, as in PyTorch's state_dict.
     trains: whether each parameter needs a gradient. */
  function create(sizes, space, trains) {
    const parameters = {};
    for (const [name, { shape }] of Object.entries(sizes.parameters)) {
      const [rows, cols] = shape.length > 1 ? shape : [1, ...shape];
      parameters[name] = { value: space.take(rows, cols), gradient: trains ? space.take(rows, cols) : null };
    }
    const positions = parameters.positions?.value ?? position_vectors(space, sizes.max_length, sizes.d_model);
    return { divisor: Math.sqrt(sizes.d_model / sizes.num_heads), ...sizes, space, parameters, positions };
  }

  const count = ({ parameters }) =>
    Object.values(parameters).reduce((sum, { shape }) => sum + shape.reduce((a, b) => a * b), 0);

  /* A model of the page's data, to be run and not trained. */
  function load(record) {
    const model = create(record, Matmul.open_space(count(record) + record.max_length * record.d_model + ROOM), false);
    if (record.numbers) set_numbers(model, Packed.numbers(record, record.parameters));
    return model;
  }

  /* All numbers of a model, parameter after parameter. */
  function set_numbers({ parameters }, numbers) {
    let start = 0;
    for (const { value } of Object.values(parameters)) {
      value.data.set(numbers.subarray(start, start + value.data.length));
      start += value.data.length;
    }
  }

  function numbers_of({ parameters }) {
    return Float32Array.from(Object.values(parameters).flatMap(({ value }) => [...value.data]));
  }

  /* The vectors of the positions 0 to length - 1, (length, d_model). Column 2i holds sin(position / 10000^(2i / d_model)),
     column 2i + 1 the cosine of the same angle. */
  function position_vectors(space, length, d_model) {
    const positions = space.take(length, d_model);
    for (let i = 0; i < positions.data.length; i++) {
      const [position, column] = [Math.floor(i / d_model), i % d_model];
      const angle = position * Math.exp((-Math.log(10000) * (column - (column % 2))) / d_model);
      positions.data[i] = column % 2 === 0 ? Math.sin(angle) : Math.cos(angle);
    }
    return positions;
  }

  function embed({ space, parameters, d_model, positions }, { tokens, sentences }) {
    const words = parameters["embedding.weight"].value;
    const x = space.take(tokens.length, d_model);
    for (const { start, length } of sentences) {
      for (let t = 0; t < length; t++) {
        const [word, position, to] = [row(words, tokens[start + t]), row(positions, t), row(x, start + t)];
        for (let j = 0; j < d_model; j++) to[j] = word[j] + position[j];
      }
    }
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

  function block_forward(model, layer, { sentences }, x, levers) {
    const name = `blocks.${layer}`;
    const norm = Pieces.layer_norm(model, `${name}.attention_norm`, x);
    const [query, key, value] = ["q", "k", "v"].map((w) => Pieces.linear(model, `${name}.attention.w_${w}`, norm.y));
    const attended = Pieces.attend(model, sentences, { query, key, value }, pulled(model, layer, levers));
    const middle = plus(model.space, x, Pieces.linear(model, `${name}.attention.w_o`, attended.heads));
    const second_norm = Pieces.layer_norm(model, `${name}.feed_forward_norm`, middle);
    const inner = Pieces.relu(Pieces.linear(model, `${name}.feed_forward.0`, second_norm.y));
    const output = plus(model.space, middle, Pieces.linear(model, `${name}.feed_forward.2`, inner));
    return { norm, query, key, value, ...attended, middle, second_norm, inner, output };
  }

  function block_backward(model, layer, { sentences }, saved, doutput) {
    const name = `blocks.${layer}`;
    const dinner = Pieces.linear_back(model, `${name}.feed_forward.2`, saved.inner, doutput);
    const before_relu = Pieces.relu_back(saved.inner, dinner);
    const dsecond = Pieces.linear_back(model, `${name}.feed_forward.0`, saved.second_norm.y, before_relu);
    const past = Pieces.layer_norm_back(model, `${name}.feed_forward_norm`, saved.second_norm, dsecond);
    const dmiddle = plus(model.space, doutput, past);
    const dheads = Pieces.linear_back(model, `${name}.attention.w_o`, saved.heads, dmiddle);
    const back = Pieces.attend_back(model, sentences, saved, dheads);
    const [by_query, by_key, by_value] = ["query", "key", "value"].map((part) =>
      Pieces.linear_back(model, `${name}.attention.w_${part[0]}`, saved.norm.y, back[part]));
    const dnorm = plus(model.space, plus(model.space, by_query, by_key), by_value);
    return plus(model.space, dmiddle, Pieces.layer_norm_back(model, `${name}.attention_norm`, saved.norm, dnorm));
  }

  /* All layers -> {x: what enters the first, layers: what each keeps for its way back, with its weights, output}.
     levers: {causal, divisor, removed: ["layer.head"], bug}, each as the model was trained if it is not given. */
  function forward(model, batch, levers = {}) {
    const [layers, x] = [[], embed(model, batch)];
    let output = x;
    for (let layer = 0; layer < model.num_layers; layer++) {
      layers.push(block_forward(model, layer, batch, output, levers));
      ({ output } = layers[layer]);
    }
    return { x, layers, output };
  }

  /* A number for each word that may be said, row by row: by the embedding, read back, or by an output layer. */
  function read_out(model, x) {
    const { space, parameters } = model;
    if (parameters["to_logits.weight"]) return { logits: Pieces.linear(model, "to_logits", x) };
    const norm = Pieces.layer_norm(model, "output_norm", x);
    const words = parameters["embedding.weight"].value;
    const logits = space.multiply(norm.y, transposed(words), space.take(x.rows, words.rows));
    const bias = parameters.output_bias.value.data;
    for (let i = 0; i < logits.data.length; i++) logits.data[i] += bias[i % logits.cols];
    return { logits, norm };
  }

  /* The words at the chosen rows alone -> loss, and what the way back needs: dlogits (chosen, words) */
  function predict(model, { chosen, targets }, output) {
    const picked = model.space.take(chosen.length, model.d_model);
    chosen.forEach((position, i) => row(picked, i).set(row(output, position)));
    const { logits, norm } = read_out(model, picked);
    const loss = Pieces.cross_entropy(logits, targets);
    return { loss, norm, dlogits: logits };
  }

  const rows = (x) => Array.from({ length: x.rows }, (_, i) => row(x, i).slice());

  /* One sentence -> all of a forward pass that is shown, row by row. With `through` also what would be said of nothing
     but the word and its place, and after each part of each layer: after. */
  function run(model, tokens, levers = {}, through = false) {
    if (tokens.length > model.max_length) {
      throw new RangeError(`the toy transformer takes at most ${model.max_length} tokens`);
    }
    const before = model.space.mark();
    const sentences = [{ start: 0, length: tokens.length }];
    const { x, layers } = forward(model, { tokens: Int32Array.from(tokens), sentences }, levers);
    const streams = [x, ...layers.flatMap(({ middle, output }) => [middle, output])].slice(through ? 0 : -1);
    const after = streams.map((stream) => rows(read_out(model, stream).logits));
    const shown = layers.map(({ query, key, value, weights }) =>
      ({ query: rows(query), key: rows(key), value: rows(value), weights: weights[0].map(rows) }));
    model.space.release(before);
    return { logits: after.at(-1), after, layers: shown };
  }

  /* Shares that sum to 1. */
  function softmax(logits) {
    const shares = logits.slice();
    return Pieces.softmax({ rows: 1, cols: shares.length, data: shares }, 1).data;
  }

  /* From the logits back to the output of the last layer: 0 where no word was chosen. */
  function predict_back({ space, parameters, d_model }, { tokens, chosen }, { norm, dlogits }) {
    const words = parameters["embedding.weight"];
    space.multiply(transposed(dlogits), norm.y, words.gradient);
    Pieces.sum_of_rows(dlogits, parameters.output_bias.gradient.data);
    const dnorm = space.multiply(dlogits, words.value, space.take(chosen.length, d_model));
    const dpicked = Pieces.layer_norm_back({ space, parameters }, "output_norm", norm, dnorm);
    const doutput = space.take(tokens.length, d_model);
    doutput.data.fill(0);
    chosen.forEach((position, i) => row(doutput, position).set(row(dpicked, i)));
    return doutput;
  }

  /* Each row of dx belongs to the vector of the word that stood there; the positions do not learn. */
  function embed_back({ parameters }, { tokens }, dx) {
    const { gradient } = parameters["embedding.weight"];
    tokens.forEach((token, i) => {
      const [sum, part] = [row(gradient, token), row(dx, i)];
      for (let j = 0; j < part.length; j++) sum[j] += part[j];
    });
  }

  /* The gradients of all parameters; predicted: what `predict` gave. */
  function backward(model, batch, { layers }, predicted) {
    let dx = predict_back(model, batch, predicted);
    for (let layer = model.num_layers - 1; layer >= 0; layer--) {
      dx = block_backward(model, layer, batch, layers[layer], dx);
    }
    embed_back(model, batch, dx);
  }

  return { create, load, set_numbers, numbers_of, forward, predict, backward, run, softmax };
})();
