// Two minutes for somebody who has never seen attention: seven steps on the first view, each moving one thing.
//
// The address drives it, #tour=3, so that a lesson can link to a step. The numbers are those on the screen.
"use strict";

const Tour = (() => {
  const { byId, on, fixed, roleOf, setUsable, isUsable } = View;

  // change: what the step changes of the first view, (state, model, pass, landing) -> changes. at: where to look. says:
  // with the numbers that are seen on the screen.
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
      says: ({ query, most, weight, role, grammar }) => `This is attention: “${query}” takes from other words, as ` +
        `much as the arcs are thick. This head, “${role}”, takes most from “${most}”: ${weight}. ${grammar}`,
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
      at: "strip",
      change: (state, model, pass, landing) => otherHead(state, model, pass, landing),
      says: ({ role, query, most, weight }) => `The head is back. Here is another one, “${role}”: with it “${query}” ` +
        `takes most from “${most}”, ${weight}. Nobody told the heads what to look for.`,
    },
    {
      title: "Without the division",
      at: "strip",
      change: () => ({ divisor: 1 }),
      says: ({ usual, most, weightBefore, weight }) => `Scores are divided by √d_k = ${usual} before they become ` +
        `weights. Without it they lie further apart: “${most}” had ${weightBefore} and now has ${weight}. This model ` +
        `learned with the division. What if it had not? That is the first wager.`,
    },
    {
      title: "Your turn",
      at: "strip",
      says: () => "Type a sentence of your own, hide another word, pull a lever: all is computed again, in this page.",
    },
  ];

  let go, known;
  let from = ""; // the address at which the reader left for the tour

  // A head of another role and the pair of words by which it shows it best: the query looks most at the word that the
  // grammar ties to it. Of all such heads the one that takes most; the head itself if there is none.
  function otherHead(state, model, pass, landing) {
    const own = roleOf(model, state.layer, state.head);
    const shows = (model.heads ?? []).flatMap((row, layer) => row.flatMap(({ role }, head) => {
      if (role === null || role === own) return [];
      return tied(role, landing.relations).map(([query, key]) =>
        ({ layer, head, query, key, row: pass.layers[layer].weights[head][query] }));
    }));
    const found = shows.filter(({ row, key }) => row[key] === Math.max(...row));
    found.sort((a, b) => b.row[b.key] - a.row[a.key]);
    const { layer, head, query } = found[0] ?? state;
    return { layer, head, query };
  }

  // "noun → determiner" -> the pairs of the sentence that it ties, the one that looks first.
  function tied(role, relations) {
    const [looks, at] = role.split(" → ");
    return (relations[`${looks}-${at}`] ?? []).concat((relations[`${at}-${looks}`] ?? []).map(([a, b]) => [b, a]));
  }

  const stepOf = (parts) => Address.whole(parts.get("tour"), 1, STEPS.length);

  function changesOf(step, state, model, pass) {
    const landing = model.landings[0] ?? { relations: {} };
    return STEPS[step - 1].change?.(state, model, pass, landing) ?? {};
  }

  function seen(model, state, words, pass, language) {
    const measure = (levers) => Levers.measure(model, levers, language, state);
    const [before, after] = [measure(Levers.untouched(model, state)), measure(state)];
    const query = Levers.position(model, state, state.query);
    const rowOf = (one) => one.layers[state.layer].weights[state.head][query];
    const row = rowOf(pass);
    const most = row.indexOf(Math.max(...row));
    const chance = (measured) => fixed(measured.probabilities?.[measured.truth] ?? NaN);
    return {
      known, query: words[query], most: words[most], weight: fixed(row[most]), usual: fixed(model.divisor),
      weightBefore: fixed(rowOf(Levers.run(model, Levers.untouched(model, state), language))[most]),
      role: roleOf(model, state.layer, state.head), before: chance(before), chance: chance(after),
      truth: language.vocabulary[after.truth] ?? "–", grammar: Words.ofVerb(state.words, language),
      best: after.logits ? language.vocabulary[Levers.likeliest(after, language, 1)[0]] : "–",
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
    byId("tour-text").textContent = state.touched ? "" : step.says(seen(model, state, words, pass, language));
    byId("tour-touched").hidden = !state.touched;
    setUsable(byId("tour-back"), state.tour > 1);
    byId("tour-next").textContent = state.tour < STEPS.length ? "next" : "done";
    byId("tour-more").hidden = state.touched || state.tour < STEPS.length;
  }

  // To a step; before the first and beyond the last one lies what the reader looked at before.
  const move = (step) => go(step >= 1 && step <= STEPS.length ? { tour: step } : from);

  // A step has come onto the screen, or the tour has ended. before: the address until now.
  function arrive(step, before) {
    const was = new URLSearchParams(before ?? "").has("tour");
    if (step === null) {
      if (was) byId("promise").focus();
      return;
    }
    if (!was) from = before ?? "";
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
    on("tour-again", "click", () => move(now()));
    on("tour", "keydown", (event) => {
      const [next, back] = [Math.min(now() + 1, STEPS.length), Math.max(now() - 1, 1)];
      const to = { ArrowRight: next, ArrowLeft: back, Escape: 0 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      move(to);
    });
  }

  return { start, draw, arrive, stepOf, changesOf };
})();
