// The sentence as a row of words, and arcs from the chosen word, the query, to the words that it looks at.
"use strict";

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
