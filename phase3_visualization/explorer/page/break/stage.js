// What the wagers are drawn with: two models side by side, bars, cells, a map.
"use strict";

const Stage = (() => {
  const { element, svg, weightColor } = View;
  const percent = (share) => `${Math.round(100 * share)}\u00a0%`;
  const indexOfLargest = (row) => row.indexOf(row.reduce((a, b) => Math.max(a, b)));
  const mean = (numbers) => numbers.reduce((a, b) => a + b, 0) / numbers.length;

  function button(text, action, attributes = {}) {
    const node = element("button", { type: "button", ...attributes }, text);
    node.addEventListener("click", action);
    return node;
  }

  // One of the models, or one of the ways to run a model: what it is called, and what it does.
  const pane = (title, ...content) =>
    element("div", { class: "pane" }, element("h3", {}, title), element("div", {}, ...content));
  const panes = (...each) => element("div", { class: "panes" }, ...each);

  // One line: a name, a bar from 0 to 1, and the number in words. color: "accent" or "changed".
  function bar(name, share, number, color = "accent") {
    const track = element("span", { class: "track" });
    if (share > 0) { // however small, it can be seen: only a share of 0 has no bar
      const fill = element("i", { class: color });
      fill.style.width = `${100 * Math.min(1, share)}%`;
      track.append(fill);
    }
    return element("div", { class: "line" }, element("span", { class: "name" }, name), track,
      element("span", { class: "number" }, number));
  }

  // The likeliest words for one place, the true one always among them and marked.
  function guesses(probabilities, vocabulary, truth, count = 4) {
    const order = [...probabilities.keys()].sort((a, b) => probabilities[b] - probabilities[a]).slice(0, count);
    if (!order.includes(truth)) order[count - 1] = truth;
    return order.map((word) => bar(word === truth ? `${vocabulary[word]} ✓` : vocabulary[word], probabilities[word],
      percent(probabilities[word]), word === truth ? "accent" : "changed"));
  }

  // A row of symbols: {text, mark: "right", "wrong" or undefined}. name: what the row is.
  function cells(name, items) {
    const spoken = items.map(({ text, mark }) => (mark ? `${text} ${mark}` : text)).join(", ");
    const boxes = items.map(({ text, mark }) => element("span", { class: mark ?? "" }, text));
    const strip = element("span", { class: "cells", role: "img", "aria-label": `${name}: ${spoken}` }, ...boxes);
    return element("div", { class: "symbols" }, element("span", { class: "name" }, name), strip);
  }

  // The weights of one head, queries down, keys across. outlined(query, key): where it has to look.
  const MARGIN = 0.1; // of a cell: half of an outline lies outside of the cells
  function map(weights, label, outlined) {
    const size = weights.length;
    const spoken = { role: "img", "aria-label": label };
    const whole = [-MARGIN, -MARGIN, size + 2 * MARGIN, size + 2 * MARGIN].join(" ");
    const picture = svg("svg", { viewBox: whole, class: "map-picture", ...spoken });
    weights.forEach((row, i) => row.forEach((weight, j) => {
      const place = { x: j + 0.03, y: i + 0.03, width: 0.94, height: 0.94 };
      picture.append(svg("rect", j > i ? { ...place, class: "unseen" } : { ...place, fill: weightColor(weight) }));
    }));
    weights.forEach((row, i) => row.forEach((_, j) => {
      if (outlined(i, j)) picture.append(svg("rect", { x: j, y: i, width: 1, height: 1, class: "outlined" }));
    }));
    const axes = { across: "place that answers →", down: "← place that asks" }; // "down" is written upwards
    return element("div", { class: "map" },
      ...Object.entries(axes).map(([axis, text]) => element("span", { class: axis }, text)), picture);
  }

  // What this run shows; where it does not show what the record says, that comes first.
  function here(text, shows) {
    const exception = "This run is one of the exceptions. ";
    return element("p", { class: "here" }, element("b", {}, "Here: "), shows ? text : exception + text);
  }

  // -ln of a probability: what a guess costs when this was the truth, in nats.
  const loss = (probability) => -Math.log(probability);

  return { button, pane, panes, bar, guesses, cells, map, here, percent, indexOfLargest, mean, loss };
})();
