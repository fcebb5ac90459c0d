/* Numbers that travel as text: as models.py writes them, in base 64.

   float16   one number after the other
   int8      a scale for each row of each parameter (one of one dimension is a row), as float16; then a byte a number */
"use strict";

const Packed = (() => {
  /* IEEE 754: a sign, five bits of exponent, ten of fraction. */
  function half(bits) {
    const [exponent, fraction] = [(bits >> 10) & 31, bits & 1023];
    const size = exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -24 * fraction;
    return bits & 0x8000 ? -size : size;
  }

  const halves = (buffer, count) => Float32Array.from(new Uint16Array(buffer, 0, count), half);

  /* All numbers of a model; parameters: name -> shape. */
  function numbers({ kind, numbers: text }, parameters) {
    const { buffer } = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    if (kind === "float16") return halves(buffer, buffer.byteLength / 2);
    const rows = Object.values(parameters).flatMap((shape) =>
      Array(shape.length > 1 ? shape[0] : 1).fill(shape.at(-1)));
    const scales = halves(buffer, rows.length);
    const rounded = Float32Array.from(new Int8Array(buffer, 2 * rows.length));
    let start = 0;
    rows.forEach((length, row) => {
      for (let i = start; i < start + length; i++) rounded[i] *= scales[row];
      start += length;
    });
    return rounded;
  }

  return { numbers };
})();
