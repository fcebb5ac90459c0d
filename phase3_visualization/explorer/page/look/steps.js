// An arc, opened: what becomes of query, keys and values of one word in one head, with all numbers.
"use strict";

const Steps = (() => {
  const { element, fixed } = View;
  const FEW = 1; // numbers of a vector that are shown

  const few = (vector) => `${[...vector.slice(0, FEW)].map((x) => fixed(x)).join("  ")} …`;
  const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);

  // One key: how well it fits, its weight, and what its value adds.
  function keyRow(label, fit, isHidden, divisor, weight, value) {
    const cells = [fixed(fit), isHidden ? "hidden" : fixed(fit / divisor), fixed(weight, 3), few(value.map((x) => weight * x))];
    const row = element("tr", {}, element("th", { scope: "row" }, label), ...cells.map((text) => element("td", {}, text)));
    row.children[3].classList.add("weight");
    row.children[3].style.setProperty("--weight", weight);
    return row;
  }

  // pass: of Network.run; state: as on the screen.
  function table(pass, { layer, head, query: at, causal }, words, divisor) {
    const { query, key, value, weights } = pass.layers[layer];
    const d_k = query[0].length / weights.length;
    const ofHead = (vector) => vector.subarray(head * d_k, (head + 1) * d_k);
    const [q, values, row] = [ofHead(query[at]), value.map(ofHead), weights[head][at]];
    const headings = ["key", "q · k", `÷ ${fixed(divisor)}`, "softmax", "weight · v"];
    const top = element("tr", {}, ...headings.map((name) => element("th", { scope: "col" }, name)));
    const rows = View.tokenLabels(words).map((label, j) =>
      keyRow(label, dot(q, ofHead(key[j])), causal && j > at, divisor, row[j], values[j]));
    const output = q.map((_, d) => values.reduce((sum, v, j) => sum + row[j] * v[d], 0));
    const foot = ["", "", fixed(row.reduce((sum, weight) => sum + weight, 0), 3), few(output)];
    const sum = element("tr", {}, element("th", { scope: "row" }, "sum"), ...foot.map((text) => element("td", {}, text)));
    const parts = [element("thead", {}, top), element("tbody", {}, ...rows), element("tfoot", {}, sum)];
    return element("table", { class: "steps" }, ...parts);
  }

  return { table };
})();
