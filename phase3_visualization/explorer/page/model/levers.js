// Levers: what each one does to the sentence and to the model, and what that costs.
//
// What is on the screen, maps and guesses, comes from one forward pass of the model at the step that is looked at.
"use strict";

const Levers = (() => {
  const UNTOUCHED = { causal: false, divisor: null, removed: [] };
  const NAMES = Object.keys(UNTOUCHED);
  const REMEMBERED = 200; // forward passes

  const pulled = (state, name) => (name === "removed" ? state.removed.length > 0 : state[name] !== UNTOUCHED[name]);
  const active = (state) => NAMES.filter((name) => pulled(state, name));
  const untouched = (state) => ({ ...state, ...UNTOUCHED });

  // What the model reads: <mask> for a hidden word.
  function tokens(state, language) {
    return state.words.map((word, i) =>
      (state.hidden.includes(i) ? language.special.mask : language.index.get(word)));
  }

  const passes = new Map(); // what was computed last: before and after ask for the same passes again and again

  // A forward pass on the sentence as the levers make it.
  function compute(state, read, through) {
    const model = Runs.modelAt(state);
    const { causal, removed, divisor } = state;
    return Network.run(model, read, { causal, removed, divisor: divisor ?? model.divisor }, through);
  }

  function run(state, language) {
    const read = tokens(state, language);
    const { step } = Runs.stopAt(state);
    const key = JSON.stringify([state.run, step, read, state.causal, state.divisor, state.removed]);
    if (!passes.has(key)) {
      if (passes.size >= REMEMBERED) passes.delete(passes.keys().next().value);
      passes.set(key, { tokens: read, ...compute(state, read, false) });
    }
    return passes.get(key);
  }

  // -ln p of the true word, without a detour over p, which may round to 0.
  function lossOf(logits, truth) {
    const largest = Math.max(...logits);
    return largest + Math.log(logits.reduce((sum, logit) => sum + Math.exp(logit - largest), 0)) - logits[truth];
  }

  // The hidden word that the guess is for: the chosen word if it is hidden, else the first that is; null if none is.
  const asked = (state) => (state.hidden.includes(state.query) ? state.query : state.hidden[0] ?? null);

  // The guess for the word that is asked for: its probabilities, the true word and its share; null if none is hidden.
  function measure(state, language) {
    const at = asked(state);
    if (at === null) return null;
    const logits = run(state, language).logits[at];
    const truth = language.index.get(state.words[at]);
    const probabilities = Network.softmax(logits);
    return { probabilities, truth, chance: probabilities[truth], best: best(logits, language) };
  }

  // <mask> and the like are no words to say, however likely.
  function best(logits, { special }) {
    const marks = Object.values(special);
    return logits.reduce((most, logit, token) => (marks.includes(token) || logit <= (logits[most] ?? -Infinity)
      ? most : token), -1);
  }

  // What the true word costs, in nats, by what is known after each part of the model: Network.run's `after`.
  function through(state, language) {
    const at = asked(state);
    const truth = language.index.get(state.words[at]);
    return compute(state, tokens(state, language), true).after.map((rows) => lossOf(rows[at], truth));
  }

  // ---- knocking out

  const nameOf = (layer, head) => `${layer}.${head}`;
  const toggled = (items, item) =>
    (items.includes(item) ? items.filter((other) => other !== item) : [...items, item].sort());

  function allHeads() {
    const { num_layers, num_heads } = Runs.model();
    return Array.from({ length: num_layers * num_heads }, (_, i) =>
      nameOf(Math.floor(i / num_heads), i % num_heads));
  }

  // The head without which the hidden word keeps least: with it a sentence is shown.
  function costliest(state, language) {
    const left = allHeads().map((head) => measure({ ...untouched(state), removed: [head] }, language).chance);
    const [layer, head] = allHeads()[left.indexOf(Math.min(...left))].split(".").map(Number);
    return { layer, head };
  }

  return {
    UNTOUCHED, active, untouched, tokens, run, measure, through, nameOf, toggled, allHeads, costliest,
  };
})();
