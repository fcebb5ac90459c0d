// Wager 2: a model trained with the causal mask beside one trained without, as both read in training and in writing.
"use strict";

const Future = (() => {
  const { element, fixed } = View;
  const { button, pane, panes, bar, here, percent, indexOfLargest, mean, loss } = Stage;
  const TRAINED = { masked: "with the mask", unmasked: "without" };
  const COLORS = { masked: "accent", unmasked: "changed" };
  const GIVEN = 3; // words that both go on from

  // Probability of each true next word; past: only the words so far go in, one more each time. Under a causal mask
  // that is the same.
  function probabilities(model, tokens, past) {
    const seen = tokens.slice(0, -1);
    const logits = past && !model.causal
      ? seen.map((_, i) => Attention.forward(model, tokens.slice(0, i + 1)).logits[i])
      : Attention.forward(model, seen).logits;
    return logits.map((row, i) => Attention.softmax(row)[tokens[i + 1]]);
  }

  // The likeliest next word, again and again, until the end or as many words as the sentence has.
  function writeOn(model, tokens, { end }) {
    const written = tokens.slice(0, GIVEN + 1);
    while (written.length < tokens.length && written.at(-1) !== end) {
      written.push(indexOfLargest(Attention.forward(model, written).logits.at(-1)));
    }
    return written.slice(GIVEN + 1);
  }

  const repeats = (words) => words.some((word, i) => word === words[i - 1]);

  function draw(box, { sentences }, { models, language }) {
    const { index, vocabulary, special } = language;
    const toTokens = (words) => [special.start, ...words.map((word) => index.get(word)), special.end];
    const names = Object.keys(TRAINED);
    const known = new Map();
    const stage = element("div");
    let at = 0;

    function found(name, words, past) {
      const key = [name, past, ...words].join(" ");
      if (!known.has(key)) known.set(key, probabilities(models.get(name), toTokens(words), past));
      return known.get(key);
    }

    function reading(title, words, past) {
      const tokens = toTokens(words);
      const each = names.map((name) => found(name, words, past));
      const rows = tokens.slice(1).map((token, i) => element("div", { class: "pair" }, ...names.map((name, which) =>
        bar(which ? "" : vocabulary[token], each[which][i], percent(each[which][i]), COLORS[name]))));
      const losses = names.map((name, which) => `${TRAINED[name]} ${fixed(mean(each[which].map(loss)))}`);
      return pane(title, ...rows, element("p", { class: "quiet" }, `loss, nats a word: ${losses.join(", ")}`));
    }

    function redraw() {
      const tokens = toTokens(sentences[at]);
      const given = sentences[at].slice(0, GIVEN).join(" ");
      const written = names.map((name) => {
        const words = writeOn(models.get(name), tokens, special).map((token) => vocabulary[token]);
        const note = repeats(words) ? element("span", { class: "quiet" }, " It repeats itself.") : "";
        return element("p", {}, `${TRAINED[name]}: ${given} `, element("b", {}, words.join(" ")), note);
      });
      stage.replaceChildren(
        element("p", { class: "key" }, "How likely each finds the true next word, trained ",
          ...names.flatMap((name, which) => [which ? ", " : "", element("b", { class: COLORS[name] }, TRAINED[name])])),
        panes(reading("As in training: the whole sentence", sentences[at], false),
          reading("As in writing: only the past", sentences[at], true)),
        pane("They go on by themselves", ...written));
    }

    redraw();
    const losses = (name, past) => mean(sentences.flatMap((words) => found(name, words, past).map(loss)));
    const [whole, past, masked] = [losses("unmasked", false), losses("unmasked", true), losses("masked", true)];
    const text = `on ${sentences.length} short sentences, new to both, the model without the mask loses ` +
      `${fixed(whole, 4)} nats a word while it sees them whole, and ${fixed(past, 1)} from the past alone; the one ` +
      `with the mask ${fixed(masked, 1)}. So few sentences may lie outside the range on record.`;
    const other = button("another sentence", () => { at = (at + 1) % sentences.length; redraw(); });
    box.append(here(text, whole < masked && past > Math.log(vocabulary.length)), other, stage);
  }

  return { draw };
})();
