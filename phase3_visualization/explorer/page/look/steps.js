// The five steps of attention for one query, with the numbers of the forward pass that drew the maps.
"use strict";

const Steps = (() => {
  const { element, fixed } = View;

  const few = (vector, count) => `${[...vector.slice(0, count)].map((x) => fixed(x)).join("  ")} …`;
  const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
  const quiet = (text) => element("span", { class: "quiet" }, text);

  function step(number, name, ...text) {
    return element("li", {}, element("b", {}, `${number} ${name} `), ...text);
  }

  // One key: its vector, its score, its weight and what it adds to the output.
  function keyRow(label, layer, head, query, j, divisor) {
    const [key, value] = [layer.key[head][j], layer.value[head][j]];
    const score = layer.scores[head][query][j];
    const weight = layer.weights[head][query][j];
    const hidden = score === -Infinity;
    const product = dot(layer.query[head][query], key);
    const cells = [
      few(key, 2), fixed(product), hidden ? "hidden" : fixed(product / divisor), fixed(weight, 3), few(value, 2),
      few(value.map((x) => weight * x), 2),
    ];
    const row = element("tr", { class: hidden ? "hidden-row" : null }, element("th", { scope: "row" }, label));
    row.append(...cells.map((text) => element("td", {}, text)));
    const weightCell = row.children[4];
    weightCell.style.setProperty("--weight", weight);
    weightCell.classList.add("weight");
    return row;
  }

  const HEADINGS = ["key token", "2 key k", "q·k", "3 score", "4 weight", "value v", "5 weight · v"];

  function table(labels, layer, head, query, divisor) {
    const top = element("tr", {}, ...HEADINGS.map((name) => element("th", { scope: "col" }, name)));
    const rows = labels.map((label, j) => keyRow(label, layer, head, query, j, divisor));
    const total = layer.weights[head][query].reduce((sum, weight) => sum + weight, 0);
    const output = few(layer.head_output[head][query], 2);
    const foot = element("tr", {}, element("th", { scope: "row" }, "sum"));
    foot.append(...["", "", "", fixed(total, 3), "", output].map((text) => element("td", {}, text)));
    const parts = [element("thead", {}, top), element("tbody", {}, ...rows), element("tfoot", {}, foot)];
    return element("table", { class: "steps" }, ...parts);
  }

  // model, state as on screen; words: what the model reads; pass: from Attention.forward.
  function draw(box, model, state, words, pass) {
    const { layer: l, head } = state;
    const layer = pass.layers[l];
    const labels = View.tokenLabels(words);
    const query = Levers.position(model, state, state.query);
    const divisor = Levers.divisorOf(model, state);
    const d_k = layer.query[head][query].length;
    const out = state.removed.includes(`${l}.${head}`);
    const list = element("ol", { class: "step-list" },
      step(1, "query", `"${labels[query]}" asks with its query vector q: `,
        element("code", {}, few(layer.query[head][query], 5)), quiet(` ${d_k} numbers`)),
      step(2, "keys", "each token answers with its key vector k."),
      step(3, "scores", `how well they fit: q·k, divided by ${fixed(divisor)}`,
        quiet(divisor === Math.sqrt(d_k) ? ` (√${d_k})` : ` (trained with ${fixed(model.divisor)})`), "."),
      step(4, "weights", "softmax makes the scores positive and their sum 1."),
      step(5, "output", "each value vector v, times its weight, and all added up: the last line."),
    );
    const region = { class: "scroll", tabindex: "0", role: "region", "aria-label": "the numbers of each key" };
    const scroll = element("div", region);
    scroll.append(table(labels, layer, head, query, divisor));
    const note = element("p", { class: "message" });
    if (out) note.textContent = "This head is knocked out: the sum is replaced by zeros.";
    box.replaceChildren(list, scroll, note);
  }

  return { draw };
})();
