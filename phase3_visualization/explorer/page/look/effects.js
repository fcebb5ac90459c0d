// What changed: the same question put to the untouched model (before) and to the one on screen (after).
"use strict";

const Effects = (() => {
  const { byId, element, fixed } = View;
  const SHOWN = 5; // guesses

  const change = (before, after, digits = 2) => {
    const [old, now] = [fixed(before, digits), fixed(after, digits)];
    return old === now ? now : `${old} → ${now}`;
  };

  function question(model, state, words, measured) {
    const at = measured.position;
    if (model.causal) return `What comes after “${words.slice(Math.max(0, at - 3), at + 1).join(" ")}”?`;
    return at === null ? "Nothing is hidden, so there is nothing to guess." : "Which word is hidden?";
  }

  // A row: word, the bar before (outline) and after (filled), and the numbers.
  function guessRow(word, before, after, isTrue, touched) {
    const bar = element("span", { class: "bar", "aria-hidden": "true" }, element("i", { class: "after" }));
    bar.firstChild.style.width = `${100 * after}%`;
    if (touched) {
      bar.append(element("i", { class: "before" }));
      bar.lastChild.style.width = `${100 * before}%`;
    }
    const name = element("span", { class: "word" }, word, isTrue ? element("b", { title: "the true word" }, " ✓") : "");
    const numbers = element("span", { class: "number" }, change(before, after));
    return element("div", { class: isTrue ? "guess true" : "guess" }, name, bar, numbers);
  }

  function drawGuesses(box, language, before, after, touched) {
    if (after.probabilities === null) return box.replaceChildren();
    const shown = Levers.likeliest(after, language, SHOWN);
    if (after.truth !== null && !shown.includes(after.truth)) shown[SHOWN - 1] = after.truth;
    const row = (token) => guessRow(language.vocabulary[token], before.probabilities[token],
      after.probabilities[token], token === after.truth, touched);
    box.replaceChildren(...shown.map(row));
  }

  // One line for those who cannot see the bars: on a phone the levers may be far from them.
  function summary(language, before, after, touched) {
    if (after.probabilities === null || after.truth === null) return "";
    const best = (measured) => language.vocabulary[Levers.likeliest(measured, language, 1)[0]];
    const truth = language.vocabulary[after.truth];
    const now = touched ? change(before.probabilities[after.truth], after.probabilities[after.truth])
      : fixed(after.probabilities[after.truth]);
    const [old, guess] = [best(before), best(after)];
    return `“${truth}” ${now} · best guess ${old === guess ? `“${guess}”` : `“${old}” → “${guess}”`}`;
  }

  function measureRow(name, before, after, explanation) {
    const row = element("tr", {}, element("th", { scope: "row", title: explanation }, name));
    const same = before === after;
    row.append(element("td", { class: same ? null : "changed" }, same ? after : `${before} → ${after}`));
    return row;
  }

  function drawMeasures(model, before, after) {
    const lossName = model.causal ? "loss, mean of the next words" : "loss of the hidden word";
    byId("measures").replaceChildren(
      measureRow(lossName, fixed(before.loss), fixed(after.loss), "−ln of the probability of the true word, in nats"),
      measureRow("entropy of the chosen head", fixed(before.entropy), fixed(after.entropy),
        "0: each query looks at one key; 1: at all it may see, evenly"),
    );
  }

  const scoreText = (score) => (score ? `${Math.round(100 * score.score)}% (${score.layer}.${score.head})` : "…");

  // The best head for each relation; before and after may still be missing while they are computed.
  function drawRoles(relations, before, after) {
    for (const row of byId("measures").querySelectorAll(".role-row")) row.remove();
    const text = "best head of each relation, over the built-in sentences";
    byId("measures").append(element("tr", { class: "role-row quiet" }, element("th", { colspan: 2 }, text)));
    for (const relation of relations) {
      const now = after ? scoreText(after[relation]) : "…";
      const old = before && after ? scoreText(before[relation]) : now;
      const row = measureRow(relation, old, now, "how often the head that follows it best looks at the right word");
      row.classList.add("role-row");
      byId("measures").append(row);
    }
  }

  // Beside a lever: what it does when it is the only one that is pulled.
  function drawLever(name, before, alone, language) {
    const text = alone && alone.truth !== null ? leverText(before, alone, language) : "";
    document.querySelector(`.effect[data-lever="${name}"]`).textContent = text;
  }

  function leverText(before, alone, language) {
    const chance = (measured) => measured.probabilities[measured.truth];
    return `by itself: “${language.vocabulary[alone.truth]}” ${change(chance(before), chance(alone))}`;
  }

  return { question, drawGuesses, summary, drawMeasures, drawRoles, drawLever };
})();
