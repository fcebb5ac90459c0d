/* The pieces of a transformer, each beside its backward pass: from the gradient of the loss with respect to what a
   piece gave (dy) to the gradient with respect to what it was given (dx) and to its parameters.

   Rows are positions, of all sentences of a batch one after the other: (N, d_model). A parameter has a value and, after
   a backward pass, a gradient of the same shape. Names are those of the Python; the sums are worked out by hand. */
"use strict";

const Pieces = (() => {
  const { transposed, block } = Matmul;
  const NORM_EPSILON = 1e-5; // nn.LayerNorm's

  const row = (x, i) => x.data.subarray(i * x.cols, (i + 1) * x.cols);

  function plus(space, a, b) {
    const sum = space.take(a.rows, a.cols);
    for (let i = 0; i < sum.data.length; i++) sum.data[i] = a.data[i] + b.data[i];
    return sum;
  }

  /* The sum of all rows: the gradient of a bias, which was added to each of them. */
  function sum_of_rows(x, sum) {
    sum.fill(0);
    for (let i = 0; i < x.data.length; i++) sum[i % x.cols] += x.data[i];
  }

  /* y = x Wᵀ + b: (N, in) -> (N, out); a lone head has no b. */
  function linear({ space, parameters }, name, x) {
    const weight = parameters[`${name}.weight`].value;
    const bias = parameters[`${name}.bias`]?.value.data;
    const y = space.multiply(x, transposed(weight), space.take(x.rows, weight.rows));
    if (bias) for (let i = 0; i < y.data.length; i++) y.data[i] += bias[i % y.cols];
    return y;
  }

  /* dW = dyᵀ x,  db = sum of the rows of dy,  dx = dy W */
  function linear_back({ space, parameters }, name, x, dy) {
    const weight = parameters[`${name}.weight`];
    space.multiply(transposed(dy), x, weight.gradient);
    sum_of_rows(dy, parameters[`${name}.bias`].gradient.data);
    return space.multiply(dy, weight.value, space.take(x.rows, x.cols));
  }

  /* y = z * weight + bias with z = (x - mean) / sigma, row by row */
  function layer_norm({ space, parameters }, name, x) {
    const weight = parameters[`${name}.weight`].value.data;
    const bias = parameters[`${name}.bias`].value.data;
    const [y, z, sigma] = [space.take(x.rows, x.cols), space.take(x.rows, x.cols), space.take(x.rows, 1).data];
    for (let i = 0; i < x.rows; i++) {
      const [from, to, unit] = [row(x, i), row(y, i), row(z, i)];
      let [mean, variance] = [0, 0];
      for (let j = 0; j < x.cols; j++) mean += from[j] / x.cols;
      for (let j = 0; j < x.cols; j++) variance += (from[j] - mean) ** 2 / x.cols;
      sigma[i] = Math.sqrt(variance + NORM_EPSILON);
      for (let j = 0; j < x.cols; j++) {
        unit[j] = (from[j] - mean) / sigma[i];
        to[j] = unit[j] * weight[j] + bias[j];
      }
    }
    return { y, z, sigma };
  }

  /* With g = dy * weight:  dx = (g - mean(g) - z mean(g z)) / sigma,  dweight = sum of dy z,  dbias = sum of dy.
     What z cannot do, change its mean and its variance, is taken out of the gradient. */
  function layer_norm_back({ space, parameters }, name, { z, sigma }, dy) {
    const weight = parameters[`${name}.weight`].value.data;
    const dweight = parameters[`${name}.weight`].gradient.data.fill(0);
    const dx = space.take(dy.rows, dy.cols);
    for (let i = 0; i < dy.rows; i++) {
      const [from, to, unit] = [row(dy, i), row(dx, i), row(z, i)];
      let [mean, along] = [0, 0];
      for (let j = 0; j < dy.cols; j++) {
        const g = from[j] * weight[j];
        mean += g / dy.cols;
        along += (g * unit[j]) / dy.cols;
        dweight[j] += from[j] * unit[j];
      }
      for (let j = 0; j < dy.cols; j++) to[j] = (from[j] * weight[j] - mean - unit[j] * along) / sigma[i];
    }
    sum_of_rows(dy, parameters[`${name}.bias`].gradient.data);
    return dx;
  }

  /* w = exp(s) / sum of exp(s), row by row, in place; s: scores divided by `divisor`. A score of -Infinity gets exactly
     0; where all are -Infinity every weight is 0, never NaN. */
  function softmax(scores, divisor) {
    for (let i = 0; i < scores.rows; i++) {
      const s = row(scores, i);
      let [largest, total] = [-Infinity, 0];
      for (let j = 0; j < s.length; j++) largest = Math.max(largest, s[j]);
      if (largest === -Infinity) {
        s.fill(0);
        continue;
      }
      for (let j = 0; j < s.length; j++) total += s[j] = Math.exp((s[j] - largest) / divisor);
      for (let j = 0; j < s.length; j++) s[j] /= total;
    }
    return scores;
  }

  /* ds = w * (dw - sum of w dw), row by row, written over dw: more for one key is less for the others */
  function softmax_back(weights, dw, divisor) {
    for (let i = 0; i < dw.rows; i++) {
      const [w, g] = [row(weights, i), row(dw, i)];
      let along = 0;
      for (let j = 0; j < g.length; j++) along += w[j] * g[j];
      for (let j = 0; j < g.length; j++) g[j] = (w[j] * (g[j] - along)) / divisor;
    }
    return dw;
  }

  /* The rows of one sentence and the columns of one head. */
  const of_head = (x, { start, length }, head, d_k) => block(x, start, length, head * d_k, d_k);

  /* The planted bug: the same shapes by a bare view. A head then gets pieces of neighbouring words, not of each one. */
  const by_view = (x, { start, length }, head, d_k) =>
    ({ start: x.start + start * x.cols + head * length * d_k, rows: length, cols: d_k, row: d_k, col: 1 });

  function clear(space, x) {
    for (let i = 0; i < x.rows; i++) space.numbers.fill(0, x.start + i * x.row, x.start + i * x.row + x.cols);
  }

  function hide(scores, is_hidden) {
    for (let i = 0; i < scores.rows; i++) {
      const s = row(scores, i);
      for (let j = 0; j < s.length; j++) if (is_hidden(i, j)) s[j] = -Infinity;
    }
  }

  /* weights = softmax(q kᵀ / divisor),  output = weights v, for each sentence and head.
     is_hidden(query, key): null if each sees all. out: heads knocked out. cut: how a head's part is taken, of_head.
     -> heads (N, d_model), weights [sentence][head] (T, T) */
  function attend({ space, num_heads }, sentences, { query, key, value }, { divisor, is_hidden, out, cut }) {
    const heads = space.take(query.rows, query.cols);
    const d_k = query.cols / num_heads;
    const weights = sentences.map((sentence) => Array.from({ length: num_heads }, (_, head) => {
      const [q, k, v, output] = [query, key, value, heads].map((x) => cut(x, sentence, head, d_k));
      const scores = space.multiply(q, transposed(k), space.take(sentence.length, sentence.length));
      if (is_hidden) hide(scores, is_hidden);
      const w = softmax(scores, divisor);
      if (out.includes(head)) clear(space, output); // it still looks, but nobody hears of it
      else space.multiply(w, v, output);
      return w;
    }));
    return { heads, weights };
  }

  /* dv = wᵀ do,  dw = do vᵀ,  ds from softmax_back,  dq = ds k,  dk = dsᵀ q */
  function attend_back({ space, num_heads }, sentences, { query, key, value, weights }, dheads) {
    const { rows, cols } = query;
    const d_k = cols / num_heads;
    const back = { query: space.take(rows, cols), key: space.take(rows, cols), value: space.take(rows, cols) };
    sentences.forEach((sentence, n) => weights[n].forEach((w, head) => {
      const [q, k, v, output, dq, dk, dv] = [query, key, value, dheads, back.query, back.key, back.value].map((x) =>
        of_head(x, sentence, head, d_k));
      const before = space.mark();
      const dw = space.multiply(output, transposed(v), space.take(w.rows, w.cols));
      const ds = softmax_back(w, dw, Math.sqrt(d_k));
      space.multiply(transposed(w), output, dv);
      space.multiply(ds, k, dq);
      space.multiply(transposed(ds), q, dk);
      space.release(before);
    }));
    return back;
  }

  /* max(x, 0), in place */
  function relu(x) {
    for (let i = 0; i < x.data.length; i++) if (x.data[i] < 0) x.data[i] = 0;
    return x;
  }

  /* dy where y > 0, else 0; in place */
  function relu_back(y, dy) {
    for (let i = 0; i < dy.data.length; i++) if (y.data[i] <= 0) dy.data[i] = 0;
    return dy;
  }

  /* The mean of -ln p(target) over the rows, p = softmax(logits); its gradient, (p - 1 at the target) / rows, is
     written over the logits. */
  function cross_entropy(logits, targets) {
    let loss = 0;
    softmax(logits, 1);
    for (let i = 0; i < logits.rows; i++) {
      const p = row(logits, i);
      loss -= Math.log(p[targets[i]]) / logits.rows;
      p[targets[i]] -= 1;
      for (let j = 0; j < p.length; j++) p[j] /= logits.rows;
    }
    return loss;
  }

  return {
    row, plus, sum_of_rows, linear, linear_back, layer_norm, layer_norm_back, of_head, by_view, attend, attend_back,
    softmax, relu, relu_back, cross_entropy,
  };
})();
