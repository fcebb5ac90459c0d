// Wagers 1 and 4: models that read symbols. One looks up two places, one says a row backwards.
"use strict";

const Symbols = (() => {
  const { element, fixed } = View;
  const { button, pane, panes, stacked, cells, map, here, percent, indexOfLargest, mean } = Stage;
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
        cells("should say", wanted.map((symbol) => ({ text: letter(symbol) }))), stacked(...both));
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

  return { twoPlaces, backwards };
})();
