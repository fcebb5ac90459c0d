// The first view: one sentence, one state, and one redraw that everything on the screen follows from.
//
// A control changes the state with set(), and set() redraws: forward pass, arcs, guesses, maps, lines, levers. The role
// scores take longer (40 sentences), so they follow a few sentences at a time, and the page stays awake.
"use strict";

const Look = (() => {
  const { byId, on, fixed, element, headName, roleOf, roleColor, isUsable } = View;
  const AT_ONCE = 10; // milliseconds of role scores before the page may do something else
  const PAUSE = 150; // milliseconds without a change before they begin

  let data, language, models, state, maps, mapsOf, rolesTimer;
  let hidByReader = false; // a word that a reader hid stays hidden while the sentence is typed
  let writtenNow = 0; // words; state.written may ask for more than there is room for
  const untouchedRoles = new Map(); // model name -> role scores without levers

  const current = () => models.get(state.model);
  const firstModel = () => models.values().next().value;
  const position = (word) => Levers.position(current(), state, word);
  const wordAt = (at) => Levers.wordAt(current(), state, at);
  const hash = () => Address.write(state, firstState(firstModel(), null));

  // ---- the state

  // The first view of a model: the sentence and the head that its landing names, else the toy sentence.
  function firstState(model, words) {
    const toy = data.sentences[0];
    const [verb] = toy.relations["verb-subject"][0];
    const place = model.landings[0] ?? { words: toy.words, hidden: verb, layer: 0, head: 0 };
    const shown = words ?? place.words;
    const query = words ? Math.min(verb, words.length - 1) : place.hidden;
    const hidden = words || model.causal ? [] : [place.hidden];
    const { layer, head } = place;
    return {
      model: model.name, words: shown, hidden, layer, head, query, from: 2, seed: 1, written: 0, tour: null,
      touched: false, ...Levers.UNTOUCHED,
    };
  }

  // Change the state and redraw. kind: what the reader does; each kind is a step that the back button undoes.
  function set(changes, kind = "") {
    Object.assign(state, changes, { touched: state.tour !== null });
    readWell();
    redraw();
    Address.keep(hash, kind);
  }

  // The word that a sentence is asked for until its reader hides one: its verb, else its first noun, else its last.
  function askedFor(words) {
    const isNoun = (word) => Words.isNoun(word, language.groups);
    const places = [words.findIndex((word) => word in language.verbs), words.findIndex(isNoun)];
    return places.find((at) => at >= 0) ?? words.length - 1;
  }

  function setWords(words, kind) {
    if (words.join(" ") === state.words.join(" ")) return readWell();
    const kept = state.hidden.filter((word) => word < words.length);
    const keep = current().causal || (hidByReader && kept.length === state.hidden.length);
    const hidden = keep ? kept : [askedFor(words)];
    const query = keep ? Math.min(state.query, words.length - 1) : hidden[0];
    set({ words, hidden, query, order: null, written: 0 }, kind);
  }

  // Another model: what it does not have, a <start> or a head, is let go.
  function setModel(name) {
    const model = models.get(name);
    const first = firstState(model, state.words);
    const lowest = Levers.shift(model) ? -1 : 0;
    const exists = (layer, head) => layer < model.num_layers && head < model.num_heads;
    const removed = state.removed.filter((head) => exists(...head.split(".").map(Number)));
    const query = Math.max(lowest, state.query);
    const hidden = model.causal ? [] : [Math.max(0, query)];
    const { layer, head } = first;
    set({ model: name, removed, hidden, query, written: 0, layer, head }, "model");
  }

  const toggled = (items, item) => (items.includes(item) ? items.filter((other) => other !== item) : [...items, item]);
  const choose = (at) => set({ query: wordAt(at) }, `word ${at}`);
  const chooseHead = (layer, head) => set({ layer, head }, `head ${layer}.${head}`);
  const knockOut = (layer, head) =>
    set({ removed: toggled(state.removed, `${layer}.${head}`).sort() }, `knock ${layer}.${head}`);

  // ---- drawing

  function redraw() {
    const model = current();
    const pass = Levers.run(model, state, language);
    const words = pass.tokens.map((token) => language.vocabulary[token]);
    drawSentence(model, words, pass);
    drawHead(model, words, pass);
    Controls.draw(model, state);
    drawEffects(model, words);
    drawNumbers(model, words, pass);
    Tour.draw(model, state, words, pass, language);
  }

  function drawSentence(model, words, pass) {
    const hidden = new Map(state.hidden.map((word) => [position(word), state.words[word] ?? "<start>"]));
    const isOut = state.removed.includes(`${state.layer}.${state.head}`);
    Arcs.drawWords(words, words.map((_, at) => hidden.get(at) ?? null), position(state.query), choose);
    const named = words.map((word, at) => (hidden.has(at) ? `${word} (${hidden.get(at)})` : word));
    const role = roleOf(model, state.layer, state.head);
    const row = pass.layers[state.layer].weights[state.head][position(state.query)];
    Arcs.drawArcs(row, position(state.query), roleColor(role), isOut);
    byId("looks").replaceChildren(...looks(model, named, row, isOut));
    byId("model").value = state.model;
    const reads = model.causal
      ? "predicts the next word and sees only what came before"
      : "guesses hidden words and sees both sides";
    const held = model.loss === null ? "" : `, loss on sentences it never saw ${fixed(model.loss)}`;
    byId("model-note").textContent = `This model ${reads}: ${model.label}${held}.`;
    const typed = Levers.orderOf(state).map((word) => state.words[word]).join(" ");
    if (document.activeElement !== byId("sentence") || state.order !== null) byId("sentence").value = typed;
    const at = data.sentences.findIndex((sentence) => sentence.words.join(" ") === state.words.join(" "));
    byId("pick").value = String(at); // -1: a sentence of the reader's own
  }

  // "sat" looks most at "cat": 0.74, with the head "verb → subject".
  function looks(model, words, row, isOut) {
    const query = position(state.query);
    const most = row.indexOf(Math.max(...row));
    const where = row[most] > 0
      ? [" looks most at ", element("b", {}, most === query ? "itself" : words[most]), `: ${fixed(row[most])}`]
      : [" may see nothing"];
    const role = roleOf(model, state.layer, state.head);
    const badge = element("span", { class: "badge" }, role);
    badge.style.setProperty("--head", roleColor(role));
    const at = model.heads ? ` ${View.place(state.layer, state.head)}` : "";
    const out = isOut ? element("b", { class: "changed" }, " Knocked out: nothing of it arrives.") : "";
    return [element("b", {}, words[query]), ...where, ". Head: ", badge, element("span", { class: "quiet" }, at), out];
  }

  function drawHead(model, words, pass) {
    if (mapsOf !== model) maps = Maps.makeHeads(byId("heads"), model, chooseHead, knockOut);
    mapsOf = model;
    byId("roles-note").textContent = model.heads
      ? "A head earns a name if, on sentences it never saw, it looks at the right word as often as the rule asks."
      : "The rules that name heads are for models that see both sides.";
    Maps.drawHeads(maps, model, pass.layers, state);
    const { weights, scores } = pass.layers[state.layer];
    const [matrix, query] = [weights[state.head], position(state.query)];
    Maps.drawLarge(byId("large"), words, matrix, scores[state.head], query, choose);
    Lines.draw(words, matrix, roleColor(roleOf(model, state.layer, state.head)), query);
    byId("head-heading").textContent = `One head: ${headName(model, state.layer, state.head)}`;
    const isOut = state.removed.includes(`${state.layer}.${state.head}`);
    const out = isOut ? " It is knocked out: these weights are computed, its output is 0." : "";
    byId("head-note").textContent =
      `Read along a row: it sums to 1. A weight says how much of a value is taken, not why.${out}`;
  }

  function drawEffects(model, words) {
    const before = Levers.measure(model, Levers.untouched(model, state), language, state);
    const after = Levers.measure(model, state, language, state);
    const active = Levers.active(model, state);
    const touched = active.length > 0;
    byId("question").textContent = Effects.question(model, state, words, after);
    byId("guess-note").textContent = touched ? "Untouched model → with the levers. Outlines: before." : "";
    byId("grammar-note").textContent = after.probabilities === null ? "" : Words.ofVerb(state.words, language);
    Effects.drawGuesses(byId("guesses"), language, before, after, touched);
    byId("summary").textContent = Effects.summary(language, before, after, touched);
    byId("summary").classList.toggle("empty", !touched);
    Effects.drawMeasures(model, before, after);
    for (const name of Levers.NAMES) {
      const alone = active.includes(name)
        ? Levers.measure(model, Levers.only(model, state, name), language, state) : null;
      Effects.drawLever(name, before, alone, language);
    }
    drawRoles(model);
  }

  // The role scores follow when the reader pauses; hiding and swapping words do not touch them.
  function drawRoles(model) {
    const relations = [...new Set(data.sentences.flatMap((sentence) => Object.keys(sentence.relations)))];
    const plain = !["causal", "divisor", "removed"].some((name) => Levers.pulled(model, state, name));
    const known = untouchedRoles.get(model.name);
    Effects.drawRoles(relations, known, plain ? known : null);
    clearTimeout(rolesTimer);
    if (plain && known) return;
    const levers = Levers.forModel(model, state);
    const show = (now) => Effects.drawRoles(relations, untouchedRoles.get(model.name), now);
    rolesTimer = setTimeout(() => count(model, {}, known, (scores) => {
      untouchedRoles.set(model.name, scores);
      if (plain) show(scores);
      else count(model, levers, null, show);
    }), PAUSE);
  }

  // The role scores of a model, a few sentences at a time; then(scores). A new drawRoles stops it.
  function count(model, levers, known, then) {
    if (known) return then(known);
    const hits = new Map();
    const left = [...data.sentences];
    const some = () => {
      const start = performance.now();
      while (left.length > 0 && performance.now() - start < AT_ONCE) {
        Statistics.count_hits(model, [left.pop()], levers, language.vocabulary, language.special, hits);
      }
      if (left.length > 0) rolesTimer = setTimeout(some);
      else then(Statistics.best_heads(hits));
    };
    some();
  }

  // What is folded away is drawn when it is opened.
  function drawNumbers(model, words, pass) {
    if (byId("steps-card").open) Steps.draw(byId("steps"), model, state, words, pass);
    if (state.written > 0) byId("writing-card").open = true;
    if (byId("writing-card").open) writtenNow = Writing.redraw(models, state, language);
  }

  // ---- controls

  function readTyped() {
    const result = Words.read(byId("sentence").value, language);
    Words.explain(result, language, takeWord);
    byId("sentence").setAttribute("aria-invalid", Boolean(result.problem));
    byId("look").classList.toggle("stale", Boolean(result.problem));
    if (result.words) setWords(result.words, "typing");
  }

  function type(text) {
    byId("sentence").value = text;
    byId("sentence").focus();
    readTyped();
  }

  const takeWord = (unknown, word) => type(Words.replaced(byId("sentence").value, unknown, word));

  function readWell() {
    Words.explain({}, language, takeWord);
    byId("sentence").removeAttribute("aria-invalid");
    byId("look").classList.remove("stale");
  }

  function pick(index) {
    const { words, relations } = data.sentences[index];
    const [verb] = relations["verb-subject"][0];
    open({ words, hidden: verb, layer: state.layer, head: state.head });
  }

  // A sentence of the page, with its hidden word and its head.
  function open({ words, hidden, layer, head }) {
    hidByReader = false;
    byId("sentence").value = words.join(" ");
    const asked = current().causal ? [] : [hidden];
    set({ words, hidden: asked, query: hidden, layer, head, order: null, written: 0 }, `open ${words.join(" ")}`);
  }

  // The next sentence in which a lever shows what it does; for a model that has none, the next one at all.
  function another() {
    const { landings } = current();
    const same = ({ words }) => words.join(" ") === state.words.join(" ");
    if (landings.length === 0) return pick((data.sentences.findIndex(same) + 1) % data.sentences.length);
    open(landings[(landings.findIndex(same) + 1) % landings.length]);
  }

  function hide() {
    hidByReader = true;
    set({ hidden: toggled(state.hidden, state.query) }, "hide");
  }

  function setDivisor(value) {
    set({ divisor: Math.abs(value - current().divisor) < 1e-9 ? null : value }, "divisor");
  }

  // A button that must not be used keeps the focus and does nothing.
  const press = (id, action) => on(id, "click", () => isUsable(byId(id)) && action());

  function wireLevers() {
    on("causal", "change", () => {
      const { checked } = byId("causal");
      set({ causal: checked === current().causal ? null : checked }, "causal");
    });
    on("scaled", "change", () => set({ divisor: byId("scaled").checked ? null : 1 }, "scaled"));
    on("divisor-slider", "input", () => setDivisor(Number((2 ** byId("divisor-slider").value).toFixed(3))));
    Controls.numberField("divisor", 0.05, 100, "The divisor", setDivisor,
      () => Number(Levers.divisorOf(current(), state).toFixed(3)));
    press("knock", () => knockOut(state.layer, state.head));
    press("restore", () => set({ removed: [] }, "restore"));
    press("hide", hide);
    press("swap", () => set({ order: Levers.swapped(state, state.query, Number(byId("swap-with").value)) }, "swap"));
    press("unswap", () => set({ order: null }, "swap back"));
    on("temperature", "input", () => set({ temperature: Number(byId("temperature").value) }, "temperature"));
    press("reset", () => set({ ...Levers.untouched(current(), state) }, "reset"));
  }

  function wireSentence() {
    on("sentence", "input", readTyped);
    on("pick", "change", () => pick(Number(byId("pick").value)));
    press("another", another);
    on("model", "change", () => setModel(byId("model").value));
    on("words", "keydown", (event) => Arcs.moveChoice(event, position(state.query), choose));
    on("heads", "keydown", moveHead);
    Words.drawChips(byId("chips"), language.groups, (word) => type(`${byId("sentence").value} ${word}`.trim()));
    press("clear", () => type(""));
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
    press("one-more", () => set({ written: writtenNow + 1 }, `write ${writtenNow}`));
    press("to-end", () => set({ written: language.maxLength }, "write all"));
    press("start-again", () => set({ written: 0 }, "start again"));
    press("new-seed", () => set({ seed: (state.seed + 1) % 1000000 }, "seed"));
    Controls.numberField("seed", 0, 999999, "The seed", (seed) => set({ seed: Math.floor(seed) }, "seed"),
      () => state.seed);
    Controls.numberField("prompt-length", 0, language.maxLength - 1, "The number of words",
      (from) => set({ from: Math.floor(from) }, "from"), () => Math.min(state.from, state.words.length));
    for (const id of ["steps-card", "writing-card"]) on(id, "toggle", () => byId(id).open && redraw());
  }

  function start(app) {
    ({ data, language, models } = app);
    for (const name of models.keys()) byId("model").append(element("option", { value: name }, name));
    const option = (value, text, disabled = false) => element("option", { value, disabled }, text);
    byId("pick").append(option(-1, "(your own)", true));
    data.sentences.forEach((sentence, i) => byId("pick").append(option(i, sentence.words.join(" "))));
    Lines.start(byId("lines"), choose);
    Tour.start(app, () => state.tour);
    wireSentence();
    wireLevers();
    wireWriting();
    View.darkGround.addEventListener("change", () => state && redraw());
    new ResizeObserver(Arcs.redraw).observe(byId("strip"));
    new IntersectionObserver(([guess]) => byId("summary").classList.toggle("needless", guess.isIntersecting))
      .observe(byId("guesses"));
    byId("rule").href = data.rule;
  }

  // The state that the address describes; a step of the tour has a state of its own, until the reader changes it.
  function show(parts, before) {
    Address.forget();
    hidByReader = parts.has("hide");
    state = Address.read(parts, models, language.words, language.maxLength, firstState);
    const step = Tour.stepOf(parts);
    if (step !== null && !parts.has("words")) {
      Object.assign(state, Tour.changesOf(step, state, current(), Levers.run(current(), state, language)));
    }
    Object.assign(state, { tour: step, touched: parts.has("words") && step !== null });
    byId("sentence").value = Levers.orderOf(state).map((word) => state.words[word]).join(" ");
    readWell();
    redraw();
    Tour.arrive(step, before);
  }

  const leave = () => clearTimeout(rolesTimer);

  return { start, show, hide: leave, redraw, state: () => ({ ...state }) };
})();
