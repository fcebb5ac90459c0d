// Writing with the causal model, one token at a time, with a cache: each token is read once, its keys and values are
// kept, and the next token looks at them. The seed fixes what is drawn, so a written sentence can be linked.
"use strict";

const Writing = (() => {
  const { byId, element, fixed, headName, weightColor, setUsable } = View;

  // The token at which the running sum of the probabilities passes u.
  function draw(probabilities, u) {
    let sum = 0;
    for (let token = 0; token < probabilities.length; token++) {
      sum += probabilities[token];
      if (u < sum) return token;
    }
    return probabilities.indexOf(Math.max(...probabilities)); // rounding left the sum a little below 1
  }

  let going = null; // the sentence in the making: one more token reads one more token, not everything again

  function begin(key, model, prompt, seed, levers, language) {
    const next = Training.random_numbers(seed);
    going = { key, tokens: [], steps: [], cache: Attention.empty_cache(model), read: null, next };
    for (const token of [language.special.start, ...prompt]) readToken(model, token, levers);
  }

  function readToken(model, token, levers) {
    going.tokens.push(token);
    going.read = Attention.step(model, going.cache, token, levers);
  }

  // Read the prompt, then write `count` tokens or until <end>; steps[n]: what was drawn, and the probability that the
  // model gave it (before temperature, which at 0 would call everything certain).
  function write(model, prompt, count, temperature, seed, levers, language) {
    const key = JSON.stringify([model.name, prompt, temperature, seed, levers]);
    if (going?.key !== key || going.steps.length > count) begin(key, model, prompt, seed, levers, language);
    const ended = () => going.tokens.at(-1) === language.special.end || going.tokens.length > language.maxLength;
    while (going.steps.length < count && !ended()) {
      const probabilities = Levers.chances(Levers.sayable(going.read.logits, language), temperature);
      const token = draw(probabilities, going.next());
      going.steps.push({ token, probability: Attention.softmax(going.read.logits)[token] });
      readToken(model, token, levers);
    }
    const { tokens, steps, read, cache } = going;
    const likely = Levers.chances(Levers.sayable(read.logits, language), temperature);
    return { tokens, steps, read, cache, likely, ended: ended() };
  }

  function sentence(written, prompt, language) {
    const line = element("p", { class: "written", "aria-live": "polite" });
    written.tokens.forEach((token, at) => {
      const step = written.steps[at - prompt.length - 1];
      const word = element("span", { class: step ? "new" : "given" }, language.vocabulary[token]);
      if (step) word.append(element("small", {}, fixed(step.probability)));
      line.append(word);
    });
    return line;
  }

  // Each column is one token whose keys and values are kept; the colour: how much the newest token looks at it.
  function cacheTable(model, written, language) {
    const labels = View.tokenLabels(written.tokens.map((token) => language.vocabulary[token]));
    const top = element("tr", {}, element("th", { class: "corner" }, "kept for"));
    top.append(...labels.map((label) => element("th", { scope: "col" }, element("span", {}, label))));
    const body = element("tbody");
    written.read.layers.forEach((layer, l) => layer.weights.forEach((weights, head) => {
      const row = element("tr", {}, element("th", { scope: "row" }, headName(model, l, head)));
      [...weights].forEach((weight, at) => row.append(cacheCell(weight, labels[at])));
      if (!written.ended) row.append(element("td", { class: "free", title: "room for the next token" }));
      body.append(row);
    }));
    return element("table", { class: "large cache" }, element("thead", {}, top), body);
  }

  function cacheCell(weight, label) {
    const cell = element("td", { class: "kept", title: `${label}: ${fixed(weight, 3)}` });
    cell.style.background = weightColor(weight);
    return cell;
  }

  function nextWords(written, language) {
    const rows = Statistics.top(written.likely, 5).map(({ token, probability }) => {
      const bar = element("span", { class: "bar", "aria-hidden": "true" }, element("i", { class: "after" }));
      bar.firstChild.style.width = `${100 * probability}%`;
      const word = element("span", { class: "word" }, language.vocabulary[token]);
      const number = element("span", { class: "number" }, fixed(probability));
      return element("div", { class: "guess" }, word, bar, number);
    });
    return element("div", { class: "guesses" }, ...rows);
  }

  function showCache(model, written, language) {
    const { length } = written.cache;
    const last = language.vocabulary[written.tokens.at(-1)];
    const note = `${length} keys and ${length} values are kept in each head, each computed once. Without a cache ` +
      `${(length * (length + 1)) / 2} of each would have been computed.`;
    const scroll = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "the cache" });
    scroll.append(cacheTable(model, written, language));
    const heading = element("h3", {}, `The cache, and where "${last}" looks`);
    return element("div", {}, heading, element("p", { class: "quiet", id: "cache-note" }, note), scroll);
  }

  function showNext(written, language) {
    if (!written.ended) return element("div", {}, element("h3", {}, "The next word"), nextWords(written, language));
    const ended = written.tokens.at(-1) === language.special.end;
    const text = ended ? "The model has ended its sentence." : "There is room for no more.";
    return element("p", { class: "quiet" }, text);
  }

  // The model that writes: the one on screen, or else the first that predicts next words.
  const writer = (models, state) =>
    [models.get(state.model), ...models.values()].find((model) => model.causal);

  // The first words as on screen, and the levers that a model can have while it writes: it never sees the future.
  function task(model, state, language) {
    const words = Levers.orderOf(state).map((word) => state.words[word]).slice(0, state.from);
    const prompt = words.map((word) => language.index.get(word));
    if (model.name !== state.model) return { prompt, levers: {} };
    const { divisor, removed, hidden } = Levers.forModel(model, state);
    return { prompt, levers: { divisor, removed, hidden: hidden.filter((at) => at <= prompt.length) } };
  }

  // Write what the state asks for and show it; returns how many words were written before the sentence ended.
  function redraw(models, state, language) {
    const model = writer(models, state);
    byId("writing-controls").hidden = !model;
    if (!model) {
      byId("writing").textContent = "No model here predicts next words, so none can write.";
      return 0;
    }
    const { prompt, levers } = task(model, state, language);
    const written = write(model, prompt, state.written, state.temperature, state.seed, levers, language);
    const both = element("div", { class: "two" }, showCache(model, written, language), showNext(written, language));
    byId("writing").replaceChildren(sentence(written, prompt, language), both);
    showControls(model, state, written, prompt);
    return written.steps.length;
  }

  function showControls(model, state, written, prompt) {
    for (const [id, value] of [["prompt-length", prompt.length], ["seed", state.seed]]) {
      if (document.activeElement !== byId(id)) byId(id).value = value; // not under the hands of who is typing
    }
    for (const id of ["one-more", "to-end"]) setUsable(byId(id), !written.ended);
    setUsable(byId("start-again"), written.steps.length > 0);
    const levers = model.name === state.model
      ? "The temperature, the divisor, hidden words and knocked-out heads act here, too."
      : `The model "${model.name}" writes. Of the levers only the temperature acts here.`;
    byId("writing-note").textContent = `${levers} Under each new word: its probability.`;
  }

  return { draw, redraw };
})();
