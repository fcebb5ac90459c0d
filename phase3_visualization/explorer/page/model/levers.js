// Levers: what each one does to the sentence and to the model, and what that costs.
//
// A word is named by its place in the sentence as typed (-1 is <start>), so that it stays the same word when two words
// are swapped; a position is its place among the tokens that the model reads. What is on the screen, maps and guesses,
// comes from one forward pass: a word that is hidden for the question is hidden in the maps, too.
"use strict";

const Levers = (() => {
  const NAMES = ["causal", "divisor", "removed", "hidden", "order", "temperature"];
  const UNTOUCHED = { causal: null, divisor: null, removed: [], order: null, temperature: 1 };
  const REMEMBERED = 32; // forward passes

  // The model that sees both sides is always asked for a hidden word: hiding is its question, and no lever.
  function pulled(model, state, name) {
    if (name === "hidden") return model.causal && state.hidden.length > 0;
    return name === "removed" ? state.removed.length > 0 : state[name] !== UNTOUCHED[name];
  }
  const active = (model, state) => NAMES.filter((name) => pulled(model, state, name));
  const untouched = (model, state) => ({ ...state, ...UNTOUCHED, hidden: model.causal ? [] : state.hidden });
  const only = (model, state, name) => ({ ...untouched(model, state), [name]: state[name] });

  // How many tokens stand before the first word: the causal model starts with <start>.
  const shift = (model) => (model.causal ? 1 : 0);
  const orderOf = (state) => state.order ?? state.words.map((_, i) => i);
  const position = (model, state, word) => (word < 0 ? 0 : orderOf(state).indexOf(word) + shift(model));
  const wordAt = (model, state, at) => (at < shift(model) ? -1 : orderOf(state)[at - shift(model)]);
  const isCausal = (model, state) => state.causal ?? model.causal;
  const divisorOf = (model, state) => state.divisor ?? model.divisor;

  // What the model reads: words in their order; the model that sees both sides reads <mask> for a hidden one.
  function tokens(model, state, language) {
    const ids = orderOf(state).map((word) => {
      const masked = !model.causal && state.hidden.includes(word);
      return masked ? language.special.mask : language.index.get(state.words[word]);
    });
    return model.causal ? [language.special.start, ...ids] : ids;
  }

  // The levers as Attention.forward takes them. The causal model has no <mask>: nobody may look at a hidden word.
  function forModel(model, state) {
    const hidden = model.causal ? state.hidden.map((word) => position(model, state, word)) : [];
    return { causal: isCausal(model, state), divisor: divisorOf(model, state), removed: state.removed, hidden };
  }

  const passes = new Map(); // what was computed last: before and after ask for the same passes again and again

  // One forward pass on the sentence as the levers make it.
  function run(model, state, language) {
    const read = tokens(model, state, language);
    const levers = forModel(model, state);
    const key = JSON.stringify([model.name, read, levers]);
    if (!passes.has(key)) {
      if (passes.size >= REMEMBERED) passes.delete(passes.keys().next().value);
      passes.set(key, { tokens: read, ...Attention.forward(model, read, levers) });
    }
    return passes.get(key);
  }

  // Temperature 0 is the limit: the likeliest word takes all.
  function chances(logits, temperature) {
    if (temperature > 0) return Attention.softmax(logits, temperature);
    const row = new Float32Array(logits.length);
    row[logits.indexOf(Math.max(...logits))] = 1;
    return row;
  }

  // -ln p of the true word, at a temperature.
  function lossAt(logits, truth, temperature) {
    if (temperature > 0) return Statistics.loss(logits.map((logit) => logit / temperature), truth);
    return chances(logits, 0)[truth] === 1 ? 0 : Infinity;
  }

  // The hidden word that the guess is for: the chosen word if it is hidden, else the first that is; null if none is.
  const asked = (state) => (state.hidden.includes(state.query) ? state.query : state.hidden[0] ?? null);

  // The guess for the hidden word: {probabilities, truth, loss, position}.
  function measureHidden(model, state, language, pass, word) {
    const at = position(model, state, word);
    const truth = language.index.get(state.words[word]);
    const logits = pass.logits[at];
    const loss = lossAt(logits, truth, state.temperature);
    return { logits, probabilities: chances(logits, state.temperature), truth, loss, position: at };
  }

  // The word after the chosen one, and the mean loss of all next words of the sentence.
  function measureNext(model, state, language, pass, at) {
    const { tokens: read, logits } = pass;
    const truth = at + 1 < read.length ? read[at + 1] : null;
    const losses = read.slice(1).map((next, i) => lossAt(logits[i], next, state.temperature));
    const loss = losses.reduce((sum, value) => sum + value, 0) / losses.length;
    return { logits: logits[at], probabilities: chances(logits[at], state.temperature), truth, loss, position: at };
  }

  // What a state of the levers does: guess, loss and the entropy of the chosen head. Without a hidden word the model
  // that sees both sides is asked nothing: probabilities is null.
  // touched: the state on screen, which says which word is asked for, so that before and after ask the same.
  function measure(model, state, language, touched) {
    const pass = run(model, state, language);
    const { causal, hidden } = forModel(model, state);
    const weights = pass.layers[state.layer].weights[state.head];
    const entropy = Statistics.normalized_entropy(weights, causal, hidden);
    if (model.causal) {
      return { ...measureNext(model, state, language, pass, position(model, touched, touched.query)), entropy };
    }
    const word = asked(touched);
    if (word === null) return { probabilities: null, truth: null, loss: NaN, position: null, entropy };
    return { ...measureHidden(model, state, language, pass, word), entropy };
  }

  // <mask>, <pad> and <start> are no words to say, however likely.
  const sayable = (logits, { special }) =>
    logits.map((logit, token) => ([special.mask, special.pad, special.start].includes(token) ? -Infinity : logit));

  // The k likeliest words, by logits: at temperature 0 all probabilities but one are 0.
  const likeliest = ({ logits }, language, k) => Statistics.top(sayable(logits, language), k).map(({ token }) => token);

  // Two words change places.
  function swapped(state, one, other) {
    const order = [...orderOf(state)];
    const [i, j] = [order.indexOf(one), order.indexOf(other)];
    [order[i], order[j]] = [order[j], order[i]];
    return order.every((word, at) => word === at) ? null : order;
  }

  return {
    NAMES, UNTOUCHED, pulled, active, untouched, only, shift, orderOf, position, wordAt, isCausal, divisorOf, forModel,
    run, chances, asked, measure, sayable, likeliest, swapped,
  };
})();
