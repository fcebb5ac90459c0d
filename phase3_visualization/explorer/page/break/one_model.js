// Wagers 3, 5 and 6: one of the models of the page, run in several ways.
"use strict";

const OneModel = (() => {
  const { element, svg, fixed, weightColor, readable } = View;
  const { button, pane, panes, bar, guesses, here, indexOfLargest, loss, mean } = Stage;

  // ---- wager 3: whole, without the head that a hidden verb needs, and without the head that is needed least

  const CAN_GO = 0.01; // nats

  function knockout(box, { words, hidden, needed, spare, rises }, { app, language }) {
    const model = app.models.get("both sides");
    const { index, vocabulary, special } = language;
    const tokens = words.map((word, i) => (i === hidden ? special.mask : index.get(word)));
    const truth = index.get(words[hidden]);
    const called = ([layer, head]) => View.headName(model, layer, head);
    const the = (head) => called(head).replace(View.NO_ROLE, "the head without a role"); // in a sentence
    const without = (head) => {
      const levers = head ? { removed: [head.join(".")] } : {};
      return Attention.softmax(Attention.forward(model, tokens, levers).logits[hidden]);
    };
    const [whole, blind, spared] = [null, needed, spare].map(without);
    const titles = ["the whole model", `without ${the(needed)}`, `without ${the(spare)}`];
    const three = [whole, blind, spared].map((found, i) => pane(titles[i], ...guesses(found, vocabulary, truth)));

    const most = Math.max(...rises.map(({ rise }) => rise));
    const all = [...rises].sort((a, b) => a.rise - b.rise).map(({ head, rise, at_most }) =>
      bar(called(head), rise / most, fixed(rise, 3), at_most < CAN_GO ? "changed" : "accent"));
    const sentence = words.map((word, i) => (i === hidden ? "▢" : word)).join(" ");
    const go = rises.filter(({ at_most }) => at_most < CAN_GO).length;
    const cost = (found) => fixed(loss(found[truth]) - loss(whole[truth]));
    const text = `in this sentence, chosen because its verb loses much, “${words[hidden]}” loses ${cost(blind)} nats ` +
      `without ${the(needed)}, and ${cost(spared)} without ${the(spare)}. ${go || "None"} of the ` +
      `${rises.length} heads can go.`;
    box.append(here(text, go === 0),
      element("p", { class: "sentence" }, sentence),
      element("p", { class: "quiet" }, "What stands in the gap? One head is the one that hidden verbs need most, the " +
        "other the one that all hidden words need least."),
      panes(...three),
      element("div", { class: "wide" }, pane("What hidden words lose without each head, in nats", ...all)));
  }

  // ---- wager 5: lines as thick as the weights, and what hiding each word costs the guess

  const ROW = 30; // pixels, as in views.css

  // Weights of the last layer in the row of the hidden word, heads averaged; the hidden word itself left out.
  function weightsOf({ layers }, hidden) {
    const heads = layers.at(-1).weights.map((rows) => rows[hidden]);
    return heads[0].map((_, j) => (j === hidden ? 0 : mean(heads.map((row) => row[j]))));
  }

  function lines(weights, hidden, thickest) {
    const height = ROW * weights.length;
    const picture = svg("svg", { viewBox: `0 0 100 ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" });
    const middle = (row) => ROW * (row + 0.5);
    weights.forEach((weight, j) => {
      if (j === hidden) return;
      const path = `M 0 ${middle(j)} C 50 ${middle(j)} 50 ${middle(hidden)} 100 ${middle(hidden)}`;
      picture.append(svg("path", { d: path, "stroke-width": 1 + 24 * weight, class: j === thickest ? "thick" : "" }));
    });
    picture.style.height = `${height}px`;
    return picture;
  }

  function line(box, { words, hidden }, { app, language }, answered) {
    const model = app.models.get("both sides");
    const { index, vocabulary, special } = language;
    const truth = index.get(words[hidden]);
    const reading = (...gaps) => {
      const tokens = words.map((word, i) => (gaps.includes(i) ? special.mask : index.get(word)));
      const found = Attention.forward(model, tokens);
      return { ...found, guess: Attention.softmax(found.logits[hidden]) };
    };
    const whole = reading(hidden);
    const weights = weightsOf(whole, hidden);
    const thickest = indexOfLargest(weights);
    const costs = words.map((_, j) =>
      (j === hidden ? -Infinity : loss(reading(hidden, j).guess[truth]) - loss(whole.guess[truth])));
    const mattered = indexOfLargest(costs);

    const standing = (j) => (j === thickest ? "thick" : answered && j === mattered ? "mattered" : null);
    const names = element("div", { class: "names" }, ...words.map((word, j) =>
      element("span", { class: standing(j) }, j === hidden ? "▢" : word)));
    const drawn = element("div", { class: "weights" }, ...words.map((_, j) =>
      element("span", { class: "number" }, j === hidden ? "" : fixed(weights[j]))));
    const over = ["weight", answered ? "nats lost when it is hidden, too" : ""].map((text) =>
      element("span", { class: "over" }, text));
    const typical = element("p", { class: "quiet" }, "One sentence, not a typical one.");
    const picture = element("div", { class: "pretty" }, ...over, names, drawn, lines(weights, hidden, thickest));
    if (answered) {
      const top = Math.max(...costs);
      picture.append(element("div", { class: "costs" }, ...words.map((_, j) => (j === hidden ? element("span", {}, "")
        : bar("", costs[j] / top, fixed(costs[j]), j === mattered ? "changed" : "accent")))));
    }
    if (!answered) {
      const most = `The hidden word, ▢, looks most at “${words[thickest]}”.`;
      box.append(typical, picture, element("p", { class: "quiet" }, most));
      return;
    }
    const both = [thickest, mattered].map((j) =>
      pane(`“${words[j]}” hidden, too`, ...guesses(reading(hidden, j).guess, vocabulary, truth)));
    const text = `in this sentence, chosen because the two differ, the thickest line goes to “${words[thickest]}”, ` +
      `which costs ${fixed(costs[thickest])} nats when it is hidden; “${words[mattered]}” costs ` +
      `${fixed(costs[mattered])}. The hidden word is “${words[hidden]}”.`;
    box.append(here(text, thickest !== mattered), typical, picture,
      panes(pane("one word hidden", ...guesses(whole.guess, vocabulary, truth)), ...both));
  }

  // ---- wager 6: three programs, two of them wrong; a word is changed, and it shows which places can read it

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

  function bugs(box, { words, others, ways }, { app, language }, answered) {
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
      button: place ? button(word, () => change(place), { "aria-pressed": "false" })
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

  return { knockout, line, bugs };
})();
