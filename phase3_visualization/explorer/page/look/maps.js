// The maps: all heads small, and one head large. Rows are queries, columns are keys. What may not be seen is hatched: it
// is not a weight of 0 that the head chose.
"use strict";

const Maps = (() => {
  const { element, fixed, percent, weightColor, readable, rgb, roleOf, roleColor, headCalled, jobOf } = View;
  const WITH_NUMBERS = 10; // words: up to here numbers stand in the cells of the large map
  const PIXELS = 96; // about as many across a small map, a whole number for each cell
  const FRAME = 1; // pixels, in a cell of six or so

  // "#0b5f97" as one number of a canvas: alpha, blue, green, red, since all machines with a browser are little endian.
  const pixel = (hex) => rgb(hex).reduce((sum, value, i) => sum + value * 2 ** (8 * i), 255 * 2 ** 24);
  const stylePixel = (name) => pixel(getComputedStyle(document.documentElement).getPropertyValue(name).trim());

  // One head small: its pixels are written as numbers, which is much faster than a rectangle for each weight.
  // isHidden(query, key): hatched; isOutlined(query, key): framed.
  function drawMap(canvas, weights, isHidden, isOutlined = () => false) {
    const length = weights.length;
    const cell = Math.max(4, Math.round(PIXELS / length));
    const gap = length <= 16 ? 1 : 0;
    const size = cell * length;
    const image = new ImageData(size, size);
    const pixels = new Uint32Array(image.data.buffer).fill(stylePixel("--map-gap"));
    const [hidden, hatch, outline] = ["--hidden", "--hatch", "--before"].map(stylePixel);
    function fill(i, j, color, width, margin = 0) {
      for (let y = i * cell + margin; y < i * cell + width - margin; y++) {
        const start = y * size + j * cell;
        pixels.fill(color, start + margin, start + width - margin);
      }
    }
    function stripe(i, j) {
      for (let y = i * cell; y < (i + 1) * cell; y++) {
        for (let x = j * cell; x < (j + 1) * cell; x++) if ((x + y) % 5 === 0) pixels[y * size + x] = hatch;
      }
    }
    weights.forEach((row, i) => row.forEach((weight, j) => {
      const shade = pixel(weightColor(weight));
      if (isHidden(i, j)) {
        fill(i, j, hidden, cell);
        stripe(i, j);
      } else if (isOutlined(i, j)) {
        fill(i, j, outline, cell - gap);
        fill(i, j, shade, cell - gap, FRAME);
      } else fill(i, j, shade, cell - gap);
    }));
    canvas.width = canvas.height = size;
    canvas.getContext("2d").putImageData(image, 0, 0);
  }

  // The grid of maps, made once: {layer, head} -> its button, its canvas, and what stands below.
  function makeHeads(box, { num_layers, num_heads }, onChoose, onRemove) {
    const maps = Array.from({ length: num_layers * num_heads }, (_, i) => {
      const [layer, head] = [Math.floor(i / num_heads), i % num_heads];
      const [canvas, role] = [element("canvas", { "aria-hidden": "true" }), element("span", { class: "role" })];
      const map = element("button", { type: "button", class: "map" }, role, canvas);
      const cost = element("span", { class: "cost" });
      const remove = element("button", { type: "button", class: "remove" });
      map.addEventListener("click", () => onChoose(layer, head));
      remove.addEventListener("click", () => onRemove(layer, head));
      const under = element("div", { class: "under" }, cost, remove);
      const cell = element("div", { class: "head-cell" }, map, under);
      return { layer, head, canvas, role, map, cost, remove, cell };
    });
    box.replaceChildren(...maps.map((item) => item.cell));
    return maps;
  }

  // model: {heads, with a role each}; costs: of each head, "39 → 6 %"; isTold: each says what its job is.
  function drawHeads(maps, model, layers, state, costs, isTold) {
    maps.forEach(({ layer, head, canvas, role, map, cost, remove, cell }, i) => {
      drawMap(canvas, layers[layer].weights[head], (query, key) => state.causal && key > query);
      const chosen = layer === state.layer && head === state.head;
      const name = `${layer}.${head}`; // as in the lessons and in addresses
      const out = state.removed.includes(name);
      const named = roleOf(model, layer, head);
      const job = isTold ? element("small", {}, named === View.NO_ROLE ? "no job" : jobOf(named)) : "";
      role.replaceChildren(name, job);
      map.style.setProperty("--head", roleColor(named));
      map.setAttribute("aria-pressed", chosen);
      map.tabIndex = chosen ? 0 : -1; // Tab enters the grid once; arrows move in it
      map.setAttribute("aria-label", `${headCalled(name)}, ${jobOf(named)}${out ? ", cut off" : ""}`);
      cell.classList.toggle("out", out);
      cell.classList.toggle("lit", model.heads[layer][head].role !== null);
      cost.textContent = costs[i];
      remove.textContent = out ? "put back" : "cut off";
      remove.setAttribute("aria-pressed", out);
      remove.setAttribute("aria-label", `${remove.textContent} ${headCalled(name)}`);
    });
  }

  // One head large, as a table: it can be read aloud. Its cells are made once for a length and then only filled.
  function makeLarge(box, length, onChoose) {
    const top = element("tr", {}, element("th", { class: "corner" }, "who looks ↓ at whom → %"));
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

  function drawLarge(box, words, weights, isHidden, chosen, onChoose) {
    if (box.querySelectorAll("tbody tr").length !== words.length) makeLarge(box, words.length, onChoose);
    const columns = box.querySelectorAll("thead span");
    box.querySelectorAll("tbody tr").forEach((row, i) => {
      columns[i].textContent = row.firstChild.textContent = words[i];
      row.classList.toggle("chosen", i === chosen);
      weights[i].forEach((weight, j) => fillCell(row.children[j + 1], weight, isHidden(i, j), words.length));
    });
  }

  function fillCell(cell, weight, hidden, length) {
    cell.className = hidden ? "hatched" : "";
    const ground = hidden ? "" : weightColor(weight);
    cell.style.background = ground;
    cell.style.color = hidden ? "" : readable(ground);
    if (length <= WITH_NUMBERS) cell.textContent = hidden ? "" : fixed(100 * weight, 0);
    cell.ariaLabel = hidden ? "hidden" : percent(weight);
  }

  return { drawMap, makeHeads, drawHeads, drawLarge };
})();
