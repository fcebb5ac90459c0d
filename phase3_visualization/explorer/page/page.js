// The page: one state, its controls, and one redraw that everything on the screen follows from.
//
// A control changes the state with set(), and set() redraws: forward pass, maps, lines, levers, steps, writing. The
// role scores take longer (40 sentences), so they follow in a moment of their own.
"use strict";

const Page = (() => {
  const { byId, fixed, element, headName } = View;

  let data, language, models, state, maps, mapsOf, rolesTimer, addressTimer;
  const untouchedRoles = new Map(); // model name -> role scores without levers

  const current = () => models.get(state.model);
  const position = (word) => Levers.position(current(), state, word);
  const wordAt = (at) => Levers.wordAt(current(), state, at);
  const hash = () => Address.write(state, firstState(models.values().next().value, null));

  // ---- the state

  // The first view of a model: its verb, and the head in which the verb looks most at its subject.
  function firstState(model, words) {
    const toy = data.sentences[0];
    const base = {
      model: model.name, words: words ?? toy.words, layer: 0, head: 0, query: 0, from: 2, seed: 1, written: 0,
      ...Levers.UNTOUCHED,
    };
    const isToy = base.words.join(" ") === toy.words.join(" ");
    const [verb, subject] = toy.relations["verb-subject"][0];
    base.query = Math.min(verb, base.words.length - 1);
    return isToy ? { ...base, ...bestHead(model, base, verb, subject) } : base;
  }

  function bestHead(model, base, from, to) {
    const { layers } = Levers.run(model, base, language);
    const [query, key] = [from, to].map((word) => Levers.position(model, base, word));
    const heads = layers.flatMap(({ weights }, layer) =>
      weights.map((rows, head) => ({ layer, head, weight: rows[query][key] })));
    const { layer, head } = heads.reduce((best, item) => (item.weight > best.weight ? item : best));
    return { layer, head };
  }

  // Change the state and redraw. asNew: the reader can come back to the old view with the back button.
  function set(changes, asNew = false) {
    Object.assign(state, changes);
    redraw();
    clearTimeout(addressTimer);
    if (asNew) writeAddress("pushState");
    else addressTimer = setTimeout(writeAddress, 300, "replaceState"); // browsers refuse too many in a short time
  }

  function writeAddress(how) {
    const address = `#${hash()}`;
    if (address !== location.hash) history[how](null, "", address);
  }

  function setWords(words, asNew = false) {
    if (words.join(" ") === state.words.join(" ")) return;
    const sameLength = words.length === state.words.length;
    const hidden = state.hidden.filter((word) => word < words.length);
    const query = Math.min(state.query, words.length - 1);
    set({ words, hidden, query, order: sameLength ? state.order : null, written: 0 }, asNew);
  }

  // Another model: what it does not have, a <start> or a head, is let go.
  function setModel(name) {
    const model = models.get(name);
    const lowest = Levers.shift(model) ? -1 : 0;
    const exists = (layer, head) => layer < model.num_layers && head < model.num_heads;
    const removed = state.removed.filter((head) => exists(...head.split(".").map(Number)));
    const hidden = state.hidden.filter((word) => word >= lowest);
    const head = exists(state.layer, state.head) ? {} : { layer: 0, head: 0 };
    set({ model: name, removed, hidden, query: Math.max(lowest, state.query), written: 0, ...head }, true);
  }

  const toggled = (items, item) => (items.includes(item) ? items.filter((other) => other !== item) : [...items, item]);
  const choose = (at) => set({ query: wordAt(at) });
  const chooseHead = (layer, head) => set({ layer, head });
  const knockOut = (layer, head) => set({ removed: toggled(state.removed, `${layer}.${head}`).sort() });

  // ---- drawing

  function redraw() {
    const model = current();
    const pass = Levers.run(model, state, language);
    const words = pass.tokens.map((token) => language.vocabulary[token]);
    drawSentence(model, words);
    drawHead(model, words, pass);
    Controls.draw(model, state);
    drawEffects(model, words, pass);
    Steps.draw(byId("steps"), model, state, words, pass);
    state.written = Writing.redraw(models, state, language);
  }

  function drawSentence(model, words) {
    const hidden = state.hidden.map(position);
    Sentence.drawWords(View.tokenLabels(words), position(state.query), hidden, choose);
    byId("model").value = state.model;
    const reads = model.causal
      ? "predicts the next word and sees only what came before"
      : "guesses hidden words and sees both sides";
    const { loss } = data.models.find((record) => record.name === model.name);
    const held = loss === null ? "" : `, loss on sentences it never saw ${fixed(loss)}`;
    byId("model-note").textContent = `This model ${reads}: ${model.label}${held}.`;
    const at = data.sentences.findIndex((sentence) => sentence.words.join(" ") === state.words.join(" "));
    byId("pick").value = String(at); // -1: a sentence of the reader's own
  }

  function drawHead(model, words, pass) {
    if (mapsOf !== model) maps = View.makeHeads(byId("heads"), model, chooseHead, knockOut);
    mapsOf = model;
    View.drawHeads(maps, pass.layers, state);
    const { weights, scores } = pass.layers[state.layer];
    const [matrix, query] = [weights[state.head], position(state.query)];
    View.drawLarge(byId("large"), words, matrix, scores[state.head], query, choose);
    Lines.draw(words, matrix, state.head, query);
    const row = matrix[query];
    const most = row.indexOf(Math.max(...row));
    const where = row[most] > 0 ? `looks at ${words[most]} ${fixed(row[most])}` : "may see nothing";
    const title = `Attention, live: "${words[query]}" ${where} (${headName(state.layer, state.head)})`;
    document.title = byId("title").textContent = title;
    byId("head-heading").textContent = `One head: ${headName(state.layer, state.head)}`;
    const isOut = state.removed.includes(`${state.layer}.${state.head}`);
    const out = isOut ? " It is knocked out: these weights are computed, its output is 0." : "";
    byId("head-note").textContent =
      `Read along a row: it sums to 1. A weight says how much of a value is taken, not why.${out}`;
    byId("looks").textContent =
      `"${words[query]}" ${where}. Point at a word on the right, or tap it, to see who looks at it.`;
  }

  function drawEffects(model, words, pass) {
    const before = Levers.measure(model, Levers.untouched(state), language, state);
    const after = Levers.measure(model, state, language, state, pass);
    const active = Levers.active(state);
    byId("question").textContent = Effects.question(model, state, words, after);
    byId("measures-note").textContent = active.length
      ? "untouched model → with the levers, on the same sentence. Outlines: before."
      : "The model is untouched: pull a lever to see what it changes.";
    Effects.drawPredictions(language, before, after, active.length > 0);
    Effects.drawMeasures(model, state, before, after);
    for (const name of Levers.NAMES) {
      const alone = active.includes(name) ? Levers.measure(model, Levers.only(state, name), language, state) : null;
      Effects.drawLever(name, before, alone);
    }
    drawRoles(model);
  }

  // The role scores follow when the page is drawn and the reader pauses; hiding and swapping words do not touch them.
  function drawRoles(model) {
    const relations = [...new Set(data.sentences.flatMap((sentence) => Object.keys(sentence.relations)))];
    const levers = { ...Levers.forModel(model, state), hidden: [] };
    const plain = !["causal", "divisor", "removed"].some((name) => Levers.pulled(state, name));
    const compute = (pulled) =>
      Statistics.role_scores(model, data.sentences, pulled, language.vocabulary, language.special);
    const known = untouchedRoles.get(model.name);
    Effects.drawRoles(relations, known, plain ? known : null);
    clearTimeout(rolesTimer);
    if (plain && known) return;
    rolesTimer = setTimeout(() => {
      if (!untouchedRoles.has(model.name)) untouchedRoles.set(model.name, compute({}));
      const before = untouchedRoles.get(model.name);
      Effects.drawRoles(relations, before, plain ? before : compute(levers));
    }, 150);
  }

  // ---- controls

  const on = (id, event, action) => byId(id).addEventListener(event, action);

  function readTyped() {
    const result = Sentence.read(byId("sentence").value, language);
    Sentence.explain(result, language, takeWord);
    byId("sentence").setAttribute("aria-invalid", Boolean(result.problem));
    if (result.words) setWords(result.words);
  }

  function takeWord(unknown, word) {
    byId("sentence").value = Sentence.replaced(byId("sentence").value, unknown, word);
    byId("sentence").focus();
    readTyped();
  }

  function pick(index) {
    byId("sentence").value = data.sentences[index].words.join(" ");
    Sentence.explain({}, language, takeWord);
    byId("sentence").removeAttribute("aria-invalid");
    setWords(data.sentences[index].words, true);
  }

  function setDivisor(value) {
    const usual = Levers.divisorOf(current(), Levers.UNTOUCHED);
    if (value >= 0.05 && value <= 100) set({ divisor: Math.abs(value - usual) < 1e-9 ? null : value });
  }

  function wireLevers() {
    on("causal", "change", () => {
      const { checked } = byId("causal");
      set({ causal: checked === current().causal ? null : checked });
    });
    on("scaled", "change", () => set({ divisor: byId("scaled").checked ? null : 1 }));
    on("divisor-slider", "input", () => setDivisor(Number((2 ** byId("divisor-slider").value).toFixed(3))));
    on("divisor", "input", () => setDivisor(Number(byId("divisor").value)));
    on("restore", "click", () => set({ removed: [] }));
    on("hide", "click", () => set({ hidden: toggled(state.hidden, state.query) }));
    on("swap", "click", () => set({ order: Levers.swapped(state, state.query, Number(byId("swap-with").value)) }));
    on("unswap", "click", () => set({ order: null }));
    on("temperature", "input", () => set({ temperature: Number(byId("temperature").value) }));
    on("reset", "click", () => set({ ...Levers.UNTOUCHED }));
  }

  function wireSentence() {
    on("sentence", "input", readTyped);
    on("pick", "change", () => pick(Number(byId("pick").value)));
    on("another", "click", () => pick((Number(byId("pick").value) + 1) % data.sentences.length));
    on("model", "change", () => setModel(byId("model").value));
    on("words", "keydown", (event) =>
      Sentence.moveChoice(event, position(state.query), byId("words").children.length, choose));
    on("heads", "keydown", moveHead);
  }

  // Arrows move the chosen head through the grid of maps.
  function moveHead(event) {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const [down, across] = steps[event.key] ?? [];
    const { num_layers, num_heads } = current();
    if (down === undefined || !event.target.classList.contains("map")) return;
    event.preventDefault();
    chooseHead((state.layer + down + num_layers) % num_layers, (state.head + across + num_heads) % num_heads);
    maps[state.layer * num_heads + state.head].map.focus();
  }

  function wireWriting() {
    const number = (id, low, high) => Math.min(high, Math.max(low, Math.floor(Number(byId(id).value)) || low));
    on("one-more", "click", () => set({ written: state.written + 1 }));
    on("to-end", "click", () => set({ written: language.maxLength }));
    on("start-again", "click", () => set({ written: 0 }));
    on("new-seed", "click", () => set({ seed: (state.seed + 1) % 1000000 }));
    on("seed", "input", () => set({ seed: number("seed", 0, 999999) }));
    on("prompt-length", "input", () => set({ from: number("prompt-length", 0, language.maxLength - 1) }));
  }

  function readAddress() {
    clearTimeout(addressTimer);
    state = Address.read(location.hash, models, language.words, language.maxLength, firstState);
    byId("sentence").value = state.words.join(" ");
    Sentence.explain({}, language, takeWord);
    redraw();
  }

  function start() {
    data = JSON.parse(byId("data").textContent);
    const special = new Set(Object.values(data.special));
    const words = data.vocabulary.filter((_, token) => !special.has(token));
    const index = new Map(data.vocabulary.map((word, token) => [word, token]));
    language = { vocabulary: data.vocabulary, words, index, special: data.special, maxLength: data.max_length };
    models = new Map(data.models.map((record) => [record.name, Attention.load(record)]));
    View.useColors(data.weight_map, data.head_colors);
    for (const name of models.keys()) byId("model").append(element("option", { value: name }, name));
    const option = (value, text, disabled = false) => element("option", { value, disabled }, text);
    byId("pick").append(option(-1, "(your own)", true));
    data.sentences.forEach((sentence, i) => byId("pick").append(option(i, sentence.words.join(" "))));
    Lines.start(byId("lines"), choose);
    document.querySelector("main").hidden = false;
    wireSentence();
    wireLevers();
    wireWriting();
    addEventListener("hashchange", readAddress);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    readAddress();
  }

  start();
  // For the curious, in the console of the browser: Page.state().
  return { state: () => ({ ...state }), models: () => models, language: () => language, redraw };
})();
