// Runs: what the model was at several steps of its training. Two were recorded, and one may be trained in the page.
//
// A run: {seed, stops: [{step, loss, heads, kind, numbers}], recorded}. There is one model; it gets the numbers of the
// stop that is looked at. Between two stops there is nothing: who asks for a step gets the last stop before it. Some
// stops of the second run have names and loss alone, so that the page stays small; the model stops at the others.
"use strict";

const Runs = (() => {
  const runs = new Map(); // "0" and "1" are recorded, "g7" is trained here with seed 7
  const decoded = new WeakMap(); // stop -> its numbers; those of a run that is gone go with it
  let model, layout, loaded;

  function start(data) {
    ({ layout } = data);
    model = Network.load({ ...data.model, parameters: layout });
    data.runs.forEach((run, i) => runs.set(String(i), { ...run, recorded: true }));
  }

  const get = (name) => runs.get(name);
  const has = (name) => runs.get(name)?.stops.length > 0;

  // A run of one's own takes the place of the one before.
  function grow(seed) {
    for (const name of runs.keys()) if (!runs.get(name).recorded) runs.delete(name);
    runs.set(`g${seed}`, { seed, stops: [], recorded: false });
  }

  const own = () => [...runs.keys()].find((name) => !runs.get(name).recorded && has(name)) ?? null;
  const seeds = () => [...runs.values()].map(({ seed }) => seed);
  const lastStep = (name) => runs.get(name).stops.at(-1)?.step ?? 0;

  // The place of the last stop that is not later than a step, or else of the first one.
  function placeOf({ run, step }) {
    const { stops } = runs.get(run);
    const last = stops.findLastIndex((stop) => stop.step <= step && stop.numbers);
    return last < 0 ? stops.findIndex(({ numbers }) => numbers) : last;
  }
  const stopAt = (state) => runs.get(state.run).stops[placeOf(state)];

  function modelAt(state) {
    const stop = stopAt(state);
    if (stop === loaded) return model;
    if (!decoded.has(stop)) {
      decoded.set(stop, stop.kind ? Packed.numbers(stop, layout) : stop.numbers);
    }
    Network.set_numbers(model, decoded.get(stop));
    loaded = stop;
    return model;
  }

  const headsOf = ({ heads }) => heads.flatMap((row, layer) => row.map(({ role }, head) => ({ role, layer, head })));

  // Role -> for each stop the heads that have it: the first ones first.
  function lanes(name) {
    const { stops } = runs.get(name);
    const roles = new Set(stops.flatMap((stop) => headsOf(stop).map(({ role }) => role)).filter(Boolean));
    return [...roles].map((role) =>
      ({ role, heads: stops.map((stop) => headsOf(stop).filter((head) => head.role === role)) }));
  }

  return { start, get, has, own, seeds, grow, lastStep, placeOf, stopAt, modelAt, lanes, model: () => model };
})();
