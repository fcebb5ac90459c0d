// Two minutes for somebody who has never seen attention: seven steps on the first view, each moving one thing.
//
// The address drives it, #tour=3, so that a lesson can link to a step. The numbers are those on the screen.
"use strict";

const Tour = (() => {
  const { byId, on, element, fixed, roleOf, setUsable, isUsable } = View;

  // change: what the step changes of the first view, (state, model, pass) -> changes. at: where to look. says: with the
  // numbers that are seen on the screen.
  const STEPS = [
    {
      title: "One word is missing",
      at: "strip",
      says: ({ known }) => `Each box is a word. One is hidden: there the model reads <mask>. It was trained to guess ` +
        `hidden words, in a small language of ${known} words.`,
    },
    {
      title: "The model guesses",
      at: "guess",
      says: ({ best, truth, chance }) => `Its best guess is “${best}”. ✓ marks the word that was there, “${truth}”: ` +
        `${chance}. Words that fit as well get a share, too.`,
    },
    {
      title: "How it can know",
      at: "strip",
      says: ({ query, most, weight, role }) => `This is attention. The thicker an arc, the more “${query}” takes from the ` +
        `word at its end. This head, “${role}”, takes most from “${most}”: ${weight}.`,
    },
    {
      title: "Without this head",
      at: "guess",
      change: ({ layer, head }) => ({ removed: [`${layer}.${head}`] }),
      says: ({ truth, before, chance, best }) => `It is knocked out: it looks, but its output is 0. “${truth}” had ` +
        `${before} (the outline) and now has ${chance}. Best guess: “${best}”.`,
    },
    {
      title: "Another head looks elsewhere",
      at: "heads-card",
      change: (state, model, pass) => otherHead(state, model, pass),
      says: ({ role, query, most, weight }) => `The head is back. Chosen is another one, “${role}”: with it “${query}” ` +
        `takes most from “${most}”, ${weight}. Nobody told the heads what to look for.`,
    },
    {
      title: "Without the division",
      at: "guess",
      change: () => ({ divisor: 1 }),
      says: ({ usual, truth, before, chance }) => `Scores are divided by √d_k = ${usual} before they become weights. ` +
        `Without it weights are sharper than in training. “${truth}” had ${before} and now has ${chance}.`,
    },
    {
      title: "Your turn",
      at: "strip",
      says: () => "Type a sentence of your own, hide another word, pull a lever: all is computed again, in this page.",
    },
  ];

  let go, known;

  // A head of another role, with the word of the sentence that looks through it most at another word.
  function otherHead(state, model, pass) {
    const own = roleOf(model, state.layer, state.head);
    const heads = (model.roles ?? []).flatMap((row, layer) => row.map((role, head) => ({ layer, head, role })));
    const { layer, head } = heads.find(({ role }) => role !== null && role !== own) ?? { layer: 0, head: 0 };
    const largest = pass.layers[layer].weights[head].map((row, i) => Math.max(...row.filter((_, j) => j !== i)));
    return { layer, head, query: largest.indexOf(Math.max(...largest)) };
  }

  const stepOf = (parts) => Address.whole(parts.get("tour"), 1, STEPS.length);

  const changesOf = (step, state, model, pass) => STEPS[step - 1].change?.(state, model, pass) ?? {};

  function seen(model, state, words, pass, language) {
    const measure = (levers) => Levers.measure(model, levers, language, state);
    const [before, after] = [measure(Levers.untouched(model, state)), measure(state)];
    const query = Levers.position(model, state, state.query);
    const row = pass.layers[state.layer].weights[state.head][query];
    const most = row.indexOf(Math.max(...row));
    const chance = (measured) => fixed(measured.probabilities?.[measured.truth] ?? NaN);
    return {
      known, query: words[query], most: words[most], weight: fixed(row[most]), usual: fixed(model.divisor),
      role: roleOf(model, state.layer, state.head), before: chance(before), chance: chance(after),
      truth: language.vocabulary[after.truth] ?? "–",
      best: after.probabilities ? language.vocabulary[Statistics.top(after.probabilities, 1)[0].token] : "–",
    };
  }

  function draw(model, state, words, pass, language) {
    const step = STEPS[state.tour - 1];
    for (const marked of document.querySelectorAll(".toured")) marked.classList.remove("toured");
    byId("tour").hidden = !step;
    document.body.classList.toggle("touring", Boolean(step));
    if (!step) return;
    byId(step.at).classList.add("toured");
    byId("tour-title").textContent = `${state.tour} of ${STEPS.length} · ${step.title}`;
    byId("tour-text").textContent = step.says(seen(model, state, words, pass, language));
    setUsable(byId("tour-back"), state.tour > 1);
    byId("tour-next").textContent = state.tour < STEPS.length ? "next" : "done";
    byId("tour-more").hidden = state.tour < STEPS.length;
  }

  // To a step; beyond the last one the tour ends where it began.
  function move(step) {
    go(step >= 1 && step <= STEPS.length ? { tour: step } : {});
    if (byId("tour").hidden) return byId("sentence").focus();
    byId("tour-title").focus({ preventScroll: true });
    byId(STEPS[step - 1].at).scrollIntoView({ block: "nearest" });
  }

  function start(app, stepNow) {
    go = app.go;
    known = app.language.words.length;
    const now = () => stepNow() ?? 0;
    on("tour-next", "click", () => move(now() + 1));
    on("tour-back", "click", () => isUsable(byId("tour-back")) && move(now() - 1));
    on("tour-end", "click", () => move(0));
    on("tour", "keydown", (event) => {
      const [next, back] = [Math.min(now() + 1, STEPS.length), Math.max(now() - 1, 1)];
      const to = { ArrowRight: next, ArrowLeft: back, Escape: 0 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      move(to);
    });
  }

  return { start, draw, stepOf, changesOf };
})();
