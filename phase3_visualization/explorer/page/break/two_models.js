// Wagers 1, 2 and 4: two small models side by side, one whole and one broken, on texts that are new to both.
"use strict";

const TwoModels = (() => {
  const { element, fixed } = View;
  const { button, pane, panes, bar, cells, map, here, percent, indexOfLargest, mean, loss } = Stage;
  const DIVIDED = { divided: "divided by 8", undivided: "not divided" };
  const PLACED = { placed: "told the places", unplaced: "not told the places" };
  const letter = (symbol) => String.fromCharCode("a".charCodeAt(0) + symbol);

  // What a model says of a row, and whether that is right; from: the first place that has an answer.
  function read(model, row, wanted, from) {
    const { logits, layers } = Attention.forward(model, row);
    const said = logits.map(indexOfLargest);
    const right = said.map((symbol, place) => symbol === wanted[place]).slice(from);
    return { said, logits, weights: layers[0].weights[0], right };
  }

  function answers(reading, wanted, from) {
    return reading.said.map((symbol, place) => (place < from
      ? { text: "·" } : { text: letter(symbol), mark: symbol === wanted[place] ? "right" : "wrong" }));
  }

  const rightOf = ({ right }) => `${right.filter(Boolean).length} of ${right.length} right`;
  const share = (readings) => mean(readings.flatMap(({ right }) => right.map(Number)));

  // ---- wager 1: two places at once

  const FIRST = 3; // the first place that has a symbol three places before it
  const wantedBy = (table, row) =>
    row.map((_, place) => (place < FIRST ? null : table[row[place - 1]][row[place - 3]]));
  const isNeeded = (query, key) => query >= FIRST && (key === query - 1 || key === query - 3);
  const largest = (readings) =>
    mean(readings.flatMap(({ weights }) => weights.slice(FIRST).map((row) => Math.max(...row))));

  // What the last place must say, and why.
  function lookedUp(row, wanted) {
    const [before, earlier, said] = [row.at(-2), row.at(-4), wanted.at(-1)].map(letter);
    return `A table, drawn at random, says what follows from two symbols. At the last place: “${before}” one place ` +
      `before and “${earlier}” three before give “${said}”.`;
  }

  function twoPlaces(box, { rows, table }, { models }, answered) {
    const stage = element("div");
    let at = 0;
    function draw() {
      const row = rows[at];
      const wanted = wantedBy(table, row);
      const both = !answered ? [] : Object.entries(DIVIDED).map(([name, title]) => {
        const reading = read(models.get(name), row, wanted, FIRST);
        const look = `where it looks: each place (down) at the places so far (across), ${title}`;
        return pane(title, cells("says", answers(reading, wanted, FIRST)),
          element("p", { class: "quiet" }, `${rightOf(reading)}; outlined: the two places that it needs`),
          map(reading.weights, look, isNeeded));
      });
      const asked = wanted.map((symbol) => ({ text: symbol === null ? "·" : letter(symbol) }));
      stage.replaceChildren(cells("reads", row.map((symbol) => ({ text: letter(symbol) }))), cells("should say", asked),
        element("p", { class: "quiet" }, lookedUp(row, wanted)), panes(...both));
    }
    draw();
    const other = button("another row", () => { at = (at + 1) % rows.length; draw(); });
    box.append(other, stage);
    if (!answered) return;
    const [whole, broken] = Object.keys(DIVIDED).map((name) =>
      rows.map((row) => read(models.get(name), row, wantedBy(table, row), FIRST)));
    const text = `over ${rows.length} new rows the divided model is right at ${percent(share(whole))} of the places, ` +
      `the other at ${percent(share(broken))}. The largest weight of a place is ${fixed(largest(whole))} on average ` +
      `in the first model, ${fixed(largest(broken))} in the second.`;
    box.prepend(here(text, share(whole) - share(broken) >= 0.3));
  }

  // ---- wager 2: trained with the causal mask and without, as both read in training and in writing

  const TRAINED = { masked: "with the mask", unmasked: "without" };
  const COLORS = { masked: "accent", unmasked: "changed" };
  const GIVEN = 3; // words that both go on from

  // Probability of each true next word; past: only the words so far go in, one more each time. Under a causal mask
  // that is the same.
  function probabilities(model, tokens, past) {
    const seen = tokens.slice(0, -1);
    const logits = past && !model.causal
      ? seen.map((_, i) => Attention.forward(model, tokens.slice(0, i + 1)).logits[i])
      : Attention.forward(model, seen).logits;
    return logits.map((row, i) => Attention.softmax(row)[tokens[i + 1]]);
  }

  // The likeliest next word, again and again, until the end or as many words as the sentence has.
  function writeOn(model, tokens, { end }) {
    const written = tokens.slice(0, GIVEN + 1);
    while (written.length < tokens.length && written.at(-1) !== end) {
      written.push(indexOfLargest(Attention.forward(model, written).logits.at(-1)));
    }
    return written.slice(GIVEN + 1);
  }

  const repeats = (words) => words.some((word, i) => word === words[i - 1]);

  function future(box, { sentences }, { models, language }) {
    const { index, vocabulary, special } = language;
    const toTokens = (words) => [special.start, ...words.map((word) => index.get(word)), special.end];
    const names = Object.keys(TRAINED);
    const known = new Map();
    const stage = element("div");
    let at = 0;

    function found(name, words, past) {
      const key = [name, past, ...words].join(" ");
      if (!known.has(key)) known.set(key, probabilities(models.get(name), toTokens(words), past));
      return known.get(key);
    }

    function reading(title, words, past) {
      const tokens = toTokens(words);
      const each = names.map((name) => found(name, words, past));
      const rows = tokens.slice(1).map((token, i) => element("div", { class: "pair" }, ...names.map((name, which) =>
        bar(which ? "" : vocabulary[token], each[which][i], percent(each[which][i]), COLORS[name]))));
      const losses = names.map((name, which) => `${TRAINED[name]} ${fixed(mean(each[which].map(loss)))}`);
      return pane(title, ...rows, element("p", { class: "quiet" }, `loss, nats a word: ${losses.join(", ")}`));
    }

    function redraw() {
      const tokens = toTokens(sentences[at]);
      const given = sentences[at].slice(0, GIVEN).join(" ");
      const written = names.map((name) => {
        const words = writeOn(models.get(name), tokens, special).map((token) => vocabulary[token]);
        const note = repeats(words) ? element("span", { class: "quiet" }, " It repeats itself.") : "";
        return element("p", {}, `${TRAINED[name]}: ${given} `, element("b", {}, words.join(" ")), note);
      });
      stage.replaceChildren(
        element("p", { class: "key" }, "How likely each finds the true next word, trained ",
          ...names.flatMap((name, which) => [which ? ", " : "", element("b", { class: COLORS[name] }, TRAINED[name])])),
        panes(reading("As in training: the whole sentence", sentences[at], false),
          reading("As in writing: only the past", sentences[at], true)),
        pane("They go on by themselves", ...written));
    }

    redraw();
    const losses = (name, past) => mean(sentences.flatMap((words) => found(name, words, past).map(loss)));
    const [whole, past, masked] = [losses("unmasked", false), losses("unmasked", true), losses("masked", true)];
    const text = `on ${sentences.length} short sentences, new to both, the model without the mask loses ` +
      `${fixed(whole, 4)} nats a word while it sees them whole, and ${fixed(past, 1)} from the past alone; the one ` +
      `with the mask ${fixed(masked, 1)}. So few sentences may lie outside the range on record.`;
    const other = button("another sentence", () => { at = (at + 1) % sentences.length; redraw(); });
    box.append(here(text, whole < masked && past > Math.log(vocabulary.length)), other, stage);
  }

  // ---- wager 4: backwards

  const ROUNDING = 1e-4; // of logits: what adding up in another order may change

  const shuffled = (row) => row.map((symbol) => [Math.random(), symbol]).sort(([a], [b]) => a - b).map(([, s]) => s);

  // How far a letter's logits move at most when the row is shuffled: each letter keeps its own.
  function movedByOrder(model, row, order) {
    const [before, after] = [row, order].map((letters) => Attention.forward(model, letters).logits);
    const moved = order.map((symbol, place) => Math.max(...after[place].map((logit, i) =>
      Math.abs(logit - before[row.indexOf(symbol)][i]))));
    return Math.max(...moved);
  }

  function backwards(box, { rows }, { models }, answered) {
    const stage = element("div");
    let [at, row] = [0, rows[0]];
    function draw() {
      const wanted = [...row].reverse();
      const both = !answered ? [] : Object.entries(PLACED).map(([name, title]) => {
        const reading = read(models.get(name), row, wanted, 0);
        const counted = element("p", { class: "quiet" }, rightOf(reading));
        return pane(title, cells("says", answers(reading, wanted, 0)), counted);
      });
      stage.replaceChildren(cells("reads", row.map((symbol) => ({ text: letter(symbol) }))),
        cells("should say", wanted.map((symbol) => ({ text: letter(symbol) }))), ...both);
    }
    draw();
    const other = button("other letters", () => { at = (at + 1) % rows.length; row = rows[at]; draw(); });
    const shuffle = button("shuffle them", () => { row = shuffled(row); draw(); });
    const turn = button("turn them round", () => { row = [...row].reverse(); draw(); });
    box.append(element("p", { class: "row" }, other, ...(answered ? [turn, shuffle] : [])), stage);
    if (!answered) return;
    const [whole, broken] = Object.keys(PLACED).map((name) =>
      rows.map((each) => read(models.get(name), each, [...each].reverse(), 0)));
    const moved = movedByOrder(models.get("unplaced"), rows[0], [...rows[0]].reverse());
    const turned = moved < ROUNDING ? "what the other says of each letter stays the same"
      : `the logits of the other move by ${fixed(moved, 3)}`;
    const text = `over ${rows.length} new rows the model that is told the places is right at ${percent(share(whole))} ` +
      `of them, the other at ${percent(share(broken))}. Turn a row round, and ${turned}.`;
    const shows = share(whole) - share(broken) >= 0.5 && moved < ROUNDING;
    box.prepend(here(text, shows));
  }

  return { twoPlaces, future, backwards };
})();
