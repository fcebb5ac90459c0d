// Runs: what the model was at several steps of its training, in two recorded trainings.
//
// A run: {seed, stops: [{step, heads, kind, numbers}]}. There is one model; it gets the numbers of the stop that is
// looked at. Between two stops there is nothing: who asks for a step gets the last stop before it. The second run has
// few stops, so that the page stays small.
"use strict";

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
