// What changed: the same question put to the untouched model (before) and to the one on screen (after).
"use strict";

const Effects = (() => {
  const { byId, element, fixed } = View;
  const SHOWN = 5; // predictions

  const change = (before, after, digits = 2) => {
    const [old, now] = [fixed(before, digits), fixed(after, digits)];
    return old === now ? now : `${old} → ${now}`;
  };

  function question(model, state, words, measured) {
    const at = measured.position;
    if (!model.causal) {
      const word = Levers.asked(state);
      const hidden = state.hidden.includes(word);
      const asked = hidden ? `is hidden at ${at}?` : `would the model put at ${at}, were it hidden?`;
      return `Which word ${asked} It is "${state.words[word]}".`;
    }
    return `What comes after "${words.slice(Math.max(0, at - 3), at + 1).join(" ")}"?`;
  }

  // A row: word, the bar before (outline) and after (filled), and the numbers.
  function predictionRow(word, before, after, isTrue, touched) {
    const bar = element("span", { class: "bar", "aria-hidden": "true" }, element("i", { class: "after" }));
    bar.firstChild.style.width = `${100 * after}%`;
    if (touched) {
      bar.append(element("i", { class: "before" }));
      bar.lastChild.style.width = `${100 * before}%`;
    }
    const name = element("span", { class: "word" }, word, isTrue ? element("b", {}, " ✓") : "");
    if (isTrue) name.title = "the true word";
    const numbers = element("span", { class: "number" }, change(before, after));
    return element("div", { class: "prediction" }, name, bar, numbers);
  }

  function drawPredictions(language, before, after, touched) {
    const shown = Statistics.top(after.probabilities, SHOWN).map((item) => item.token);
    if (after.truth !== null && !shown.includes(after.truth)) shown[SHOWN - 1] = after.truth;
    byId("predictions").replaceChildren(
      ...shown.map((token) =>
        predictionRow(
          language.vocabulary[token], before.probabilities[token], after.probabilities[token], token === after.truth,
          touched,
        ),
      ),
    );
  }

  function measureRow(name, before, after, explanation) {
    const row = element("tr", {}, element("th", { scope: "row", title: explanation }, name));
    const same = before === after;
    row.append(element("td", { class: same ? null : "changed" }, same ? after : `${before} → ${after}`));
    return row;
  }

  function drawMeasures(model, state, before, after) {
    const lossName = model.causal ? "loss, mean of the next words" : "loss of the hidden word";
    byId("measures").replaceChildren(
      measureRow(lossName, fixed(before.loss), fixed(after.loss), "−ln of the probability of the true word, in nats"),
      measureRow(`entropy of head ${state.layer}.${state.head}`, fixed(before.entropy), fixed(after.entropy),
        "0: each query looks at one key; 1: at all it may see, evenly"),
    );
  }

  const scoreText = (score) =>
    score ? `${Math.round(100 * score.score)}% (${score.layer}.${score.head})` : "…";

  // The best head for each relation; before and after may still be missing while they are computed.
  function drawRoles(relations, before, after) {
    for (const row of byId("measures").querySelectorAll(".role")) row.remove();
    const text = "best head of each relation, over the built-in sentences";
    byId("measures").append(element("tr", { class: "role quiet" }, element("th", { colspan: 2 }, text)));
    for (const relation of relations) {
      const now = after ? scoreText(after[relation]) : "…";
      const old = before && after ? scoreText(before[relation]) : now;
      const row = measureRow(relation, old, now, "how often the head that follows it best looks at the right word");
      row.classList.add("role");
      byId("measures").append(row);
    }
  }

  // Beside a lever: what it does when it is the only one that is pulled.
  function drawLever(name, before, alone) {
    document.querySelector(`.effect[data-lever="${name}"]`).textContent = alone ? leverText(name, before, alone) : "";
  }

  function leverText(name, before, alone) {
    const asked = name === "hidden" && alone.loss === before.loss;
    if (asked) return "before and after: the question below hides this word in any case";
    const truth = alone.truth === null ? "" : `, p of the true word ${change(chance(before), chance(alone))}`;
    return `this alone: loss ${change(before.loss, alone.loss)}${truth}`;
  }

  const chance = (measured) => measured.probabilities[measured.truth];

  return { question, drawPredictions, drawMeasures, drawRoles, drawLever };
})();
