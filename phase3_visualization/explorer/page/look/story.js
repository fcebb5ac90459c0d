// The story: seven steps about one sentence. One thing at a time stands below the sentence, and what a step does not
// speak of is not there (page.css: data-step).
//
// Three steps ask before they show. What a reader bet is kept in this page alone. Until the first bet is made, every
// other step tells its part about another sentence, so that no link and no address gives the answer away.
"use strict";

// An arc, opened: what becomes of query, keys and values of one word in one head, with all numbers.
const Steps = (() => {
  const { element, fixed, percent } = View;
  const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);

  // The query of the chosen word in the chosen head, and keys and values of all words. pass: of Network.run.
  function vectors(pass, { layer, head, query: at }) {
    const { query, key, value, weights } = pass.layers[layer];
    const d_k = query[0].length / weights.length;
    const ofHead = (vector) => vector.subarray(head * d_k, (head + 1) * d_k);
    return { q: ofHead(query[at]), keys: key.map(ofHead), values: value.map(ofHead), shares: weights[head][at] };
  }

  // One key, of the word at this place: how well it fits, its share, and what the first number of its value adds.
  function keyRow(at, label, fit, isHidden, divisor, share, [first]) {
    const cells = [fixed(fit), isHidden ? "hidden" : fixed(fit / divisor), percent(share, 1), fixed(share * first)];
    const row = rowOf(label, cells);
    row.dataset.key = at;
    row.children[3].classList.add("weight");
    row.children[3].style.setProperty("--weight", share);
    return row;
  }

  const rowOf = (label, cells) =>
    element("tr", {}, element("th", { scope: "row" }, label), ...cells.map((text) => element("td", {}, text)));

  function table(pass, state, words, divisor) {
    const { q, keys, values, shares } = vectors(pass, state);
    const headings = ["key of", "query · key", `÷ ${View.short(divisor)}`, "share", "share · v₁"];
    const top = element("tr", {}, ...headings.map((name) => element("th", { scope: "col" }, name)));
    const rows = words.map((label, j) =>
      keyRow(j, label, dot(q, keys[j]), state.causal && j > state.query, divisor, shares[j], values[j]));
    const output = values.reduce((sum, [first], j) => sum + shares[j] * first, 0);
    const sum = rowOf("sum", ["", "", percent(shares.reduce((a, b) => a + b, 0), 1), fixed(output)]);
    const parts = [element("thead", {}, top), element("tbody", {}, ...rows), element("tfoot", {}, sum)];
    return element("table", { class: "steps" }, ...parts);
  }

  return { table };
})();

const Story = (() => {
  const { byId, on, button, element, fixed, percent, jobOf, indexOfLargest } = View;
  const won = new Map(); // step -> whether its bet was won; null if the answer was asked for
  let act, language, texts, landings;
  let seen; // what is on the stage
  let hasPressed = false; // step 5: the head that looks without any use
  let guess = null; // the reader's own, for the first word
  let asked = null; // the head that step 6 asks about
  let drawn = ""; // what the step was drawn for

  const row = (...parts) => element("div", { class: "row choices" }, ...parts);
  const atEnd = () => ({ run: "0", step: Runs.lastStep("0"), removed: [], covered: false });

  function bet(step, isRight, changes) {
    if (!won.has(step)) won.set(step, isRight); // only the first answer counts
    if (step === 1) guess = changes.guess ?? null;
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
    return [row(...choices)];
  }

  function tellWord(now) {
    if (now.state.covered) return askWord(now);
    const right = now.state.guess === now.after.truth ? "You chose the hidden word." : "You chose a word of the right kind.";
    return [verdict(1, right, "You chose a word of another kind.")];
  }

  function askCut({ state, after }) {
    const removed = [Levers.nameOf(state.layer, state.head)];
    if (state.removed.length) {
      const back = button("put it back", () => act({ removed: [] }, "knock"), { class: "link" });
      return [verdict(2), element("p", { class: "quiet" }, back, " (the next step does so, too)")];
    }
    if (won.has(2)) return [row(button("cut it again", () => act({ removed }, "knock"), { class: "main-button" }))];
    const left = shareOfKind(Levers.measure({ ...state, removed }, language));
    const staysSure = left >= shareOfKind(after) / 2;
    const answer = (isRight) => () => bet(2, isRight, { removed });
    return [row(button("yes, nearly as sure", answer(staysSure)), button("no, less than half as sure", answer(!staysSure)))];
  }

  // The arc opened: how much is taken from each word, and in a fold how that share comes about.
  function openArc({ pass, state, stop, words, row: shares }) {
    const divisor = state.divisor ?? Runs.model().divisor;
    const most = indexOfLargest(shares);
    const lines = words.map((name, j) => {
      const line = View.bar(name === View.BLANK ? "the gap" : name, shares[j], percent(shares[j]), { color: j === most ? "own" : "other" });
      line.dataset.key = j;
      return line;
    });
    const heading = element("p", { class: "taking" }, element("span", { id: "taking" }), button("again", Arcs.again, { class: "link" }));
    const table = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "the numbers of each key" },
      Steps.table(pass, state, words, divisor));
    const inWords = element("p", {}, `In the model the question is called the query, what it is held against a key, and what is taken a value. Each of
      them is a list of ${dimension()} numbers. A query and a key are multiplied, number by number, and the products
      added up; the sum is divided by ${View.short(divisor)}. That is how well they fit, and softmax makes shares of it.
      Each value is then taken by its share. We show it for v₁, the first of the ${dimension()} numbers of a value.`);
    const parts = [fold("All the numbers: query, key and value", inWords, table)];
    if (seen.after) parts.push(fold("And then? From what arrived to a guess", ...throughBlock(state)));
    const keys = element("div", { class: "keys" }, heading, ...lines);
    keys.style.setProperty("--head", View.roleColor(View.roleOf(stop, state.layer, state.head)));
    return [keys, ...parts];
  }

  const dimension = () => Runs.model().d_model / Runs.model().num_heads;

  const fold = (title, ...parts) => element("details", {}, element("summary", {}, title), ...parts);

  // What the hidden word costs after each part of the model, and which part helps most.
  function throughBlock(state) {
    const losses = Levers.through(state, language);
    const names = ["the gap alone"];
    for (let layer = 0; layer < Runs.model().num_layers; layer++) names.push(`layer ${layer} looks`, `layer ${layer} thinks`);
    const drops = losses.map((loss, i) => (i ? losses[i - 1] - loss : 0));
    const best = indexOfLargest(drops);
    const most = Math.max(...losses);
    return [
      element("p", {}, `The heads of a layer look around together, and what they bring is added to the gap. Then each word
        is worked on by itself: it “thinks”. The next layer does both again. If the model had to answer after each part,
        how surprised would it be by the hidden word? The part that helps most is “${names[best]}”.
        ${drops.some((drop) => drop < 0) ? `Between the parts its surprise may also rise: training asks for an answer only at
        the end, so what stands in the middle is meant for the next layer, not for you.` : ""}`),
      element("p", { class: "quiet" }, "Surprise at the hidden word, −ln of its probability, in nats: 0 if the model is certain of it, 0.7 at 50\u00a0%."),
      ...losses.map((loss, i) => View.bar(names[i], loss / most, fixed(loss), { color: i === best ? "own" : "other" })),
    ];
  }

  const roleAt = (run, { layer, head }) => Runs.get(run).stops.at(-1).heads[layer][head].role;

  // Of the heads that have a role at the end of a run the one that does the job most often: {layer, head}, or null.
  function havingRole(run, role) {
    const all = Runs.lanes(run).find((lane) => lane.role === role)?.heads.at(-1) ?? [];
    const often = ({ layer, head }) => Runs.get(run).stops.at(-1).heads[layer][head].own;
    const [first] = [...all].sort((a, b) => often(b) - often(a));
    return first ? { layer: first.layer, head: first.head } : null;
  }

  // The head that step 6 asks about: of the first training the one on the stage, or else the first that has a job.
  function headToAsk({ run, layer, head }) {
    const role = roleAt(run, { layer, head });
    if (run === "0" && role) return { layer, head };
    const anyRole = Runs.lanes("0").find(({ heads }) => heads.at(-1).length > 0)?.role;
    return havingRole("0", role) ?? havingRole("0", anyRole) ?? { layer, head };
  }

  // After the bet the second training is shown, and the head that has the job there, if one has it.
  function seedScene(state) {
    asked = headToAsk(state);
    const run = won.has(6) ? "1" : "0";
    return { ...atEnd(), run, step: Runs.lastStep(run), ...asked, ...(run === "1" && inSecond()) };
  }

  const inSecond = () => havingRole("1", roleAt("0", asked));
  const isTold = (state) => won.has(6) || state.run === "1";

  function askSeed({ state }) {
    const there = inSecond();
    if (isTold(state)) {
      const training = (run, text, place) => button(text, () => act({ run, step: Runs.lastStep(run), ...place }, "seed"),
        { "aria-pressed": String(state.run === run) });
      return [verdict(6), row(training("0", "first training", asked), training("1", "second training", there))];
    }
    const same = there !== null && there.layer === asked.layer && there.head === asked.head;
    const answer = (isRight) => () => bet(6, isRight, { run: "1", step: Runs.lastStep("1"), ...there });
    return [row(button("the same head", answer(same)), button("another head, or none", answer(!same)))];
  }

  // The end of the story: what was seen has a name, and there is more to do.
  function drawScore() {
    const link = (href, text) => element("a", { href, class: "button" }, text);
    return [row(link("#view=own", "a sentence of your own"), link("#view=break", "six more bets"), ...View.share("send this page"))];
  }

  const STEPS = [
    { scene: () => ({ ...atEnd(), covered: !won.has(1) }), more: tellWord, tells: ({ state }, text) => (state.covered ? text : text.then) },
    { scene: atEnd, more: askCut, tells: ({ state }, text) => (state.removed.length ? text.then : text) },
    { scene: atEnd, more: openArc },
    { scene: () => ({ ...atEnd(), step: 0 }), tells: overTime },
    { scene: atEnd, tells: ofHeads },
    { scene: seedScene, more: askSeed, tells: ofSeeds },
    { scene: atEnd, more: drawScore },
  ];
  const NEXT = [ // what a step answers, so that the one before ends with a question
    "", "does it matter?", "why look there?", "who taught it?", "and other heads?", "was that luck?", "what did we see?",
  ];
  const count = STEPS.length;

  // What the texts may say of the stage.
  function values({ state, stop, words, row: shares, before, after }) {
    const place = asked ?? state;
    const role = roleAt("0", place) ?? View.NO_ROLE;
    const there = havingRole("1", role);
    const answers = [...won.values()].filter((is) => is !== null);
    const score = `${answers.filter(Boolean).length} of ${answers.length} bets won. `;
    const hidden = state.words[state.query];
    const values = {
      heads: Levers.allHeads().length, words: language.words.length,
      looked: words[indexOfLargest(rowAtEnd(state))], most: words[indexOfLargest(shares)],
      share: percent(Math.max(...shares)),
      question: Object.hasOwn(language.verbs, hidden) ? "Who or what does it?" : "What is being done here?",
      job: jobOf(role), job_now: jobOf(View.roleOf(stop, state.layer, state.head)),
      Asked: View.capital(headCalled(place)), asked: headCalled(place), there: there && headCalled(there),
      This: View.capital(headCalled(state)), its_job: jobOf(roleAt(state.run, state) ?? View.NO_ROLE),
      score: answers.length ? score : "",
    };
    if (!after) return values;
    return { ...values, ...guessed(before, after), ...(state.story === 5 ? looksNamed({ state, words }) : {}) };
  }

  const headCalled = ({ layer, head }) => View.headCalled(Levers.nameOf(layer, head));

  // Of a noun the whole kind counts: “teachers” is one of the people, and the model cannot know which.
  function shareOfKind({ truth, probabilities }) {
    const same = Words.kindOf(language.vocabulary[truth], language.groups);
    return same.reduce((sum, name) => sum + probabilities[language.index.get(name)], 0);
  }

  function guessed(before, after) {
    const [truth, now] = [language.vocabulary[after.truth], language.vocabulary[after.best]];
    const isLess = shareOfKind(after) < shareOfKind(before);
    const shareOf = (name) => before.probabilities[language.index.get(name)];
    const [leader] = [...Words.kindOf(truth, language.groups)].sort((a, b) => shareOf(b) - shareOf(a));
    const values = {
      leader, now, leads: percent(shareOf(leader)),
      a_word: Words.aWordFor(truth, language.groups),
      of_kind: percent(shareOfKind(before)), left: percent(shareOfKind(after)), only: isLess ? "only " : "",
      rule: Words.ofVerb(seen.state.words, language), kind: Words.nameOfKind(truth, language.groups),
      much: shareOfKind(after) < shareOfKind(before) / 2 ? "much " : "",
    };
    const { same, other } = texts[1].still;
    const isSame = Words.kindOf(truth, language.groups).includes(now);
    const which = Words.isNoun(truth, language.groups) ? View.fill(texts[0].which, values) : "";
    return { ...values, which, still: View.fill(isSame ? same : other, values) };
  }

  // What a guess is judged by: “all people”, and their share, or one word.
  function ofKind(guess) {
    const truth = language.vocabulary[guess.truth];
    const name = Words.nameOfKind(truth, language.groups);
    return { name: Words.isNoun(truth, language.groups) ? `all ${name}` : name, share: shareOfKind(guess) };
  }

  // The bar of the whole kind of the hidden word, above those of single words.
  function kindBar({ before, after }, isChanged) {
    if (!Words.isNoun(language.vocabulary[after.truth], language.groups)) return [];
    const [{ share: old }, { name, share: now }] = [ofKind(before), ofKind(after)];
    const text = isChanged ? View.change(old, now) : percent(now);
    return [View.bar(name, now, text, { before: isChanged ? old : null })];
  }

  // Where the word that asks looks when the training is over.
  const rowAtEnd = (state) =>
    Levers.run({ ...state, step: Runs.lastStep(state.run) }, language).layers[state.layer].weights[state.head][state.query];

  // Step 4, by the numbers of this stop and of those before: does the head look elsewhere, and has the guess got worse?
  function overTime({ state, stop, row: shares }, text) {
    const { title, strays, found, worse, gray, colored } = text;
    const sure = sureness(state).slice(0, Runs.placeOf(state) + 1);
    if (stop.step === 0) return text;
    if (stop.step === Runs.lastStep(state.run)) return { title, says: text.end };
    const parts = [indexOfLargest(shares) === indexOfLargest(rowAtEnd(state)) ? found : strays];
    const best = indexOfLargest(sure);
    const [peak, peak_step] = [percent(sure[best]), Runs.get(state.run).stops[best].step];
    if (percent(sure.at(-1)) !== peak) parts.push(View.fill(worse, { peak, peak_step }));
    parts.push(stop.heads[state.layer][state.head].role === null ? gray : colored);
    return { title, says: parts.join(" ") };
  }

  // How sure the model is of the kind of the hidden word, at each stop of its training.
  const sureness = (state) => Runs.get(state.run).stops.map(({ step }) =>
    shareOfKind(Levers.measure({ ...state, step }, language)));

  // Step 6, by which head has the job in which training, and which one is looked at.
  function ofSeeds({ state }, text) {
    if (!isTold(state)) return text;
    const isFirst = state.run === "0";
    const goal = isFirst ? asked : inSecond();
    if (!goal) return text.gone;
    const told = isFirst ? text.before : text.then;
    if (goal.layer === state.layer && goal.head === state.head) return told;
    const role = roleAt(state.run, state);
    const title = role === null ? text.none : role === roleAt("0", asked) ? text.shares : text.other;
    return { title, says: `${told.title} ${text.press}` };
  }

  // ---- one head: does its look matter?

  const LITTLE = 0.02; // a share of that size is not missed

  // What the guess is with and without a head, and what it loses of the kind of the hidden word and of the word itself.
  function costOf(state, head) {
    const [before, after] = [[], [head]].map((removed) => Levers.measure({ ...state, removed }, language));
    return { before, after, kind: shareOfKind(before) - shareOfKind(after), word: before.chance - after.chance };
  }

  const isIdle = ({ kind, word }) => Math.abs(kind) < LITTLE && word < LITTLE;

  function verdictOn({ before, kind, word }) {
    if (shareOfKind(before) < LITTLE) return "none";
    if (isIdle({ kind, word })) return "idle";
    if (kind < -LITTLE) return "better";
    if (kind < LITTLE) return "which";
    return kind > shareOfKind(before) / 2 ? "costly" : "some";
  }

  // Where the gap looks through a head, other than at itself: {name, most, share}.
  function lookOf(state, name) {
    const [layer, head] = name.split(".");
    const row = Levers.run(state, language).layers[layer].weights[head][state.query];
    const others = Array.from(row, (share, j) => (j === state.query ? 0 : share));
    const most = indexOfLargest(others);
    return { name, most, share: others[most] };
  }

  // Of the heads that nobody would miss here the one that looks most; one that looks where the costliest looks goes first.
  function idleLook(state) {
    const goal = lookOf(state, costliestName(state)).most;
    const looks = Levers.allHeads().filter((name) => isIdle(costOf(state, name))).map((name) => lookOf(state, name));
    looks.sort((a, b) => (b.most === goal) - (a.most === goal) || b.share - a.share);
    return looks[0] ?? null;
  }

  function costliestName(state) {
    const { layer, head } = Levers.costliest(state, language);
    return Levers.nameOf(layer, head);
  }

  // Step 5 asks for a head that looks without any use, and says what that means once it is pressed.
  function ofHeads({ state }, text) {
    const idle = idleLook(state);
    hasPressed ||= idle?.name === Levers.nameOf(state.layer, state.head);
    return { ...text, says: `${text.says} ${!idle ? text.any : hasPressed ? text.tried : text.press}` };
  }

  // The head whose loss costs most, and the one to press.
  function looksNamed({ state, words }) {
    const [costly, idle] = [costliestName(state), idleLook(state)];
    const too = idle && idle.most === lookOf(state, costly).most ? ", too" : "";
    return { costly: View.headCalled(costly), too, ...(idle && { idle: View.headCalled(idle.name), idle_at: words[idle.most] }) };
  }

  // What the chosen head does with this word, and in other sentences.
  function ofHead({ state, stop, words, row: shares, after }) {
    const text = texts[4];
    const asks = state.hidden.includes(state.query) ? "the gap" : `“${words[state.query]}”`;
    const { role, own } = stop.heads[state.layer][state.head];
    const filled = { asks, most: words[indexOfLargest(shares)], share: percent(Math.max(...shares)) };
    const parts = isOpen() ? [text.here] : []; // in the story the line says it
    if (after) {
      const cost = costOf(state, Levers.nameOf(state.layer, state.head));
      parts.push(text[verdictOn(cost)]);
    }
    if (role !== null && isOpen()) parts.push(text.often);
    return View.fill(parts.join(" "), { ...filled, often: Math.round(100 * own), those: View.those(role ?? "") });
  }

  // Two bars: the kind of the hidden word and the word itself, with the chosen head and without it.
  function barsWithout({ state, after }) {
    if (!after) return [];
    const { before, after: without } = costOf(state, Levers.nameOf(state.layer, state.head));
    const word = language.vocabulary[before.truth];
    const own = View.bar(word, without.chance, View.change(before.chance, without.chance), { before: before.chance, mark: "✓" });
    return [element("p", { class: "quiet" }, "If this head is cut (the dashed line):"), ...kindBar({ before, after: without }, true), own];
  }

  // ---- where the reader is

  const here = () => seen?.state.story ?? 0; // 0: a sentence of one's own, without the story
  const isOpen = () => here() === 0;
  const isAnswered = () => here() !== 1 || !seen.state.covered;

  const isFirstSentence = ({ words }) => words.join(" ") === landings[0].words.join(" ");

  // The state in which a sentence of data.landings shows what its head does.
  const landing = ({ words, hidden, layer, head }) =>
    ({ words, hidden: [hidden], query: hidden, layer, head, removed: [], guess: null });

  // The state that a step begins with.
  function scene(step, state) {
    let sentence = {};
    if (step === 1 && !(won.has(1) && isFirstSentence(state))) sentence = landing(landings[0]);
    if (step > 1 && !won.has(1) && isFirstSentence(state)) sentence = landing(landings[1]);
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
    const place = String(step || "own");
    if (byId("look").dataset.step !== place) {
      for (const fold of document.querySelectorAll("#look details")) fold.open = step === 0 && fold.id === "large-fold";
    }
    byId("look").dataset.step = place;
    for (const link of document.querySelectorAll("nav [data-view='look']")) {
      if (Boolean(step) === (link.id !== "to-own")) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    const key = JSON.stringify([now.state, [...won]]);
    if (drawn === key) return; // not under the hands of who is typing
    drawn = key;
    drawStep(step, now);
    byId("where").textContent = `${step} of ${count}`;
    byId("dots").replaceChildren(...STEPS.map((_, i) => element("i", { class: i < step ? "on" : null })));
    byId("back").hidden = step === 1;
    byId("next").hidden = step === count;
    byId("next").classList.toggle("main-button", !([1, 2, 6].includes(step) && !won.has(step))); // first the bet
    byId("next").textContent = isAnswered() ? `next: ${NEXT[step]}` : "I do not know: show me";
  }

  function drawStep(step, now) {
    const { more = () => [], tells } = STEPS[step - 1] ?? {};
    const text = texts[step - 1] ?? texts.at(-1).alone;
    const isAsked = now.after !== null || step === 3 || step >= 5 || step === 0;
    if (step === 6) asked ??= headToAsk(now.state);
    byId("look").classList.toggle("told", isTold(now.state));
    const filled = values(now);
    const empty = { title: "Nothing is hidden.", says: "Choose a word of the sentence, and hide it." };
    const { title, says } = !isAsked ? empty : tells ? tells(now, text) : text;
    byId("title").textContent = View.fill(title, filled);
    byId("says").textContent = View.fill(says, filled);
    byId("more").replaceChildren(...(isAsked ? more(now) : []));
  }

  function start(app, onAct) {
    [act, language, texts, landings] = [onAct, app.language, app.data.story, app.data.landings];
    on("back", "click", () => go(here() - 1));
    on("next", "click", () => (isAnswered() ? go(here() + 1) : bet(1, null, { covered: false })));
    addEventListener("keydown", turn);
  }

  const stepOf = (parts) => Address.whole(parts.get("story"), 1, count);

  const open = () => (won.has(1) ? landings : landings.slice(1));

  // The map that step 5 asks a reader to press, until it is pressed.
  const toPress = (state) => (here() === 5 && !hasPressed ? idleLook(state)?.name : null);
  const guessOf = (state) => (won.has(1) && isFirstSentence(state) ? guess : null);
  const kindOf = ({ truth }) => Words.kindOf(language.vocabulary[truth], language.groups);

  return { start, draw, scene, stepOf, isOpen, here, ofKind, kindBar, kindOf, guessOf, ofHead, barsWithout, toPress, landing, landings: open };
})();
