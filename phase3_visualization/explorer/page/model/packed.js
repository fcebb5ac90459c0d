/* Numbers that travel as text: as models.py writes them, five letters for four bytes.

   float16   one number after the other
   int8      a scale for each row of each parameter (one of one dimension is a row), as float16; then a byte a number */
"use strict";

const Packed = (() => {
  const LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;,=>?@^_`{|}~";
  const DIGIT = new Uint8Array(128);
  [...LETTERS].forEach((letter, digit) => { DIGIT[letter.charCodeAt(0)] = digit; });

  function bytes(text) {
    const found = new Uint8Array(Math.floor((text.length * 4) / 5));
    for (let from = 0, to = 0; from < text.length; from += 5) {
      let value = 0;
      for (let i = from; i < from + 5; i++) value = value * 85 + (i < text.length ? DIGIT[text.charCodeAt(i)] : 84);
      for (let shift = 24; shift >= 0 && to < found.length; shift -= 8) found[to++] = value >>> shift;
    }
    return found;
  }

  /* IEEE 754: a sign, five bits of exponent, ten of fraction. */
  function half(bits) {
    const [exponent, fraction] = [(bits >> 10) & 31, bits & 1023];
    const size = exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -24 * fraction;
    return bits & 0x8000 ? -size : size;
  }

  const halves = (buffer, count) => Float32Array.from(new Uint16Array(buffer, 0, count), half);

  /* All numbers of a model; parameters: name -> {shape}. */
  function numbers({ kind, numbers: text }, parameters) {
    const { buffer } = bytes(text);
    if (kind === "float16") return halves(buffer, buffer.byteLength / 2);
    const rows = Object.values(parameters).flatMap(({ shape }) =>
      Array(shape.length > 1 ? shape[0] : 1).fill(shape.at(-1)));
    const scales = halves(buffer, rows.length);
    const found = Float32Array.from(new Int8Array(buffer, 2 * rows.length));
    let start = 0;
    rows.forEach((length, row) => {
      for (let i = start; i < start + length; i++) found[i] *= scales[row];
      start += length;
    });
    return found;
  }

  return { numbers };
})();
