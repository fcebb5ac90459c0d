/* The toy transformer of shared/toy_model.py, forward and backward, put together from pieces.js.

       tokens -> embedding + position -> per layer [x + attention(norm(x)), x + feed_forward(norm(x))] -> norm -> logits

   The backward pass goes the same way from its end. Where x went two ways, into a sub-layer and past it, its gradient
   is the sum of the two. The matrix that reads words in also reads them out; its gradient is the sum of both uses.
   A batch: {tokens, sentences: [{start, length}], chosen: rows to predict, targets: their words}. */
"use strict";

const Network = (() => {
  const { transposed } = Matmul;
  const { row, plus } = Pieces;

  /* Name -> shape of every parameter, as in PyTorch's state_dict. */
  function shapes({ d_model, num_layers, num_words }) {
    const found = { "embedding.weight": [num_words, d_model], output_bias: [1, num_words] };
    const norm = (name) => Object.assign(found, { [`${name}.weight`]: [1, d_model], [`${name}.bias`]: [1, d_model] });
    const linear = (name, out, into) =>
      Object.assign(found, { [`${name}.weight`]: [out, into], [`${name}.bias`]: [1, out] });
    for (let layer = 0; layer < num_layers; layer++) {
      norm(`blocks.${layer}.attention_norm`);
      for (const w of ["w_q", "w_k", "w_v", "w_o"]) linear(`blocks.${layer}.attention.${w}`, d_model, d_model);
      norm(`blocks.${layer}.feed_forward_norm`);
      linear(`blocks.${layer}.feed_forward.0`, 2 * d_model, d_model);
      linear(`blocks.${layer}.feed_forward.2`, d_model, 2 * d_model);
    }
    norm("output_norm");
    return found;
  }

  /* A model of these sizes, all numbers 0. out[layer]: the heads that are knocked out. */
  function create(sizes, space) {
    const parameters = {};
    for (const [name, [rows, cols]] of Object.entries(shapes(sizes))) {
      parameters[name] = { value: space.take(rows, cols), gradient: space.take(rows, cols) };
    }
    const positions = position_vectors(space, sizes.max_length, sizes.d_model);
    return { ...sizes, space, parameters, positions, out: Array.from({ length: sizes.num_layers }, () => []) };
  }

  /* Column 2i holds sin(position / 10000^(2i / d_model)), column 2i + 1 the cosine of the same angle. */
  function position_number(position, column, d_model) {
    const angle = position * Math.exp((-Math.log(10000) * (column - (column % 2))) / d_model);
    return column % 2 === 0 ? Math.sin(angle) : Math.cos(angle);
  }

  /* The vectors of the positions 0 to length - 1, (length, d_model). */
  function position_vectors(space, length, d_model) {
    const positions = space.take(length, d_model);
    positions.data.forEach((_, i) => {
      positions.data[i] = position_number(Math.floor(i / d_model), i % d_model, d_model);
    });
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

  function block_forward(model, layer, { sentences }, x) {
    const name = `blocks.${layer}`;
    const norm = Pieces.layer_norm(model, `${name}.attention_norm`, x);
    const [query, key, value] = ["q", "k", "v"].map((w) => Pieces.linear(model, `${name}.attention.w_${w}`, norm.y));
    const attended = Pieces.attend(model, sentences, { query, key, value }, model.out[layer]);
    const middle = plus(model.space, x, Pieces.linear(model, `${name}.attention.w_o`, attended.heads));
    const second_norm = Pieces.layer_norm(model, `${name}.feed_forward_norm`, middle);
    const inner = Pieces.relu(Pieces.linear(model, `${name}.feed_forward.0`, second_norm.y));
    const output = plus(model.space, middle, Pieces.linear(model, `${name}.feed_forward.2`, inner));
    return { norm, query, key, value, ...attended, second_norm, inner, output };
  }

  function block_backward(model, layer, { sentences }, saved, doutput) {
    const name = `blocks.${layer}`;
    const dinner = Pieces.linear_back(model, `${name}.feed_forward.2`, saved.inner, doutput);
    const before_relu = Pieces.relu_back(saved.inner, dinner);
    const dsecond = Pieces.linear_back(model, `${name}.feed_forward.0`, saved.second_norm.y, before_relu);
    const past = Pieces.layer_norm_back(model, `${name}.feed_forward_norm`, saved.second_norm, dsecond);
    const dmiddle = plus(model.space, doutput, past);
    const dheads = Pieces.linear_back(model, `${name}.attention.w_o`, saved.heads, dmiddle);
    const back = Pieces.attend_back(model, sentences, saved, dheads, model.out[layer]);
    const [by_query, by_key, by_value] = ["query", "key", "value"].map((part) =>
      Pieces.linear_back(model, `${name}.attention.w_${part[0]}`, saved.norm.y, back[part]));
    const dnorm = plus(model.space, plus(model.space, by_query, by_key), by_value);
    return plus(model.space, dmiddle, Pieces.layer_norm_back(model, `${name}.attention_norm`, saved.norm, dnorm));
  }

  /* All layers -> {x: what enters the first, layers: what each keeps for its way back, with its weights} */
  function forward(model, batch) {
    const layers = [];
    let x = embed(model, batch);
    for (let layer = 0; layer < model.num_layers; layer++) {
      layers.push(block_forward(model, layer, batch, x));
      x = layers[layer].output;
    }
    return { layers, output: x };
  }

  /* The words at the chosen rows alone -> loss, and what the way back needs: dlogits (chosen, words) */
  function predict(model, { chosen, targets }, output) {
    const { space, parameters } = model;
    const picked = space.take(chosen.length, model.d_model);
    chosen.forEach((position, i) => row(picked, i).set(row(output, position)));
    const norm = Pieces.layer_norm(model, "output_norm", picked);
    const words = parameters["embedding.weight"].value;
    const logits = space.multiply(norm.y, transposed(words), space.take(chosen.length, words.rows));
    const bias = parameters.output_bias.value.data;
    for (let i = 0; i < logits.data.length; i++) logits.data[i] += bias[i % logits.cols];
    const loss = Pieces.cross_entropy(logits, targets);
    return { loss, norm, dlogits: logits };
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

  return { create, forward, predict, backward };
})();
