// Drawing: small helpers, the maps of all heads, and one head large. The colours are those of the pictures.
//
// Everything a reader typed reaches the page as text (textContent), never as markup.
"use strict";

const View = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  let colors = { weights: [], heads: [] };
  const useColors = (weights, heads) => (colors = { weights, heads });

  const byId = (id) => document.getElementById(id);
  function fixed(number, digits = 2) {
    if (Number.isNaN(number)) return "–"; // e.g. the entropy of a single word
    return Number.isFinite(number) ? number.toFixed(digits).replace(/^-(?=.*[1-9])/, "−").replace(/^-/, "") : "∞";
  }
  const headColor = (head) => colors.heads[head % colors.heads.length];
  const headName = (layer, head) => `layer ${layer}, head ${head}`;
  const weightColor = (weight) => colors.weights[Math.round(weight * (colors.weights.length - 1))];

  // element("p", {class: "quiet", title: "…"}, "text", child): strings become text, attributes stay attributes.
  function element(name, attributes = {}, ...children) {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (value !== false && value !== null && value !== undefined) node.setAttribute(key, value === true ? "" : value);
    }
    node.append(...children);
    return node;
  }

  function svg(name, attributes = {}) {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return node;
  }

  // ["the", "cat"] -> ["0 the", "1 cat"]: repeated words stay apart.
  const tokenLabels = (words) => words.map((word, position) => `${position} ${word}`);

  // What a score of -Infinity hides is not a weight of 0 that the head chose.
  const isHidden = (scores, i, j) => scores[i][j] === -Infinity;

  // Grey with stripes over the whole map; what may be seen is painted over it. A canvas knows no CSS patterns.
  function hatch(context, size) {
    const style = getComputedStyle(document.documentElement);
    context.fillStyle = style.getPropertyValue("--hidden");
    context.fillRect(0, 0, size, size);
    context.strokeStyle = style.getPropertyValue("--hatch");
    context.beginPath();
    for (let offset = 0; offset < 2 * size; offset += 6) {
      context.moveTo(offset, 0);
      context.lineTo(offset - size, size);
    }
    context.stroke();
  }

  // One head small, as an image of size x size pixels: one cell for each query (down) and key (across).
  function drawMap(canvas, size, weights, scores) {
    canvas.width = canvas.height = size;
    const context = canvas.getContext("2d");
    const edge = (index) => Math.round((index * size) / weights.length);
    const gap = size / weights.length > 8 ? 1 : 0;
    hatch(context, size);
    for (let i = 0; i < weights.length; i++) {
      for (let j = 0; j < weights.length; j++) {
        if (isHidden(scores, i, j)) continue;
        const [x, y, width, height] = [edge(j), edge(i), edge(j + 1) - edge(j), edge(i + 1) - edge(i)];
        context.fillStyle = "#fff";
        context.fillRect(x, y, width, height);
        context.fillStyle = weightColor(weights[i][j]);
        context.fillRect(x, y, width - gap, height - gap);
      }
    }
  }

  // The grid of maps, made once for a model: {layer, head} -> its button, its canvas and its switch.
  function makeHeads(box, model, onChoose, onRemove) {
    box.style.setProperty("--heads", model.num_heads);
    const maps = [];
    for (let layer = 0; layer < model.num_layers; layer++) {
      for (let head = 0; head < model.num_heads; head++) {
        const canvas = element("canvas", { "aria-hidden": "true" });
        const map = element("button", { type: "button", class: "map" }, canvas);
        const remove = element("button", { type: "button", class: "remove" });
        map.style.setProperty("--head", headColor(head));
        map.addEventListener("click", () => onChoose(layer, head));
        remove.addEventListener("click", () => onRemove(layer, head));
        const label = element("span", { class: "map-name" }, `${layer}.${head}`);
        label.title = headName(layer, head);
        const cell = element("div", { class: "head-cell" }, map, element("div", { class: "under" }, label, remove));
        maps.push({ layer, head, canvas, map, remove, cell });
      }
    }
    box.replaceChildren(...maps.map((item) => item.cell));
    return maps;
  }

  function drawHeads(maps, layers, state) {
    const size = Math.max(64, Math.round(maps[0].canvas.clientWidth * devicePixelRatio));
    for (const { layer, head, canvas, map, remove, cell } of maps) {
      const { weights, scores } = layers[layer];
      drawMap(canvas, size, weights[head], scores[head]);
      const chosen = layer === state.layer && head === state.head;
      const out = state.removed.includes(`${layer}.${head}`);
      map.setAttribute("aria-pressed", chosen);
      map.tabIndex = chosen ? 0 : -1; // Tab enters the grid once; arrows move in it
      map.setAttribute("aria-label", `${headName(layer, head)}${out ? ", knocked out" : ""}`);
      cell.classList.toggle("out", out);
      remove.textContent = out ? "put back" : "knock out";
      remove.setAttribute("aria-pressed", out);
      remove.setAttribute("aria-label", `${out ? "put back" : "knock out"} ${headName(layer, head)}`);
    }
  }

  // One head large, as a table: it can be read aloud, and numbers stand in its cells while the sentence is short.
  function drawLarge(box, words, weights, scores, chosen, onChoose) {
    const labels = tokenLabels(words);
    const numbers = words.length <= 10;
    const top = element("tr", {}, element("th", { class: "corner" }, "query ↓ key →"));
    top.append(...labels.map((label) => element("th", { scope: "col" }, element("span", {}, label))));
    const table = element("table", { class: numbers ? "large numbers" : "large" }, element("thead", {}, top));
    const body = element("tbody");
    labels.forEach((label, i) => {
      const row = element("tr", { class: i === chosen ? "chosen" : null }, element("th", { scope: "row" }, label));
      labels.forEach((key, j) => row.append(largeCell(label, key, weights[i][j], isHidden(scores, i, j), numbers)));
      row.addEventListener("click", () => onChoose(i));
      body.append(row);
    });
    table.append(body);
    box.replaceChildren(table);
  }

  function largeCell(query, key, weight, hidden, numbers) {
    if (hidden) return element("td", { class: "hatched", title: `${query} may not see ${key}` });
    const cell = element("td", { title: `${query} → ${key}: ${fixed(weight, 3)}` }, numbers ? fixed(weight) : "");
    cell.style.background = weightColor(weight);
    cell.style.color = weight > 0.4 ? "#fff" : "#1d2733";
    return cell;
  }

  return {
    useColors, byId, fixed, headColor, headName, weightColor, element, svg, tokenLabels, isHidden, makeHeads, drawHeads,
    drawLarge,
  };
})();
