// The sentence as a row of words, and arcs from the chosen word, the query, to the words that it looks at: as thick as
// the weights.
"use strict";

const Arcs = (() => {
  const { byId, element, svg, percent, indexOfLargest } = View;
  const LEAST = 0.03; // a weight below this gets no arc
  const [LOW, HIGH] = [20, 100]; // pixels from a word to the top of its arc
  const EACH = 1200; // milliseconds in which a drop travels, one word after the other; what has no arc takes a third
  const OFF = 4; // pixels between a word and the end of its arc

  let timer;
  let begun = ""; // what was set going: it goes on when the arcs are drawn again
  let drawn = null; // the arcs on the screen, to draw them again when words move to other lines
  let shown = ""; // the words on the screen
  let boxes = null; // where they stand; measured when they have moved, not for each arc

  // words: for each {text, note, isHidden}; note: what stands below it, or nothing. If they are open, a press chooses the
  // word that asks, and all weights are shown.
  function drawWords(words, chosen, isOpen, onChoose) {
    const [box, now] = [byId("words"), JSON.stringify([words, chosen, isOpen])];
    if (now === shown) return;
    [shown, boxes] = [now, null];
    const focused = box.contains(document.activeElement);
    box.classList.toggle("open", isOpen);
    if (isOpen) box.setAttribute("role", "radiogroup");
    else box.setAttribute("role", "group");
    box.replaceChildren(...words.map((word, position) => {
      const box = isOpen ? choice(position, chosen, onChoose) : element("span");
      box.classList.add("word");
      box.classList.toggle("hidden-word", word.isHidden);
      box.append(element("span", { class: "text" }, word.text));
      if (word.note) box.append(element("small", { class: "truth" }, word.note));
      box.append(element("small", { class: "weight" }));
      return box;
    }));
    if (focused) box.children[chosen].focus({ preventScroll: true });
  }

  function choice(position, chosen, onChoose) {
    const checked = position === chosen; // Tab enters the group once; arrows move in it
    const button = element("button",
      { type: "button", role: "radio", "aria-checked": String(checked), tabindex: checked ? 0 : -1 });
    button.addEventListener("click", () => onChoose(position));
    return button;
  }

  // Arrow keys, Home and End in the row of words.
  function moveChoice(event, chosen, onChoose) {
    const { length } = byId("words").children;
    const [before, after] = [(chosen - 1 + length) % length, (chosen + 1) % length];
    const keys = {
      ArrowLeft: before, ArrowUp: before, ArrowRight: after, ArrowDown: after, Home: 0, End: length - 1,
    };
    if (!Object.hasOwn(keys, event.key)) return;
    event.preventDefault();
    onChoose(keys[event.key]);
  }

  // The weights of one query as arcs, and as a number under each word. isAlone: only the thickest is drawn. isOut: nobody
  // hears of them. isTried: drawn as if they were cut. isMoving: what each word gives travels along its arc, a drop with
  // its share on it.
  function drawArcs(picture) {
    const { weights, query, color, isAlone, isOut, isTried, isMoving } = drawn = picture;
    const words = [...byId("words").children];
    const most = indexOfLargest(Array.from(weights, (share, j) => (j === query ? 0 : share)));
    words.forEach((word, j) => {
      word.querySelector(".weight").textContent = percent(weights[j]);
      word.classList.toggle("most", j === most && j !== query); // no arc leads to the word that asks
    });
    byId("words").classList.toggle("arrives", isMoving);
    byId("words").classList.toggle("alone", isAlone);
    byId("words").style.setProperty("--arc", color);
    boxes ??= words.map(({ offsetLeft, offsetWidth, offsetTop, offsetHeight }) =>
      ({ x: offsetLeft + offsetWidth / 2, top: offsetTop, bottom: offsetTop + offsetHeight }));
    const parts = [];
    boxes.forEach((box, j) => {
      if (j === query || weights[j] < LEAST || (isAlone && j !== most)) return;
      const [high, low] = [box.top, boxes[query].top].sort((a, b) => a - b);
      const far = boxes.some(({ top }) => top > high && top < low); // it runs through the words of a line between
      const isBetween = box.top !== boxes[query].top; // two lines of words: thinner, so that it can be followed
      parts.push(svg("path", { d: arc(boxes[query], box), "data-key": j, opacity: far ? 0.35 : 1,
        "stroke-width": (1 + (isBetween ? 4 : 9) * weights[j]).toFixed(1) }));
      if (isAlone) parts.push(svg("circle", { cx: box.x, cy: facing(boxes[query], box), r: 5 }));
    });
    byId("arcs").replaceChildren(...parts);
    setGoing();
    byId("arcs").style.color = color;
    byId("arcs").classList.toggle("out", isOut);
    byId("arcs").classList.toggle("tried", Boolean(isTried));
  }

  function setGoing() {
    const { weights, query, isMoving } = drawn;
    const key = isMoving ? JSON.stringify([query, ...weights]) : "";
    if (key === begun) return;
    begun = key;
    clearTimeout(timer);
    light(null);
    if (isMoving) flow(stillness.matches ? weights.length : 0);
  }

  function again() {
    begun = "";
    setGoing();
  }

  const stillness = matchMedia("(prefers-reduced-motion: reduce)");

  // Word by word: a drop travels, the lines about its word light up, and the gap is fuller. Then everything rests.
  function flow(j) {
    const isOver = j === drawn.weights.length;
    fillUpTo(j);
    light(isOver ? null : j);
    for (const line of document.querySelectorAll(".keys [data-key]")) line.classList.toggle("waits", line.dataset.key > j);
    byId("taking").textContent = isOver ? "What the gap took from each word:" : takes(j);
    if (isOver) return;
    const has = drop(j);
    timer = setTimeout(() => flow(j + 1), has ? EACH : EACH / 3);
  }

  function takes(j) {
    const word = j === drawn.query ? "itself" : `“${byId("words").children[j].querySelector(".text").textContent}”`;
    return `${percent(drawn.weights[j])} of what the gap takes comes from ${word}.`;
  }

  // What arrived from the words before this one; the part of the word that gives most has the colour of the arc.
  function fillUpTo(end) {
    const { weights } = drawn;
    const sum = (to) => weights.slice(0, to).reduce((a, b) => a + b, 0);
    const most = indexOfLargest(weights);
    const ends = { from: sum(Math.min(most, end)), upto: sum(Math.min(most + 1, end)), taken: sum(end) };
    for (const [name, share] of Object.entries(ends)) byId("words").style.setProperty(`--${name}`, `${100 * share}%`);
  }

  function light(key) {
    for (const line of document.querySelectorAll("#more [data-key]")) line.classList.toggle("now", line.dataset.key === String(key));
    [...byId("words").children].forEach((word, j) => word.classList.toggle("now", drawn.isMoving && j === Number(key ?? -1)));
  }

  function drop(j) {
    const { weights, query } = drawn;
    if (!byId("arcs").querySelector(`path[data-key="${j}"]`)) return false;
    const move = svg("animateMotion", { path: arc(boxes[j], boxes[query]), dur: `${EACH}ms`, begin: "indefinite" });
    const isBelow = boxes[j].top > boxes[query].top; // beside the drop, so that the gap is not covered
    const text = svg("text", isBelow ? { x: 14, y: 12, "text-anchor": "start" } : { y: -14, "text-anchor": "middle" });
    const [circle, both] = [svg("circle", { r: 4 + 6 * weights[j] }), svg("g", { class: "drop", "data-key": j })];
    text.textContent = percent(weights[j]);
    both.append(circle, text, move);
    byId("arcs").append(both);
    move.beginElement();
    setTimeout(() => both.remove(), EACH);
    return true;
  }

  // Where an arc from one word meets another: a little off it, on the side that it comes from.
  const facing = (from, to) => (to.bottom < from.top ? to.bottom + OFF : to.top - OFF);

  // Over the words of one line; between two lines from the edge of one word to the facing edge of the other.
  function arc(from, to) {
    const above = boxes.filter(({ bottom }) => bottom <= from.top).map(({ bottom }) => bottom);
    const room = from.top - Math.max(6, ...above); // above the line of words
    const lift = Math.min(HIGH, room, LOW + Math.abs(to.x - from.x) / 8) * 1.33; // a curve reaches 3/4 of its handles
    const [start, end] = [facing(to, from), facing(from, to)];
    const middle = (start + end) / 2;
    const handles = start < from.top && end < to.top ? [start - lift, end - lift] : [middle, middle];
    return `M ${from.x} ${start} C ${from.x} ${handles[0]}, ${to.x} ${handles[1]}, ${to.x} ${end}`;
  }

  function redraw() {
    boxes = null;
    if (drawn) drawArcs(drawn);
  }

  return { drawWords, moveChoice, drawArcs, redraw, again };
})();
