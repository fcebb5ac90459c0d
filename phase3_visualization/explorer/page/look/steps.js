// An arc, opened: what becomes of query, keys and values of one word in one head, with all numbers.
"use strict";

const Steps = (() => {
  const { element, fixed } = View;
  const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);

  // One key: how well it fits, its weight, and what the first number of its value adds.
  function keyRow(label, fit, isHidden, divisor, weight, [first]) {
    const cells = [fixed(fit), isHidden ? "hidden" : fixed(fit / divisor), fixed(weight, 3), fixed(weight * first)];
    const row = rowOf(label, cells);
    row.children[3].classList.add("weight");
    row.children[3].style.setProperty("--weight", weight);
    return row;
  }

  const rowOf = (label, cells) =>
    element("tr", {}, element("th", { scope: "row" }, label), ...cells.map((text) => element("td", {}, text)));

  // pass: of Network.run; state: as on the screen.
  function table(pass, { layer, head, query: at, causal }, words, divisor) {
    const { query, key, value, weights } = pass.layers[layer];
    const d_k = query[0].length / weights.length;
    const ofHead = (vector) => vector.subarray(head * d_k, (head + 1) * d_k);
    const [q, values, row] = [ofHead(query[at]), value.map(ofHead), weights[head][at]];
    const headings = ["key", "q · k", `÷ ${fixed(divisor)}`, "softmax", "weight · v₁"];
    const top = element("tr", {}, ...headings.map((name) => element("th", { scope: "col" }, name)));
    const rows = View.tokenLabels(words).map((label, j) =>
      keyRow(label, dot(q, ofHead(key[j])), causal && j > at, divisor, row[j], values[j]));
    const output = values.reduce((sum, [first], j) => sum + row[j] * first, 0);
    const sum = rowOf("sum", ["", "", fixed(row.reduce((a, b) => a + b, 0), 3), fixed(output)]);
    const parts = [element("thead", {}, top), element("tbody", {}, ...rows), element("tfoot", {}, sum)];
    return element("table", { class: "steps" }, ...parts);
  }

  return { table };
})();
