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

// Runs: what the model was at several steps of its training, in two recorded trainings.
//
// A run: {seed, stops: [{step, heads, kind, numbers}]}. There is one model; it gets the numbers of the stop that is
// looked at. Between two stops there is nothing: who asks for a step gets the last stop before it. The second run has
// few stops, so that the page stays small.
const Runs = (() => {
  const decoded = new Map(); // stop -> its numbers
  let runs, model, layout, loaded;

  function start(data) {
    ({ runs, layout } = data);
    model = Network.load({ ...data.model, parameters: layout });
  }

  const get = (name) => runs[name]; // "0" or "1"
  const lastStep = (name) => runs[name].stops.at(-1).step;

  // The place of the last stop that is not later than a step.
  const placeOf = ({ run, step }) => runs[run].stops.findLastIndex((stop) => stop.step <= step);
  const stopAt = (state) => runs[state.run].stops[placeOf(state)];

  function modelAt(state) {
    const stop = stopAt(state);
    if (stop === loaded) return model;
    if (!decoded.has(stop)) decoded.set(stop, Packed.numbers(stop, layout));
    Network.set_numbers(model, decoded.get(stop));
    loaded = stop;
    return model;
  }

  const headsOf = ({ heads }) => heads.flatMap((row, layer) => row.map(({ role }, head) => ({ role, layer, head })));

  // Role -> for each stop the heads that have it: the first ones first.
  function lanes(name) {
    const { stops } = runs[name];
    const roles = new Set(stops.flatMap((stop) => headsOf(stop).map(({ role }) => role)).filter(Boolean));
    return [...roles].map((role) =>
      ({ role, heads: stops.map((stop) => headsOf(stop).filter((head) => head.role === role)) }));
  }

  return { start, get, lastStep, placeOf, stopAt, modelAt, lanes, model: () => model };
})();
