// The sentence as a row of words, and arcs from the chosen word, the query, to the words that it looks at: as thick as
// the weights.
"use strict";

const Arcs = (() => {
  const { byId, element, svg, fixed, indexOfLargest } = View;
  const LEAST = 0.03; // a weight below this gets no arc
  const [LOW, HIGH] = [16, 34]; // pixels from a word to the top of its arc
  const LINE = 100; // pixels from one line of words to the next, about

  let drawn = null; // the arcs on the screen, to draw them again when words move to other lines
  let shown = ""; // the words on the screen
  let boxes = null; // where they stand; measured when they have moved, not for each arc

  // words: what the model reads; truths[i]: the word that is hidden there, "" if that is
  // not told yet, or null.
  function drawWords(words, truths, chosen, onChoose) {
    const [box, now] = [byId("words"), JSON.stringify([words, truths, chosen])];
    if (now === shown) return;
    [shown, boxes] = [now, null];
    const focused = box.contains(document.activeElement);
    box.replaceChildren(...words.map((word, position) => {
      const truth = truths[position];
      const button = element("button", {
        type: "button", role: "radio", "aria-checked": String(position === chosen),
        tabindex: position === chosen ? 0 : -1, // Tab enters the group once; arrows move in it
        class: truth === null ? null : "hidden-word",
      }, element("small", { class: "place" }, position), word);
      if (truth !== null) button.append(element("small", { class: "truth" }, truth ? `hides “${truth}”` : "hidden"));
      button.append(element("small", { class: "weight" }));
      button.addEventListener("click", () => onChoose(position));
      return button;
    }));
    if (focused) box.children[chosen].focus({ preventScroll: true });
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

  // The weights of one query as arcs, and as a number under each word. isOut: nobody hears of them.
  function drawArcs(weights, query, color, isOut) {
    drawn = [weights, query, color, isOut];
    const buttons = [...byId("words").children];
    buttons.forEach((button, j) => {
      button.querySelector(".weight").textContent = weights[j] >= 0.005 ? fixed(weights[j]) : "";
    });
    boxes ??= buttons.map(({ offsetLeft, offsetWidth, offsetTop, offsetHeight }) =>
      ({ x: offsetLeft + offsetWidth / 2, top: offsetTop, bottom: offsetTop + offsetHeight }));
    const most = boxes[indexOfLargest(weights)];
    const strip = byId("strip"); // where the words are one line, it is scrolled so that both ends are seen
    strip.scrollLeft = (boxes[query].x + most.x - strip.clientWidth) / 2;
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
    const far = Math.abs(from.top - to.top) > 1.5 * LINE; // it runs through the words of a line between
    return svg("path", { d: line, "stroke-width": (1 + 8 * weight).toFixed(1), opacity: far ? 0.35 : 1 });
  }

  function redraw() {
    boxes = null;
    if (drawn) drawArcs(...drawn);
  }

  return { drawWords, moveChoice, drawArcs, redraw };
})();
