// The story: seven screens about the sentence beside them, by scrolling, by keyboard, or by address, #story=3.
//
// A screen moves one thing on the stage, and says what is seen there with the numbers on the screen. Three of them ask
// before they show; what a reader bet is kept in this page alone.
"use strict";

const Story = (() => {
  const { byId, button, element, fixed, change } = View;
  const won = new Map(); // screen -> whether its bet was won; null if it was seen before it was bet on
  const told = new Map(); // screen -> what was said then
  const BETS = 3;
  let act, language, sections;
  let seen; // what is on the stage
  let asked = null; // the head that screen 6 asks about
  let drawn = ""; // what all screens were drawn for
  let scrolled = false; // by the reader: only then does a screen that comes into sight move the stage

  const said = (text) => element("p", {}, text);
  const row = (...parts) => element("div", { class: "row" }, ...parts);
  const word = (token) => `“${language.vocabulary[token]}”`;
  const atEnd = () => ({ run: "0", step: Runs.lastStep("0"), removed: [] });

  function bet(screen, isRight, changes, text = "") {
    if (!won.has(screen)) won.set(screen, isRight); // only the first answer counts
    told.set(screen, text);
    act(changes, "bet");
    sections[screen - 1].querySelector(".verdict")?.focus();
  }

  function verdict(screen, text) {
    const isRight = won.get(screen);
    return element("p", { class: `verdict ${isRight ? "won" : "lost"}`, tabindex: "-1" },
      element("b", {}, isRight ? "Right. " : "No. "), text);
  }

  // ---- the screens: scene, what the stage becomes; says, the text; more, what stands below it

  // A guess is as good as the model's if the model finds it at least half as likely as its own.
  function guessed() {
    const [typed = ""] = Words.split(byId("own-guess").value);
    const token = language.words.includes(typed) ? language.index.get(typed) : null;
    if (token === null) {
      const { says, words } = Words.instead(typed, seen.state.words[seen.state.query - 1], language);
      byId("own-note").textContent = typed ? `It does not know “${typed}”. ${says} ${words.join(", ")}` : "Type a word.";
      return;
    }
    const { probabilities, best } = seen.after;
    bet(1, probabilities[token] >= probabilities[best] / 2, { guess: token, covered: false });
  }

  function askWord() {
    const input = element("input", { type: "text", id: "own-guess", autocomplete: "off", autocapitalize: "none",
      spellcheck: "false", "aria-label": "your guess", "aria-describedby": "own-note" });
    const form = element("form", { class: "row" }, input, element("button", { class: "main-button" }, "guess"),
      button("show me", () => act({ covered: false }, "show")));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      guessed();
    });
    return [form, element("p", { id: "own-note", class: "message", role: "status" })];
  }

  function toldWord({ before: { probabilities, best, truth }, state: { guess } }) {
    const model = `The model's best guess is ${word(best)}, ${fixed(probabilities[best])}; it was ${word(truth)}.`;
    if (won.get(1) === null || guess === null) return [said(model)];
    const how = won.get(1) ? "As good as the model's own: at least half as likely." : "Less than half as likely as its own.";
    return [verdict(1, `${how} ${word(guess)} gets ${fixed(probabilities[guess])}. ${model}`)];
  }

  function drawBlock({ state }) {
    const { num_layers } = Runs.model();
    const losses = Levers.through(state, language);
    const layers = Array.from({ length: num_layers }, (_, layer) =>
      [`+ attention ${layer}`, `+ feed-forward ${layer}`]).flat();
    const most = Math.max(...losses);
    return losses.map((loss, i) => View.bar(["word and place", ...layers][i], loss / most, fixed(loss)));
  }

  function askBreak({ state, after, before }) {
    if (state.removed.length === 0) {
      const head = Levers.nameOf(state.layer, state.head);
      const changes = Levers.measure({ ...state, removed: [head] }, language).best !== after.best;
      const answer = (isRight) => () => bet(5, isRight, { removed: [head] });
      return [row(button("it changes", answer(changes)), button("it stays", answer(!changes)))];
    }
    const text = `${word(after.truth)} ${change(before.chance, after.chance)}; best guess ${word(before.best)}, now ` +
      `${word(after.best)}.`;
    return won.has(5) ? [verdict(5, text)] : [said(text)];
  }

  const roleAt = (run, { layer, head }) => Runs.get(run).stops.at(-1).heads[layer][head].role;

  const anyRole = (run) => Runs.lanes(run).find(({ heads }) => heads.at(-1).length > 0)?.role;

  // The first head that has a role at the end of a run: {layer, head}, or null.
  function havingRole(run, role) {
    const found = Runs.lanes(run).find((lane) => lane.role === role)?.heads.at(-1)[0];
    return found ? { layer: found.layer, head: found.head } : null;
  }

  // Screen 6 goes on with the training of one's own, if there is one.
  function seedScene(state) {
    const { layer, head } = state;
    asked = state.run === "0" && roleAt("0", state) ? { layer, head } : havingRole("0", anyRole("0")) ?? { layer, head };
    const own = Runs.own();
    return own ? { ...atEnd(), run: own, step: Runs.lastStep(own) }
      : { ...atEnd(), layer: asked.layer, head: asked.head };
  }

  function askSeed({ state, stop, name }) {
    const { layer, head } = asked ?? state;
    const stage = said(`On the stage: seed ${Runs.get(state.run).seed}, step ${stop.step}, ${name}. Or train one here:`);
    if (won.has(6)) return [verdict(6, told.get(6)), stage];
    const there = havingRole("1", roleAt("0", { layer, head }));
    const found = there ? `head ${Levers.nameOf(there.layer, there.head)}` : "no head";
    const same = there !== null && there.layer === layer && there.head === head;
    const text = `With seed ${Runs.get("1").seed} it is ${found}.`;
    const answer = (isRight) => () => bet(6, isRight, { ...atEnd(), run: "1", ...there }, text);
    return [row(button("the same head", answer(same)), button("another, or none", answer(!same))), stage];
  }

  function drawScore() {
    const [right, wrong] = [true, false].map((kind) => [...won.values()].filter((is) => is === kind).length);
    const note = element("span", { class: "quiet", role: "status" });
    const address = `${location.href.split("#")[0]}#story=1`;
    const copy = button("copy a link to this story", async () => {
      await navigator.clipboard?.writeText(address).catch(() => {});
      note.textContent = address;
    });
    return [
      element("p", { class: "score" }, `${right} won, ${wrong} lost, ${BETS - right - wrong} open`),
      row(copy, element("a", { href: "#view=break", class: "button" }, "six wagers")),
      note,
    ];
  }

  const SCREENS = [
    {
      title: "Which word is hidden?",
      scene: () => ({ ...atEnd(), covered: !won.has(1) }),
      says: () => `One word is hidden: there the model reads <mask>. It was trained to guess hidden words, in a small ` +
        `language of ${language.words.length} words. What would you say?`,
      more: (now) => (now.state.covered ? askWord() : toldWord(now)),
    },
    {
      title: "Drag time",
      scene: () => ({ ...atEnd(), step: 0 }),
      says: ({ stop, named, after }) => `Step ${stop.step}${stop.step ? "" : ", random numbers, so what leads is luck"}: ` +
        `${word(after.truth)} has ${fixed(after.chance)}, ${named || "no"} ${named > 1 ? "heads have" : "head has"} a name. Drag the slider below the sentence: it is ` +
        "the training of this very model, at a dozen steps; between them it snaps. Arcs rise out of haze. Names come, and some go again; a head has one while it " +
        "looks at the right words, by rule, on sentences that it was not trained on.",
    },
    {
      title: "An arc, opened",
      scene: atEnd,
      says: ({ query }) => `This is attention. ${query} asks with a query vector q, each word has a key k. Their ` +
        "product says how well they fit, softmax makes weights of it, and by these the values v are added up; here " +
        "the first number of each v.",
      more: ({ pass, state, words }) => [element("div", { class: "scroll", tabindex: "0", role: "region",
        "aria-label": "the numbers of each key" },
      Steps.table(pass, state, words, state.divisor ?? Runs.model().divisor))],
    },
    {
      title: "Through the block",
      scene: atEnd,
      says: ({ after }) => "The sums of all heads are added to what stood at this place, a feed-forward network adds " +
        `its part, and the next layer goes on. Stop after each part, and ask for the word: what does ${word(after.truth)} ` +
        "still cost, in nats, −ln of its share? It need not fall with each part.",
      more: drawBlock,
    },
    {
      title: "Break it",
      scene: atEnd,
      says: ({ name, after, state }) => (state.removed.length ? "It still looks, but nothing of it arrives. Drag the slider: " +
        "from which step on does it matter?" : `Knock out one head, ${name}. Will the best guess, ${word(after.best)}, change?`),
      more: askBreak,
    },
    {
      title: "Another seed",
      scene: seedScene,
      says: ({ state }) => {
        const { layer, head } = asked ?? state;
        return `With seed ${Runs.get("0").seed} “${roleAt("0", { layer, head }) ?? View.NO_ROLE}” is head ` +
          `${Levers.nameOf(layer, head)}. Train once more, from other random numbers: will the same head be it?`;
      },
      more: askSeed,
    },
    {
      title: "Your score",
      scene: () => ({}),
      says: () => "Type a sentence of your own, hide another word, pull a lever: all is computed again, in this page. " +
        "A weight says how much of a value is taken, not why.",
      more: drawScore,
    },
  ];

  // ---- where the reader is

  const count = SCREENS.length;
  const scene = (screen, state) => ({ covered: false, ...SCREENS[screen - 1].scene(state), story: screen });

  function go(screen) {
    act(scene(screen, seen.state), `screen ${screen}`);
    arrive(screen);
    sections[screen - 1].querySelector("h2").focus({ preventScroll: true });
  }

  const arrive = (screen) => sections[screen - 1].scrollIntoView({ block: "start" });

  function watch() {
    for (const event of ["wheel", "touchmove"]) addEventListener(event, () => { scrolled = true; }, { passive: true });
    addEventListener("keydown", ({ key }) => { scrolled ||= ["PageDown", "PageUp", " "].includes(key); });
    const observer = new IntersectionObserver((entries) => {
      const there = entries.find(({ isIntersecting }) => isIntersecting);
      const screen = there ? sections.indexOf(there.target) + 1 : 0;
      if (scrolled && screen && screen !== seen.state.story) act(scene(screen, seen.state), "story");
    }, { rootMargin: "-60% 0px -39% 0px" });
    sections.forEach((section) => observer.observe(section));
  }

  // The screen that is read follows the stage. The others are drawn with a new sentence and after a bet, and tell nothing
  // while the guesses are covered.
  function draw(now) {
    seen = now;
    const { covered, words, hidden, story } = now.state;
    if (!covered && !won.has(1)) won.set(1, null);
    const all = JSON.stringify([covered, words, hidden, [...won]]);
    const isNew = all !== drawn;
    drawn = all;
    SCREENS.forEach((screen, i) => {
      const current = i + 1 === (story ?? 1);
      sections[i].classList.toggle("current", current);
      if (current || isNew) drawScreen(screen, sections[i], now, covered && i > 0);
    });
  }

  function drawScreen({ says, more }, section, now, isSecret) {
    const key = JSON.stringify([now.state, now.stop.step, isSecret, [...won]]);
    if (section.dataset.drawn === key) return; // not under the hands of who is typing
    section.dataset.drawn = key;
    const text = now.after ? says(now) : "Nothing is hidden: choose a word, and hide it.";
    section.querySelector(".says").textContent = isSecret ? "" : text;
    section.querySelector(".more").replaceChildren(...((!isSecret && now.after && more?.(now)) || []));
  }

  function start(app, onAct) {
    [act, language] = [onAct, app.language];
    sections = SCREENS.map(({ title }, i) => {
      const move = (text, to, attributes) => (to >= 1 && to <= count ? button(text, () => go(to), attributes) : "");
      return element("section", { class: "screen", "aria-label": `screen ${i + 1} of ${count}` },
        element("h2", { tabindex: "-1" }, `${i + 1} · ${title}`),
        element("p", { class: "says" }), element("div", { class: "more" }), i === 5 ? byId("grow-card") : "",
        element("p", { class: "row" }, move("back", i), move("next", i + 2, { class: "next" })));
    });
    byId("story").replaceChildren(...sections);
    watch();
  }

  const stepOf = (parts) => Address.whole(parts.get("story"), 1, count);

  return { start, draw, scene, stepOf, arrive };
})();
