// The levers on the screen, and what pulling them changes.
"use strict";

// Every control shows the state, so that a linked view opens with its levers pulled.
const Controls = (() => {
  const { byId, element, fixed, headName, setUsable } = View;

  function draw(model, state) {
    const d_k = model.d_model / model.num_heads;
    const divisor = Levers.divisorOf(model, state);
    byId("causal").checked = Levers.isCausal(model, state);
    byId("scaled").checked = divisor === model.divisor;
    byId("root").textContent = `√d_k = √${d_k} = ${fixed(model.divisor)}`;
    if (document.activeElement !== byId("divisor")) byId("divisor").value = Number(divisor.toFixed(3));
    byId("divisor-slider").value = Math.log2(divisor);
    byId("divisor-slider").setAttribute("aria-valuetext", fixed(divisor));
    const chosenIsOut = state.removed.includes(`${state.layer}.${state.head}`);
    byId("knock").textContent = chosenIsOut ? "put this head back" : "break it: knock out this head";
    const out = state.removed.map((name) => headName(model, ...name.split(".").map(Number)));
    byId("removed-note").textContent = out.length ? `knocked out: ${out.join("; ")}` : "no head is knocked out";
    setUsable(byId("restore"), out.length > 0);
    drawWords(model, state);
    byId("temperature").value = state.temperature;
    const limit = state.temperature === 0 ? ": the likeliest takes all" : "";
    byId("temperature-note").textContent = fixed(state.temperature, 1) + limit;
    setUsable(byId("reset"), Levers.active(model, state).length > 0);
  }

  function drawWords(model, state) {
    const position = (word) => Levers.position(model, state, word);
    const name = (word) => `${position(word)} ${word < 0 ? "<start>" : state.words[word]}`;
    const hidden = state.hidden.includes(state.query);
    byId("hide").textContent = `${hidden ? "show" : "hide"} “${name(state.query)}”`;
    byId("hide").setAttribute("aria-pressed", hidden);
    byId("swap-word").textContent = name(state.query);
    const others = Levers.orderOf(state).filter((word) => word !== state.query);
    byId("swap-with").replaceChildren(...others.map((word) => element("option", { value: word }, name(word))));
    const next = Levers.wordAt(model, state, position(state.query) + 1) ?? others.at(-1);
    if (next !== undefined) byId("swap-with").value = next;
    setUsable(byId("swap"), state.query >= 0 && others.length > 0);
    setUsable(byId("unswap"), state.order !== null);
  }

  // A field for a number: one outside its limits is said, not used, and put right when the reader leaves the field.
  function numberField(id, low, high, what, apply, current) {
    const field = byId(id);
    const note = element("span", { class: "message", role: "status" });
    field.parentElement.after(note);
    const good = () => field.value !== "" && Number(field.value) >= low && Number(field.value) <= high;
    field.addEventListener("input", () => {
      note.textContent = good() ? "" : `${what} goes from ${low} to ${high}.`;
      field.setAttribute("aria-invalid", !good());
      if (good()) apply(Number(field.value));
    });
    field.addEventListener("blur", () => {
      if (good()) return;
      field.value = current();
      field.setAttribute("aria-invalid", false);
      note.textContent = `${what} goes from ${low} to ${high}: back to ${field.value}.`;
    });
  }

  return { draw, numberField };
})();

// The same question put to the untouched model (before) and to the one on screen (after).
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
