// The maps: all heads small, and one head large. Rows are queries, columns are keys; what may not be seen is hatched.
"use strict";

const Maps = (() => {
  const { element, fixed, weightColor, readable, rgb, roleOf, roleColor, headName, place, tokenLabels } = View;
  const WITH_NUMBERS = 10; // words: up to here numbers stand in the cells of the large map
  const PIXELS = 96; // about as many across a small map, a whole number for each cell

  // What a score of -Infinity hides is not a weight of 0 that the head chose.
  const isHidden = (scores, i, j) => scores[i][j] === -Infinity;

  // "#0b5f97" as one number of a canvas: alpha, blue, green, red, since all machines with a browser are little endian.
  const pixel = (hex) => rgb(hex).reduce((sum, value, i) => sum + value * 2 ** (8 * i), 255 * 2 ** 24);
  const stylePixel = (name) => pixel(getComputedStyle(document.documentElement).getPropertyValue(name).trim());

  // One head small: its pixels are written as numbers, which is much faster than a rectangle for each weight.
  function drawMap(canvas, weights, scores) {
    const length = weights.length;
    const cell = Math.max(4, Math.round(PIXELS / length));
    const gap = length <= 16 ? 1 : 0;
    const size = cell * length;
    const image = new ImageData(size, size);
    const pixels = new Uint32Array(image.data.buffer).fill(stylePixel("--map-gap"));
    const [hidden, hatch] = [stylePixel("--hidden"), stylePixel("--hatch")];
    function fill(i, j, color, width) {
      for (let y = i * cell; y < i * cell + width; y++) {
        const start = y * size + j * cell;
        pixels.fill(color, start, start + width);
      }
    }
    function stripe(i, j) {
      for (let y = i * cell; y < (i + 1) * cell; y++) {
        for (let x = j * cell; x < (j + 1) * cell; x++) if ((x + y) % 5 === 0) pixels[y * size + x] = hatch;
      }
    }
    weights.forEach((row, i) => row.forEach((weight, j) => {
      if (!isHidden(scores, i, j)) return fill(i, j, pixel(weightColor(weight)), cell - gap);
      fill(i, j, hidden, cell);
      stripe(i, j);
    }));
    canvas.width = canvas.height = size;
    canvas.getContext("2d").putImageData(image, 0, 0);
  }

  // The grid of maps, made once for a model: {layer, head} -> its button, its canvas and its switch.
  function makeHeads(box, model, onChoose, onRemove) {
    box.style.setProperty("--heads", model.num_heads);
    const maps = [];
    for (let layer = 0; layer < model.num_layers; layer++) {
      for (let head = 0; head < model.num_heads; head++) {
        const canvas = element("canvas", { "aria-hidden": "true" });
        const name = element("span", { class: "role" }, roleOf(model, layer, head));
        const map = element("button", { type: "button", class: "map" }, name, canvas);
        const remove = element("button", { type: "button", class: "remove" });
        map.style.setProperty("--head", roleColor(roleOf(model, layer, head)));
        map.addEventListener("click", () => onChoose(layer, head));
        remove.addEventListener("click", () => onRemove(layer, head));
        const earned = element("span", { class: "place" }, ...earnedBy(model, layer, head));
        const cell = element("div", { class: "head-cell" }, map, element("div", { class: "under" }, earned, remove));
        maps.push({ layer, head, canvas, map, remove, cell });
      }
    }
    box.replaceChildren(...maps.map((item) => item.cell));
    return maps;
  }

  // How the head stands to its rule, or to the rule that it misses by least: "100 %, 66 % asked".
  function earnedBy(model, layer, head) {
    if (!model.heads) return [];
    const { role, rule, share, needed } = model.heads[layer][head];
    const percent = (number) => `${Math.floor(100 * number)}\u00a0%`;
    const nearest = role === null ? [`nearest: ${rule}, `] : [];
    return [...nearest, `${percent(share)}, asked ${percent(needed)}`];
  }

  function drawHeads(maps, model, layers, state) {
    for (const { layer, head, canvas, map, remove, cell } of maps) {
      const { weights, scores } = layers[layer];
      drawMap(canvas, weights[head], scores[head]);
      const chosen = layer === state.layer && head === state.head;
      const out = state.removed.includes(`${layer}.${head}`);
      map.setAttribute("aria-pressed", chosen);
      map.tabIndex = chosen ? 0 : -1; // Tab enters the grid once; arrows move in it
      map.setAttribute("aria-label", `${headName(model, layer, head)}${out ? ", knocked out" : ""}`);
      cell.classList.toggle("out", out);
      remove.textContent = out ? "put back" : "knock out";
      remove.setAttribute("aria-pressed", out);
      remove.setAttribute("aria-label", `${out ? "put back" : "knock out"} ${place(layer, head)}`);
    }
  }

  // One head large, as a table: it can be read aloud. Its cells are made once for a length and then only filled.
  function makeLarge(box, length, onChoose) {
    const top = element("tr", {}, element("th", { class: "corner" }, "query ↓ key →"));
    const rows = [];
    for (let i = 0; i < length; i++) {
      top.append(element("th", { scope: "col" }, element("span")));
      const cells = Array.from({ length }, () => element("td"));
      const row = element("tr", {}, element("th", { scope: "row" }), ...cells);
      row.addEventListener("click", () => onChoose(i));
      rows.push(row);
    }
    const kind = length <= WITH_NUMBERS ? "large numbers" : "large";
    box.replaceChildren(element("table", { class: kind }, element("thead", {}, top), element("tbody", {}, ...rows)));
  }

  function drawLarge(box, words, weights, scores, chosen, onChoose) {
    const labels = tokenLabels(words);
    if (box.querySelectorAll("tbody tr").length !== words.length) makeLarge(box, words.length, onChoose);
    const columns = box.querySelectorAll("thead span");
    box.querySelectorAll("tbody tr").forEach((row, i) => {
      columns[i].textContent = row.firstChild.textContent = labels[i];
      row.classList.toggle("chosen", i === chosen);
      weights[i].forEach((weight, j) => fillCell(row.children[j + 1], weight, isHidden(scores, i, j), words.length));
    });
  }

  function fillCell(cell, weight, hidden, length) {
    cell.className = hidden ? "hatched" : "";
    const ground = hidden ? "" : weightColor(weight);
    cell.style.background = ground;
    cell.style.color = hidden ? "" : readable(ground);
    if (length <= WITH_NUMBERS) cell.textContent = hidden ? "" : fixed(weight);
    cell.ariaLabel = hidden ? "hidden" : fixed(weight);
  }

  return { drawMap, makeHeads, drawHeads, drawLarge };
})();
