// Wager 5: lines as thick as the weights, and what hiding each word costs the guess.
"use strict";

const Line = (() => {
  const { element, svg, fixed } = View;
  const { pane, panes, bar, guesses, here, loss, mean } = Stage;
  const ROW = 30; // pixels, as in break.css

  // Weights of the last layer in the row of the hidden word, heads averaged; the hidden word itself left out.
  function weightsOf({ layers }, hidden) {
    const heads = layers.at(-1).weights.map((rows) => rows[hidden]);
    return heads[0].map((_, j) => (j === hidden ? 0 : mean(heads.map((row) => row[j]))));
  }

  function lines(weights, hidden, thickest) {
    const height = ROW * weights.length;
    const picture = svg("svg", { viewBox: `0 0 100 ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" });
    const middle = (row) => ROW * (row + 0.5);
    weights.forEach((weight, j) => {
      if (j === hidden) return;
      const path = `M 0 ${middle(j)} C 50 ${middle(j)} 50 ${middle(hidden)} 100 ${middle(hidden)}`;
      picture.append(svg("path", { d: path, "stroke-width": 1 + 24 * weight, class: j === thickest ? "thick" : "" }));
    });
    picture.style.height = `${height}px`;
    return picture;
  }

  function draw(box, { words, hidden }, { app, language }, answered) {
    const model = app.models.get("both sides");
    const { index, vocabulary, special } = language;
    const truth = index.get(words[hidden]);
    const reading = (...gaps) => {
      const tokens = words.map((word, i) => (gaps.includes(i) ? special.mask : index.get(word)));
      const found = Attention.forward(model, tokens);
      return { ...found, guess: Attention.softmax(found.logits[hidden]) };
    };
    const whole = reading(hidden);
    const weights = weightsOf(whole, hidden);
    const thickest = Stage.indexOfLargest(weights);
    const costs = words.map((_, j) =>
      (j === hidden ? -Infinity : loss(reading(hidden, j).guess[truth]) - loss(whole.guess[truth])));
    const mattered = Stage.indexOfLargest(costs);

    const standing = (j) => (j === thickest ? "thick" : answered && j === mattered ? "mattered" : null);
    const names = element("div", { class: "names" }, ...words.map((word, j) =>
      element("span", { class: standing(j) }, j === hidden ? "▢" : word)));
    const drawn = element("div", { class: "weights" }, ...words.map((_, j) =>
      element("span", { class: "number" }, j === hidden ? "" : fixed(weights[j]))));
    const over = ["weight", answered ? "nats lost when it is hidden, too" : ""].map((text) =>
      element("span", { class: "over" }, text));
    const typical = element("p", { class: "quiet" }, "One sentence, not a typical one.");
    const picture = element("div", { class: "pretty" }, ...over, names, drawn, lines(weights, hidden, thickest));
    if (answered) {
      const top = Math.max(...costs);
      picture.append(element("div", { class: "costs" }, ...words.map((_, j) => (j === hidden ? element("span", {}, "")
        : bar("", costs[j] / top, fixed(costs[j]), j === mattered ? "changed" : "accent")))));
    }
    if (!answered) {
      const most = `The hidden word, ▢, looks most at “${words[thickest]}”.`;
      box.append(typical, picture, element("p", { class: "quiet" }, most));
      return;
    }
    const both = [thickest, mattered].map((j) =>
      pane(`“${words[j]}” hidden, too`, ...guesses(reading(hidden, j).guess, vocabulary, truth)));
    const text = `in this sentence, chosen because the two differ, the thickest line goes to “${words[thickest]}”, ` +
      `which costs ${fixed(costs[thickest])} nats when it is hidden; “${words[mattered]}” costs ` +
      `${fixed(costs[mattered])}. The hidden word is “${words[hidden]}”.`;
    box.append(here(text, thickest !== mattered), typical, picture,
      panes(pane("one word hidden", ...guesses(whole.guess, vocabulary, truth)), ...both));
  }

  return { draw };
})();
