/* Matrices in one block of memory, and their product. Nearly all the time of training goes into `multiply`.

   The product is in WebAssembly, which works on four numbers at once: matmul.wat, assembled, without its names. A browser without it gets
   the same product in JavaScript, which takes several times as long. Both read and write the same memory.

   A matrix says where it lies: {start, rows, cols, row, col}, with the steps from one row and from one column to the
   next. So a transposed matrix, or a block of one, is no copy: it is the same numbers with other steps. */
"use strict";

const Matmul = (() => {
  const PAGE = 65536; // bytes: memory comes in such pages
  const ASSEMBLED = `
    AGFzbQEAAAABKQRgCH9/f39/f39/AGAGf39/f39/AGADf39/AX9gCn9/f39/f39/f38AAhABBGdyb3cGbWVtb3J5AgABAwUEAAECAwcMAQhtdWx0aX
    BseQADCr8EBL8CAgN/C3sgASACaiEIIAggAmohCSAJIAJqIQoDQCAE/QAEACELIAT9AAQQIQwgAf0JAgAhDSAOIA0gC/3mAf3kASEOIA8gDSAM/eYB
    /eQBIQ8gCP0JAgAhDSAQIA0gC/3mAf3kASEQIBEgDSAM/eYB/eQBIREgCf0JAgAhDSASIA0gC/3mAf3kASESIBMgDSAM/eYB/eQBIRMgCv0JAgAhDS
    AUIA0gC/3mAf3kASEUIBUgDSAM/eYB/eQBIRUgASADaiEBIAggA2ohCCAJIANqIQkgCiADaiEKIAQgBWohBCAAQQFrIgANAAsgBiAO/QsEACAGIA/9
    CwQQIAYgB2ohBiAGIBD9CwQAIAYgEf0LBBAgBiAHaiEGIAYgEv0LBAAgBiAT/QsEECAGIAdqIQYgBiAU/QsEACAGIBX9CwQQCzUBAX0DQCAGIAEqAg
    AgAyoCAJSSIQYgASACaiEBIAMgBGohAyAAQQFrIgANAAsgBSAGOAIACycBAn8gACABaiEDIAIgAWshBCADIAJOBEAgAg8LIAQgAyADIARKGwudAQEG
    f0EEQQEgAEEETiABQQhOcRshDEEIQQEgDEEERhshDQNAQQAhCgNAIAMgCiAEbGohDiAIIAogCWxqIAtBAnRqIQ8gDEEERgRAIAIgDiAEIAUgBiALQQ
    J0aiAHIA8gCRAABSACIA4gBSAGIAtBAnRqIAcgDxABCyAKIAwgABACIQogCiAASA0ACyALIA0gARACIQsgCyABSA0ACws=`;

  const transposed = (x) => ({ start: x.start, rows: x.cols, cols: x.rows, row: x.col, col: x.row });
  const block = (x, row, rows, col, cols) =>
    ({ start: x.start + row * x.row + col * x.col, rows, cols, row: x.row, col: x.col });

  /* c = a b, two rows by two columns at a time, so that each number read is used twice. Where a row or a column is the
     last, the tile is narrower: its second is its first once more. */
  const in_javascript = (numbers) => (m, n, k, a, a_row, a_col, b, b_row, c, c_row) => {
    for (let i = 0; i < m; i += 2) {
      const below = i + 1 < m ? 1 : 0;
      for (let j = 0; j < n; j += 2) {
        const right = j + 1 < n ? 1 : 0;
        let c00 = 0, c01 = 0, c10 = 0, c11 = 0;
        for (let p = 0, x = a + i * a_row, y = b + j; p < k; p++, x += a_col, y += b_row) {
          const x0 = numbers[x], x1 = numbers[x + below * a_row], y0 = numbers[y], y1 = numbers[y + right];
          c00 += x0 * y0;
          c01 += x0 * y1;
          c10 += x1 * y0;
          c11 += x1 * y1;
        }
        const to = c + i * c_row + j;
        numbers[to] = c00;
        numbers[to + right] = c01;
        numbers[to + below * c_row] = c10;
        numbers[to + below * c_row + right] = c11;
      }
    }
  };

  /* The same by matmul.wat, which counts in bytes. */
  function in_assembly(memory) {
    const bytes = Uint8Array.from(atob(ASSEMBLED.replace(/\s/g, "")), (letter) => letter.charCodeAt(0));
    const { multiply } = new WebAssembly.Instance(new WebAssembly.Module(bytes), { grow: { memory } }).exports;
    return (m, n, k, a, a_row, a_col, b, b_row, c, c_row) =>
      multiply(m, n, k, 4 * a, 4 * a_row, 4 * a_col, 4 * b, 4 * b_row, 4 * c, 4 * c_row);
  }

  /* Room for `size` numbers with a product that works on them; fast: whether it is the one in WebAssembly. */
  function open_memory(size) {
    try {
      const memory = new WebAssembly.Memory({ initial: Math.ceil((4 * size) / PAGE) });
      return { numbers: new Float32Array(memory.buffer), product: in_assembly(memory), fast: true };
    } catch {
      return slow_memory(size);
    }
  }

  function slow_memory(size) {
    const numbers = new Float32Array(size);
    return { numbers, product: in_javascript(numbers), fast: false };
  }

  /* A space hands out matrices one after the other. What is taken after a mark is given back at once with release. */
  function open_space(size, { numbers, product, fast } = open_memory(size)) {
    let free = 0;

    function take(rows, cols) {
      const start = free;
      free += rows * cols;
      if (free > numbers.length) throw new RangeError("no room is left for matrices");
      return { start, rows, cols, row: cols, col: 1, data: numbers.subarray(start, free) };
    }

    const mark = () => free;
    const release = (to) => (free = to);

    /* A copy whose rows lie without gaps, as the product wants its second matrix. */
    function packed(x) {
      const copy = take(x.rows, x.cols);
      for (let i = 0; i < x.rows; i++) {
        for (let j = 0; j < x.cols; j++) copy.data[i * x.cols + j] = numbers[x.start + i * x.row + j * x.col];
      }
      return copy;
    }

    /* c = a b, written to c: (m, k) times (k, n) -> (m, n); c must not be a or b. */
    function multiply(a, b, c) {
      const before = mark();
      const { start, row } = b.col === 1 ? b : packed(b);
      product(a.rows, b.cols, a.cols, a.start, a.row, a.col, start, row, c.start, c.row);
      release(before);
      return c;
    }

    return { numbers, fast, take, mark, release, packed, multiply };
  }

  return { open_space, slow_memory, transposed, block };
})();
