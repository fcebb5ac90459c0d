// An arc, opened: what becomes of query, keys and values of one word in one head, with all numbers.
"use strict";

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

  // One key: how well it fits, its share, and what the first number of its value adds.
  function keyRow(label, fit, isHidden, divisor, share, [first]) {
    const cells = [fixed(fit), isHidden ? "hidden" : fixed(fit / divisor), percent(share, 1), fixed(share * first)];
    const row = rowOf(label, cells);
    row.children[3].classList.add("weight");
    row.children[3].style.setProperty("--weight", share);
    return row;
  }

  const rowOf = (label, cells) =>
    element("tr", {}, element("th", { scope: "row" }, label), ...cells.map((text) => element("td", {}, text)));

  function table(pass, state, words, divisor) {
    const { q, keys, values, shares } = vectors(pass, state);
    const headings = ["key of", "query · key", `÷ ${fixed(divisor)}`, "share", "share · v₁"];
    const top = element("tr", {}, ...headings.map((name) => element("th", { scope: "col" }, name)));
    const rows = words.map((label, j) =>
      keyRow(label, dot(q, keys[j]), state.causal && j > state.query, divisor, shares[j], values[j]));
    const output = values.reduce((sum, [first], j) => sum + shares[j] * first, 0);
    const sum = rowOf("sum", ["", "", percent(shares.reduce((a, b) => a + b, 0), 1), fixed(output)]);
    const parts = [element("thead", {}, top), element("tbody", {}, ...rows), element("tfoot", {}, sum)];
    return element("table", { class: "steps" }, ...parts);
  }

  return { table };
})();
