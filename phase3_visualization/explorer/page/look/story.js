// The story: seven steps about one sentence. One thing at a time stands below the sentence, and what a step does not
// speak of is not there (page.css: data-step).
//
// Three steps ask before they show. What a reader bet is kept in this page alone. Until the first bet is made, every
// other step tells its part about another sentence, so that no link and no address gives the answer away.
"use strict";

const Story = (() => {
  const { byId, on, button, element, fixed, percent, jobOf } = View;
  const won = new Map(); // step -> whether its bet was won; null if the answer was asked for
  const BETS = 3;
  let act, language, texts, landings;
  let seen; // what is on the stage
  let asked = null; // the head that step 6 asks about
  let drawn = ""; // what the step was drawn for

  const row = (...parts) => element("div", { class: "row choices" }, ...parts);
  const atEnd = () => ({ run: "0", step: Runs.lastStep("0"), removed: [], covered: false });

  function bet(step, isRight, changes) {
    if (!won.has(step)) won.set(step, isRight); // only the first answer counts
    act(changes, "bet");
    byId("title").focus({ preventScroll: true });
  }

  function verdict(step, right = "You were right.", wrong = "You bet the other way.") {
    if (typeof won.get(step) !== "boolean") return "";
    return element("p", { class: `verdict ${won.get(step) ? "won" : "lost"}` }, won.get(step) ? right : wrong);
  }

  // ---- the steps. more: what stands below the words of texts.json; it returns elements

  // One word of each kind, as many as the hidden one: a kind is what a reader can reason out, a word is not.
  function askWord({ after }) {
    const truth = language.vocabulary[after.truth];
    const choices = Words.oneOfEachKind(truth, language.groups).map((choice) => button(choice, () =>
      bet(1, Words.groupOf(choice, language.groups) === Words.groupOf(truth, language.groups),
        { guess: language.index.get(choice), covered: false })));
    const skip = button("I do not know: show me", () => bet(1, null, { covered: false }), { class: "link" });
    return [row(...choices), row(skip)];
  }

  const tellWord = (now) => (now.state.covered ? askWord(now)
    : [verdict(1, "You chose a word of the right kind.", "You chose a word of another kind.")]);

  function askCut({ state, after }) {
    const removed = [Levers.nameOf(state.layer, state.head)];
    if (state.removed.length) return [verdict(2), row(button("put it back", () => act({ removed: [] }, "knock")))];
    if (won.has(2)) return [row(button("cut it again", () => act({ removed }, "knock"), { class: "main-button" }))];
    const left = shareOfKind(Levers.measure({ ...state, removed }, language));
    const staysSure = left >= shareOfKind(after) / 2;
    const answer = (isRight) => () => bet(2, isRight, { removed });
    return [row(button("yes, nearly as sure", answer(staysSure)), button("no, less than half as sure", answer(!staysSure)))];
  }

  // The arc opened: how well each key fits the query, and the share that comes of it.
  function openArc({ pass, state, words, row: shares }) {
    const divisor = state.divisor ?? Runs.model().divisor;
    const scores = Steps.scores(pass, state, divisor);
    const most = View.indexOfLargest(shares);
    const lines = words.map((name, j) => {
      const line = View.bar(name, shares[j], percent(shares[j]), { color: j === most ? "own" : "other" });
      line.append(element("span", { class: "score-of" }, fixed(scores[j], 1)));
      return line;
    });
    const head = element("div", { class: "line headings", "aria-hidden": "true" }, element("span", {}, "key of"),
      element("span", {}, "share of the value that arrives"), element("span"), element("span", { class: "score-of" }, "score"));
    const table = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "the numbers of each key" },
      Steps.table(pass, state, words, divisor));
    const parts = [fold("All the numbers: query · key, divided, softmax, times value", table)];
    if (seen.after) parts.push(fold("And then? From this head to the guess", ...throughBlock(state)));
    return [element("div", { class: "keys" }, head, ...lines), ...parts];
  }

  const fold = (title, ...parts) => element("details", {}, element("summary", {}, title), ...parts);

  // What the hidden word costs after each part of the model, and which part helps most.
  function throughBlock(state) {
    const losses = Levers.through(state, language);
    const names = ["word and place"];
    for (let layer = 0; layer < Runs.model().num_layers; layer++) names.push(`attention ${layer}`, `feed-forward ${layer}`);
    const drops = losses.map((loss, i) => (i ? losses[i - 1] - loss : 0));
    const best = View.indexOfLargest(drops);
    const most = Math.max(...losses);
    return [
      element("p", {}, "The sum of all heads is added to what stood in the gap; then a small network, the feed-forward " +
        "layer, adds its part, and the next layer goes on. If the model had to answer after each part, how surprised " +
        `would it be by the hidden word? The biggest drop comes with ${names[best]}. Surprise can also rise on the way.`),
      ...losses.map((loss, i) => View.bar(names[i], loss / most, fixed(loss), { color: i === best ? "own" : "other" })),
      element("p", { class: "quiet" }, "Surprise is −ln of the probability, in nats: 0 is certainty."),
    ];
  }

  const roleAt = (run, { layer, head }) => Runs.get(run).stops.at(-1).heads[layer][head].role;

  // The first head that has a role at the end of a run: {layer, head}, or null.
  function havingRole(run, role) {
    const found = Runs.lanes(run).find((lane) => lane.role === role)?.heads.at(-1)[0];
    return found ? { layer: found.layer, head: found.head } : null;
  }

  // The head of step 6: the one on the stage, or the first that has a job. A training of one's own goes on.
  function seedScene(state) {
    const named = state.run === "0" && roleAt("0", state);
    const anyRole = Runs.lanes("0").find(({ heads }) => heads.at(-1).length > 0)?.role;
    asked = (named ? null : havingRole("0", anyRole)) ?? { layer: state.layer, head: state.head };
    const own = Runs.own();
    return own ? { ...atEnd(), run: own, step: Runs.lastStep(own) } : { ...atEnd(), ...asked };
  }

  function askSeed({ state }) {
    if (state.run !== "0" && state.run !== "1") return []; // the bet was about the second training
    if (won.has(6)) return [verdict(6)];
    const { layer, head } = asked ?? state;
    const there = havingRole("1", roleAt("0", { layer, head }));
    const same = there !== null && there.layer === layer && there.head === head;
    const answer = (isRight) => () => bet(6, isRight, { ...atEnd(), run: "1", ...there });
    return [row(button("the same head", answer(same)), button("another head, or none", answer(!same)))];
  }

  // The end of the story: what was seen has a name, and there is more to do.
  function drawScore() {
    const note = element("span", { class: "quiet", role: "status" });
    const address = `${location.href.split("#")[0]}#story=1`;
    const copy = button("copy a link to this story", async () => {
      await navigator.clipboard?.writeText(address).catch(() => {});
      note.textContent = address;
    });
    const link = (href, text) => element("a", { href, class: "button" }, text);
    return [row(link("#view=own", "a sentence of your own"), link("#view=break", "six more bets"), copy), note];
  }

  const STEPS = [
    { scene: () => ({ ...atEnd(), covered: !won.has(1) }), more: tellWord, isTold: ({ covered }) => !covered },
    { scene: atEnd, more: askCut, isTold: ({ removed }) => removed.length > 0 },
    { scene: atEnd, more: openArc },
    { scene: () => ({ ...atEnd(), step: 0 }), more: () => [], isTold: ({ step }) => step > 0 },
    { scene: atEnd, more: () => [] },
    { scene: seedScene, more: askSeed, isTold: () => won.has(6) },
    { scene: atEnd, more: drawScore },
  ];
  const NAMES = ["guess", "cut the arc", "why there?", "drag time", "its eight heads", "another seed", "your score"];
  const count = STEPS.length;

  // What the texts may say of the stage.
  function values({ state, stop, words, row: shares, named, before, after }) {
    const place = asked ?? state;
    const role = roleAt("0", place) ?? View.NO_ROLE;
    const there = havingRole("1", role);
    const own = Runs.get(state.run).recorded ? null : havingRole(state.run, role);
    const right = [...won.values()].filter((is) => is === true).length;
    const told = {
      named: named || "none", heads: Levers.allHeads().length,
      looked: words[View.indexOfLargest(shares)], d_k: Runs.model().d_model / Runs.model().num_heads,
      job: jobOf(role), asked: Levers.nameOf(place.layer, place.head),
      there: there ? `head ${Levers.nameOf(there.layer, there.head)}` : "no head at all",
      own: own ? `head ${Levers.nameOf(own.layer, own.head)} has the job` : "no head has this job",
      run: Runs.get(state.run).seed, last: Runs.lastStep(state.run), score: `${right} of ${BETS} bets won.`,
    };
    return after ? { ...told, ...guessed(before, after, stop) } : told;
  }

  // Of a noun the whole kind counts: “teachers” is one of the people, and the model cannot know which.
  function shareOfKind({ truth, probabilities }) {
    const same = Words.kindOf(language.vocabulary[truth], language.groups);
    return same.reduce((sum, name) => sum + probabilities[language.index.get(name)], 0);
  }

  function guessed(before, after, stop) {
    const truth = language.vocabulary[after.truth];
    const isFirst = stop.step === 0 && after.best === after.truth;
    return {
      best: language.vocabulary[before.best], now: language.vocabulary[after.best],
      kind: Words.nameOfKind(truth, language.groups), of_kind: percent(shareOfKind(before)), left: percent(shareOfKind(after)),
      rule: Words.ofVerb(seen.state.words, language), luck: isFirst ? " (That the right word leads already is luck.)" : "",
    };
  }

  // “people, all together”: the bar of the whole kind of the hidden word, above those of single words.
  function kindBar({ before, after }, isChanged) {
    const truth = language.vocabulary[after.truth];
    if (Words.kindOf(truth, language.groups).length === 1) return [];
    const [old, now] = [shareOfKind(before), shareOfKind(after)];
    const text = isChanged ? View.change(old, now) : percent(now);
    return [View.bar(`${Words.nameOfKind(truth, language.groups)}, all`, now, text, { before: isChanged ? old : null })];
  }

  // ---- where the reader is

  const here = () => seen?.state.story ?? 0; // 0: a sentence of one's own, without the story
  const isOpen = () => here() === 0 || here() === 5;
  const isAnswered = () => here() !== 1 || !seen.state.covered;

  const isFirstSentence = ({ words }) => words.join(" ") === landings[0]?.words.join(" ");

  // The state in which a sentence of data.landings shows what its head does.
  const landing = ({ words, hidden, layer, head }) =>
    ({ words, hidden: [hidden], query: hidden, layer, head, removed: [], guess: null });

  // The state that a step begins with.
  function scene(step, state) {
    let sentence = {};
    if (step === 1 && landings.length && !(won.has(1) && isFirstSentence(state))) sentence = landing(landings[0]);
    if (step > 1 && landings.length > 1 && !won.has(1) && isFirstSentence(state)) sentence = landing(landings[1]);
    if (step === 1 && sentence.words) won.delete(1);
    const shown = { ...state, ...sentence };
    const first = landings.find(({ words }) => words.join(" ") === shown.words.join(" "));
    if (first) Object.assign(sentence, { query: first.hidden, layer: first.layer, head: first.head }); // the thread goes on
    return { ...sentence, ...STEPS[step - 1].scene({ ...shown, ...sentence }), story: step };
  }

  function go(step) {
    if (step < 1 || step > count || (step > here() && !isAnswered())) return;
    act(scene(step, seen.state), `step ${step}`);
    scrollTo({ top: 0 });
    byId("title").focus({ preventScroll: true });
  }

  // ← and → turn the page, unless they move something else.
  function turn(event) {
    const moves = { ArrowLeft: -1, ArrowRight: 1 };
    const isTaken = here() === 0 || event.target.closest("input, textarea, [role='radiogroup'], .heads, .scroll, nav");
    if (byId("look").hidden || isTaken || event.altKey || event.ctrlKey || event.metaKey || !moves[event.key]) return;
    event.preventDefault();
    go(here() + moves[event.key]);
  }

  function draw(now) {
    seen = now;
    const step = here();
    byId("look").dataset.step = step || "own";
    for (const link of document.querySelectorAll("nav [data-view='look']")) {
      if (Boolean(step) === (link.id !== "to-own")) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    const key = JSON.stringify([now.state, now.stop.step, [...won]]);
    if (drawn === key) return; // not under the hands of who is typing
    drawn = key;
    drawStep(step, now);
    byId("where").textContent = `${step} of ${count}`;
    byId("dots").replaceChildren(...STEPS.map((_, i) => element("i", { class: i < step ? "on" : null })));
    byId("back").hidden = step === 1;
    byId("next").hidden = step === count;
    View.setUsable(byId("next"), isAnswered());
    byId("next").classList.toggle("main-button", !([1, 2, 6].includes(step) && !won.has(step))); // first the bet
    byId("next").replaceChildren("next", element("span", { class: "whither" }, `: ${NAMES[step] ?? ""}`));
  }

  function drawStep(step, now) {
    const { more, isTold } = STEPS[step - 1] ?? { more: () => [] };
    const text = texts[step - 1] ?? texts.at(-1).alone;
    const isAsked = now.after !== null || step === 3 || step >= 5 || step === 0;
    const isSaid = Boolean(isTold?.(now.state));
    const isOwn = !Runs.get(now.state.run).recorded;
    byId("look").classList.toggle("grows", (step === 6 && won.has(6)) || isOwn || Boolean(Grow.isRunning()));
    const told = step === 6 && isOwn ? text.own : isSaid ? text.then : text;
    const filled = values(now);
    const empty = { title: "Nothing is hidden.", says: "Choose a word of the sentence, and hide it." };
    const { title, says } = isAsked ? told : empty;
    byId("title").textContent = View.fill(title, filled);
    byId("says").textContent = View.fill(says, filled);
    byId("more").replaceChildren(...(isAsked ? more(now) : []));
  }

  function start(app, onAct) {
    [act, language, texts, landings] = [onAct, app.language, app.data.story, app.data.landings];
    on("back", "click", () => go(here() - 1));
    on("next", "click", () => go(here() + 1));
    addEventListener("keydown", turn);
  }

  const stepOf = (parts) => Address.whole(parts.get("story"), 1, count);

  const open = () => (won.has(1) || landings.length < 2 ? landings : landings.slice(1));

  return { start, draw, scene, stepOf, isOpen, here, kindBar, landing, landings: open };
})();
