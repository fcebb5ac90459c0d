// What runs beside each wager, by its name: small models, one whole and one broken, or one model run in several ways.
//
// Each gets its example, say(name, values) for its texts, whether it is answered, and the models by name; it returns
// what to show: before the answer a picture of the situation, after it what the models do and whether this run agrees.
"use strict";

const Live = (() => {
  const { button, element, svg, fixed, percent, weightColor, readable, bar, guesses, indexOfLargest, headCalled } = View;
  const { turns, quiet, pane, panes, letter, cells, map, onTrack, here, mean, loss } = Stage;
  const { run, softmax } = Network;

  const withGap = (words, hidden) => words.map((word, i) => (i === hidden ? View.BLANK : word));

  // How far two rows of logits stand apart as probabilities, from 0 to 1: total variation.
  function distance(before, after) {
    const [p, q] = [before, after].map((row) => softmax(row));
    return p.reduce((sum, chance, i) => sum + Math.abs(chance - q[i]), 0) / 2;
  }

  // ---- a head is knocked out: can it go? All of the interval in which its cost lies has to be below a line

  const CAN_GO = 0.01; // nats
  const lessSure = (nats) => 1 - Math.exp(-Math.max(0, nats)); // what a hidden word loses of its probability, a share
  const inPercent = (nats) => percent(lessSure(nats), 1);

  // How much less sure the model is without a head, with its 95 % interval and the line. top: where the axis ends.
  function costLine(name, { cost, interval }, top) {
    const onAxis = (nats) => lessSure(nats) / lessSure(top);
    const line = bar(name, onAxis(cost), inPercent(cost), { color: "other" });
    const track = line.querySelector(".track");
    const crosses = interval[0] < CAN_GO && interval[1] >= CAN_GO;
    onTrack(track, crosses ? "whisker crosses" : "whisker", interval.map(onAxis));
    onTrack(track, "decides", [onAxis(CAN_GO), onAxis(CAN_GO)]);
    return line;
  }

  function knockout({ example, say, answered, models, language, called }) {
    const { words, hidden, needed } = example;
    const tokens = Levers.tokens({ words, hidden: [hidden] }, language);
    const truth = language.index.get(words[hidden]);
    const guess = (removed) => softmax(run(models.get("both sides"), tokens, { removed }).logits[hidden]);
    const [whole, sentence] = [guess([]), element("p", { class: "sentence" }, withGap(words, hidden).join(" "))];
    if (!answered) return [pane(say("whole"), sentence, ...guesses(whole, language.vocabulary, truth))];
    const heads = [...example.heads].sort((a, b) => a.cost - b.cost);
    const nameOf = ({ head }) => headCalled(head.join("."));
    const top = Math.max(...heads.map(({ interval }) => interval[1]));
    const lines = heads.map((each) => costLine(nameOf(each), each, top));
    const [least] = heads;
    const go = heads.filter((each) => each.interval[1] < CAN_GO).length;
    const ends = { cost: inPercent(least.cost), most: inPercent(least.interval[1]) };
    return [
      here(say("here", { head: nameOf(least), ...ends, go: go || "none" }), go === 0),
      element("div", { class: "wide" }, pane(say("costs"), ...lines, quiet(say("brackets")))),
      pane(say("without", { head: called(needed) }), sentence,
        ...guesses(guess([needed.join(".")]), language.vocabulary, truth, { before: whole }), quiet(say("note"))),
    ];
  }

  // ---- nobody hides the future: trained with the causal mask and without, as both read in training and in writing

  const chance = (nats) => (nats > Math.log(1000) ? `1 in ${odds(nats)}` : percent(Math.exp(-nats), 1));
  const odds = (nats) => Math.round(Math.exp(nats)).toLocaleString("en");
  const TRAINED = { masked: "solid", unmasked: "striped" }; // classes of break.css

  // What a model sees of a sentence while it guesses one word: all of it, or what stands before.
  const sees = (title, words, asked, all) => pane(title, element("p", { class: "sees" }, ...words.map((word, i) => {
    const shown = all || i < asked;
    const kind = `${shown ? "" : "hatched"} ${i === asked ? "asked" : ""}`;
    return element("span", { class: kind }, shown ? word : "\u2002".repeat(word.length));
  })));

  // Probability of each true next word; past: only the words so far go in, one more each time. Under a causal mask
  // that is the same.
  function nextWords(model, tokens, past) {
    const seen = tokens.slice(0, -1);
    const logits = past && !model.causal
      ? seen.map((_, i) => run(model, tokens.slice(0, i + 1)).logits[i])
      : run(model, seen).logits;
    return logits.map((row, i) => softmax(row)[tokens[i + 1]]);
  }

  function future({ example: { sentences }, say, answered, models, language: { index, vocabulary, special } }) {
    const names = Object.keys(TRAINED);
    if (!answered) {
      const [words] = sentences;
      const draw = (at) => [
        quiet(say("sees")), sees(say("peeks"), words, at, true), sees(say("else"), words, at, false)];
      return turns(2, draw, { [say("step")]: (at) => (at + 1) % words.length });
    }
    const readings = sentences.map((words) => {
      const tokens = [special.start, ...words.map((word) => index.get(word)), special.end];
      const [training, writing] = [false, true].map((past) =>
        names.map((name) => nextWords(models.get(name), tokens, past)));
      return { tokens, training, writing };
    });

    function reading(way, { tokens, [way]: each }) {
      const rows = tokens.slice(1).map((token, i) => element("div", { class: "pair" }, ...names.map((name, which) =>
        bar(which ? "" : vocabulary[token], each[which][i], percent(each[which][i]), { color: TRAINED[name] }))));
      const [masked, unmasked] = each.map((row) => chance(mean(row.map(loss))));
      return pane(say(way), ...rows, quiet(say("losses", { masked, unmasked })));
    }

    function draw(at) {
      const key = names.flatMap((name, i) => [i ? ", " : "", element("i", { class: TRAINED[name] }), say(name)]);
      const ways = ["training", "writing"].map((way) => reading(way, readings[at]));
      return [element("p", { class: "key" }, say("key"), ...key), panes(...ways)];
    }

    const stage = turns(0, draw, { [say("other")]: (at) => (at + 1) % readings.length });
    const overall = (way, which) => mean(readings.flatMap((each) => each[way][which].map(loss)));
    const [whole, past, masked] = [overall("training", 1), overall("writing", 1), overall("writing", 0)];
    const text = say("here", { whole: chance(whole), past: odds(past), masked: odds(masked) });
    return [here(text, whole < masked && past > Math.log(vocabulary.length)), ...stage];
  }

  // ---- rows of symbols, and two models that say something of each place

  // What a model says of a row at the places that have an answer, null at the others, and whether that is right.
  function read(model, row, wanted) {
    const { logits, layers } = run(model, row);
    const ofAsked = (find) => wanted.map((symbol, place) => (symbol === null ? null : find(place)));
    const said = ofAsked((place) => indexOfLargest(logits[place]));
    return { said, right: ofAsked((place) => said[place] === wanted[place]), weights: layers[0].weights[0] };
  }

  const asked = ({ right }) => right.filter((each) => each !== null);
  const share = (readings) => mean(readings.flatMap(asked).map(Number));
  const answers = (reading) => [cells("says", reading.said, reading.right),
    quiet(`${reading.right.filter(Boolean).length} of ${asked(reading).length} right`)];

  // ---- the order is taken away

  const ROUNDING = 1e-4; // what adding up in another order may change

  // How far the guess at a letter moves at most when the row is turned round.
  function movedByOrder(model, row) {
    const before = run(model, row).logits;
    const after = run(model, [...row].reverse()).logits.reverse();
    return Math.max(...before.map((logits, place) => distance(logits, after[place])));
  }

  function backwards({ example: { rows }, say, answered, models }) {
    const names = ["placed", "unplaced"];
    const reading = (name, row) => read(models.get(name), row, [...row].reverse());

    if (!answered) {
      const [row] = rows;
      const numbered = cells(say("numbered"), row);
      numbered.querySelectorAll(".cells > *").forEach((box, i) => box.append(element("sub", {}, i + 1)));
      return [numbered, cells(say("loose"), [...row].sort((a, b) => a - b)), cells(say("both"), [...row].reverse())];
    }

    function draw({ at, turned }) {
      const row = turned ? [...rows[at]].reverse() : rows[at];
      const each = names.map((name) => pane(say(name), ...answers(reading(name, row))));
      return [cells(say("reads"), row), cells(say("should"), [...row].reverse()), ...each];
    }

    const stage = turns({ at: 0, turned: false }, draw, {
      [say("other")]: ({ at }) => ({ at: (at + 1) % rows.length, turned: false }),
      [say("turn")]: ({ at, turned }) => ({ at, turned: !turned }),
    });
    const [whole, broken] = names.map((name) => share(rows.map((row) => reading(name, row))));
    const moved = movedByOrder(models.get("unplaced"), rows[0]);
    const text = say("here", { whole: percent(whole), broken: percent(broken), moved: percent(moved, 1) });
    return [here(text, whole - broken >= 0.5 && moved < ROUNDING), ...stage];
  }

  // ---- without √d_k: two places at once

  const FIRST = 3; // the first place that has a symbol three places before it
  const isNeeded = (query, key) => query >= FIRST && (key === query - 1 || key === query - 3);
  const largest = (readings) =>
    percent(mean(readings.flatMap(({ weights }) => weights.slice(FIRST).map((row) => Math.max(...row)))));

  // Two arcs from the last of so many cells to the two that its answer needs.
  function toBoth(length) {
    const size = { viewBox: `0 0 ${length} 1`, preserveAspectRatio: "none", style: `--cells: ${length}` };
    const picture = svg("svg", { ...size, class: "to-both", "aria-hidden": "true" });
    const arc = (end) => `M ${length - 0.5} 1 C ${length - 0.5} 0 ${end + 0.5} 0 ${end + 0.5} 1`;
    picture.append(...[length - 2, length - 4].map((end) => svg("path", { d: arc(end) })));
    return picture;
  }

  function undivided({ example: { rows, table }, say, answered, models }) {
    const names = ["divided", "undivided"];
    const wantedBy = (row) => row.map((_, at) => (at < FIRST ? null : table[row[at - 1]][row[at - 3]]));
    const reading = (name, row) => read(models.get(name), row, wantedBy(row));

    function draw(at) {
      const row = rows[at];
      const wanted = wantedBy(row);
      const [before, earlier, said] = [row.at(-2), row.at(-4), wanted.at(-1)].map(letter);
      const both = names.map((name) => [name, reading(name, row)]).map(([name, result]) =>
        pane(say(name), ...answers(result),
          map(result.weights, `${say(name)}: ${say("map")}`, (query, key) => key > query, isNeeded)));
      const needed = row.map((_, at) => (isNeeded(row.length - 1, at) ? "needed" : null));
      const texts = [cells(say("reads"), row, needed), cells(say("should"), wanted)];
      texts[0].lastChild.before(toBoth(row.length));
      return [...texts, ...(answered ? [panes(...both), quiet(say("map"))]
        : [element("p", {}, say("rule", { before, earlier, said }))])];
    }

    const stage = turns(0, draw, { [say("other")]: (at) => (at + 1) % rows.length });
    if (!answered) return stage;
    const readings = names.map((name) => rows.map((row) => reading(name, row)));
    const [[whole, broken], [spread, sharp]] = [readings.map(share), readings.map(largest)];
    const text = say("here", { whole: percent(whole), broken: percent(broken), spread, sharp });
    return [here(text, whole - broken >= 0.3), ...stage];
  }

  // ---- the pretty line: lines as thick as the weights, and how sure the guess is without each word

  const ROW = 30; // pixels, as in break.css

  // Weights of the last layer in the row of the hidden word, heads averaged; the hidden word itself left out.
  function weightsOf({ layers }, hidden) {
    const heads = layers.at(-1).weights.map((rows) => rows[hidden]);
    return [...heads[0].keys()].map((j) => (j === hidden ? 0 : mean(heads.map((row) => row[j]))));
  }

  function lines(weights, hidden, thickest) {
    const height = ROW * weights.length;
    const size = { viewBox: `0 0 100 ${height}`, height, preserveAspectRatio: "none" };
    const picture = svg("svg", { ...size, "aria-hidden": "true" });
    const middle = (row) => ROW * (row + 0.5);
    weights.forEach((weight, j) => {
      if (j === hidden) return;
      const path = `M 0 ${middle(j)} C 50 ${middle(j)} 50 ${middle(hidden)} 100 ${middle(hidden)}`;
      picture.append(svg("path", { d: path, "stroke-width": 1 + 24 * weight, class: j === thickest ? "thick" : "" }));
    });
    return picture;
  }

  function line({ example: { words, hidden }, say, answered, models, language }) {
    const truth = language.index.get(words[hidden]);
    const reading = (...gaps) => run(models.get("both sides"), Levers.tokens({ words, hidden: gaps }, language));
    const guess = (...gaps) => softmax(reading(...gaps).logits[hidden]);
    const whole = guess(hidden);
    const weights = weightsOf(reading(hidden), hidden);
    const thickest = indexOfLargest(weights);
    const left = words.map((_, j) => guess(hidden, j)[truth]); // how sure the model is if this word is hidden, too
    const mattered = left.indexOf(Math.min(...left));

    const column = (kind, draw) => element("div", { class: kind }, ...words.map((_, j) => draw(j)));
    const number = (j) => element("span", { class: "number" }, j === hidden || !answered ? "" : fixed(weights[j]));
    const name = (j) => element("span",
      { class: j === thickest ? "thick" : answered && j === mattered ? "mattered" : null }, withGap(words, hidden)[j]);
    const sure = (j) => (j === hidden ? element("span")
      : bar("", left[j], percent(left[j]), { color: j === mattered ? "solid" : "other", before: whole[truth] }));
    const picture = element("div", { class: "pretty" },
      ...(answered ? ["weight", "left"].map((name) => element("span", { class: "over" }, say(name))) : []),
      column("names", name), column("weights", number), lines(weights, hidden, thickest),
      column("sure", answered ? sure : (j) => element("span", {}, j === hidden ? `\u00a0${View.BLANK}` : "")));
    const shown = [picture, quiet(say("typical", { word: words[thickest] }))];
    if (!answered) return shown;
    const both = [thickest, mattered].map((j) => pane(say("two", { word: words[j] }),
      ...guesses(guess(hidden, j), language.vocabulary, truth, { before: whole })));
    const [before, thick, least] = [whole[truth], left[thickest], left[mattered]].map((share) => percent(share));
    const named = { hidden: words[hidden], thickest: words[thickest], mattered: words[mattered] };
    const text = say("here", { ...named, before, thick, least });
    return [here(text, thickest !== mattered), ...shown, panes(...both), quiet(say("outlines"))];
  }

  // ---- find the bug: three programs, two of them wrong; a changed word shows which places can read it

  const LEAST = 0.2; // of the colours: a move, however small, is told from none

  // [changed place][place] -> how far the guess moves when that place holds another token; 0 where no path leads.
  function moves(model, tokens, others, bug) {
    const logits = (row) => run(model, row, { bug }).logits;
    const before = logits(tokens);
    return tokens.map((_, changed) => {
      const after = logits(tokens.map((token, i) => (i === changed ? others[i] : token)));
      return before.map((row, i) => distance(row, after[i]));
    });
  }

  // Over all changed places: how many earlier ones move, and how many later ones stay still?
  function behaviour(moved) {
    const count = (is) => moved.flatMap((row, changed) => row.filter((move, place) => is(move, place, changed))).length;
    return {
      leaks: count((move, place, changed) => place < changed && move > 0),
      still: count((move, place, changed) => place > changed && changed > 0 && move === 0), // <start> is never changed
    };
  }

  function moveCell(move) {
    if (move === 0) return element("span", { class: "move still", role: "img", "aria-label": "not at all" });
    const ground = weightColor(LEAST + (1 - LEAST) * move);
    const style = `background: ${ground}; color: ${readable(ground)}`;
    return element("span", { class: "move", style }, move < 0.005 ? "<0.01" : fixed(move));
  }

  function bugs({ example: { words, others }, wager: { ways, right }, say, answered, models, language }) {
    const tokensOf = (row) => [language.special.start, ...row.map((word) => language.index.get(word))];
    const ofWays = ways.map((bug) => moves(models.get("masked"), tokensOf(words), tokensOf(others), bug));
    const letters = ways.map((_, i) => "ABC"[i]);
    const note = element("p", { class: "quiet", role: "status" });
    const buttons = words.map((word, i) => button(word, () => change(i)));
    const moved = tokensOf(words).map(() => element("div", { class: "three" }));
    const table = element("div", { class: "bugs", role: "group", "aria-label": say("words") },
      element("span"), element("div", { class: "three" }, ...letters.map((each) => element("b", {}, each))),
      ...[element("span", { class: "quiet" }, "<start>"), ...buttons].flatMap((place, i) => [place, moved[i]]));

    function change(changed) {
      buttons.forEach((each, i) => {
        each.textContent = i === changed ? `${words[i]} → ${others[i]}` : words[i];
        each.setAttribute("aria-pressed", i === changed);
      });
      moved.forEach((cell, place) => cell.replaceChildren(...ofWays.map((way) => moveCell(way[changed + 1][place]))));
      note.textContent = say("changed", { word: words[changed], other: others[changed] });
    }

    change(Math.floor(words.length / 2));
    if (!answered) return [table, note];
    const behaved = ofWays.map(behaviour);
    const mistakes = ({ leaks, still }) => [leaks && "leaks", still && "still"].filter(Boolean);
    const sentences = behaved.flatMap((counts, i) => (mistakes(counts).length ? mistakes(counts) : ["sound"])
      .map((name) => say(name, { letter: letters[i], times: counts[name] })));
    return [here(say("here", { told: sentences.join(" ") }), mistakes(behaved[right]).length === 0), table, note];
  }

  return { knockout, future, backwards, undivided, line, bugs };
})();
