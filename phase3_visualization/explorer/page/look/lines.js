// Where a word looks, as lines that are as thick as the weights: arcs over the sentence, and two columns of words.
"use strict";

// The sentence as a row of words, and arcs from the chosen word, the query, to the words that it looks at.
const Arcs = (() => {
  const { byId, element, svg, fixed } = View;
  const LEAST = 0.03; // a weight below this gets no arc
  const [LOW, HIGH] = [16, 46]; // pixels from a word to the top of its arc

  let drawn = null; // what was drawn, to draw it again when words move to other lines

  // words: what the model reads; truths[i]: the word that is hidden there, or null.
  function drawWords(words, truths, chosen, onChoose) {
    const box = byId("words");
    const focused = box.contains(document.activeElement);
    box.replaceChildren(...words.map((word, position) => {
      const truth = truths[position];
      const button = element("button", {
        type: "button", role: "radio", "aria-checked": String(position === chosen),
        tabindex: position === chosen ? 0 : -1, // Tab enters the group once; arrows move in it
        class: truth === null ? null : "hidden-word",
      }, element("small", { class: "place" }, position), word);
      if (truth !== null) button.append(element("small", { class: "truth" }, `hides “${truth}”`));
      button.append(element("small", { class: "weight" }));
      button.addEventListener("click", () => onChoose(position));
      return button;
    }));
    if (focused) box.children[chosen].focus({ preventScroll: true });
  }

  // Arrow keys in the row of words.
  function moveChoice(event, chosen, onChoose) {
    const by = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const length = byId("words").children.length;
    onChoose((chosen + by + length) % length);
  }

  // The weights of one query as arcs, and as a number under each word. isOut: nobody hears of them.
  function drawArcs(weights, query, color, isOut) {
    drawn = [weights, query, color, isOut];
    const buttons = [...byId("words").children];
    buttons.forEach((button, j) => {
      button.querySelector(".weight").textContent = weights[j] >= 0.005 ? fixed(weights[j]) : "";
    });
    const frame = byId("strip").getBoundingClientRect();
    const boxes = buttons.map((button) => {
      const { left, width, top, bottom } = button.getBoundingClientRect();
      return { x: left + width / 2 - frame.left, top: top - frame.top, bottom: bottom - frame.top };
    });
    const arcs = boxes.map((box, j) => (j === query || weights[j] < LEAST ? null : arc(boxes[query], box, weights[j])));
    byId("arcs").replaceChildren(...arcs.filter(Boolean));
    byId("arcs").style.stroke = color;
    byId("arcs").classList.toggle("out", isOut);
  }

  // Over the words of one line; between two lines from the edge of one word to the facing edge of the other.
  function arc(from, to, weight) {
    const lift = Math.min(HIGH, LOW + Math.abs(to.x - from.x) / 8) * 1.33; // a curve reaches 3/4 of its handles
    const start = to.top > from.bottom ? from.bottom : from.top;
    const end = to.bottom < from.top ? to.bottom : to.top;
    const middle = (start + end) / 2;
    const handles = start === from.top && end === to.top ? [start - lift, end - lift] : [middle, middle];
    const line = `M ${from.x} ${start} C ${from.x} ${handles[0]}, ${to.x} ${handles[1]}, ${to.x} ${end}`;
    return svg("path", { d: line, "stroke-width": (1 + 8 * weight).toFixed(1) });
  }

  const redraw = () => drawn && drawArcs(...drawn);

  return { drawWords, moveChoice, drawArcs, redraw };
})();

// Left each word as a query, right each word as a key. Point at a word on the left: where does it look? On the right:
// who looks at it?
const Lines = (() => {
  const { element, svg, fixed, tokenLabels } = View;
  const ROW = 30; // pixels from one word to the next, as in page.css

  let box, choose; // where to draw, and what a click on a query does
  let shown = null; // what is drawn: {words, weights, color, query}
  let watched = null; // a word under the pointer or in focus: {side, position}
  let pinned = null; // a key that was clicked or tapped: it stays when the pointer has gone

  function start(target, onChoose) {
    [box, choose] = [target, onChoose];
  }

  function watch(side, position) {
    watched = side === null ? null : { side, position };
    paint();
  }

  function pin(position) {
    pinned = pinned?.position === position ? null : { side: "key", position };
    paint();
  }

  // One column of words; arrows move the focus, which is what shows the lines.
  function column(side, labels) {
    const name = side === "query" ? "queries" : "keys";
    const list = element("div", { class: `column ${side}`, role: "group", "aria-label": name });
    labels.forEach((label, position) => {
      const word = element("button", { type: "button" }, element("span", {}, label), element("b", { class: "number" }));
      word.addEventListener("pointerenter", () => watch(side, position));
      word.addEventListener("pointerleave", () => watch(null));
      word.addEventListener("focus", () => word.matches(":focus-visible") && watch(side, position));
      word.addEventListener("blur", () => watch(null));
      word.addEventListener("click", () => (side === "query" ? choose(position) : pin(position)));
      word.addEventListener("keydown", (event) => moveFocus(event, list, position));
      list.append(word);
    });
    return list;
  }

  function moveFocus(event, list, position) {
    const by = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    list.children[position + by]?.focus();
  }

  function draw(words, weights, color, query) {
    const labels = tokenLabels(words);
    const same = shown && shown.words.join(" ") === words.join(" ");
    if (!same || shown.query !== query) watched = pinned = null;
    shown = { words, weights, color, query };
    if (!same) {
      const height = labels.length * ROW;
      const lines = svg("svg", { viewBox: `0 0 100 ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" });
      lines.style.height = `${height}px`;
      const heading = (text) => element("div", { class: "column-name quiet" }, text);
      box.replaceChildren(
        heading("query looks at"), heading(""), heading("key"), column("query", labels), lines, column("key", labels),
      );
    }
    paint();
  }

  // The lines of one word in its head's colour, all others faint.
  function paint() {
    if (!shown) return;
    const { weights, color, query } = shown;
    const { side, position } = watched ?? pinned ?? { side: "query", position: query };
    const lines = [];
    weights.forEach((row, i) => row.forEach((weight, j) => {
      const bright = side === "query" ? i === position : j === position;
      if (weight >= (bright ? 0.005 : 0.1)) lines.push({ i, j, weight, bright });
    }));
    lines.sort((a, b) => a.bright - b.bright); // the bright ones on top
    box.querySelector("svg").replaceChildren(...lines.map((line) => drawLine(line, color)));
    for (const name of ["query", "key"]) markColumn(name, name === side, position, weights);
    box.classList.toggle("asks-key", side === "key");
  }

  function drawLine({ i, j, weight, bright }, color) {
    const [y, to] = [(i + 0.5) * ROW, (j + 0.5) * ROW];
    const line = svg("path", { d: `M 0 ${y} C 40 ${y}, 60 ${to}, 100 ${to}`, class: bright ? "bright" : "faint" });
    if (bright) line.style.stroke = color;
    line.style.strokeWidth = `${bright ? 1 + 9 * weight : 3 * weight}px`;
    return line;
  }

  // The words of the other side get their weight as a number.
  function markColumn(name, own, position, weights) {
    [...box.querySelectorAll(`.column.${name} button`)].forEach((word, at) => {
      const weight = name === "key" ? weights[position][at] : weights[at][position];
      word.classList.toggle("watched", own && at === position);
      word.querySelector(".number").textContent = own || weight < 0.005 ? "" : fixed(weight);
      word.tabIndex = at === shown.query ? 0 : -1; // Tab enters each column once, at the chosen word
      if (name === "query") word.setAttribute("aria-pressed", at === shown.query);
      word.style.setProperty("--weight", own ? 0 : weight);
    });
  }

  return { start, draw };
})();
