// The sentence as a row of words, and arcs from the chosen word, the query, to the words that it looks at: as thick as
// the weights.
"use strict";

const Arcs = (() => {
  const { byId, element, svg, percent, indexOfLargest } = View;
  const LEAST = 0.03; // a weight below this gets no arc
  const [LOW, HIGH] = [20, 100]; // pixels from a word to the top of its arc
  const ROUNDS = 6; // drops travel so often, then the picture rests

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
  // hears of them. isMoving: what each word gives travels along its arc, a drop as large as its share.
  function drawArcs(picture) {
    const { weights, query, color, isAlone, isOut, isMoving } = drawn = picture;
    const words = [...byId("words").children];
    const most = indexOfLargest(weights);
    words.forEach((word, j) => {
      word.querySelector(".weight").textContent = percent(weights[j]);
      word.classList.toggle("most", j === most && j !== query); // no arc leads to the word that asks
    });
    byId("words").classList.toggle("arrives", isMoving);
    byId("words").style.setProperty("--arc", color);
    byId("words").style.setProperty("--taken", `${100 * weights[most]}%`);
    boxes ??= words.map(({ offsetLeft, offsetWidth, offsetTop, offsetHeight }) =>
      ({ x: offsetLeft + offsetWidth / 2, top: offsetTop, bottom: offsetTop + offsetHeight }));
    const parts = [];
    boxes.forEach((box, j) => {
      if (j === query || weights[j] < LEAST || (isAlone && j !== most)) return;
      const [high, low] = [box.top, boxes[query].top].sort((a, b) => a - b);
      const far = boxes.some(({ top }) => top > high && top < low); // it runs through the words of a line between
      parts.push(svg("path", { d: arc(boxes[query], box), "data-key": j, "stroke-width": (1 + 9 * weights[j]).toFixed(1),
        opacity: far ? 0.35 : 1 }));
      if (isMoving && !stillness.matches) parts.push(drop(arc(box, boxes[query]), weights[j], j));
    });
    byId("arcs").replaceChildren(...parts);
    byId("arcs").querySelectorAll("animateMotion").forEach((motion) => motion.beginElement());
    byId("arcs").style.color = color;
    byId("arcs").classList.toggle("out", isOut);
  }

  const stillness = matchMedia("(prefers-reduced-motion: reduce)");

  function drop(path, weight, j) {
    const circle = svg("circle", { r: 3 + 6 * weight, "data-key": j });
    circle.append(svg("animateMotion", { path, dur: "1.6s", repeatCount: ROUNDS, begin: "indefinite" }));
    setTimeout(() => circle.remove(), 1600 * ROUNDS);
    return circle;
  }

  // Only what leads to one word, while a pointer or the focus is on it; all again for null.
  function isolate(key) {
    const alone = byId("arcs").querySelector(`[data-key="${key}"]`) !== null;
    for (const part of byId("arcs").children) part.classList.toggle("faint", alone && part.dataset.key !== String(key));
  }

  function wire() {
    const box = byId("words");
    const wordAt = ({ target }) => [...box.children].indexOf(target.closest(".word"));
    for (const event of ["pointerover", "focusin"]) box.addEventListener(event, (at) => isolate(wordAt(at)));
    for (const event of ["pointerleave", "focusout"]) box.addEventListener(event, () => isolate(null));
  }

  // Over the words of one line; between two lines from the edge of one word to the facing edge of the other.
  function arc(from, to) {
    const above = boxes.filter(({ bottom }) => bottom <= from.top).map(({ bottom }) => bottom);
    const room = from.top - Math.max(6, ...above); // above the line of words
    const lift = Math.min(HIGH, room, LOW + Math.abs(to.x - from.x) / 8) * 1.33; // a curve reaches 3/4 of its handles
    const start = to.top > from.bottom ? from.bottom : from.top;
    const end = to.bottom < from.top ? to.bottom : to.top;
    const middle = (start + end) / 2;
    const handles = start === from.top && end === to.top ? [start - lift, end - lift] : [middle, middle];
    return `M ${from.x} ${start} C ${from.x} ${handles[0]}, ${to.x} ${handles[1]}, ${to.x} ${end}`;
  }

  function redraw() {
    boxes = null;
    if (drawn) drawArcs(drawn);
  }

  return { wire, drawWords, moveChoice, drawArcs, redraw };
})();
