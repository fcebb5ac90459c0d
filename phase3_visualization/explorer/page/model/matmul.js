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
