/* Matrices, and their product, which nearly all of a forward pass consists of.

   A matrix says where it lies in its numbers: {data, start, rows, cols, row, col}, with the steps from one row and from
   one column to the next. So a transposed matrix, or a block of one, is no copy: it is the same numbers with other
   steps. */
"use strict";

const Matmul = (() => {
  /* A matrix of zeros; its rows lie one after the other. */
  const zeros = (rows, cols) =>
    ({ data: new Float32Array(rows * cols), start: 0, rows, cols, row: cols, col: 1 });

  const transposed = (x) => ({ ...x, rows: x.cols, cols: x.rows, row: x.col, col: x.row });
  const block = (x, row, rows, col, cols) =>
    ({ ...x, start: x.start + row * x.row + col * x.col, rows, cols });

  /* c = a b: (m, k) times (k, n) -> (m, n). It is written to c, which must not be a or b, or else to a new matrix. */
  function multiply(a, b, c = zeros(a.rows, b.cols)) {
    const [a_data, b_data] = [a.data, b.data];
    for (let i = 0; i < a.rows; i++) {
      for (let j = 0; j < b.cols; j++) {
        let [from_a, from_b, sum] = [a.start + i * a.row, b.start + j * b.col, 0];
        for (let p = 0; p < a.cols; p++) {
          sum += a_data[from_a] * b_data[from_b];
          from_a += a.col;
          from_b += b.row;
        }
        c.data[c.start + i * c.row + j * c.col] = sum;
      }
    }
    return c;
  }

  return { zeros, transposed, block, multiply };
})();

/* The pieces of a transformer, forward.

   Rows are the positions of a sentence: (T, d_model). Names are those of the Python. */
const Pieces = (() => {
  const { zeros, transposed, block, multiply } = Matmul;
  const NORM_EPSILON = 1e-5; // nn.LayerNorm's

  const row = (x, i) => x.data.subarray(i * x.cols, (i + 1) * x.cols);

  function plus(a, b) {
    const sum = zeros(a.rows, a.cols);
    for (let i = 0; i < sum.data.length; i++) sum.data[i] = a.data[i] + b.data[i];
    return sum;
  }

  /* y = x Wᵀ + b: (T, in) -> (T, out); a lone head has no b. */
  function linear(parameters, name, x) {
    const bias = parameters[`${name}.bias`]?.data;
    const y = multiply(x, transposed(parameters[`${name}.weight`]));
    if (bias) for (let i = 0; i < y.data.length; i++) y.data[i] += bias[i % y.cols];
    return y;
  }

  /* y = z * weight + bias with z = (x - mean) / sigma, row by row */
  function layer_norm(parameters, name, x) {
    const weight = parameters[`${name}.weight`].data;
    const bias = parameters[`${name}.bias`].data;
    const y = zeros(x.rows, x.cols);
    for (let i = 0; i < x.rows; i++) {
      const [from, to] = [row(x, i), row(y, i)];
      let [mean, variance] = [0, 0];
      for (let j = 0; j < x.cols; j++) mean += from[j] / x.cols;
      for (let j = 0; j < x.cols; j++) variance += (from[j] - mean) ** 2 / x.cols;
      const sigma = Math.sqrt(variance + NORM_EPSILON);
      for (let j = 0; j < x.cols; j++) to[j] = ((from[j] - mean) / sigma) * weight[j] + bias[j];
    }
    return y;
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

  /* The columns of one head. */
  const of_head = (x, head, d_k) => block(x, 0, x.rows, head * d_k, d_k);

  /* The planted bug: the same shapes by a bare view. A head then gets pieces of neighbouring words, not of each one. */
  const by_view = (x, head, d_k) =>
    ({ ...x, start: head * x.rows * d_k, cols: d_k, row: d_k });

  function hide(scores, is_hidden) {
    for (let i = 0; i < scores.rows; i++) {
      const s = row(scores, i);
      for (let j = 0; j < s.length; j++) if (is_hidden(i, j)) s[j] = -Infinity;
    }
  }

  /* weights = softmax(q kᵀ / divisor),  output = weights v, for each head.
     is_hidden(query, key): null if each sees all. out: heads knocked out. cut: how a head's part is taken, of_head.
     -> heads (T, d_model), weights [head] (T, T) */
  function attend(num_heads, { query, key, value }, { divisor, is_hidden, out, cut }) {
    const heads = zeros(query.rows, query.cols);
    const d_k = query.cols / num_heads;
    const weights = Array.from({ length: num_heads }, (_, head) => {
      const [q, k, v, output] = [query, key, value, heads].map((x) => cut(x, head, d_k));
      const scores = multiply(q, transposed(k));
      if (is_hidden) hide(scores, is_hidden);
      const w = softmax(scores, divisor);
      if (!out.includes(head)) multiply(w, v, output); // one that is out still looks, but nobody hears of it
      return w;
    });
    return { heads, weights };
  }

  /* max(x, 0), in place */
  function relu(x) {
    for (let i = 0; i < x.data.length; i++) if (x.data[i] < 0) x.data[i] = 0;
    return x;
  }

  return { row, plus, linear, layer_norm, of_head, by_view, attend, softmax, relu };
})();
