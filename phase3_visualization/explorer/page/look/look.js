// The first view: one sentence, one state, and one redraw that everything on the screen follows from.
//
// A control changes the state with set(), and set() redraws: forward pass, arcs, guesses, maps, time, levers, story.
"use strict";

const Look = (() => {
  const { byId, on, fixed, element, percent, change, jobOf, roleOf, roleColor, headCalled, indexOfLargest, setUsable, isUsable } = View;
  const TYPED = 700; // milliseconds without a key: who types has paused, and the words are taken for a sentence

  const NO_GUESS = [3, 5]; // steps that speak of the gap: it stays one

  let data, language, state, maps, typing, kindsFor;
  let hidByReader = false; // a word that a reader hid stays hidden while the sentence is typed

  const hash = () => Address.write(state, firstState(null));
  const here = () => Levers.nameOf(state.layer, state.head);

  // ---- the state

  // A sentence that shows what a head does, the first one only after the bet on it, or a given one.
  function firstState(words) {
    const [opening] = Story.landings();
    const shown = words ?? opening.words;
    const hidden = words ? askedFor(words) : opening.hidden;
    const { layer, head } = opening;
    return {
      words: shown, hidden: [hidden], query: hidden, layer, head, run: "0", step: Runs.lastStep("0"), story: null,
      covered: false, guess: null, ...Levers.UNTOUCHED,
    };
  }

  // Change the state, guesses uncovered, and redraw. Each kind of change is a step that the back button undoes.
  function set(changes, kind = "") {
    Object.assign(state, { covered: false }, changes);
    readWell();
    redraw();
    Address.keep(hash, kind);
  }

  // The word that a sentence is asked for until its reader hides one: its verb, else its first noun, else its last.
  function askedFor(words) {
    const isNoun = (word) => Words.isNoun(word, language.groups);
    const places = [words.findIndex((word) => Object.hasOwn(language.verbs, word)), words.findIndex(isNoun)];
    return places.find((at) => at >= 0) ?? words.length - 1;
  }

  function setWords(words, kind) {
    if (words.join(" ") === state.words.join(" ")) return readWell();
    const stillThere = state.hidden.filter((word) => word < words.length);
    const keep = hidByReader && stillThere.length === state.hidden.length;
    const hidden = keep ? stillThere : [askedFor(words)];
    const query = keep ? Math.min(state.query, words.length - 1) : hidden[0];
    set(withCostliest({ words, hidden, query, removed: [], guess: null }), kind);
  }

  // These changes, and the head whose loss then costs the hidden word most.
  function withCostliest(changes) {
    const then = { ...state, ...changes };
    return { ...changes, ...(then.hidden.length ? Levers.costliest(then, language) : {}) };
  }

  // Looking elsewhere, as the bet goes on.
  const look = (changes, kind) => set({ ...changes, covered: state.covered }, kind);
  const choose = (at) => look({ query: at }, `word ${at}`);
  const chooseHead = (layer, head) => look({ layer, head }, `head ${layer}.${head}`);
  const knockOut = (layer, head) =>
    set({ removed: Levers.toggled(state.removed, Levers.nameOf(layer, head)) }, `knock ${layer}.${head}`);

  // ---- drawing

  // All that is drawn, once for the stage and the story below it.
  function seen() {
    const stop = Runs.stopAt(state);
    const pass = Levers.run(state, language);
    const words = pass.tokens.map((token) => language.vocabulary[token]);
    const row = pass.layers[state.layer].weights[state.head][state.query];
    return {
      state: { ...state }, stop, pass, words: words.map((word) => (word === "<mask>" ? View.BLANK : word)), row,
      before: Levers.measure(Levers.untouched(state), language), after: Levers.measure(state, language),
    };
  }

  function redraw() {
    const now = seen();
    byId("look").classList.toggle("covered", state.covered);
    Story.draw(now);
    if (state.story) keepPlace();
    drawSentence(now);
    drawGuesses(now);
    drawTime(now);
    if ([0, 5, 6].includes(Story.here())) drawHeads(now);
    drawLevers(now);
  }

  // The tab of the story leads to the step where its reader was.
  function keepPlace() {
    const link = byId("to-story");
    link.dataset.first = link.href = state.covered ? "#" : `#${hash()}`;
  }

  function drawSentence({ stop, words, row, after }) {
    const isOpen = Story.isOpen();
    const shown = words.map((text, i) => {
      const isHidden = state.hidden.includes(i);
      const isAsked = isHidden && (i === state.query || state.story !== null);
      if (!isHidden) return { text, isHidden };
      if (state.covered || NO_GUESS.includes(state.story)) return { text: "\u00a0", isHidden };
      if (isOpen) return { text, isHidden, note: `hides “${state.words[i]}”` };
      const guess = `${language.vocabulary[after.best]}${after.best === after.truth ? "" : "?"}`;
      return { text: isAsked ? guess : text, isHidden };
    });
    Arcs.drawWords(shown, state.query, isOpen, choose);
    const isOut = state.removed.includes(here());
    Arcs.drawArcs({ weights: row, query: state.query, color: roleColor(roleOf(stop, state.layer, state.head)),
      isAlone: [1, 2, 6, 7].includes(state.story), isOut, isTried: state.story === 5, isMoving: state.story === 3 });
    byId("looks").replaceChildren(...(isOpen ? looks(stop, words, row, isOut) : []));
    const isStale = byId("look").classList.contains("stale");
    if (document.activeElement !== byId("sentence") && !isStale) showTyped();
  }

  function showTyped() {
    byId("sentence").value = state.covered ? "" : state.words.join(" ");
  }

  // The gap looks most at “worked”: 84 %, through head 5, which finds the verb.
  function looks(stop, words, row, isOut) {
    const most = indexOfLargest(row);
    const asks = state.hidden.includes(state.query) ? "The gap" : `“${words[state.query]}”`;
    const parts = [element("b", {}, asks), " looks most at ",
      element("b", {}, most === state.query ? "itself" : words[most]), `: ${percent(row[most])}, through ${headCalled(here())}`];
    const { role } = stop.heads[state.layer][state.head];
    const badge = element("span", { class: "badge" }, jobOf(role ?? View.NO_ROLE));
    badge.style.setProperty("--head", roleColor(role));
    const isItself = most === state.query && role !== "self" && !state.hidden.includes(most);
    if (role && !isItself && Words.fits(role, state.words, state.query, language)) parts.push(", ", badge);
    else if (role) parts.push(element("span", { class: "quiet" }, ` (its usual job is another: ${jobOf(role)})`));
    parts.push(element("b", { class: "changed" }, isOut ? "It still looks, but what it sees no longer gets through." : ""));
    return parts;
  }

  function drawGuesses({ before, after }) {
    const touched = Levers.active(state).length > 0;
    const nothing = "Nothing is hidden, so there is nothing to guess.";
    byId("question").textContent = after ? "Its best guesses" : nothing;
    const bars = !after || state.covered ? [] : View.guesses(after.probabilities, language.vocabulary, after.truth,
      { before: touched ? before.probabilities : null, also: [1, 2].includes(state.story) ? state.guess : null, kin: Story.kindOf(after) });
    byId("guesses").replaceChildren(...bars);
    byId("kind").replaceChildren(...(bars.length ? Story.kindBar({ before, after }, touched) : []));
    byId("guess-note").textContent = after && !state.covered
      ? `✓ the hidden word.${touched ? ` Outlines: before the ${state.story ? "cut" : "change"}.` : ""}` : "";
    byId("grammar-note").textContent = after && !state.covered ? Words.ofVerb(state.words, language) : "";
  }

  function drawHeads(now) {
    const { stop, pass, words, after } = now;
    const isFree = Story.isOpen();
    const tried = Story.toPress(state);
    const costs = Levers.allHeads().map((head) => {
      if (!after || !isFree) return "";
      const other = Levers.measure({ ...state, removed: Levers.toggled(state.removed, head) }, language);
      const text = change(after.chance, other.chance);
      return text.includes("→") ? text : `${text}, the same`;
    });
    Maps.drawHeads(maps, stop, pass.layers, state, costs, isFree);
    const truth = after && `“${language.vocabulary[after.truth]}”`;
    byId("heads-heading").textContent = after && isFree ? `Eight heads, and what ${truth} gets without each` : "Eight heads";
    const role = roleOf(stop, state.layer, state.head);
    for (const { map, layer, head } of maps) map.classList.toggle("try", Levers.nameOf(layer, head) === tried);
    const isUsual = role !== View.NO_ROLE && !Words.fits(role, state.words, state.query, language);
    byId("head-heading").textContent = `${View.capital(headCalled(here()))}${isUsual ? ", usually" : ""}: ${jobOf(role)}`;
    byId("large-note").textContent = Story.ofHead(now);
    byId("large-bars").replaceChildren(...Story.barsWithout(now));
    if (!byId("large-fold").open) return;
    Maps.drawLarge(byId("large"), words, pass.layers[state.layer].weights[state.head],
      (i, j) => state.causal && j > i, state.query, choose);
  }

  // A stop of the training is as wide as another, however many steps lie between.
  function drawTime({ stop, after }) {
    const { seed, stops } = Runs.get(state.run);
    byId("step").max = stops.length - 1;
    byId("step").value = Runs.placeOf(state);
    const which = state.run === "0" || state.story ? "" : `, trained with seed ${seed}`;
    const when = (stop.step ? `after ${stop.step} steps` : "before training") + which;
    const guess = after && Story.ofKind(after);
    byId("step").setAttribute("aria-valuetext", when);
    byId("step-note").textContent = guess ? `${when}: ${guess.name} ${percent(guess.share)}` : when;
  }

  function drawLevers() {
    const model = Runs.model();
    const divisor = state.divisor ?? model.divisor;
    byId("causal").checked = state.causal;
    byId("divisor").value = Math.log2(divisor);
    byId("divisor").setAttribute("aria-valuetext", fixed(divisor));
    const usual = state.divisor === null ? ` = √${model.d_model / model.num_heads}, as it was trained` : "";
    byId("divisor-note").textContent = `${View.short(divisor)}${usual}`;
    byId("removed-note").textContent = state.removed.length
      ? `cut off: ${state.removed.map(headCalled).join(", ")}` : "no head is cut off";
    byId("hide").textContent = `${state.hidden.includes(state.query) ? "show" : "hide"} “${state.words[state.query]}”`;
    byId("knock").textContent = state.removed.length ? "put back what is cut off" : `cut off ${headCalled(here())}`;
    setUsable(byId("reset"), Levers.active(state).length > 0);
  }

  // ---- controls

  // The kinds of words, with that one open which a sentence goes on with.
  function drawKinds(words) {
    if (kindsFor === words.join(" ")) return;
    kindsFor = words.join(" ");
    const add = (word) => {
      type(`${byId("sentence").value} ${word}`.trim(), false);
      byId("chips").querySelector("[aria-pressed=true]").focus();
    };
    Words.drawChips(byId("chips"), Words.nextKind(words, language), language, add);
  }

  // What is wrong is said while it is typed. The picture keeps the last whole sentence until who types pauses, or is done.
  function readTyped({ isDone = false } = {}) {
    clearTimeout(typing);
    const result = Words.read(byId("sentence").value, language);
    Words.explain(result, language, takeWord, takeSentence);
    byId("sentence").setAttribute("aria-invalid", Boolean(result.problem));
    byId("look").classList.toggle("stale", Boolean(result.problem));
    if (byId("sentence").value === "" || result.words) drawKinds(result.words ?? []);
    if (!result.words) return;
    if (isDone) setWords(result.words, "typing");
    else typing = setTimeout(() => setWords(result.words, "typing"), TYPED);
  }

  // Enter puts the keyboard of a phone away, and shows the guess.
  function enter(event) {
    if (event.key !== "Enter") return;
    event.preventDefault();
    readTyped({ isDone: true });
    byId("sentence").blur();
    if (!byId("look").classList.contains("stale")) byId("guess-card").scrollIntoView({ block: "nearest" });
  }

  function type(text, isFocused = true) {
    byId("sentence").value = text;
    if (isFocused) byId("sentence").focus();
    readTyped({ isDone: true });
  }

  function takeSentence(text) {
    hidByReader = false;
    type(text);
  }

  const takeWord = (unknown, word) => type(Words.replaced(byId("sentence").value, unknown, word));

  function readWell() {
    Words.explain({}, language, takeWord, takeSentence);
    byId("sentence").removeAttribute("aria-invalid");
    byId("look").classList.remove("stale");
  }

  // The next sentence in which a head shows what it does.
  function another() {
    const now = state.words.join(" ");
    const shown = data.landings.findIndex(({ words }) => words.join(" ") === now);
    const next = data.landings[(shown + 1) % data.landings.length];
    hidByReader = false;
    set(Story.landing(next), `open ${next.words.join(" ")}`);
  }

  function hide() {
    hidByReader = true;
    const { hidden, query } = state;
    const others = hidden.filter((at) => at !== query);
    set(withCostliest({ hidden: hidden.includes(query) ? others : [...hidden, query].sort((a, b) => a - b) }), "hide");
  }

  function setDivisor() {
    const divisor = Number((2 ** byId("divisor").value).toFixed(3));
    set({ divisor: Math.abs(divisor - Runs.model().divisor) < 0.01 ? null : divisor }, "divisor");
  }

  // A button that must not be used keeps the focus and does nothing.
  const press = (id, action) => on(id, "click", () => isUsable(byId(id)) && action());

  // Arrows move the chosen head through the grid of maps.
  function moveHead(event) {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (!Object.hasOwn(steps, event.key) || !event.target.classList.contains("map")) return;
    const [down, across] = steps[event.key];
    const { num_layers, num_heads } = Runs.model();
    event.preventDefault();
    chooseHead((state.layer + down + num_layers) % num_layers, (state.head + across + num_heads) % num_heads);
    maps[state.layer * num_heads + state.head].map.focus();
  }

  function wire() {
    on("sentence", "input", readTyped);
    on("sentence", "change", () => readTyped({ isDone: true })); // it is left for something else
    on("sentence", "focus", () => byId("sentence").select()); // what is typed takes its place
    on("sentence", "keydown", enter);
    press("another", another);
    // What was closed had not been drawn.
    byId("look").addEventListener("toggle", ({ target }) => target.open && redraw(), true);
    // A press on a word to take leaves the focus where it is: what is left would be read, and move what is pressed.
    on("own", "mousedown", (event) => event.target.matches("button") && event.preventDefault());
    on("words", "keydown", (event) => Arcs.moveChoice(event, state.query, choose));
    on("heads", "keydown", moveHead);
    press("clear", () => type(""));
    on("causal", "change", () => set({ causal: byId("causal").checked }, "causal"));
    on("divisor", "input", setDivisor);
    on("step", "input", () => look({ step: Runs.get(state.run).stops[byId("step").value].step }, "time"));
    press("knock", () => set({ removed: state.removed.length ? [] : [here()] }, "knock"));
    press("hide", hide);
    press("reset", () => set({ ...Levers.UNTOUCHED, removed: [] }, "reset"));
  }

  function start(app) {
    ({ data, language } = app);
    Runs.start(data);
    maps = Maps.makeHeads(byId("heads"), Runs.model(), chooseHead, knockOut);
    Story.start(app, set);
    wire();
    View.darkGround.addEventListener("change", () => state && redraw());
    new ResizeObserver(Arcs.redraw).observe(byId("words"));
    byId("rule").href = data.rule;
  }

  // The state that the address describes. A step of the story has a scene of its own, unless the address says more.
  function show(parts) {
    Address.forget();
    clearTimeout(typing);
    hidByReader = parts.has("hide");
    state = Address.read(parts, language, firstState);
    const step = Story.stepOf(parts) ?? (parts.size === 0 ? 1 : null);
    if (step !== null) Object.assign(state, parts.has("words") ? { story: step, guess: Story.guessOf(state) } : Story.scene(step, state));
    readWell();
    redraw();
    showTyped(); // whoever types there, or typed
    drawKinds([]);
  }

  return { start, show, redraw, state: () => ({ ...state }) };
})();
