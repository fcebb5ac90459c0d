// Wager 6: three ways to run one model, two of them wrong. A word is changed, and it shows which places can read it.
"use strict";

const Bugs = (() => {
  const { element, fixed, weightColor, readable } = View;
  const { here } = Stage;
  const LEAST = 0.2; // of the colours: a move, however small, is told from none
  const NAMES = {
    view: "heads cut by a view without the transpose: each gets pieces of a few neighbouring words",
    mask: "the mask the wrong way round: each place sees only what comes later",
    null: "right",
  };

  // How far two rows of logits stand apart as probabilities, from 0 to 1: total variation.
  function distance(before, after) {
    const [p, q] = [before, after].map((row) => Attention.softmax(row));
    return p.reduce((sum, share, i) => sum + Math.abs(share - q[i]), 0) / 2;
  }

  // For each place, how far its guess moves when the word at `changed` is another one; exactly 0 where no path leads.
  function moves(model, tokens, before, changed, other, bug) {
    const swapped = tokens.map((token, i) => (i === changed ? other : token));
    const after = Attention.forward(model, swapped, { bug }).logits;
    return before.map((row, i) => distance(row, after[i]));
  }

  // Over all changed words: does an earlier place ever move, and how many later ones stay still?
  function behaviour(found) {
    let [leaks, still] = [0, 0];
    found.forEach((moved, word) => moved.forEach((move, place) => {
      if (place < word + 1 && move > 0) leaks += 1;
      if (place > word + 1 && move === 0) still += 1;
    }));
    return { leaks, still };
  }

  function cell(move) {
    if (move === 0) return element("span", { class: "move still", role: "img", "aria-label": "not at all" });
    const ground = weightColor(LEAST + (1 - LEAST) * move);
    const box = element("span", { class: "move" }, move < 0.005 ? "<0.01" : fixed(move));
    Object.assign(box.style, { background: ground, color: readable(ground) });
    return box;
  }

  function draw(box, { words, others, ways }, { app, language }, answered) {
    const model = app.models.get("causal");
    const { index, special } = language;
    const tokens = [special.start, ...words.map((word) => index.get(word))];
    const found = ways.map((bug) => { // of each way and each changed word
      const before = Attention.forward(model, tokens, { bug }).logits;
      return others.map((other, word) => moves(model, tokens, before, word + 1, index.get(other), bug));
    });
    const letters = ways.map((_, i) => "ABC"[i]);
    const table = element("div", { class: "bugs", role: "group", "aria-label": "the words of the sentence" });
    const note = element("p", { class: "quiet", role: "status" });
    const places = ["<start>", ...words].map((word, place) => ({
      button: place ? Stage.button(word, () => change(place), { "aria-pressed": "false" })
        : element("span", { class: "quiet" }, word),
      moved: element("div", { class: "three" }),
    }));
    table.append(element("span"), element("div", { class: "three" }, ...letters.map((l) => element("b", {}, l))),
      ...places.flatMap(({ button, moved }) => [button, moved]));

    function change(changed) {
      places.forEach(({ button, moved }, place) => {
        const chosen = place === changed;
        if (place) {
          button.textContent = chosen ? `${words[place - 1]} → ${others[place - 1]}` : words[place - 1];
          button.setAttribute("aria-pressed", chosen);
        }
        moved.replaceChildren(...found.map((way) => cell(way[changed - 1][place])));
      });
      note.textContent = `“${words[changed - 1]}” has become “${others[changed - 1]}”. A number: how far the guess ` +
        "at this place moves, from 0 to 1; an empty box: not at all.";
    }

    change(Math.ceil(words.length / 2));
    if (!answered) {
      box.append(table, note);
      return;
    }
    const behaved = found.map(behaviour);
    const list = element("ul", {}, ...ways.map((bug, i) => element("li", {}, element("b", {}, `${letters[i]}: `),
      `${NAMES[bug]}. All words changed in turn, ${behaved[i].leaks} earlier places move and ${behaved[i].still} ` +
      "later ones stay still.")));
    const right = behaved[ways.indexOf(null)];
    const text = `${letters[ways.indexOf(null)]}, the right program, moves ${right.leaks || "no"} earlier places, ` +
      `and ${right.still || "no"} later ones stay still.`;
    box.append(here(text, right.leaks === 0 && right.still === 0), list, table, note);
  }

  return { draw };
})();
